"""The log file of this process.

Owns where log records and library warnings go. Refuses to know who writes them; a worker has a log
of its own beside this one. Invariant: once ``start_logging`` ran, none of them lands on a screen.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from tuichat import paths
from tuichat.sanitize import sanitize

_LIMIT = 4 * 1024 * 1024
"""Bytes; a file that is longer is set aside, and the one set aside before is dropped."""


class _Lines(logging.Formatter):
    """What is logged is text from outside too, and somebody will ``cat`` the log."""

    def format(self, record: logging.LogRecord) -> str:
        return sanitize(super().format(record))


class _LogFile(logging.FileHandler):
    """Opens its file, and makes the folder, at the first record: no record, no file.

    A log that cannot be written (full disk) is given up without a word: a traceback over the chat
    would help nobody.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", delay=True)

    def _open(self):  # type: ignore[no-untyped-def]  # typeshed keeps the return type private
        path = Path(self.baseFilename)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > _LIMIT:
            path.replace(path.with_suffix(".log.1"))
        return super()._open()

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        pass


def log_path() -> Path:
    """The log of this program."""
    return paths.state_dir() / "tuichat.log"


def start_logging() -> None:
    """Send every log record and library warning to the file."""
    root = logging.getLogger()
    if any(isinstance(handler, _LogFile) for handler in root.handlers):
        return
    handler = _LogFile(log_path())
    handler.setFormatter(_Lines("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
