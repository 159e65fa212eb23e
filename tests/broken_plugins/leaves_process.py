"""Starts a process that holds every descriptor it got, and works."""

import os
import time
from pathlib import Path

from tuichat.api import BackendInfo, hookimpl

if os.fork() == 0:
    time.sleep(3600)
    os._exit(0)
Path(os.environ["TUICHAT_HOME"], "left-behind").write_text(str(os.getpgrp()))


@hookimpl
def tuichat_backend():
    return BackendInfo(title="Leaves a process", api_version=1)
