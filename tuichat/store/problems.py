"""What can go wrong with a disk, in sentences.

Owns the translation of SQLite's and the operating system's errors into ``StoreError``. Refuses to
know what was being done. Invariant: no other exception of theirs leaves the store.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from tuichat.api import StoreError
from tuichat.sanitize import sanitize_line

log = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class ReplyLost(StoreError):
    """The reply is not this owner's any more: it was interrupted, or another worker has it."""


@contextlib.contextmanager
def translated(root: Path) -> Iterator[None]:
    """Turn whatever SQLite or the disk under ``root`` raises into one sentence."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        log.warning("store %s: %r", root, error)
        raise _sentence(error, root) from error


def shown(path: Path) -> str:
    """``path`` for a sentence."""
    return sanitize_line(str(path))


def _sentence(error: sqlite3.Error | OSError, root: Path) -> StoreError:
    where = shown(root)
    match _kind(error, root):
        case "full":
            return StoreError(f"The disk is full, so {where} could not save: free space, try again")
        case "readonly":
            return StoreError(
                f"{where} may not be written: change its permissions, "
                "or set TUICHAT_HOME to a folder of yours"
            )
        case "busy":
            return StoreError(
                f"{where} has been locked by another program for too long: "
                "end that program (or wait for it) and try again"
            )
        case "corrupt":
            return StoreError(
                f"The database in {where} is damaged: move tuichat.db elsewhere to start afresh, "
                "or put a copy from its backups folder in its place"
            )
        case "closed":
            return StoreError(f"The store in {where} is closed already: start tuichat again")
    return StoreError(
        f"{where} could not be read or written ({sanitize_line(str(error))}): check the disk"
    )


def _kind(error: sqlite3.Error | OSError, root: Path) -> str:
    if isinstance(error, OSError):
        if error.errno in _FULL:
            return "full"
        return "readonly" if error.errno in _FORBIDDEN else "other"
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return "closed"
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
    match code:
        case sqlite3.SQLITE_FULL:
            return "full"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return "readonly"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return "busy"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return "corrupt"
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_IOERR:
            # SQLite does not keep the reason: ask the disk.
            if _is_full(root):
                return "full"
            return "other" if os.access(root, os.R_OK | os.W_OK | os.X_OK) else "readonly"
    return "other"


def _is_full(root: Path) -> bool:
    try:
        info = os.statvfs(root)
    except OSError:
        return False
    return info.f_bavail * info.f_frsize < 65536
