"""The tree of messages.

Owns posting, regenerating and reading turns. Refuses to know how a reply comes about. Invariant: a
user turn and its first reply appear together or not at all; on every path roles alternate, user
first; a turn is never changed or removed by another one: an edit is a sibling.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tuichat.api import Role, StoreError
from tuichat.store.blobs import image_record
from tuichat.store.database import Database, Transaction
from tuichat.store.records import HEAD, OPEN, Chunk, Head, ImageRecord, Posted, TurnRecord
from tuichat.store.sessions import get_session, make_title

log = logging.getLogger(__name__)

T = TypeVar("T")

Attachment = ImageRecord | tuple[str, str]
"""An image that is in the store: its record, or (digest, name)."""

_UP = """
    WITH RECURSIVE up(id, parent_id, depth) AS (
        SELECT id, parent_id, 0 FROM turn WHERE id = ?
        UNION ALL
        SELECT turn.id, turn.parent_id, depth + 1 FROM turn JOIN up ON turn.id = up.parent_id
        WHERE turn.id < up.id  -- parents are older; a damaged file must not make this endless
    )
    SELECT id FROM up ORDER BY depth DESC
"""


class Turns:
    """The turns of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def post(
        self,
        session_id: str,
        text: str,
        images: Sequence[Attachment],
        *,
        poster: str,
        backend: str,
        model: str,
        params: Mapping[str, Any],
        parent_id: int | Head | None = HEAD,
    ) -> Posted:
        """Commit a user turn and its queued reply in one transaction; the head moves to the reply.

        Raises:
            SessionNotFound: there is no such session.
            StoreError: the parent is no reply of this session, an image is not in the store, or
                nothing can be written; nothing was.
        """
        now = time.time()
        attached = [_digest_and_name(image) for image in images]
        with self._database.write() as tx:
            session = get_session(tx, session_id)
            parent = session.head if isinstance(parent_id, Head) else parent_id
            _require_parent(tx, session_id, parent)
            user_id = _insert_user(tx, session_id, parent, text, attached, poster, now)
            reply_id = _insert_reply(tx, session_id, user_id, poster, backend, model, params, now)
            tx.run(
                "UPDATE session SET head = ?, turns = turns + 2, images = images + ?, backend = ?,"
                " model = ?, updated_at = ?, title = coalesce(title, ?) WHERE id = ?",
                *(reply_id, len(attached), backend, model, now),
                *(make_title(text, [name for _, name in attached]), session_id),
            )
        return Posted(user_id, reply_id)

    def regenerate(
        self,
        reply_id: int,
        *,
        poster: str,
        backend: str,
        model: str,
        params: Mapping[str, Any],
    ) -> int:
        """Queue another reply to the same user turn; the head moves to it. Its id.

        Raises:
            StoreError: there is no such reply, or nothing can be written.
        """
        now = time.time()
        with self._database.write() as tx:
            row = require_reply(tx, reply_id)
            session_id = row["session_id"]
            new_id = _insert_reply(
                tx, session_id, row["parent_id"], poster, backend, model, params, now
            )
            tx.run(
                "UPDATE session SET head = ?, turns = turns + 1, backend = ?, model = ?,"
                " updated_at = ? WHERE id = ?",
                *(new_id, backend, model, now, session_id),
            )
        return new_id

    def path(self, session_id: str, leaf_id: int | None) -> list[TurnRecord]:
        """Root to leaf; the leaf is the session's head if it is not given.

        Raises:
            SessionNotFound: there is no such session.
            StoreError: the leaf is not one of its turns.
        """
        with self._database.read() as tx:
            session = get_session(tx, session_id)
            leaf = session.head if leaf_id is None else leaf_id
            if leaf is None:
                return []
            turns = _load(tx, _ids_up(tx, leaf))
        if not turns or turns[-1].session_id != session_id:
            raise StoreError(f"Session {session_id} has no message {leaf}: open it again")
        return turns

    def get(self, turn_id: int) -> TurnRecord:
        """One turn.

        Raises:
            StoreError: there is no such turn.
        """
        with self._database.read() as tx:
            turns = _load(tx, [turn_id])
        if not turns:
            raise StoreError(f"There is no message {turn_id} in the store: open the session again")
        return turns[0]

    def history(self, reply_id: int) -> list[TurnRecord]:
        """What the prompt of a reply is made of: root to its user turn, whatever their states.

        Raises:
            StoreError: there is no such reply.
        """
        with self._database.read() as tx:
            row = require_reply(tx, reply_id)
            return _load(tx, _ids_up(tx, row["parent_id"]))


def require_reply(tx: Transaction, reply_id: int) -> sqlite3.Row:
    """id, session_id, parent_id, state, owner of a reply.

    Raises:
        StoreError: there is no such reply.
    """
    row = tx.one(
        "SELECT id, session_id, parent_id, state, owner FROM turn"
        " WHERE id = ? AND role = 'assistant'",
        reply_id,
    )
    if row is None:
        raise StoreError(f"There is no reply {reply_id} in the store: open the session again")
    return row


def read_chunks(tx: Transaction, reply_id: int, after: int = 0) -> list[Chunk]:
    """The committed chunks of a reply with numbers above ``after``, in order."""
    rows = tx.all(
        "SELECT seq, text, thinking FROM chunk WHERE reply_id = ? AND seq > ? ORDER BY seq",
        *(reply_id, after),
    )
    return [Chunk(row["seq"], row["text"], row["thinking"]) for row in rows]


def index_text(tx: Transaction, turn_id: int, text: str) -> None:
    """Make a finished turn findable."""
    tx.run("INSERT INTO turn_text(rowid, text) VALUES (?, ?)", turn_id, text)


def to_json(value: object) -> str:
    """A JSON text that keeps characters as they are; values it does not know as their ``str``."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _digest_and_name(image: Attachment) -> tuple[str, str]:
    return (image.digest, image.name) if isinstance(image, ImageRecord) else image


def _require_parent(tx: Transaction, session_id: str, parent: int | None) -> None:
    if parent is None:
        return
    row = tx.one("SELECT session_id, role FROM turn WHERE id = ?", parent)
    if row is None or row["session_id"] != session_id or row["role"] != "assistant":
        raise StoreError(
            f"A message can only follow a reply of its own session, and {parent} is none of "
            f"{session_id}: open the session again"
        )


def _insert_user(
    tx: Transaction,
    session_id: str,
    parent: int | None,
    text: str,
    attached: Iterable[tuple[str, str]],
    poster: str,
    now: float,
) -> int:
    cursor = tx.run(
        "INSERT INTO turn(session_id, parent_id, role, state, text, poster, created_at,"
        " finished_at) VALUES (?, ?, 'user', 'done', ?, ?, ?, ?)",
        *(session_id, parent, text, poster, now, now),
    )
    user_id = cursor.lastrowid
    assert user_id is not None  # an INSERT has one
    for position, (digest, name) in enumerate(attached):
        if tx.one("SELECT 1 FROM image WHERE digest = ?", digest) is None:
            raise StoreError(f"The image {digest[:12]}… is not in the store: attach it again")
        tx.run("INSERT INTO turn_image VALUES (?, ?, ?, ?)", user_id, position, digest, name)
    index_text(tx, user_id, text)
    return user_id


def _insert_reply(
    tx: Transaction,
    session_id: str,
    user_id: int,
    poster: str,
    backend: str,
    model: str,
    params: Mapping[str, Any],
    now: float,
) -> int:
    cursor = tx.run(
        "INSERT INTO turn(session_id, parent_id, role, state, poster, backend, model, params,"
        " created_at) VALUES (?, ?, 'assistant', 'queued', ?, ?, ?, ?, ?)",
        *(session_id, user_id, poster, backend, model, to_json(dict(params)), now),
    )
    assert cursor.lastrowid is not None  # an INSERT has one
    return cursor.lastrowid


def _ids_up(tx: Transaction, leaf_id: int) -> list[int]:
    return [row["id"] for row in tx.all(_UP, leaf_id)]


def _load(tx: Transaction, ids: list[int]) -> list[TurnRecord]:
    """The turns with these ids, in their order; unknown ids are left out."""
    wanted = json.dumps(ids)
    within = "(SELECT value FROM json_each(?))"
    rows = {row["id"]: row for row in tx.all(f"SELECT * FROM turn WHERE id IN {within}", wanted)}
    images: dict[int, list[ImageRecord]] = defaultdict(list)
    for row in tx.all(
        "SELECT turn_id, digest, name, format, width, height, size, notice"
        f" FROM turn_image JOIN image USING (digest) WHERE turn_id IN {within}"
        " ORDER BY turn_id, position",
        wanted,
    ):
        images[row["turn_id"]].append(image_record(row))
    siblings: dict[int, list[int]] = defaultdict(list)
    for row in tx.all(
        "SELECT turn.id, other.id AS other FROM turn JOIN turn AS other"
        " ON other.session_id = turn.session_id AND other.parent_id IS turn.parent_id"
        f" AND other.role = turn.role WHERE turn.id IN {within} ORDER BY other.id",
        wanted,
    ):
        siblings[row["id"]].append(row["other"])
    return [
        _record(rows[turn_id], tuple(images[turn_id]), tuple(siblings[turn_id]), tx)
        for turn_id in ids
        if turn_id in rows
    ]


def _record(
    row: sqlite3.Row, images: tuple[ImageRecord, ...], siblings: tuple[int, ...], tx: Transaction
) -> TurnRecord:
    role: Role = row["role"]
    text, thinking, last_seq = row["text"], row["thinking"], row["last_seq"]
    if row["state"] in OPEN and (chunks := read_chunks(tx, row["id"])):
        text = "".join(chunk.text for chunk in chunks)
        thinking = "".join(chunk.thinking for chunk in chunks)
        last_seq = chunks[-1].seq
    return TurnRecord(
        id=row["id"],
        parent_id=row["parent_id"],
        session_id=row["session_id"],
        role=role,
        text=text,
        thinking=thinking,
        images=images,
        state=row["state"],
        stop_reason=row["stop_reason"],
        error=row["error"],
        usage=_from_json(row, "usage", dict),
        timing=_from_json(row, "timing", dict),
        dtype=_from_json(row, "dtype", list),
        notices=_from_json(row, "notices", list) or [],
        backend=row["backend"],
        model=row["model"],
        params=_from_json(row, "params", dict) or {},
        poster=row["poster"],
        owner=row["owner"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
        siblings=siblings,
        last_seq=last_seq,
    )


def _from_json(row: sqlite3.Row, column: str, kind: type[T]) -> T | None:
    """A stored JSON value. A damaged one costs itself, never the turn or the session."""
    stored = row[column]
    if stored is None:
        return None
    try:
        value = json.loads(stored)
    except ValueError as error:
        log.warning("turn %s, column %s: %s", row["id"], column, error)
        return None
    return value if isinstance(value, kind) else None
