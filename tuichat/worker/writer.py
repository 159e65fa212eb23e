"""The writer of one reply.

Owns the thread between the decode loop and the store. Refuses to know models and sockets.
Invariant: the decode loop never waits for a disk, a piece of text is committed before it is
announced, and where the store fails the text is kept and tried again, never dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tuichat.api import StoreError
from tuichat.store import ReplyLost

if TYPE_CHECKING:
    from tuichat.store import Store

COMMIT_INTERVAL = 0.02
"""Seconds between two commits at least: 50 a second are as smooth as a terminal can be."""

ANNOUNCED = 100_000
"""Characters of one announcement at most, far below the bound on a frame."""

RETRY_INTERVAL = 1.0
"""Seconds before a store that failed is tried again."""


class ReplyWriter:
    """Commits what a decode loop pushes, and announces it.

    Args:
        store: where the reply lives.
        reply_id: a reply that ``owner`` has claimed.
        announce: called from the writer's thread with (seq, text, thinking) after each commit.
        complain: called once with the sentence when the store starts to fail.
    """

    def __init__(
        self,
        store: Store,
        reply_id: int,
        owner: str,
        announce: Callable[[int, str, str], None],
        complain: Callable[[str], None],
    ) -> None:
        self._store = store
        self._reply_id = reply_id
        self._owner = owner
        self._announce = announce
        self._complain = complain
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._unsaved: tuple[str, str] = ("", "")
        self._seq = 0
        self._lost: ReplyLost | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"writer-{reply_id}", daemon=True)
        self._thread.start()

    def push(self, text: str, thinking: str = "") -> None:
        """Hand over a piece of the reply; returns at once.

        Raises:
            ReplyLost: the reply was ended elsewhere, so there is no use in going on.
        """
        if self._lost is not None:
            raise self._lost
        with self._changed:
            if text:
                self._text.append(text)
            if thinking:
                self._thinking.append(thinking)
            self._changed.notify()

    def close(self) -> None:
        """End the thread, once all that was pushed was announced and offered to the store."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def save_rest(self) -> None:
        """After ``close``: offer the store again what it would not take.

        Raises:
            StoreError: it still will not.
        """
        if self._unsaved != ("", ""):
            self._append(self._unsaved)

    def _run(self) -> None:
        last_try = 0.0
        while True:
            with self._changed:
                while not (self._text or self._thinking or self._closing):
                    # An unsaved rest is tried again even when the model is slow.
                    timeout = RETRY_INTERVAL if self._unsaved != ("", "") else None
                    if not self._changed.wait(timeout):
                        break
                closing = self._closing
                text, thinking = "".join(self._text), "".join(self._thinking)
                self._text.clear()
                self._thinking.clear()
            self._commit(
                text, thinking, retry=closing or time.monotonic() - last_try > RETRY_INTERVAL
            )
            last_try = time.monotonic()
            if closing:
                return
            time.sleep(COMMIT_INTERVAL)

    def _commit(self, text: str, thinking: str, *, retry: bool) -> None:
        failing = self._unsaved != ("", "")
        rest = (self._unsaved[0] + text, self._unsaved[1] + thinking)
        if rest == ("", ""):
            return
        self._unsaved = rest
        if retry or not failing:
            try:
                self._append(rest)
            except ReplyLost as error:
                self._lost = error
            except StoreError as error:
                if not failing:
                    self._complain(str(error))
        # What the store would not take is shown all the same: the reader was told of it above.
        for start in range(0, max(len(text), len(thinking)), ANNOUNCED):
            piece = slice(start, start + ANNOUNCED)
            self._announce(self._seq, text[piece], thinking[piece])

    def _append(self, rest: tuple[str, str]) -> None:
        self._store.append(self._reply_id, self._seq + 1, *rest, owner=self._owner)
        self._seq += 1
        self._unsaved = ("", "")
