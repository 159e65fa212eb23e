"""The thread that owns the model.

Owns the load, the queue of replies and the claim and end of each. Refuses to know sockets and
clients: it emits frames. Invariant: one model, one thread, replies in the order in which they
came, but for those that have to wait for another process; whatever happens in a reply ends that
reply with a sentence and leaves the thread running; an ending that the store did not take is
offered again until it does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import asdict

from tuichat.api import Loaded, LoadRequest, Progress, TuichatError, WorkerError
from tuichat.pluginhost.backend import Backend
from tuichat.worker import protocol
from tuichat.worker.jobs import Emit, Job, Key, StoreSet
from tuichat.worker.reply import ReplyRun

log = logging.getLogger(__name__)

PROGRESS_INTERVAL = 0.1
"""Seconds between two progress frames of one stage at least."""

BLOCKED_POLL = 0.1
"""Seconds between two looks at a reply that another process has to end first."""

FINISH_RETRY = 1.0
"""Seconds between two offers of an ending to a store that would not take it."""


class ModelThread(threading.Thread):
    """Loads one model and runs replies until the process ends."""

    def __init__(self, spec: protocol.WorkerSpec, emit: Emit) -> None:
        super().__init__(name="model", daemon=True)
        self.spec = spec
        self.ready: protocol.Ready | None = None
        self._load_error: str | None = None
        self._emit = emit
        self._stores = StoreSet()
        self._queue: deque[Job] = deque()
        self._running: Job | None = None
        self._unfinished: dict[Key, ReplyRun] = {}
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
        """Queue a reply; the number of replies before it.

        Raises:
            StoreError: its store cannot be opened.
            WorkerError: the model could not be loaded, with the reason.
        """
        store, owner = self._stores.get(run.store)
        # From here on the reply is this process's to finish, also when the client goes away.
        store.adopt(run.reply_id, owner.token)
        with self._changed:
            if self._load_error is not None:
                raise WorkerError(self._load_error)
            ahead = len(self._queue) + (self._running is not None)
            self._queue.append(Job(run))
            self._changed.notify()
        return ahead

    def stop_reply(self, key: Key) -> None:
        """Stop a reply: at most one further forward pass when it runs, none when it waits."""
        with self._changed:
            waiting = next((job for job in self._queue if job.key == key), None)
            if waiting is not None:
                self._queue.remove(waiting)
            elif self._running is not None and self._running.key == key:
                self._running.stop()
        if waiting is not None:
            self._end_unrun(waiting, "stopped", None)

    def stop_all(self) -> None:
        """Stop everything, for a shutdown."""
        with self._changed:
            keys = [job.key for job in self._queue]
            if self._running is not None:
                keys.append(self._running.key)
        for key in keys:
            self.stop_reply(key)

    def measure(self, width: int, height: int) -> int | None:
        """Tokens that an image of that size will cost, None before the model is loaded."""
        if self.ready is None:
            return None
        try:
            return self._backend.image_tokens(self._loaded, width, height)
        except TuichatError as error:
            log.warning("image_tokens(%d, %d): %s", width, height, error)
            return None

    def close_stores_but(self, roots: set[str]) -> None:
        """Close the stores that neither a client (``roots``) nor a reply needs."""
        with self._changed:
            needed = {job.run.store for job in self._queue} | {key[0] for key in self._unfinished}
            if self._running is not None:
                needed.add(self._running.run.store)
        self._stores.close_but(roots | needed)

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
            job = self._next()
            try:
                self._finish_unfinished()
                self._run_job(job)
            except Exception:
                log.exception("reply %d", job.run.reply_id)
                self._end_unrun(job, "failed", "The worker failed; its log says how.")
            finally:
                with self._changed:
                    self._running = None
                self._emit(protocol.Idle())

    def _next(self) -> Job:
        """The next reply; while there is none, unfinished endings are offered again."""
        while True:
            with self._changed:
                if not self._queue:
                    self._changed.wait(FINISH_RETRY if self._unfinished else None)
                if self._queue:
                    self._running = self._queue.popleft()
                    return self._running
            self._finish_unfinished()

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
            self._load_error = sentence
            waiting = list(self._queue)
            self._queue.clear()
        for job in waiting:
            self._end_unrun(job, "failed", sentence)
        self._emit(protocol.LoadFailed(sentence))

    # ------------------------------------------------------------------ one reply

    def _run_job(self, job: Job) -> None:
        reply_id = job.run.reply_id
        store, owner = self._stores.get(job.run.store)
        if not store.claim(reply_id, owner.token):
            self._put_back(job)
            return
        reply = ReplyRun(job, store, owner.token, self._backend, self._loaded, self._emit)
        reply.run()
        ending = reply.ending
        self._unfinished[job.key] = reply
        self._finish_unfinished()
        self._emit(
            protocol.Finished(reply_id, ending.state, ending.error, ending.report.rows), job.key
        )

    def _finish_unfinished(self) -> None:
        """Offer the stores every ending that they have not taken yet."""
        self._unfinished = {
            key: reply for key, reply in self._unfinished.items() if not reply.finish()
        }

    def _put_back(self, job: Job) -> None:
        """A reply that cannot be claimed: it has ended, or waits for one in another process."""
        store, _ = self._stores.get(job.run.store)
        turn = store.turn(job.run.reply_id)
        state = turn.state
        if state != "queued" and state != "running":
            log.warning("reply %d is %s already", turn.id, state)
            self._emit(protocol.Finished(turn.id, state, turn.error, ()), job.key)
            return
        if job.stopped:
            self._end_unrun(job, "stopped", None)
            return
        # Behind the others, so that a session that waits holds up no other session.
        with self._changed:
            self._queue.append(job)
        time.sleep(BLOCKED_POLL)

    def _end_unrun(self, job: Job, state: protocol.EndState, error: str | None) -> None:
        """End a reply that never came to its first token; a store that fails is only logged."""
        stop_reason = "stopped" if state == "stopped" else "error"
        try:
            store, _ = self._stores.get(job.run.store)
            store.decline(job.run.reply_id, state, stop_reason=stop_reason, error=error)
        except TuichatError as failure:
            log.warning("the end of reply %d is not stored: %s", job.run.reply_id, failure)
        self._emit(protocol.Finished(job.run.reply_id, state, error, ()), job.key)
