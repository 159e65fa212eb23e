"""Writes to every output it can find, escape sequences included, and is fine otherwise."""

import os
import subprocess
import sys

from tuichat.api import BackendInfo, hookimpl

LOUD = "\x1b]0;owned\x07\x1b[2J LOUD PLUGIN"

print(LOUD)
print(LOUD, file=sys.stderr)
print(LOUD, file=sys.__stdout__)
os.write(1, LOUD.encode())
os.write(2, LOUD.encode())
subprocess.run(["/bin/echo", LOUD], check=True)


@hookimpl
def tuichat_backend():
    print(LOUD)
    return BackendInfo(title="Prints", api_version=1, default_model="prints")
