"""Forgot to mark its hook."""

from tuichat.api import BackendInfo


def tuichat_backend():
    return BackendInfo(title="No hook", api_version=1)
