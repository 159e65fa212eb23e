"""The life of a reply: queued → running → done, stopped, failed or interrupted.

Owns claiming, appending, finishing and interrupting. Refuses to know who generates. Invariants:
only the owner that claimed a reply writes to it, and only while it runs; the replies of a session
run in the order in which they were posted, one at a time; what ended stays as it ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tuichat.api import StoreError
from tuichat.store.database import Database, Transaction
from tuichat.store.problems import ReplyLost
from tuichat.store.records import FINAL, Chunk, Outcome
from tuichat.store.turns import index_text, read_chunks, require_reply, to_json

_POSTER_DIED = "The program that asked ended before the answer began: ask again"
_OWNER_DIED = "The program that was answering ended before it had finished: ask again"


class Replies:
    """The replies of one database; ``alive`` tells whether an owner's token still lives."""

    def __init__(self, database: Database, alive: Callable[[str], bool]) -> None:
        self._database = database
        self._alive = alive

    def claim(self, reply_id: int, owner: str) -> bool:
        """Make a queued reply this owner's, running. False when that cannot be (yet).

        Raises:
            StoreError: there is no such reply, or nothing can be written.
        """
        while True:
            with self._database.write() as tx:
                row = require_reply(tx, reply_id)
                if row["state"] != "queued":
                    return False
                session_id = row["session_id"]
                if _older_open(tx, session_id, reply_id) is None:
                    tx.run(
                        "UPDATE turn SET state = 'running', owner = ? WHERE id = ?",
                        *(owner, reply_id),
                    )
                    return True
            # The dead hold nobody up; if the one ahead lives, it is not this reply's turn yet.
            if not self.interrupt_dead(session_id):
                return False

    def blocked_by(self, reply_id: int) -> int | None:
        """The oldest reply that has to end before this queued one can be claimed, or None."""
        with self._database.read() as tx:
            row = require_reply(tx, reply_id)
            if row["state"] != "queued":
                return None
            return _older_open(tx, row["session_id"], reply_id)

    def adopt(self, reply_id: int, poster: str) -> None:
        """Make ``poster`` answer for a queued reply: it lives as long as that process does.

        A reply that is no longer queued is left as it is.

        Raises:
            StoreError: there is no such reply, or nothing can be written.
        """
        with self._database.write() as tx:
            if require_reply(tx, reply_id)["state"] == "queued":
                tx.run("UPDATE turn SET poster = ? WHERE id = ?", poster, reply_id)

    def decline(self, reply_id: int, outcome: Outcome) -> bool:
        """End a queued reply that will never run. False when it is not queued (any more).

        Raises:
            StoreError: there is no such reply, or nothing can be written.
        """
        with self._database.write() as tx:
            if require_reply(tx, reply_id)["state"] != "queued":
                return False
            _close(tx, reply_id, outcome)
            return True

    def append(self, reply_id: int, seq: int, text: str, thinking: str, owner: str) -> None:
        """Commit the next chunk; ``seq`` counts from 1 without gaps.

        Raises:
            ReplyLost: it is not running, or not this owner's.
            StoreError: ``seq`` is not the next number, or nothing can be written.
        """
        with self._database.write() as tx:
            row = tx.one(
                "SELECT state, owner, (SELECT max(seq) FROM chunk WHERE reply_id = turn.id) AS last"
                " FROM turn WHERE id = ?",
                reply_id,
            )
            if row is None or row["state"] != "running" or row["owner"] != owner:
                raise _lost(reply_id)
            if seq != (row["last"] or 0) + 1:
                raise StoreError(
                    f"Piece {seq} of reply {reply_id} does not follow piece {row['last'] or 0}: "
                    "the answer was stopped there, ask again"
                )
            tx.run("INSERT INTO chunk VALUES (?, ?, ?, ?)", reply_id, seq, text, thinking)

    def finish(self, reply_id: int, owner: str, outcome: Outcome) -> None:
        """End a running reply: chunks folded into it, indexed, in one transaction.

        Raises:
            ReplyLost: it is not running, or not this owner's.
            StoreError: nothing can be written.
        """
        if outcome.state not in FINAL:
            raise ValueError(f"{outcome.state} does not end a reply")
        with self._database.write() as tx:
            row = require_reply(tx, reply_id)
            if row["state"] != "running" or row["owner"] != owner:
                raise _lost(reply_id)
            _close(tx, reply_id, outcome)

    def chunks_since(self, reply_id: int, seq: int) -> list[Chunk]:
        """Chunks with numbers above ``seq``; none once the reply has ended (read the turn)."""
        with self._database.read() as tx:
            return read_chunks(tx, reply_id, seq)

    def interrupt(self, reply_id: int, reason: str) -> bool:
        """End an open reply as interrupted, what it has kept. False when it had ended already.

        Raises:
            StoreError: there is no such reply, or nothing can be written.
        """
        with self._database.write() as tx:
            if require_reply(tx, reply_id)["state"] in FINAL:
                return False
            _close(tx, reply_id, Outcome("interrupted", error=reason))
            return True

    def interrupt_dead(self, session_id: str | None) -> list[int]:
        """Interrupt queued replies whose poster is dead and running ones whose owner is; their ids.

        Raises:
            StoreError: nothing can be read or written.
        """
        with self._database.read() as tx:
            rows = tx.all(
                "SELECT id, state, CASE state WHEN 'queued' THEN poster ELSE owner END AS token"
                # Named, because SQLite would rather walk all turns in the order of their ids.
                " FROM turn INDEXED BY turn_open WHERE state IN ('queued', 'running')"
                " AND session_id = coalesce(?, session_id) ORDER BY id",
                session_id,
            )
        living = {token: self._alive(token) for token in {row["token"] or "" for row in rows}}
        dead = [row for row in rows if not living[row["token"] or ""]]
        if not dead:
            return []
        interrupted: list[int] = []
        with self._database.write() as tx:
            for row in dead:
                # A living worker may have claimed it since.
                if require_reply(tx, row["id"])["state"] != row["state"]:
                    continue
                reason = _POSTER_DIED if row["state"] == "queued" else _OWNER_DIED
                _close(tx, row["id"], Outcome("interrupted", error=reason))
                interrupted.append(row["id"])
        return interrupted


def _older_open(tx: Transaction, session_id: str, reply_id: int) -> int | None:
    row = tx.one(
        "SELECT min(id) AS id FROM turn INDEXED BY turn_open"
        " WHERE session_id = ? AND state IN ('queued', 'running') AND id < ?",
        *(session_id, reply_id),
    )
    return row["id"] if row else None


def _close(tx: Transaction, reply_id: int, outcome: Outcome) -> None:
    """Fold the chunks of an open reply into its turn and end it."""
    chunks = read_chunks(tx, reply_id)
    text = "".join(chunk.text for chunk in chunks)
    now = time.time()
    tx.run(
        "UPDATE turn SET state = ?, text = ?, thinking = ?, last_seq = ?, stop_reason = ?,"
        " error = ?, usage = ?, timing = ?, dtype = ?, notices = ?, finished_at = ? WHERE id = ?",
        *(outcome.state, text, "".join(chunk.thinking for chunk in chunks)),
        *(chunks[-1].seq if chunks else 0, outcome.stop_reason, outcome.error),
        None if outcome.usage is None else to_json(dict(outcome.usage)),
        None if outcome.timing is None else to_json(dict(outcome.timing)),
        None if outcome.dtype is None else to_json(outcome.dtype),
        *(to_json(outcome.notices), now, reply_id),
    )
    tx.run("DELETE FROM chunk WHERE reply_id = ?", reply_id)
    tx.run(
        "UPDATE session SET updated_at = ? WHERE id = (SELECT session_id FROM turn WHERE id = ?)",
        *(now, reply_id),
    )
    index_text(tx, reply_id, text)


def _lost(reply_id: int) -> ReplyLost:
    return ReplyLost(f"Reply {reply_id} was ended elsewhere while it was written: ask again")
