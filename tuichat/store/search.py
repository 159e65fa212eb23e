"""Finding turns by what is in them.

Owns the query language: words that all have to occur, in any order and letter case. Refuses to know
ranking. Invariant: nothing that a person types is query syntax, and words of any length and script
are found.
"""

from __future__ import annotations

from tuichat.store.database import Database, Value
from tuichat.store.records import SearchHit
from tuichat.store.text import escape

_TRIGRAM = 3  # the index knows only runs of that many characters
_AROUND = 40  # characters of context on either side


def search(database: Database, query: str, limit: int) -> list[SearchHit]:
    """At most ``limit`` turns that contain every word of ``query``, newest first.

    Raises:
        StoreError: the store cannot be read.
    """
    words = query.split()
    if not words:
        return []
    source, order = "turn", "turn.id"
    conditions: list[str] = []
    values: list[Value] = []
    indexed = [word for word in words if len(escape(word)) >= _TRIGRAM]
    if indexed:
        # The index delivers by descending rowid, so that LIMIT ends a search for a common word.
        order = "turn_text.rowid"
        source = "turn_text CROSS JOIN turn ON turn.id = turn_text.rowid"
        conditions.append("turn_text MATCH ?")
        values.append(" ".join('"' + word.replace('"', '""') + '"' for word in indexed))
    for word in words:
        if word not in indexed:  # two Chinese characters are a word, and no trigram
            conditions.append("turn.text LIKE ? ESCAPE '!'")
            values.append("%" + "".join(f"!{c}" if c in "!%_" else c for c in word) + "%")
    with database.read() as tx:
        rows = tx.all(
            "SELECT turn.id, turn.session_id, turn.role, turn.text, turn.created_at, session.title"
            f" FROM {source} CROSS JOIN session ON session.id = turn.session_id"
            f" WHERE {' AND '.join(conditions)} ORDER BY {order} DESC LIMIT ?",
            *values,
            limit,
        )
    return [
        SearchHit(
            session_id=row["session_id"],
            turn_id=row["id"],
            role=row["role"],
            title=row["title"] or "",
            snippet=_snippet(row["text"], max(words, key=len)),
            created_at=row["created_at"],
        )
        for row in rows
    ]


def _snippet(text: str, word: str) -> str:
    # Lower case of the same length keeps positions; where it is not, the beginning has to do.
    lowered = text.lower()
    at = max(0, lowered.find(word.lower())) if len(lowered) == len(text) else 0
    start, end = max(0, at - _AROUND), at + len(word) + _AROUND
    middle = " ".join(text[start:end].split())
    return ("…" if start else "") + middle + ("…" if end < len(text) else "")
