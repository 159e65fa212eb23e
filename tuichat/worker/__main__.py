"""``python -m tuichat.worker FD``: the worker process.

Owns the process: its log, its end. The listening socket is inherited as file descriptor FD, so a
client can connect before Python has even started; the spec comes on stdin, because arguments can
be read by every user of the machine. Invariant: nothing that any library prints reaches a screen,
stdout and stderr are the worker's log.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import sys

import msgspec

from tuichat.worker.protocol import WorkerSpec
from tuichat.worker.server import Server


async def _serve(listener: socket.socket, spec: WorkerSpec) -> None:
    code = 0
    try:
        await Server(listener, spec).serve()
    except Exception:
        logging.getLogger(__name__).exception("the worker failed")
        code = 1
    # From inside the loop: outside, it would wait for threads, and a load, an unload or a hook
    # that hangs cannot be interrupted; the process is what ends.
    logging.shutdown()
    os._exit(code)


def main() -> None:
    """Serve until there is no reason to live, then leave without waiting for anybody's threads."""
    faulthandler.enable()
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.captureWarnings(True)
    # A closed terminal is not a reason to end; the last client's going is, once all is written.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkerSpec)
    listener = socket.socket(fileno=int(sys.argv[1]))
    asyncio.run(_serve(listener, spec))


if __name__ == "__main__":
    main()
