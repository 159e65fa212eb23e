"""A field of its BackendInfo is of another type than declared."""

from tuichat.api import BackendInfo, KnownModel, hookimpl


@hookimpl
def tuichat_backend():
    return BackendInfo(title="Wrong field", api_version=1, models=[KnownModel(id=7)])
