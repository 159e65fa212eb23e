"""The engine's line to its worker.

Owns the connection, the phase of the worker and the replies that are under way there. Refuses to
know the store and the screen. Invariant: every reply handed to ``run`` ends in exactly one
``ReplyEnded``: by the worker's word, or, when the worker is gone, by ``abandoned``.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tuichat.api import TuichatError
from tuichat.engine import events, workers
from tuichat.engine.rate import RateMeter
from tuichat.worker import protocol

log = logging.getLogger(__name__)

Abandoned = Callable[[list[int], str, bool], Awaitable[None]]
"""Called with reply ids, the sentence, and whether the model could not even be loaded."""


class WorkerLink:
    """One worker at a time, started when it is needed.

    Args:
        emit: takes the events, in order.
        abandoned: ends the replies in the store that no worker will end.
    """

    def __init__(self, emit: Callable[[events.Event], None], abandoned: Abandoned) -> None:
        self._emit = emit
        self._abandoned = abandoned
        self._connection: workers.Connection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._rate = RateMeter()
        self._asked: dict[int, protocol.Run] = {}
        self._accepted: set[int] = set()
        self._load_error: str | None = None
        self.turn_options: dict[str, Any] = {}
        """The backend's turn-scoped options, known once the backend has described itself."""
        self.phase: events.WorkerPhase = "absent"
        self.ready: events.ModelReady | None = None

    @property
    def active(self) -> tuple[int, ...]:
        """Replies that were asked for and have not ended, oldest first."""
        return tuple(self._asked)

    @property
    def pid(self) -> int | None:
        """The worker's process id."""
        return self._connection.pid if self._connection is not None else None

    async def connect(self, spec: protocol.WorkerSpec) -> None:
        """Connect to the worker of ``spec``; returns before its model is loaded.

        Raises:
            WorkerError: it cannot be started.
        """
        async with self._connecting:
            if self._connection is not None:
                return
            self._load_error = None
            self._set_phase("starting")
            try:
                self._connection = await workers.connect(spec)
            except TuichatError as error:
                self._set_phase("failed", str(error))
                raise
            self._set_phase("loading")
            # Replies that the last worker never took go to this one, in their order.
            for frame in self._asked.values():
                self._send_run(frame)
            self._reader = asyncio.create_task(self._read(self._connection, spec))

    def run(self, frame: protocol.Run) -> None:
        """Ask for a reply, now or as soon as a worker is connected."""
        self._asked[frame.reply_id] = frame
        self._send_run(frame)

    def _send_run(self, frame: protocol.Run) -> None:
        if self._connection is not None:
            self._connection.send(msgspec.structs.replace(frame, options=self.turn_options))

    async def abandon(self, reply_id: int, sentence: str) -> None:
        """End a reply for which there will be no worker."""
        if self._asked.pop(reply_id, None) is not None:
            await self._abandoned([reply_id], sentence, True)

    def stop(self, reply_id: int) -> bool:
        """Stop a reply; False when no worker has it."""
        if self._connection is None or reply_id not in self._asked:
            return False
        self._connection.send(protocol.Stop(reply_id))
        return True

    def forget(self, reply_id: int) -> None:
        """A reply that was ended elsewhere."""
        self._asked.pop(reply_id, None)

    def measure(self, width: int, height: int) -> None:
        """Ask what an image costs, if a worker is there."""
        if self._connection is not None:
            self._connection.send(protocol.Measure(width, height))

    async def close(self) -> None:
        """Leave; the worker finishes what it has."""
        reader, self._reader = self._reader, None
        connection, self._connection = self._connection, None
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        if connection is not None:
            await connection.close()

    # ------------------------------------------------------------------ what the worker says

    def _set_phase(self, phase: events.WorkerPhase, error: str | None = None) -> None:
        self.phase = phase
        if phase != "ready":
            self.ready = None
        self._emit(events.WorkerChanged(phase, error))

    async def _read(self, connection: workers.Connection, spec: protocol.WorkerSpec) -> None:
        async for frame in connection.frames():
            self._take(frame)
        await connection.close()
        self._connection = None
        if self._load_error is not None:
            await self._give_up(list(self._asked), self._load_error, unloaded=True)
            self._set_phase("failed", self._load_error)
            return
        # A worker that was just ending never took what was sent to it last: another one will.
        untaken = [reply for reply in self._asked if reply not in self._accepted]
        lost = [reply for reply in self._asked if reply in self._accepted]
        status = await connection.exit_status()
        died = status != 0 or bool(lost)
        sentence = _obituary(status, spec.identity)
        await self._give_up(lost, sentence, unloaded=False)
        if untaken and died:
            await self._give_up(untaken, sentence, unloaded=True)
            untaken = []
        self._set_phase("absent", sentence if died else None)
        if untaken:
            try:
                await self.connect(spec)
            except TuichatError as error:
                await self._give_up(untaken, str(error), unloaded=True)

    async def _give_up(self, replies: list[int], sentence: str, *, unloaded: bool) -> None:
        for reply_id in replies:
            self._asked.pop(reply_id, None)
            self._accepted.discard(reply_id)
        if replies:
            await self._abandoned(replies, sentence, unloaded)

    def _take(self, frame: protocol.WorkerFrame) -> None:
        match frame:
            case protocol.Loading():
                rate, remaining = self._rate.update(frame.stage, frame.done, frame.total)
                self._emit(
                    events.LoadProgressed(
                        frame.stage,
                        frame.done,
                        frame.total,
                        frame.unit,
                        frame.detail,
                        rate,
                        remaining,
                    )
                )
            case protocol.Ready():
                self._set_phase("ready")
                self.ready = events.ModelReady(
                    frame.load_s, frame.facts, frame.dtype, frame.dtype_reason
                )
                self._emit(self.ready)
            case protocol.LoadFailed():
                self._load_error = frame.error
            case protocol.Cost():
                self._emit(events.ImageCosts(frame.width, frame.height, frame.tokens))
            case protocol.Notice():
                self._emit(events.Noticed(frame.text))
            case protocol.Welcome():
                pass
            case _:
                self._take_reply(frame)

    def _take_reply(
        self, frame: protocol.Accepted | protocol.Started | protocol.Text | protocol.Finished
    ) -> None:
        reply_id = frame.reply_id
        if reply_id not in self._asked:
            return
        match frame:
            case protocol.Accepted():
                self._accepted.add(reply_id)
                self._emit(events.ReplyQueued(reply_id, frame.ahead))
            case protocol.Started():
                self._emit(
                    events.ReplyStarted(
                        reply_id, frame.prompt_tokens, frame.image_tokens, frame.notices
                    )
                )
            case protocol.Text():
                self._emit(events.ReplyExtended(reply_id, frame.text, frame.thinking))
            case protocol.Finished():
                del self._asked[reply_id]
                self._accepted.discard(reply_id)
                self._emit(events.ReplyEnded(reply_id, frame.state, frame.error))


def _obituary(status: int | None, identity: str) -> str:
    """One sentence about a worker that is gone."""
    if status is not None and status < 0:
        name = signal.Signals(-status).name
        why = f"was ended by {name}" + (
            ", often because memory ran out" if name == "SIGKILL" else ""
        )
    elif status:
        why = f"ended with status {status}"
    else:
        why = "ended"
    return (
        f"The worker {why}; the reply is kept as far as it came, the next message starts a new "
        f"worker (log: {workers.log_path(identity)})."
    )
