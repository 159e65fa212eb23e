"""Imports torch at module level, so that every list of backends would."""

import torch  # noqa: F401

from tuichat.api import BackendInfo, hookimpl


@hookimpl
def tuichat_backend():
    return BackendInfo(title="Imports torch", api_version=1, default_model="any")
