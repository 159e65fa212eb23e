"""The thread that owns the model.

Owns the load, the queue of replies and the run of each. Refuses to know sockets and clients: it
emits frames. Invariant: one model, one thread, replies strictly in the order in which they came;
whatever happens in a reply ends that reply with a sentence and leaves the thread running.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from tuichat.api import (
    Delta,
    DtypeReport,
    GenerationParams,
    Loaded,
    LoadRequest,
    Progress,
    TuichatError,
    Usage,
)
from tuichat.pluginhost.backend import Backend, prompt_tokens
from tuichat.worker import history, protocol
from tuichat.worker.writer import ReplyWriter

if TYPE_CHECKING:
    from tuichat.store import Owner, Store

log = logging.getLogger(__name__)

PROGRESS_INTERVAL = 0.1
"""Seconds between two progress frames of one stage at least."""

BLOCKED_POLL = 0.1
"""Seconds between two looks at a reply that another worker has to end first."""

Emit = Callable[[protocol.WorkerFrame | protocol.Idle], None]
"""Thread-safe; frames about a reply go to the client that asked for it."""


@dataclass(slots=True)
class Job:
    """One reply to run, and the reader's hand on it (a ``tuichat.api.Control``)."""

    run: protocol.Run
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def stopped(self) -> bool:
        """True once the reader asked to stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Ask the reply to end."""
        self._stop.set()


@dataclass(slots=True)
class _Outcome:
    """What became of a reply."""

    state: protocol.EndState = "done"
    stop_reason: str | None = None
    error: str | None = None
    usage: Usage | None = None
    first_token_s: float | None = None
    generating_s: float = 0.0
    notices: tuple[str, ...] = ()
    report: DtypeReport = field(default_factory=DtypeReport)


class StoreSet:
    """The stores that clients named, each opened once, with this process as an owner in it."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Store, Owner]] = {}
        self._lock = threading.Lock()

    def get(self, root: str) -> tuple[Store, Owner]:
        """The store at ``root`` and this worker's ownership there."""
        from tuichat.store import Store

        with self._lock:
            if root not in self._open:
                store = Store.open(Path(root))
                self._open[root] = (store, store.register_owner())
            return self._open[root]


class ModelThread(threading.Thread):
    """Loads one model and runs replies until the process ends."""

    def __init__(self, spec: protocol.WorkerSpec, emit: Emit) -> None:
        super().__init__(name="model", daemon=True)
        self.spec = spec
        self.failed: str | None = None
        """The sentence when the load failed; the thread has ended then."""
        self.ready: protocol.Ready | None = None
        self._emit = emit
        self._stores = StoreSet()
        self._queue: deque[Job] = deque()
        self._running: Job | None = None
        self._changed = threading.Condition()
        self._began = time.monotonic()
        self._last_progress = ("", 0.0)

    # ------------------------------------------------------------------ from the server's thread

    @property
    def busy(self) -> bool:
        """A reply runs or waits."""
        with self._changed:
            return self._running is not None or bool(self._queue)

    def submit(self, run: protocol.Run) -> int:
        """Queue a reply; the number of replies before it."""
        store, owner = self._stores.get(run.store)
        # From here on the reply is this process's to finish, also when the client goes away.
        store.adopt(run.reply_id, owner.token)
        with self._changed:
            ahead = len(self._queue) + (self._running is not None)
            self._queue.append(Job(run))
            self._changed.notify()
        return ahead

    def stop_reply(self, reply_id: int) -> None:
        """Stop a reply: at most one further forward pass when it runs, none when it waits."""
        with self._changed:
            waiting = next((job for job in self._queue if job.run.reply_id == reply_id), None)
            if waiting is not None:
                self._queue.remove(waiting)
            elif self._running is not None and self._running.run.reply_id == reply_id:
                self._running.stop()
        if waiting is not None:
            self._end_unrun(waiting, "stopped", None)

    def stop_all(self) -> None:
        """Stop everything, for a shutdown."""
        with self._changed:
            ids = [job.run.reply_id for job in self._queue]
            if self._running is not None:
                ids.append(self._running.run.reply_id)
        for reply_id in ids:
            self.stop_reply(reply_id)

    def measure(self, width: int, height: int) -> int | None:
        """Tokens that an image of that size will cost, None before the model is loaded."""
        if self.ready is None:
            return None
        try:
            return self._backend.image_tokens(self._loaded, width, height)
        except TuichatError as error:
            log.warning("image_tokens(%d, %d): %s", width, height, error)
            return None

    def unload(self) -> None:
        """Let the backend clean up, when it is idle."""
        if self.ready is not None and not self.busy:
            try:
                self._backend.unload(self._loaded)
            except TuichatError as error:
                log.warning("unload: %s", error)

    # ------------------------------------------------------------------ the model's own thread

    def run(self) -> None:
        try:
            self._load()
        except TuichatError as error:
            self._fail_load(str(error))
            return
        except Exception as error:
            log.exception("the load failed")
            self._fail_load(f"{self.spec.model} could not be loaded: {error}")
            return
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                self._running = self._queue.popleft()
            try:
                self._run_job(self._running)
            except Exception:
                log.exception("reply %d", self._running.run.reply_id)
                self._end_unrun(self._running, "failed", "The worker failed; its log says how.")
            finally:
                with self._changed:
                    self._running = None
                self._emit(protocol.Idle())

    def _load(self) -> None:
        spec = self.spec
        backend = Backend.open(spec.backend)
        loaded = backend.load(
            LoadRequest(
                model=spec.model,
                revision=spec.revision,
                device=spec.device,
                dtype=spec.dtype,
                quantize=spec.quantize,  # type: ignore[arg-type]  # checked by the command line
                options=spec.options,
                offline=spec.offline,
            ),
            self._progress,
        )
        report = backend.align(loaded)
        self._backend: Backend = backend
        self._loaded: Loaded = loaded
        self.ready = protocol.Ready(
            load_s=time.monotonic() - self._began,
            facts=loaded.facts,
            dtype=report.rows,
            dtype_reason=report.reason,
        )
        self._emit(self.ready)

    def _progress(self, progress: Progress) -> None:
        stage, when = self._last_progress
        now = time.monotonic()
        last = progress.total is not None and progress.done >= progress.total
        if stage == progress.stage and now - when < PROGRESS_INTERVAL and not last:
            return
        self._last_progress = (progress.stage, now)
        self._emit(protocol.Loading(**asdict(progress)))

    def _fail_load(self, sentence: str) -> None:
        with self._changed:
            self.failed = sentence
            waiting = list(self._queue)
            self._queue.clear()
        for job in waiting:
            self._end_unrun(job, "failed", sentence)
        self._emit(protocol.LoadFailed(sentence))

    def _end_unrun(self, job: Job, state: protocol.EndState, error: str | None) -> None:
        """End a reply that never came to its first token."""
        run = job.run
        store, _ = self._stores.get(run.store)
        stop_reason = "stopped" if state == "stopped" else "error"
        store.decline(run.reply_id, state, stop_reason=stop_reason, error=error)
        self._emit(protocol.Finished(run.reply_id, state, error, ()))

    # ------------------------------------------------------------------ one reply

    def _run_job(self, job: Job) -> None:
        run = job.run
        store, owner = self._stores.get(run.store)
        if not self._claim(job, store, owner):
            return
        started = time.monotonic()
        writer = ReplyWriter(
            store,
            run.reply_id,
            owner.token,
            announce=lambda seq, text, thinking: self._emit(
                protocol.Text(run.reply_id, seq, text, thinking)
            ),
            complain=lambda sentence: self._emit(protocol.Notice(sentence)),
        )
        outcome = _Outcome()
        try:
            self._answer(job, store, writer, outcome, started)
        except TuichatError as error:
            outcome.state, outcome.error = "failed", str(error)
        except Exception as error:
            log.exception("reply %d", run.reply_id)
            outcome.state, outcome.error = "failed", f"{type(error).__name__}: {error}"
        if outcome.state == "failed":
            outcome.stop_reason = "error"
        if not writer.close():
            outcome.notices += ("A part of this reply could not be saved.",)
        self._finish(store, owner, run, outcome, time.monotonic() - started)

    def _claim(self, job: Job, store: Store, owner: Owner) -> bool:
        """Claim the reply, after an older one of its session that another worker has."""
        reply_id = job.run.reply_id
        while not store.claim(reply_id, owner.token):
            blocker = store.blocked_by(reply_id)
            if blocker is None:
                state = store.turn(reply_id).state
                log.warning("reply %d is %s already", reply_id, state)
                if state in get_args(protocol.EndState):
                    self._emit(
                        protocol.Finished(reply_id, cast(protocol.EndState, state), None, ())
                    )
                return False
            if job.stopped:
                self._end_unrun(job, "stopped", None)
                return False
            if self._gave_way(job, blocker):
                return False
            time.sleep(BLOCKED_POLL)
        return True

    def _gave_way(self, job: Job, blocker: int) -> bool:
        """Put ``job`` back behind the reply that it waits for, when that waits in this queue.

        Two clients of one session post in one order and reach the worker in another.
        """
        with self._changed:
            for other in self._queue:
                if (other.run.reply_id, other.run.store) == (blocker, job.run.store):
                    self._queue.remove(other)
                    self._queue.extendleft((job, other))
                    return True
        return False

    def _answer(
        self, job: Job, store: Store, writer: ReplyWriter, outcome: _Outcome, started: float
    ) -> None:
        run, loaded = job.run, self._loaded
        turns = store.history(run.reply_id)
        system = store.session(turns[-1].session_id).system
        conversation, notices = history.conversation_of(store, turns, system)
        conversation, more = history.within_limits(conversation, loaded.facts.capabilities)
        outcome.report = self._backend.align(loaded)
        prompt, dropped = history.assemble_fitting(
            self._backend, loaded, conversation, run.max_new_tokens
        )
        mended = [row.reason for row in outcome.report.rows if row.changed and row.reason]
        outcome.notices = (*notices, *more, *dropped, *mended)
        self._emit(
            protocol.Started(
                run.reply_id,
                prompt_tokens(prompt) or 0,
                getattr(prompt, "image_tokens", 0),
                outcome.notices,
            )
        )
        params = GenerationParams(
            max_new_tokens=run.max_new_tokens,
            temperature=run.temperature,
            top_p=run.top_p,
            seed=run.seed,
            options=run.options,
        )
        for delta in self._backend.generate(loaded, prompt, params, job):
            self._take(delta, writer, outcome, started)
        if outcome.stop_reason == "stopped":
            outcome.state = "stopped"

    @staticmethod
    def _take(delta: Delta, writer: ReplyWriter, outcome: _Outcome, started: float) -> None:
        now = time.monotonic()
        if outcome.first_token_s is None and (delta.text or delta.thinking):
            outcome.first_token_s = now - started
        if outcome.first_token_s is not None:
            outcome.generating_s = now - started - outcome.first_token_s
        if delta.text or delta.thinking:
            writer.push(delta.text, delta.thinking)
        if delta.usage is not None:
            outcome.usage = delta.usage
        if delta.stop_reason is not None:
            outcome.stop_reason = delta.stop_reason

    def _finish(
        self, store: Store, owner: Owner, run: protocol.Run, outcome: _Outcome, total_s: float
    ) -> None:
        usage = outcome.usage
        rate = None
        # The first token belongs to the prompt's time, so it is not counted in the rate.
        if usage is not None and usage.new_tokens > 1 and outcome.generating_s > 0:
            rate = (usage.new_tokens - 1) / outcome.generating_s
        rows = outcome.report.rows
        details: dict[str, Any] = {
            "state": outcome.state,
            "stop_reason": outcome.stop_reason,
            "error": outcome.error,
            "usage": asdict(usage) if usage is not None else None,
            "timing": {
                "first_token_s": outcome.first_token_s,
                "total_s": total_s,
                "tokens_per_s": rate,
            },
            "dtype": [asdict(row) for row in rows],
            "notices": outcome.notices,
        }
        try:
            store.finish(run.reply_id, owner=owner.token, **details)
        except TuichatError as error:
            # The reply stays `running` in the store with every chunk that was committed; whoever
            # opens it after this process ended finds it interrupted.
            self._emit(protocol.Notice(str(error)))
        self._emit(protocol.Finished(run.reply_id, outcome.state, outcome.error, rows))
