"""What the worker's threads hand to each other.

Owns the name of a reply, the reader's hand on it, and the stores that replies live in. Refuses to
know models and sockets. Invariant: a reply is named by its store and its id there, since ids of
different stores are alike; a store is open as long as a client or a reply of it is here.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tuichat.api import StoreError
from tuichat.worker import protocol

if TYPE_CHECKING:
    from tuichat.store import Owner, Store

Key = tuple[str, int]
"""A reply: the root of its store, and its id there."""


class Emit(Protocol):
    """Takes frames, from any thread; those about a reply go to the client that asked for it."""

    def __call__(
        self, frame: protocol.WorkerFrame | protocol.Idle, about: Key | None = None
    ) -> None: ...


@dataclass(slots=True)
class Job:
    """One reply to run, and the reader's hand on it (a ``tuichat.api.Control``)."""

    run: protocol.Run
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def key(self) -> Key:
        """Which reply it is."""
        return self.run.store, self.run.reply_id

    @property
    def stopped(self) -> bool:
        """True once the reader asked to stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Ask the reply to end."""
        self._stop.set()


class StoreSet:
    """The stores that clients named, each opened once, with this process as an owner in it."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Store, Owner]] = {}
        self._lock = threading.Lock()

    def get(self, root: str) -> tuple[Store, Owner]:
        """The store at ``root`` and this worker's ownership there.

        Raises:
            StoreError: there is none, or it cannot be opened.
        """
        from tuichat.store import Store

        with self._lock:
            if root not in self._open:
                if not Path(root).is_dir():  # a temporary one whose client has left
                    raise StoreError(f"The store in {root} is gone: send the message again.")
                store = Store.open(Path(root))
                self._open[root] = (store, store.register_owner())
            return self._open[root]

    def close_but(self, roots: set[str]) -> None:
        """Close every store that is not among ``roots``."""
        with self._lock:
            closing = [self._open.pop(root) for root in self._open.keys() - roots]
        for store, owner in closing:
            owner.release()
            store.close()
