"""Who is alive, and who holds what: advisory locks that die with their process.

Owns the ``owners`` and ``holds`` folders of a store. Refuses to know what is owned. Invariant: a
token is alive exactly while the process that registered it lives and has not released it; no pid is
ever trusted, since pids are reused and mean nothing on another machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

_NAME = re.compile(r"[0-9A-Za-z_-]{1,64}")

# Every lock of this process. A forked child shares the descriptors, and with them the locks, and
# would keep its dead parent "alive".
_held: weakref.WeakSet[FileLock] = weakref.WeakSet()
_held_guard = threading.Lock()


class FileLock:
    """An exclusive lock on a file, released by ``release()`` or the end of the process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor
        with _held_guard:
            _held.add(self)

    @classmethod
    def take(cls, path: Path) -> FileLock | None:
        """Lock ``path``, made if need be; None when a living process has it.

        Raises:
            OSError: the file cannot be made, or the file system has no locks.
        """
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink:
                    return cls(path, descriptor)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            # Between opening and locking, its last holder removed the file: that lock is nobody's.
            os.close(descriptor)

    @property
    def held(self) -> bool:
        """False once it was given back."""
        return self._descriptor is not None

    def release(self) -> None:
        """Give the lock back and remove its file. Does nothing the second time."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):  # a lock file that stays is harmless
            self.path.unlink()
        self.abandon()

    def abandon(self) -> None:
        """Close this process's copy of the descriptor and leave the lock itself alone."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.abandon()


class SessionHold(FileLock):
    """This process has the session open; another window is told so."""


class Owner(FileLock):
    """A living poster or worker, known to others by its token."""

    @property
    def token(self) -> str:
        """What is written into the rows of the replies that it posts or claims."""
        return self.path.name


def register_owner(folder: Path) -> Owner:
    """A new living owner in ``folder``. Also sweeps what the dead left there.

    Raises:
        OSError: the folder cannot be written.
    """
    for name in os.listdir(folder):  # noqa: PTH208 - names are wanted, not paths
        _sweep(folder / name)
    while True:
        owner = Owner.take(folder / f"{os.getpid()}-{secrets.token_hex(6)}")
        if isinstance(owner, Owner):
            return owner


def alive(path: Path) -> bool:
    """Whether a living process holds the lock on ``path``."""
    if not _NAME.fullmatch(path.name):
        return False
    with _held_guard:
        if any(lock.path == path and lock.held for lock in _held):
            return True  # on NFS a process does not see its own lock
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared, so that two who ask at the same time do not take each other for the owner.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _sweep(path: Path) -> None:
    with contextlib.suppress(OSError):
        if not alive(path) and (lock := FileLock.take(path)) is not None:
            lock.release()


def _forget_in_child() -> None:
    global _held_guard
    _held_guard = threading.Lock()  # another thread may have held it when this one forked
    for lock in _held:
        lock.abandon()


os.register_at_fork(after_in_child=_forget_in_child)
