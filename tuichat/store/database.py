"""Connections and transactions.

Owns how the database file is opened, its pragmas, and the two kinds of transaction. Refuses to
know the tables. Invariant: every statement runs inside ``read()``, which sees one moment, or
``write()``, which happens wholly or not at all; every text that goes in is escaped and every text
that comes out is not.

Each thread has a connection of its own, so a reader never waits for the thread that writes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

from tuichat.api import StoreError
from tuichat.store import schema
from tuichat.store.locks import FileLock
from tuichat.store.problems import shown, translated
from tuichat.store.text import escape, from_bytes

log = logging.getLogger(__name__)

FILE_NAME = "tuichat.db"
BUSY_SECONDS = 10.0  # how long a statement waits for another process's transaction
OPEN_SECONDS = 30.0  # how long an opening waits for another process's migration

# WAL needs shared memory, which these do not have between machines.
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs"}
    | {"panfs", "fuse.sshfs", "fuse.glusterfs"}
)

Value = str | int | float | bytes | None


class Transaction:
    """Statements inside one ``read()`` or ``write()``."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, sql: str, *values: Value) -> sqlite3.Cursor:
        """Execute one statement; texts among ``values`` are escaped."""
        return self._connection.execute(
            sql, [escape(value) if isinstance(value, str) else value for value in values]
        )

    def all(self, sql: str, *values: Value) -> list[sqlite3.Row]:
        """All rows, with unescaped texts."""
        return self.run(sql, *values).fetchall()

    def one(self, sql: str, *values: Value) -> sqlite3.Row | None:
        """The first row, or None."""
        row: sqlite3.Row | None = self.run(sql, *values).fetchone()
        return row


class Database:
    """One database file, for all threads of this process."""

    def __init__(self, root: Path, migrations: Sequence[schema.Migration] = schema.MIGRATIONS):
        """Open ``root/tuichat.db``, made or migrated if need be.

        Raises:
            StoreError: one sentence.
        """
        self.root = root
        self.path = root / FILE_NAME
        self.notices: list[str] = []
        self._process = os.getpid()
        self._closed = False
        self._local = threading.local()
        self._guard = threading.Condition()
        self._active = 0  # transactions under way, of all threads
        self._connections: weakref.WeakSet[_Connection] = weakref.WeakSet()
        self._journal = "wal"
        with translated(root), _opening(root):
            self._prepare(migrations)

    def close(self) -> None:
        """Close the connections of all threads, after the transactions that are under way.

        Does nothing the second time. A transaction that begins later raises StoreError.
        """
        if self._process != os.getpid():
            return  # SQLite forbids touching a parent's connections
        with self._guard:
            self._closed = True
            # A connection that is closed under another thread's statement crashes the process.
            self._guard.wait_for(lambda: self._active == 0)
            connections = list(self._connections)
        for connection in connections:
            connection.close()

    @contextlib.contextmanager
    def read(self) -> Iterator[Transaction]:
        """A transaction that sees the database at one moment.

        Raises:
            StoreError: one sentence.
        """
        with self._transaction("BEGIN") as transaction:
            yield transaction

    @contextlib.contextmanager
    def write(self) -> Iterator[Transaction]:
        """A transaction that is committed at the end, or rolled back when anything raises.

        Raises:
            StoreError: one sentence; nothing was written.
        """
        # Immediate: a transaction that reads first and writes later could fail in the middle,
        # without waiting, because another process wrote in between.
        with self._transaction("BEGIN IMMEDIATE") as transaction:
            yield transaction

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[Transaction]:
        with translated(self.root), self._under_way():
            connection = self._connection()
            connection.execute(begin)
            try:
                yield Transaction(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # some errors roll back by themselves
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _under_way(self) -> Iterator[None]:
        with self._guard:
            if self._closed:
                raise self._closed_already()
            self._active += 1
        try:
            yield
        finally:
            with self._guard:
                self._active -= 1
                self._guard.notify_all()

    def _closed_already(self) -> StoreError:
        return StoreError(f"The store in {shown(self.root)} is closed already: start tuichat again")

    def _connection(self) -> sqlite3.Connection:
        if self._process != os.getpid():
            raise StoreError(
                f"The store in {shown(self.root)} was opened before this process was forked: "
                "open it again in the new process"
            )
        mine: _Connection | None = getattr(self._local, "connection", None)
        if mine is None:
            mine = self._connect()
            self._local.connection = mine
        return mine.raw

    def _connect(self) -> _Connection:
        connection = _Connection(self.path)
        with self._guard:
            if self._closed:
                connection.close()
                raise self._closed_already()
            self._connections.add(connection)
        self._configure(connection.raw)
        return connection

    def _configure(self, raw: sqlite3.Connection) -> None:
        raw.execute("PRAGMA foreign_keys = ON")
        # In WAL a power cut at NORMAL loses at most the last moments and never damages the file;
        # a rollback journal needs FULL for that.
        raw.execute(f"PRAGMA synchronous = {'NORMAL' if self._journal == 'wal' else 'FULL'}")

    def _prepare(self, migrations: Sequence[schema.Migration]) -> None:
        """Under the opening lock: version, journal and a proof that it can be written."""
        connection = self._connect()
        try:
            # Before anything is changed: a newer database is left as it is.
            schema.migrate(connection.raw, self.root, migrations)
            self._choose_journal(connection.raw)
            self._configure(connection.raw)
            connection.raw.execute("BEGIN IMMEDIATE")
            connection.raw.execute("ROLLBACK")
        except BaseException:
            connection.close()
            raise
        self._local.connection = connection

    def _choose_journal(self, raw: sqlite3.Connection) -> None:
        """WAL where it works; else a rollback journal, and a notice."""
        file_system = network_file_system(self.root)
        if file_system is None:
            with contextlib.suppress(sqlite3.OperationalError):
                if raw.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
                    # Reading for the first time is what needs the shared memory.
                    raw.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                    return
        raw.execute("PRAGMA journal_mode = DELETE")
        self._journal = "delete"
        reason = f"is on a network file system ({file_system})" if file_system else "has no WAL"
        self.notices.append(
            f"The store in {shown(self.root)} {reason}: it is kept with a rollback journal, "
            "which is slower"
        )


class _Connection:
    """A connection that is closed with its thread; Python's own only warns."""

    def __init__(self, path: Path) -> None:
        self.raw = sqlite3.connect(
            path,
            timeout=BUSY_SECONDS,
            isolation_level=None,  # transactions are begun by hand
            check_same_thread=False,  # ``Database.close`` closes them all
        )
        self.raw.row_factory = sqlite3.Row
        self.raw.text_factory = from_bytes

    def close(self) -> None:
        self.raw.close()

    def __del__(self) -> None:
        if hasattr(self, "raw"):
            self.raw.close()


def network_file_system(folder: Path, mounts: str | None = None) -> str | None:
    """The type of the network file system that ``folder`` is on, or None.

    ``mounts`` is the text of ``/proc/self/mounts``, read if not given; without one, None.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(errors="surrogateescape")
        except OSError:
            return None
    resolved = folder.resolve()
    best, found = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace(r"\040", " ")
        # Of two on the same place the later one covers the other.
        if len(point) >= best and resolved.is_relative_to(point):
            best, found = len(point), fields[2]
    return found if found in _NETWORK else None


@contextlib.contextmanager
def _opening(root: Path) -> Iterator[None]:
    """One process at a time opens or migrates: switching to WAL does not wait by itself."""
    give_up = time.monotonic() + OPEN_SECONDS
    while (lock := FileLock.take(root / "open.lock")) is None:
        if time.monotonic() > give_up:
            raise StoreError(
                f"{shown(root)} is being opened by another tuichat for too long: "
                "end that program and try again"
            )
        time.sleep(0.01)
    with lock:
        yield
