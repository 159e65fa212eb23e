"""Replies that no worker ends.

Owns what becomes of a reply that no worker took, and of one whose worker was lost from sight.
Refuses to know connections. Invariant: the store decides; a reply is interrupted only when the
process that answers for it is dead, and each reply ends in one ``ReplyEnded``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from tuichat.api import StoreError
from tuichat.engine.events import Event, ReplyEnded
from tuichat.store import Store

log = logging.getLogger(__name__)

WATCH_S = 0.1
"""Seconds between two looks at a reply whose worker was lost from sight."""


class Endings:
    """The ends of one engine's replies, in its store."""

    def __init__(self, store: Store, emit: Callable[[Event], None]) -> None:
        self._store = store
        self._emit = emit

    async def undelivered(self, replies: Sequence[int], sentence: str) -> None:
        """End replies that no worker has taken."""

        def decline(reply_id: int) -> None:
            self._store.decline(reply_id, "failed", stop_reason="error", error=sentence)

        for reply_id in replies:
            try:
                await asyncio.to_thread(decline, reply_id)
            except StoreError as error:
                log.warning("reply %d: %s", reply_id, error)
            self._emit(ReplyEnded(reply_id, "failed", sentence))

    async def stopped(self, reply_id: int) -> None:
        """End a reply that was stopped before any worker took it."""
        await asyncio.to_thread(
            lambda: self._store.decline(reply_id, "stopped", stop_reason="stopped")
        )
        self._emit(ReplyEnded(reply_id, "stopped", None))

    async def lost(self, replies: Sequence[int], sentence: str) -> None:
        """End replies whose worker was lost from sight, once it has ended them or has died."""
        for reply_id in replies:
            try:
                while (ended := await asyncio.to_thread(self._look, reply_id, sentence)) is None:
                    await asyncio.sleep(WATCH_S)
            except StoreError as error:
                log.warning("reply %d: %s", reply_id, error)
                ended = ReplyEnded(reply_id, "interrupted", sentence)
            self._emit(ended)

    def _look(self, reply_id: int, sentence: str) -> ReplyEnded | None:
        """How a reply ended, interrupting it when its writer is dead; None while it goes on."""
        turn = self._store.turn(reply_id)
        if turn.state in ("queued", "running"):
            writer = turn.owner if turn.state == "running" else turn.poster
            if self._store.owner_alive(writer or ""):
                return None
            self._store.interrupt(reply_id, sentence)
            turn = self._store.turn(reply_id)
        state = turn.state
        if state == "queued" or state == "running":
            return None
        return ReplyEnded(reply_id, state, turn.error)
