"""The describing subprocess: ``python -m tuichat.pluginhost.describe_main NAME SECONDS``.

Owns the one import of a plugin outside a worker. Invariant: exactly one JSON object goes to the
standard output it was started with, and nothing that the plugin prints, by whatever means; if the
plugin ends the process, hangs or crashes, nothing does, and the caller says so.
"""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from tuichat.api import BackendError, BackendInfo
from tuichat.pluginhost.failures import traceback_text


class Answer(msgspec.Struct, frozen=True):
    """What the subprocess found out: ``info``, or ``problem`` with the log of it in ``trace``."""

    info: BackendInfo | None = None
    problem: str | None = None
    trace: str = ""


def answer_for(name: str) -> Answer:
    """Import, check and ask the backend ``name``."""
    import logging

    from tuichat.pluginhost.refs import find_backend
    from tuichat.pluginhost.registry import register

    log: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log.append(record.getMessage())

    # Only what this package logs: what a plugin logs while it is imported is nobody's business.
    logger = logging.getLogger("tuichat.pluginhost")
    logger.addHandler(Collect())
    logger.setLevel(logging.INFO)
    try:
        return Answer(info=register(find_backend(name)).info)
    except BackendError as error:
        return Answer(problem=str(error), trace="\n".join(log))
    except BaseException as error:  # a fault of ours; it still costs only this line
        return Answer(problem=f"Backend {name!r} cannot be described", trace=traceback_text(error))


def main() -> None:
    """Answer on the standard output, which nothing else can reach, and end at once."""
    name, seconds = sys.argv[1], int(sys.argv[2])
    # The caller kills this process when the time is up; should the caller be dead by then, the
    # alarm does.
    signal.alarm(seconds)
    answer = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    message = msgspec.json.encode(answer_for(name))
    while message:
        message = message[os.write(answer, message) :]
    # Threads and exit handlers that the plugin left behind are not waited for, and processes that
    # it started end with this one: it leads a session of its own.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
