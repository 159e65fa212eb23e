"""Registers under a name that another distribution has."""

from tuichat.api import BackendInfo, hookimpl


@hookimpl
def tuichat_backend():
    return BackendInfo(title="Duplicate", api_version=1)
