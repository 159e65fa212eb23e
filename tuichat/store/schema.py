"""The tables, and how an older database becomes a current one.

Owns ``MIGRATIONS``: entry *n* leads from version *n* to *n* + 1, and what was released is never
changed again. Refuses to know what the rows mean. Invariant: a migration is one transaction with a
backup taken before it, so a database is always whole at some version; one that is newer than this
program is left untouched.

The caller holds the store's opening lock.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from tuichat.api import StoreError
from tuichat.store.problems import shown

Migration = Sequence[str]
"""Single SQL statements (``executescript`` would commit half-way)."""

MIGRATIONS: tuple[Migration, ...] = (
    (
        """CREATE TABLE session (
            id TEXT PRIMARY KEY,
            title TEXT,
            system TEXT,
            backend TEXT,
            model TEXT,
            head INTEGER REFERENCES turn(id) ON DELETE SET NULL,
            turns INTEGER NOT NULL DEFAULT 0,
            images INTEGER NOT NULL DEFAULT 0,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL
        )""",
        "CREATE INDEX session_by_use ON session(updated_at DESC, id DESC)",
        # AUTOINCREMENT: an id that was seen is never given again, not even after a deletion.
        """CREATE TABLE turn (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            session_id TEXT NOT NULL REFERENCES session(id) ON DELETE CASCADE,
            parent_id INTEGER REFERENCES turn(id) ON DELETE CASCADE,
            role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
            state TEXT NOT NULL CHECK (state IN
                ('queued', 'running', 'done', 'stopped', 'failed', 'interrupted')),
            text TEXT NOT NULL DEFAULT '',
            thinking TEXT NOT NULL DEFAULT '',
            last_seq INTEGER NOT NULL DEFAULT 0,
            poster TEXT,
            owner TEXT,
            stop_reason TEXT,
            error TEXT,
            usage TEXT,
            timing TEXT,
            dtype TEXT,
            notices TEXT,
            backend TEXT,
            model TEXT,
            params TEXT,
            created_at REAL NOT NULL,
            finished_at REAL
        )""",
        "CREATE INDEX turn_by_parent ON turn(session_id, parent_id, role)",
        "CREATE INDEX turn_children ON turn(parent_id)",
        "CREATE INDEX turn_open ON turn(session_id, id) WHERE state IN ('queued', 'running')",
        """CREATE TABLE image (
            digest TEXT PRIMARY KEY,
            format TEXT NOT NULL,
            width INTEGER NOT NULL,
            height INTEGER NOT NULL,
            size INTEGER NOT NULL,
            notice TEXT,
            created_at REAL NOT NULL
        )""",
        """CREATE TABLE turn_image (
            turn_id INTEGER NOT NULL REFERENCES turn(id) ON DELETE CASCADE,
            position INTEGER NOT NULL,
            digest TEXT NOT NULL REFERENCES image(digest),
            name TEXT NOT NULL,
            PRIMARY KEY (turn_id, position)
        ) WITHOUT ROWID""",
        "CREATE INDEX turn_image_by_digest ON turn_image(digest)",
        """CREATE TABLE chunk (
            reply_id INTEGER NOT NULL REFERENCES turn(id) ON DELETE CASCADE,
            seq INTEGER NOT NULL,
            text TEXT NOT NULL,
            thinking TEXT NOT NULL,
            PRIMARY KEY (reply_id, seq)
        ) WITHOUT ROWID""",
        # Trigrams find words in scripts that put no spaces between them.
        """CREATE VIRTUAL TABLE turn_text USING fts5(
            text, content='turn', content_rowid='id', tokenize='trigram'
        )""",
    ),
)


def migrate(
    connection: sqlite3.Connection, root: Path, migrations: Sequence[Migration] = MIGRATIONS
) -> None:
    """Bring the database to version ``len(migrations)``.

    Raises:
        StoreError: it was written by a newer program, or a migration left dangling references.
        sqlite3.Error: nothing was changed.
    """
    version = _version(connection)
    if version > len(migrations):
        raise StoreError(
            f"The database in {shown(root)} was written by a newer tuichat (schema {version}, this "
            f"one knows {len(migrations)}): update tuichat, or set TUICHAT_HOME to another folder"
        )
    if version == len(migrations):
        return
    if version > 0:
        _back_up(connection, root, version)
    # Off, because replacing a table would otherwise delete what refers to it; only possible
    # outside a transaction. Checked before the commit instead.
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("BEGIN IMMEDIATE")
    try:
        for migration in migrations[version:]:
            for statement in migration:
                connection.execute(statement)
        if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
            raise StoreError(
                f"The database in {shown(root)} could not be updated, because some of its turns "
                "refer to missing ones: keep using the older tuichat and report this"
            )
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    finally:
        connection.execute("PRAGMA foreign_keys = ON")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _back_up(connection: sqlite3.Connection, root: Path, version: int) -> None:
    """A complete copy in ``backups``, there under its name only once it is whole."""
    folder = root / "backups"
    folder.mkdir(mode=0o700, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    final = folder / f"tuichat-v{version}-{stamp}.db"
    unfinished = final.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    try:
        copy = sqlite3.connect(unfinished)
        try:
            connection.backup(copy)
        finally:
            copy.close()
        os.replace(unfinished, final)  # noqa: PTH105 - atomic, and says so
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
