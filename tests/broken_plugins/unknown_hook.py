"""A misspelt hook name: pluggy alone would stay silent."""

from tuichat.api import BackendInfo, hookimpl


@hookimpl
def tuichat_backend():
    return BackendInfo(title="Unknown hook", api_version=1)


@hookimpl
def tuichat_asemble_prompt(loaded, conversation):
    return None
