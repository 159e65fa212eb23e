"""Written for a plugin API that is no more."""

from tuichat.api import BackendInfo, hookimpl


@hookimpl
def tuichat_backend():
    return BackendInfo(title="Past", api_version=0)
