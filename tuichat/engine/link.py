"""The engine's line to its worker.

Owns the connection, the phase of the worker and the replies that are under way there: whether and
when they are delivered is decided here and nowhere else. Refuses to know the store and the screen.
Invariant: while a reply is under way there is a connection, or one is being made, or the reply is
being given up; so every reply handed to ``run`` ends in exactly one ``ReplyEnded``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable

import msgspec

from tuichat.api import TuichatError, WorkerError
from tuichat.engine import events, workers
from tuichat.engine.rate import RateMeter
from tuichat.engine.selection import Selection
from tuichat.worker import protocol

log = logging.getLogger(__name__)

DELIVERIES = 2
"""How often a reply is handed to a worker that ends before it takes it."""

Undelivered = Callable[[list[int], str], Awaitable[None]]
"""Ends replies that no worker has taken, with the sentence why."""

Lost = Callable[[list[int], str], Awaitable[None]]
"""Ends replies whose worker was lost from sight, by what the store says of them; the sentence is
for those whose worker died."""


class WorkerLink:
    """One worker at a time, started when it is needed.

    Args:
        choose: what to connect to; raises TuichatError when there is nothing.
        emit: takes the events, in order.
        undelivered: see ``Undelivered``.
        lost: see ``Lost``.
    """

    def __init__(
        self,
        choose: Callable[[], Awaitable[Selection]],
        emit: Callable[[events.Event], None],
        undelivered: Undelivered,
        lost: Lost,
    ) -> None:
        self._choose = choose
        self._emit = emit
        self._undelivered = undelivered
        self._lost = lost
        self._connection: workers.Connection | None = None
        self._connecting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._delivering: asyncio.Task[None] | None = None
        self._rate = RateMeter()
        self._asked: dict[int, protocol.Run] = {}
        self._accepted: set[int] = set()
        self._delivered: dict[int, int] = {}
        self._selection: Selection | None = None
        self._load_error: str | None = None
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

    async def connect(self) -> None:
        """Have a connection; returns before the model is loaded.

        Raises:
            TuichatError: there is nothing to connect to; what was asked for is given up.
        """
        async with self._connecting:
            if self._connection is not None:
                return
            self._load_error = None
            self._set_phase("starting")
            try:
                selection = await self._choose()
                connection = await workers.connect(selection.spec)
            except Exception as error:
                failure = error if isinstance(error, TuichatError) else _unforeseen(error)
                self._set_phase("failed", str(failure))
                await self._give_up(list(self._asked), str(failure))
                raise failure from None
            self._selection, self._connection = selection, connection
            self._set_phase("loading")
            self._start(self._read(connection))
            # Replies that the last worker never took go to this one, in their order.
            for frame in list(self._asked.values()):
                self._send_run(frame)

    def run(self, frame: protocol.Run) -> None:
        """Have a reply generated, now or as soon as a worker is connected."""
        self._asked[frame.reply_id] = frame
        self._delivered[frame.reply_id] = 0
        if self._connection is not None:
            self._send_run(frame)
        else:
            self._deliver()

    def stop(self, reply_id: int) -> bool:
        """Stop a reply; False when no worker has it."""
        frame = self._asked.get(reply_id)
        if self._connection is None or frame is None:
            return False
        self._connection.send(protocol.Stop(reply_id, frame.store))
        return True

    def forget(self, reply_id: int) -> None:
        """A reply that was ended elsewhere."""
        self._asked.pop(reply_id, None)
        self._delivered.pop(reply_id, None)
        self._accepted.discard(reply_id)

    def measure(self, width: int, height: int) -> None:
        """Ask what an image costs, if a worker is there."""
        if self._connection is not None:
            self._connection.send(protocol.Measure(width, height))

    async def close(self) -> None:
        """Leave; the worker finishes what it has."""
        connection, self._connection = self._connection, None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if connection is not None:
            await connection.close()

    # ------------------------------------------------------------------ delivery

    def _start(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _deliver(self) -> None:
        if self._delivering is None or self._delivering.done():
            self._delivering = self._start(self._connect_for_asked())

    async def _connect_for_asked(self) -> None:
        # Once more for a reply that was asked for while the others were given up.
        while self._asked and self._connection is None:
            with contextlib.suppress(TuichatError):
                await self.connect()

    def _send_run(self, frame: protocol.Run) -> None:
        assert self._connection is not None
        assert self._selection is not None
        self._delivered[frame.reply_id] += 1
        options = self._selection.turn_options
        self._connection.send(msgspec.structs.replace(frame, options=options))

    async def _give_up(self, replies: list[int], sentence: str) -> None:
        for reply_id in replies:
            self.forget(reply_id)
        if replies:
            await self._undelivered(replies, sentence)

    # ------------------------------------------------------------------ what the worker says

    def _set_phase(self, phase: events.WorkerPhase, error: str | None = None) -> None:
        self.phase = phase
        if phase != "ready":
            self.ready = None
        self._emit(events.WorkerChanged(phase, error))

    async def _read(self, connection: workers.Connection) -> None:
        async for frame in connection.frames():
            self._take(frame)
        # From here on, without an await between, a new reply finds no connection and asks for one.
        self._connection = None
        lost = [reply for reply in self._asked if reply in self._accepted]
        if self._load_error is not None:
            self._set_phase("failed", self._load_error)
        else:
            self._set_phase("absent")
        for reply_id in lost:
            self.forget(reply_id)
        await connection.close()
        if self._load_error is not None:
            await self._give_up(list(self._asked), self._load_error)
        assert self._selection is not None
        status = await connection.exit_status()
        sentence = _obituary(status, self._selection.spec.identity)
        if self._load_error is None and not lost and status not in (0, None):
            # Where replies were lost, their ends say it.
            self._emit(events.WorkerChanged(self.phase, sentence))
        if lost:
            # By itself: a worker that lives on may take its time to end what it has.
            self._start(self._lost(lost, sentence))
        again = [reply for reply, times in self._delivered.items() if times >= DELIVERIES]
        await self._give_up(again, sentence)
        if self._asked and self._connection is None:
            self._deliver()

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
                if self.ready is None:
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
                self.forget(reply_id)
                self._emit(events.ReplyEnded(reply_id, frame.state, frame.error))


def _unforeseen(error: Exception) -> WorkerError:
    log.error("no connection to a worker", exc_info=error)
    return WorkerError(
        f"The worker could not be started ({type(error).__name__}: {error}): the log has the "
        "details."
    )


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
        f"The worker {why}; what it had answered is kept, and the next message starts a new "
        f"worker (log: {workers.log_path(identity)})."
    )
