"""A hook takes an argument that its specification does not have."""

from tuichat.api import BackendInfo, hookimpl


@hookimpl
def tuichat_backend():
    return BackendInfo(title="Unknown argument", api_version=1)


@hookimpl
def tuichat_load(request, progress, gpu_count):
    return None
