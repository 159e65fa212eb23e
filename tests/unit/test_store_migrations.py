"""Older databases become current ones: wholly, once, and with a backup.

``test_store_v1.db`` beside this file was written by the store of schema 1; it is never made anew
once that schema is released. Until then: ``python tests/unit/test_store_migrations.py``.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tuichat.api import StoreError
from tuichat.store import Store
from tuichat.store.database import Database
from tuichat.store.schema import MIGRATIONS

FIXTURE = Path(__file__).with_name("test_store_v1.db")

# What a later schema could do: a column, its values, and a table replaced in SQLite's manner.
NEXT = (
    "ALTER TABLE session ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0",
    "UPDATE session SET pinned = 1 WHERE turns > 2",
    "CREATE TABLE new_image (digest TEXT PRIMARY KEY, format TEXT NOT NULL, width INTEGER NOT NULL,"
    " height INTEGER NOT NULL, size INTEGER NOT NULL, notice TEXT, created_at REAL NOT NULL)",
    "INSERT INTO new_image SELECT * FROM image",
    "DROP TABLE image",
    "ALTER TABLE new_image RENAME TO image",
)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    shutil.copy(FIXTURE, tmp_path / "tuichat.db")
    return tmp_path


def read(path: Path, sql: str) -> list[tuple[object, ...]]:
    raw = sqlite3.connect(path)
    try:
        return raw.execute(sql).fetchall()
    finally:
        raw.close()


def test_schema_1_is_read_by_this_program(old: Path) -> None:
    with Store.open(old) as store:
        (record,) = store.list_sessions()
        assert (record.title, record.turns, record.images) == ("What colour is it?", 5, 1)
        question, answer, follow_up, reply = store.path(record.id)
        assert question.images[0].name == "caf\udce9.png"
        assert (answer.text, answer.state, answer.usage) == ("It is red.", "done", {"new": 3})
        assert follow_up.text == "And now? \0"
        assert (reply.state, len(reply.siblings)) == ("queued", 2)
        assert store.turn(reply.siblings[0]).state == "stopped"
        assert [hit.turn_id for hit in store.search("RED")] == [answer.id]
        assert store.interrupt_dead() == [reply.id]


def test_migration_keeps_every_row_and_a_backup(old: Path) -> None:
    database = Database(old, (*MIGRATIONS, NEXT))
    with database.read() as tx:
        row = tx.one("SELECT pinned FROM session")
        assert row is not None
        assert row["pinned"] == 1
        joined = tx.one("SELECT count(*) AS n FROM turn_image JOIN image USING (digest)")
        assert joined is not None
        assert joined["n"] == 1  # dropping a table has deleted nothing that refers to it
        keys = tx.one("PRAGMA foreign_keys")
        assert keys is not None
        assert keys[0] == 1
    database.close()
    (backup,) = (old / "backups").iterdir()
    assert backup.name.startswith(f"tuichat-v{len(MIGRATIONS)}-")
    count = "SELECT count(*) FROM turn"
    assert read(backup, count) == read(FIXTURE, count)
    assert read(backup, "PRAGMA user_version") == [(len(MIGRATIONS),)]
    with pytest.raises(StoreError, match="newer tuichat"):
        Store.open(old)


@pytest.mark.parametrize(
    "fault",
    [
        "INSERT INTO no_such_table VALUES (1)",
        "DELETE FROM turn WHERE parent_id IS NULL",  # leaves children without their parent
    ],
)
def test_migration_that_fails_changes_nothing(old: Path, fault: str) -> None:
    before = read(old / "tuichat.db", "SELECT sql FROM sqlite_schema ORDER BY name")
    with pytest.raises(StoreError):
        Database(old, (*MIGRATIONS, (*NEXT, fault)))
    assert read(old / "tuichat.db", "PRAGMA user_version") == [(len(MIGRATIONS),)]
    assert read(old / "tuichat.db", "SELECT sql FROM sqlite_schema ORDER BY name") == before
    with Store.open(old) as store:
        assert len(store.list_sessions()) == 1


def test_several_versions_are_crossed_at_once(tmp_path: Path) -> None:
    steps = (("CREATE TABLE a (x)", "INSERT INTO a VALUES (1)"), ("ALTER TABLE a ADD COLUMN y",))
    Database(tmp_path, steps[:1]).close()
    later = (*steps, ("UPDATE a SET y = x + 1",), ("CREATE TABLE b AS SELECT y FROM a",))
    Database(tmp_path, later).close()
    assert read(tmp_path / "tuichat.db", "SELECT y FROM b") == [(2,)]
    Database(tmp_path, later).close()
    assert len(list((tmp_path / "backups").iterdir())) == 1  # nothing to do, nothing to back up


MIGRATE = """
import sys; from pathlib import Path
from tuichat.store.database import Database; from tuichat.store.schema import MIGRATIONS
sys.stdin.readline()
Database(Path(sys.argv[1]), (*MIGRATIONS, ("CREATE TABLE once (x)",))).close()
"""


def test_eight_processes_migrate_once(old: Path) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", MIGRATE, str(old)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(8)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
    for child in children:
        _, errors = child.communicate(timeout=60)
        assert (child.returncode, errors) == (0, b"")
    assert len(list((old / "backups").iterdir())) == 1


def _make_fixture(path: Path) -> None:
    from io import BytesIO

    from PIL import Image

    from tuichat.images import check_image

    buffer = BytesIO()
    Image.new("RGB", (40, 20), "red").save(buffer, "PNG")
    with Store.temporary() as store:
        asked = {"poster": "1-dead", "backend": "llava", "model": "demo"}
        session = store.create_session(system="Be brief.", backend="llava", model="demo")
        image = store.put_image(check_image(buffer.getvalue(), "caf\udce9.png"))
        first = store.post(session, "What colour is it?\nSay one word.", [image], **asked)
        store.claim(first.reply_id, "2-dead")
        store.append(first.reply_id, 1, "It is ", "thinking", owner="2-dead")
        store.append(first.reply_id, 2, "red.", owner="2-dead")
        store.finish(first.reply_id, owner="2-dead", state="done", usage={"new": 3})
        second = store.post(session, "And now? \0", [], **asked)
        store.claim(second.reply_id, "2-dead")
        store.finish(second.reply_id, owner="2-dead", state="stopped")
        store.regenerate(second.reply_id, **asked)
        source = store.root / "tuichat.db"
        raw = sqlite3.connect(source, isolation_level=None)
        path.unlink(missing_ok=True)
        raw.execute("PRAGMA page_size = 512")
        raw.execute("VACUUM INTO ?", [str(path)])
        raw.close()


if __name__ == "__main__":
    _make_fixture(FIXTURE)
