"""``Store``: the one object that the rest of tuichat sees.

Owns the folder layout and the lifetime. Refuses to know SQL. Invariant: methods may be called from
any thread and any process at the same time; each is one transaction.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tuichat import paths
from tuichat.store.blobs import Blobs
from tuichat.store.database import Database
from tuichat.store.locks import Owner, SessionHold, alive, register_owner
from tuichat.store.problems import translated
from tuichat.store.records import (
    HEAD,
    LEAVE,
    Chunk,
    Head,
    ImageRecord,
    Leave,
    Outcome,
    Posted,
    ReplyState,
    SearchHit,
    SessionRecord,
    TurnRecord,
)
from tuichat.store.replies import Replies
from tuichat.store.search import search
from tuichat.store.sessions import Sessions
from tuichat.store.turns import Attachment, Turns

if TYPE_CHECKING:
    from tuichat.images import LoadedImage

_NO_PARAMS: Mapping[str, Any] = {}


class Store:
    """Sessions, turns, replies and images under one folder.

    Every method raises ``tuichat.api.StoreError``, one sentence, when the disk does not let it;
    then nothing was changed.
    """

    def __init__(self, root: Path, *, is_temporary: bool = False) -> None:
        self.root = root
        """``tuichat.db``, ``blobs/``, ``owners/``, ``holds/``, all closed to other users."""
        self.is_temporary = is_temporary
        """Made by ``temporary()``: gone with ``close()``."""
        with translated(root):
            for folder in (root, root / "blobs", root / "owners", root / "holds"):
                _private(folder)
        self._database = Database(root)
        self.notices: list[str] = self._database.notices
        """Sentences about how the store is kept, for the caller to show once."""
        self._sessions = Sessions(self._database)
        self._blobs = Blobs(self._database, root / "blobs")
        self._turns = Turns(self._database)
        self._replies = Replies(self._database, self.owner_alive)
        self._remove = (
            weakref.finalize(self, _remove_tree, root, os.getpid()) if is_temporary else None
        )

    @classmethod
    def open(cls, root: Path | None = None) -> Self:
        """The store in ``root`` (``paths.data_dir()``), made or migrated if need be.

        Raises:
            StoreError: it cannot be written, is damaged, or was made by a newer tuichat.
        """
        return cls(paths.data_dir() if root is None else root)

    @classmethod
    def temporary(cls) -> Self:
        """A store in a private folder of its own, removed by ``close()`` or at exit.

        Another process opens it by its ``root``, and does not remove it.

        Raises:
            StoreError: the temporary folder cannot be written.
        """
        where = Path(tempfile.gettempdir())
        with translated(where):
            root = Path(tempfile.mkdtemp(prefix="tuichat-", dir=where))
        try:
            return cls(root, is_temporary=True)
        except BaseException:
            _remove_tree(root, os.getpid())
            raise

    def close(self) -> None:
        """Close every thread's connection. Does nothing the second time."""
        self._database.close()
        if self._remove is not None:
            self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ sessions

    def create_session(
        self, *, system: str | None = None, backend: str | None, model: str | None
    ) -> str:
        """A new session's id. Until something is posted it is in no list."""
        return self._sessions.create(system, backend, model)

    def session(self, session_id: str) -> SessionRecord:
        """The session with exactly this id.

        Raises:
            SessionNotFound: there is none; the text offers near ones.
        """
        return self._sessions.get(session_id)

    def resolve_session(self, text: str) -> SessionRecord:
        """The session that a person means: ``last``, an id, or four or more of its characters.

        Raises:
            SessionNotFound: none fits, or more than one; the text offers near ones.
        """
        return self._sessions.resolve(text)

    def list_sessions(self, limit: int | None = None) -> list[SessionRecord]:
        """Sessions in which something was posted, most recently used first."""
        return self._sessions.recent(limit)

    def set_session(
        self,
        session_id: str,
        *,
        title: str | Leave | None = LEAVE,
        system: str | Leave | None = LEAVE,
        backend: str | Leave | None = LEAVE,
        model: str | Leave | None = LEAVE,
    ) -> None:
        """Change what is given; None empties a field.

        Raises:
            SessionNotFound: there is no such session.
        """
        self._sessions.set(session_id, title=title, system=system, backend=backend, model=model)

    def hold_session(self, session_id: str) -> SessionHold | None:
        """Mark the session as open here; None when a living process (or window) has it open."""
        self.session(session_id)  # an id that is none must not become a file name
        with translated(self.root):
            hold = SessionHold.take(self.root / "holds" / session_id)
        assert hold is None or isinstance(hold, SessionHold)
        return hold

    # ------------------------------------------------------------------ images

    def put_image(self, image: LoadedImage) -> ImageRecord:
        """Keep the bytes of ``image`` under their sha256, once, on the disk when this returns."""
        return self._blobs.put(image)

    def image_bytes(self, digest: str) -> bytes:
        """The bytes of an image, verified.

        Raises:
            StoreError: they are missing, or have changed.
        """
        return self._blobs.read(digest)

    # ------------------------------------------------------------------ turns

    def post(
        self,
        session_id: str,
        text: str,
        images: Sequence[Attachment],
        *,
        poster: str,
        backend: str,
        model: str,
        params: Mapping[str, Any] = _NO_PARAMS,
        parent_id: int | Head | None = HEAD,
    ) -> Posted:
        """Commit a user turn and its empty reply, state ``queued``, in one transaction.

        The session's head moves to the reply, and its backend and model become these. With
        ``HEAD`` it follows the current leaf, even one that is still running; an id makes it follow
        that reply, None makes it a new first turn (an edit is a sibling).

        Raises:
            SessionNotFound: there is no such session.
            StoreError: the parent is no reply of the session, or an image is not in the store.
        """
        return self._turns.post(
            session_id,
            text,
            images,
            poster=poster,
            backend=backend,
            model=model,
            params=params,
            parent_id=parent_id,
        )

    def regenerate(
        self,
        reply_id: int,
        *,
        poster: str,
        backend: str,
        model: str,
        params: Mapping[str, Any] = _NO_PARAMS,
    ) -> int:
        """Queue another reply to the same user turn; the head moves to it. Its id."""
        return self._turns.regenerate(
            reply_id, poster=poster, backend=backend, model=model, params=params
        )

    def path(self, session_id: str, leaf_id: int | None = None) -> list[TurnRecord]:
        """The conversation, root to leaf (the session's head); running replies as far as they are.

        Raises:
            SessionNotFound: there is no such session.
        """
        return self._turns.path(session_id, leaf_id)

    def turn(self, turn_id: int) -> TurnRecord:
        """One turn."""
        return self._turns.get(turn_id)

    def history(self, reply_id: int) -> list[TurnRecord]:
        """What the prompt of a reply is made of: root to its user turn, in whatever state."""
        return self._turns.history(reply_id)

    # ------------------------------------------------------------------ the life of a reply

    def claim(self, reply_id: int, owner: str) -> bool:
        """Make a queued reply this owner's, and running.

        The replies of a session run in the order of their posting, one at a time: False when the
        reply is not queued any more, or an older one of its session is still open and its owner
        alive (``blocked_by`` names it). Older ones of the dead are interrupted on the way.
        """
        return self._replies.claim(reply_id, owner)

    def blocked_by(self, reply_id: int) -> int | None:
        """The reply that has to end before this queued one can be claimed, or None."""
        return self._replies.blocked_by(reply_id)

    def adopt(self, reply_id: int, poster: str) -> None:
        """Let ``poster`` answer for a queued reply, so that it outlives who posted it."""
        self._replies.adopt(reply_id, poster)

    def decline(
        self, reply_id: int, state: ReplyState, *, stop_reason: str, error: str | None = None
    ) -> bool:
        """End a queued reply that will never run, as ``stopped`` or ``failed``."""
        return self._replies.decline(reply_id, Outcome(state, stop_reason, error))

    def append(self, reply_id: int, seq: int, text: str, thinking: str = "", *, owner: str) -> None:
        """Commit the next chunk of a running reply; ``seq`` is 1, 2, 3…

        Raises:
            ReplyLost: it is not running any more, or not this owner's: stop generating.
        """
        self._replies.append(reply_id, seq, text, thinking, owner)

    def finish(
        self,
        reply_id: int,
        *,
        owner: str,
        state: ReplyState,
        stop_reason: str | None = None,
        error: str | None = None,
        usage: Mapping[str, Any] | None = None,
        timing: Mapping[str, Any] | None = None,
        dtype: Iterable[Any] | None = None,
        notices: Iterable[str] = (),
    ) -> None:
        """End a running reply: its chunks become its text, which can be searched from now on.

        Raises:
            ReplyLost: it is not running any more, or not this owner's.
            ValueError: ``state`` is not a final one.
        """
        outcome = Outcome(
            state=state,
            stop_reason=stop_reason,
            error=error,
            usage=usage,
            timing=timing,
            dtype=None if dtype is None else list(dtype),
            notices=list(notices),
        )
        self._replies.finish(reply_id, owner, outcome)

    def chunks_since(self, reply_id: int, seq: int) -> list[Chunk]:
        """Chunks numbered above ``seq``; none once the reply has ended (then read the turn)."""
        return self._replies.chunks_since(reply_id, seq)

    def interrupt(self, reply_id: int, reason: str) -> bool:
        """End an open reply as interrupted, keeping its text; False when it had ended already."""
        return self._replies.interrupt(reply_id, reason)

    def interrupt_dead(self, session_id: str | None = None) -> list[int]:
        """Interrupt queued replies of dead posters and running ones of dead owners; their ids."""
        return self._replies.interrupt_dead(session_id)

    # ------------------------------------------------------------------ who lives

    def register_owner(self) -> Owner:
        """Become a poster or an owner: alive until ``release()`` or the end of this process.

        Keep the object: one that is garbage collected is dead.
        """
        with translated(self.root):
            return register_owner(self.root / "owners")

    def owner_alive(self, token: str) -> bool:
        """Whether the process that registered ``token`` lives and has not released it."""
        return alive(self.root / "owners" / token) if "/" not in token else False

    # ------------------------------------------------------------------ search

    def search(self, query: str, limit: int = 50) -> list[SearchHit]:
        """Turns that contain every word of ``query``, in any script, newest first."""
        return search(self._database, query, limit)


def _private(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


def _remove_tree(root: Path, creator: int) -> None:
    if os.getpid() == creator:  # a forked child shares the object, not the duty
        shutil.rmtree(root, ignore_errors=True)
