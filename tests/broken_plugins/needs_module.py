"""Declares a module that is not installed."""

from tuichat.api import BackendInfo, hookimpl


@hookimpl
def tuichat_backend():
    return BackendInfo(
        title="Needs", api_version=1, requires=("json", "a_module.that_is_not_installed")
    )
