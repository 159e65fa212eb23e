"""Sessions: making, finding, listing and renaming them.

Owns the ``session`` table, its ids and how a person may write one. Refuses to know turns.
Invariant: an id is never guessed: what fits no session, or more than one, is an error that offers
near ones.
"""

from __future__ import annotations

import difflib
import secrets
import sqlite3
import time

from tuichat.api import SessionNotFound
from tuichat.sanitize import sanitize_line
from tuichat.store.database import Database, Transaction
from tuichat.store.records import LEAVE, Leave, SessionRecord

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: no i, l, o, u
_LENGTH = 10
_SHORTEST_PREFIX = 4
_EPOCH = 1_704_067_200  # 2024-01-01: 40 bits of milliseconds from there last until 2058
_RANDOM_BITS = 10
_TITLE = 60  # characters
_NEAR_AMONG = 2_000  # sessions that near matches are looked for in

_COLUMNS = "id, title, created_at, updated_at, backend, model, system, turns, images, head"


class Sessions:
    """The sessions of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, system: str | None, backend: str | None, model: str | None) -> str:
        """A new, empty session's id."""
        now = time.time()
        with self._database.write() as tx:
            session_id = new_id(now)
            while tx.one("SELECT 1 FROM session WHERE id = ?", session_id):
                session_id = new_id(now)
            tx.run(
                "INSERT INTO session(id, system, backend, model, created_at, updated_at)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                *(session_id, system, backend, model, now, now),
            )
        return session_id

    def get(self, session_id: str) -> SessionRecord:
        """The session with exactly this id.

        Raises:
            SessionNotFound: there is none.
        """
        with self._database.read() as tx:
            return get_session(tx, session_id)

    def resolve(self, text: str) -> SessionRecord:
        """The session that a person means by ``last``, an id, or the beginning of one.

        Raises:
            SessionNotFound: none fits, or more than one.
        """
        wanted = normalise(text)
        with self._database.read() as tx:
            if wanted == "last":
                return _last(tx)
            if len(wanted) < _SHORTEST_PREFIX:
                raise _not_found(tx, text)
            # No pattern characters here: the range covers every id that begins with ``wanted``.
            rows = tx.all(
                f"SELECT {_COLUMNS} FROM session WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT 4",
                *(wanted, wanted + "\x7f"),
            )
            if not rows:
                raise _not_found(tx, text)
            if len(rows) > 1 and rows[-1]["id"] != wanted:
                several = ", ".join(_offer(row) for row in rows[:3])
                raise SessionNotFound(
                    f"Several sessions begin with {_quoted(text)} ({several}): type more of it"
                )
            return _record(rows[-1])

    def recent(self, limit: int | None) -> list[SessionRecord]:
        """Sessions in which something was posted, most recently used first."""
        with self._database.read() as tx:
            rows = tx.all(
                f"SELECT {_COLUMNS} FROM session WHERE turns > 0"
                " ORDER BY updated_at DESC, id DESC LIMIT ?",
                -1 if limit is None else limit,
            )
        return [_record(row) for row in rows]

    def set(self, session_id: str, **fields: str | Leave | None) -> None:
        """Change ``title``, ``system``, ``backend`` or ``model``; ``LEAVE`` leaves one alone.

        Raises:
            SessionNotFound: there is no such session.
        """
        with self._database.write() as tx:
            get_session(tx, session_id)
            for name, value in fields.items():
                if value is not LEAVE:
                    assert name in ("title", "system", "backend", "model")
                    assert not isinstance(value, Leave)
                    tx.run(f"UPDATE session SET {name} = ? WHERE id = ?", value, session_id)


def new_id(now: float) -> str:
    """An id whose order is that of time, to the millisecond; ``now`` in seconds."""
    moment = max(0, int((now - _EPOCH) * 1000)) & ((1 << 40) - 1)
    number = (moment << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(45, -1, -5))


def normalise(text: str) -> str:
    """An id as a person may have typed it: any case, O for 0, I and L for 1."""
    lowered = text.strip().lower()
    if lowered == "last":
        return lowered
    return lowered.replace("-", "").translate(str.maketrans("oil", "011"))


def get_session(tx: Transaction, session_id: str) -> SessionRecord:
    """The session inside a transaction.

    Raises:
        SessionNotFound: there is none.
    """
    row = tx.one(f"SELECT {_COLUMNS} FROM session WHERE id = ?", session_id)
    if row is None:
        raise _not_found(tx, session_id)
    return _record(row)


def make_title(text: str, image_names: list[str]) -> str:
    """A session's title, from its first question."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    line = line or next(iter(image_names), "")
    return line if len(line) <= _TITLE else line[: _TITLE - 1].rstrip() + "…"


def _last(tx: Transaction) -> SessionRecord:
    row = tx.one(
        f"SELECT {_COLUMNS} FROM session WHERE turns > 0 ORDER BY updated_at DESC, id DESC LIMIT 1"
    )
    if row is None:
        raise SessionNotFound("No session is stored yet: start one with a question")
    return _record(row)


def _not_found(tx: Transaction, text: str) -> SessionNotFound:
    rows = tx.all(
        f"SELECT {_COLUMNS} FROM session WHERE turns > 0 ORDER BY updated_at DESC LIMIT ?",
        _NEAR_AMONG,
    )
    by_id = {row["id"]: row for row in rows}
    # Ids of one day begin alike, so only real typing mistakes come close.
    near = difflib.get_close_matches(normalise(text), by_id, n=3, cutoff=0.8)
    if near:
        offer = " or ".join(_offer(by_id[session_id]) for session_id in near)
        return SessionNotFound(f"No session has the id {_quoted(text)}: did you mean {offer}?")
    return SessionNotFound(
        f"No session has the id {_quoted(text)}: `tuichat sessions` lists all of them"
    )


def _offer(row: sqlite3.Row) -> str:
    title = sanitize_line(row["title"] or "")
    return f"{row['id']} “{title}”" if title else str(row["id"])


def _quoted(text: str) -> str:
    return f"“{sanitize_line(text[:40])}”"


def _record(row: sqlite3.Row) -> SessionRecord:
    return SessionRecord(
        id=row["id"],
        title=row["title"] or "",
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        backend=row["backend"],
        model=row["model"],
        system=row["system"],
        turns=row["turns"],
        images=row["images"],
        head=row["head"],
    )
