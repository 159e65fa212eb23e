"""The headless application.

Owns one conversation: its session in the store, its settings, and the order in which things happen
between them and the worker. Refuses to know terminals; the chat screen and ``tuichat ask`` are its
two faces. Invariant: a message is in the store, together with its queued reply, before anything
else happens to it, and every reply ends in exactly one ``ReplyEnded``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuichat.api import (
    BackendError,
    Capabilities,
    DtypeRow,
    ModelFacts,
    StoreError,
    TuichatError,
)
from tuichat.engine import events
from tuichat.engine.endings import Endings
from tuichat.engine.link import WorkerLink
from tuichat.engine.selection import Selection, select
from tuichat.engine.settings import Settings
from tuichat.store import ImageRecord, Owner, Posted, Store, TurnRecord
from tuichat.worker import protocol

if TYPE_CHECKING:
    from PIL import Image as PILImage

    from tuichat.store import SessionHold

log = logging.getLogger(__name__)

DESCRIBE_WAIT_S = 1.0
"""Seconds that the first message waits for its backend to describe itself."""

STOP_WAIT_S = 2.0
"""Seconds to wait for replies to stop before leaving a store that nobody will read."""


class Engine:
    """A conversation with one backend; make it with ``Engine.open``."""

    def __init__(self, settings: Settings, store: Store, session_id: str | None) -> None:
        self.settings = settings
        self.session_id = session_id
        self._store = store
        self._owner: Owner = store.register_owner()
        self._hold: SessionHold | None = None
        self._events: asyncio.Queue[events.Event] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._endings = Endings(store, self._events.put_nowait)
        self._link = WorkerLink(
            self._choose, self._events.put_nowait, self._endings.undelivered, self._endings.lost
        )
        self._preparing = asyncio.Lock()
        self._selection: Selection | None = None

    # ------------------------------------------------------------------ opening and closing

    @classmethod
    async def open(
        cls, settings: Settings, *, session: str | None = None, keep: bool = True
    ) -> Engine:
        """An engine on a new session, or on the one that ``session`` names.

        Args:
            session: ``last``, an id, or the beginning of one.
            keep: False for a store that vanishes afterwards.

        Raises:
            SessionNotFound: there is no such session.
            StoreError: ``session`` was asked for and the store cannot be read.
        """
        store, notice = await asyncio.to_thread(_open_store, keep, session is not None)
        try:
            found = None
            if session is not None:
                found = await asyncio.to_thread(store.resolve_session, session)
            engine = cls(settings, store, None if found is None else found.id)
            if notice is not None:
                engine._events.put_nowait(events.Noticed(notice))
            for text in store.notices:
                engine._events.put_nowait(events.Noticed(text))
            if found is not None:
                await asyncio.to_thread(engine._take_up, found.id)
        except BaseException:
            store.close()
            raise
        return engine

    def _take_up(self, session_id: str) -> None:
        self._store.interrupt_dead(session_id)
        self._hold_session(session_id)
        if self.settings.system is not None:
            self._store.set_session(session_id, system=self.settings.system)

    def _hold_session(self, session_id: str) -> None:
        self._hold = self._store.hold_session(session_id)
        if self._hold is None:
            notice = events.Noticed(
                f"Session {session_id} is open in another tuichat too: what is said in either is "
                "kept, and each shows its own turns until it is opened again."
            )
            # This runs in a thread, and an asyncio queue belongs to its loop.
            self._loop.call_soon_threadsafe(self._events.put_nowait, notice)

    async def close(self) -> None:
        """Leave. The worker finishes what it has, and what it says is in the store."""
        if self._store.is_temporary:
            # Nobody will ever read the answers.
            await self._stop_all()
        await self._link.close()
        if self._hold is not None:
            self._hold.release()
        self._owner.release()
        await asyncio.to_thread(self._store.close)

    def new_session(self) -> None:
        """The next message begins a session of its own."""
        if self._hold is not None:
            self._hold.release()
            self._hold = None
        self.session_id = None

    # ------------------------------------------------------------------ what is there

    @property
    def backend_title(self) -> str:
        """The backend's name for people."""
        return self.settings.backend if self._selection is None else self._selection.title

    @property
    def model(self) -> str:
        """The model's name; before ``prepare`` what was asked for, which may be nothing."""
        return (self.settings.model or "") if self._selection is None else self._selection.model

    @property
    def capabilities(self) -> Capabilities:
        """The limits in force: the loaded checkpoint's, before that those that were declared."""
        if self.facts is not None:
            return self.facts.capabilities
        return Capabilities() if self._selection is None else self._selection.declared

    @property
    def store_is_temporary(self) -> bool:
        """Nothing of this conversation outlives it."""
        return self._store.is_temporary

    @property
    def phase(self) -> events.WorkerPhase:
        """Where the worker is."""
        return self._link.phase

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id, None when there is none."""
        return self._link.pid

    @property
    def ready(self) -> events.ModelReady | None:
        """What the worker said of its model, None before it is loaded."""
        return self._link.ready

    @property
    def facts(self) -> ModelFacts | None:
        """What the loaded checkpoint says of itself."""
        return None if self.ready is None else self.ready.facts

    @property
    def dtype(self) -> tuple[DtypeRow, ...]:
        """The dtype of each component after the load."""
        return () if self.ready is None else self.ready.dtype

    @property
    def dtype_reason(self) -> str:
        """Why the working dtype was chosen."""
        return "" if self.ready is None else self.ready.dtype_reason

    @property
    def load_s(self) -> float | None:
        """Seconds that the load took."""
        return None if self.ready is None else self.ready.load_s

    @property
    def active(self) -> tuple[int, ...]:
        """Replies that are queued or running, oldest first."""
        return self._link.active

    def transcript(self) -> list[TurnRecord]:
        """The current branch, root → head."""
        return [] if self.session_id is None else self._store.path(self.session_id)

    def turn(self, turn_id: int) -> TurnRecord:
        """One turn as it is in the store."""
        return self._store.turn(turn_id)

    async def events(self) -> AsyncIterator[events.Event]:
        """What happens, in order; for one consumer."""
        while True:
            yield await self._events.get()

    # ------------------------------------------------------------------ images

    async def attach(self, path: str | Path) -> ImageRecord:
        """Check an image and copy it into the store.

        Raises:
            ImageRefused: with the file, the reason and the cure.
            StoreError: it cannot be kept.
        """

        def check_and_copy() -> ImageRecord:
            from tuichat.images import load_image

            return self._store.put_image(load_image(path))

        return await asyncio.to_thread(check_and_copy)

    async def thumbnail(self, digest: str, max_width: int, max_height: int) -> PILImage.Image:
        """A small RGB image of at most that many pixels; raises StoreError when it is gone."""

        def decode() -> PILImage.Image:
            from tuichat.images import thumbnail

            return thumbnail(self._store.image_bytes(digest), max_width, max_height)

        return await asyncio.to_thread(decode)

    async def measure(self, width: int, height: int) -> None:
        """Ask what an image of that size costs; ``ImageCosts`` answers once a worker is there."""
        self._link.measure(width, height)

    # ------------------------------------------------------------------ the worker

    async def prepare(self) -> None:
        """Find out what the backend is, and check the settings against it.

        Raises:
            BackendError: it does not exist, does not work, or does not take these settings.
        """
        async with self._preparing:
            if self._selection is None:
                self._selection = await asyncio.to_thread(select, self.settings)

    async def start(self) -> None:
        """Have a worker; returns when it is connected, its model may still be loading.

        Raises:
            BackendError: see ``prepare``.
            WorkerError: it cannot be started.
        """
        await self._link.connect()

    async def _choose(self) -> Selection:
        await self.prepare()
        assert self._selection is not None
        return self._selection

    # ------------------------------------------------------------------ turns

    async def send(self, text: str, images: Sequence[ImageRecord] = ()) -> Posted:
        """Store a message with its reply to be, and have it answered.

        Raises:
            BackendError: the images exceed what the model takes.
            StoreError: the message cannot be stored.
            In both cases nothing was stored, and the draft is the caller's to keep.
        """
        if self._selection is None:
            # For the model's name and its limits; but a message never waits long for a plugin.
            with contextlib.suppress(TimeoutError, TuichatError):
                await asyncio.wait_for(asyncio.shield(self.prepare()), DESCRIBE_WAIT_S)
        self._check_limits(images)
        posted = await asyncio.to_thread(self._post, text, images)
        self._deliver(posted.reply_id)
        return posted

    async def regenerate(self, reply_id: int) -> int:
        """Another reply to the same question, beside the first; its id.

        Raises:
            StoreError: it cannot be stored.
        """
        other = await asyncio.to_thread(
            lambda: self._store.regenerate(
                reply_id,
                poster=self._owner.token,
                backend=self.settings.backend,
                model=self.model,
                params=self._params(),
            )
        )
        self._deliver(other)
        return other

    async def stop(self, reply_id: int | None = None) -> None:
        """Stop a reply, the oldest that is under way by default; what it has is kept."""
        if reply_id is None:
            if not self.active:
                return
            reply_id = self.active[0]
        if not self._link.stop(reply_id) and reply_id in self.active:
            # No worker has it yet, so it can be ended here.
            self._link.forget(reply_id)
            await self._endings.stopped(reply_id)

    def _check_limits(self, images: Sequence[ImageRecord]) -> None:
        most = self.capabilities.max_images_per_turn
        if most is not None and len(images) > most:
            raise BackendError(
                f"{self.backend_title} takes {most} image(s) in one message and this one has "
                f"{len(images)}: send the others with the next message."
            )

    def _params(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "max_new_tokens": settings.max_new_tokens,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "seed": settings.seed,
        }

    def _post(self, text: str, images: Sequence[ImageRecord]) -> Posted:
        settings = self.settings
        session_id = self.session_id
        if session_id is None:
            session_id = self._store.create_session(
                system=settings.system, backend=settings.backend, model=self.model
            )
            self._hold_session(session_id)
            self.session_id = session_id
        return self._store.post(
            session_id,
            text,
            images,
            poster=self._owner.token,
            backend=settings.backend,
            model=self.model,
            params=self._params(),
        )

    def _deliver(self, reply_id: int) -> None:
        self._link.run(
            protocol.Run(reply_id=reply_id, store=str(self._store.root), **self._params())
        )

    async def _stop_all(self) -> None:
        for reply_id in self.active:
            await self.stop(reply_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_WAIT_S):
                while self.active:
                    await asyncio.sleep(0.02)


def _open_store(keep: bool, needed: bool) -> tuple[Store, str | None]:
    """The store, or a temporary one with the sentence why."""
    if not keep:
        return Store.temporary(), None
    try:
        return Store.open(), None
    except StoreError as error:
        if needed:
            raise
        return Store.temporary(), f"{error} This conversation is not being saved."
