"""Its hook is a generator function, so it would answer for every model."""

from tuichat.api import BackendInfo, Delta, hookimpl


@hookimpl
def tuichat_backend():
    return BackendInfo(title="Generator", api_version=1)


@hookimpl
def tuichat_generate(loaded, prompt, params, control):
    yield Delta("hello")
