"""Says what it is in a dict."""

from tuichat.api import hookimpl


@hookimpl
def tuichat_backend():
    return {"title": "Wrong type", "api_version": 1}
