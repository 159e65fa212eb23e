"""Imports something heavy at module level; works, late."""

import time

from tuichat.api import BackendInfo, hookimpl

time.sleep(1.5)


@hookimpl
def tuichat_backend():
    return BackendInfo(title="Slow", api_version=1, default_model="slow")
