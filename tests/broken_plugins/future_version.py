"""Written for a plugin API that does not exist yet, with hooks of that version."""

from tuichat.api import BackendInfo, hookimpl


@hookimpl
def tuichat_backend():
    return BackendInfo(title="Future", api_version=99)


@hookimpl
def tuichat_read_minds(loaded, reader):
    return None
