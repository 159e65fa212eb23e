"""Opening a store: many at once, and every way in which it cannot be opened or written."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuichat import paths
from tuichat.api import StoreError
from tuichat.images import check_image
from tuichat.store import Store
from tuichat.store import database as database_module
from tuichat.store.database import network_file_system


def sentence(root: Path) -> str:
    with pytest.raises(StoreError) as caught:
        Store.open(root)
    text = str(caught.value)
    assert "\n" not in text
    return text


def ask(store: Store, text: str = "question") -> int:
    session = store.create_session(backend="b", model="m")
    return store.post(session, text, [], poster="p", backend="b", model="m").reply_id


def test_default_root_is_the_data_folder(home: Path) -> None:
    with Store.open() as store:
        assert store.root == paths.data_dir() == home / "data"
        assert not store.is_temporary
        assert store.notices == []


def test_everything_is_private(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "data"
    root.mkdir(parents=True, mode=0o755)
    with Store.open(root) as store:
        ask(store)
        for folder in (root, *[child for child in root.iterdir() if child.is_dir()]):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_wal_and_foreign_keys_are_on(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, store._database.read() as tx:
        for pragma, value in (("journal_mode", "wal"), ("foreign_keys", 1), ("synchronous", 1)):
            row = tx.one(f"PRAGMA {pragma}")
            assert row is not None
            assert row[0] == value


OPEN_AND_POST = """
import sys
from pathlib import Path
from tuichat.store import Store
sys.stdin.readline()
with Store.open(Path(sys.argv[1])) as store:
    session = store.create_session(backend="b", model="m")
    store.post(session, "from " + sys.argv[2], [], poster="p", backend="b", model="m")
"""


def test_twenty_processes_open_an_empty_folder_at_once(tmp_path: Path) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN_AND_POST, str(tmp_path / "data"), str(number)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(20)
    ]
    for child in children:  # all are started and waiting: now at once
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
    for child in children:
        _, errors = child.communicate(timeout=60)
        assert (child.returncode, errors) == (0, b"")
    with Store.open(tmp_path / "data") as store:
        titles = {record.title for record in store.list_sessions()}
    assert titles == {f"from {number}" for number in range(20)}


def test_opening_again_finds_everything(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        reply = ask(store, "kept")
    with Store.open(tmp_path) as store:
        assert store.turn(reply).state == "queued"
        assert store.list_sessions()[0].title == "kept"


def test_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        ask(store)
    raw = sqlite3.connect(tmp_path / "tuichat.db")
    raw.execute("PRAGMA user_version = 999")
    raw.commit()
    raw.close()
    before = (tmp_path / "tuichat.db").read_bytes()
    text = sentence(tmp_path)
    assert "newer tuichat" in text
    assert "update tuichat" in text
    assert (tmp_path / "tuichat.db").read_bytes() == before


def test_damaged_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tuichat.db").write_bytes(b"this was a database once" * 400)
    text = sentence(tmp_path)
    assert "is damaged" in text
    assert "backups" in text


def test_damaged_page_is_one_sentence(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        for _ in range(50):
            ask(store, "words " * 200)
    path = tmp_path / "tuichat.db"
    data = bytearray(path.read_bytes())
    data[8192:] = b"\xff" * (len(data) - 8192)
    path.write_bytes(data)
    with pytest.raises(StoreError, match="is damaged"), Store.open(tmp_path) as store:
        store.list_sessions()


def test_root_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    assert "could not be read or written" in sentence(tmp_path / "data")


@contextlib.contextmanager
def nobody() -> Iterator[Path]:
    """A folder that this process may read and not write (root becomes somebody else for it)."""
    folder = Path(tempfile.mkdtemp())
    try:
        with Store.open(folder / "old") as store:
            ask(store)
        for path in (folder, folder / "old", *(folder / "old").iterdir()):
            path.chmod(0o555 if path.is_dir() else 0o444)
        if os.geteuid() == 0:
            os.seteuid(65534)
        yield folder
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        for path in (folder, folder / "old"):
            path.chmod(0o755)
        shutil.rmtree(folder)


def test_folder_that_may_not_be_written() -> None:
    with nobody() as folder:
        for root in (folder / "new", folder / "old"):
            text = sentence(root)
            assert "may not be written" in text
            assert "TUICHAT_HOME" in text


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tuichat-test", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


def test_full_disk(small_disk: Path) -> None:
    with Store.open(small_disk / "data") as store:
        owner = store.register_owner()
        session = store.create_session(backend="b", model="m")
        posted = store.post(session, "one", [], poster=owner.token, backend="b", model="m")
        assert store.claim(posted.reply_id, owner.token)
        store.append(posted.reply_id, 1, "shown", owner=owner.token)

        filler = fill(small_disk)
        for action in (
            lambda: store.post(session, "x" * 99_999, [], poster="p", backend="b", model="m"),
            lambda: store.append(posted.reply_id, 2, "y" * 99_999, owner=owner.token),
            lambda: store.put_image(check_image(NOISE, "noise.png")),
        ):
            with pytest.raises(StoreError, match="The disk is full"):
                action()
        assert [turn.text for turn in store.path(session)] == ["one", "shown"]
        assert not list((store.root / "blobs").rglob("*.part"))

        filler.unlink()  # space is back: everything goes on where it stopped
        store.append(posted.reply_id, 2, " and more", owner=owner.token)
        store.finish(posted.reply_id, owner=owner.token, state="done")
        store.put_image(check_image(NOISE, "noise.png"))
        store.post(session, "two", [], poster=owner.token, backend="b", model="m")
    with Store.open(small_disk / "data") as store:
        assert [turn.text for turn in store.path(session)] == ["one", "shown and more", "two", ""]


def test_opening_on_a_full_disk(small_disk: Path) -> None:
    fill(small_disk)
    assert "The disk is full" in sentence(small_disk / "data")


def test_full_database(tmp_path: Path) -> None:
    """The same without a disk to fill: SQLite's own bound raises the same error."""
    with Store.open(tmp_path) as store:
        reply = ask(store, "kept")
        with store._database.read() as tx:
            pages = tx.one("PRAGMA page_count")
            assert pages is not None
            tx.one(f"PRAGMA max_page_count = {pages[0]}")
        with pytest.raises(StoreError, match="The disk is full"):
            ask(store, "x" * 99_999)
        assert store.turn(reply).state == "queued"


def test_network_file_system_gets_a_rollback_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "network_file_system", lambda root: "nfs4")
    with Store.open(tmp_path) as store, Store.open(tmp_path) as other:
        assert len(store.notices) == 1
        assert "network file system (nfs4)" in store.notices[0]
        reply = ask(store)
        assert other.turn(reply).state == "queued"
        ask(other)
        assert not (tmp_path / "tuichat.db-wal").exists()
        with store._database.read() as tx:
            row = tx.one("PRAGMA synchronous")
            assert row is not None
            assert row[0] == 2


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("/home/me/x", "nfs4"),
        ("/home/me/local/x", None),
        ("/home/mean", None),
        ("/data/with space/x", "fuse.sshfs"),
        ("/", None),
    ],
)
def test_network_file_systems_are_known(folder: str, found: str | None) -> None:
    mounts = (
        "/dev/sda / ext4 rw 0 0\n"
        "server:/home/me /home/me nfs4 rw 0 0\n"
        "/dev/sdb /home/me/local ext4 rw 0 0\n"
        "me@host: /data/with\\040space fuse.sshfs rw 0 0\n"
        "\n"
    )
    assert network_file_system(Path(folder), mounts) == found


def test_locked_for_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.1)
    with Store.open(tmp_path) as store:
        raw = sqlite3.connect(tmp_path / "tuichat.db", isolation_level=None)
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another program"):
            ask(store)
        raw.execute("ROLLBACK")
        raw.close()
        ask(store)


def test_temporary_store_is_removed_by_its_creator_alone(tmp_path: Path) -> None:
    store = Store.temporary()
    assert store.is_temporary
    reply = ask(store)
    code = (
        "import sys; from pathlib import Path; from tuichat.store import Store\n"
        "with Store.open(Path(sys.argv[1])) as store: print(store.turn(int(sys.argv[2])).state)"
    )
    command = [sys.executable, "-c", code, str(store.root), str(reply)]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"queued\n"
    assert store.root.is_dir()
    store.close()
    assert not store.root.exists()
    store.close()  # twice is fine


def test_temporary_store_goes_with_its_process() -> None:
    code = (
        "import os; from tuichat.store import Store; store = Store.temporary()\n"
        "print(store.root, flush=True)\n"
        "if os.fork() == 0: raise SystemExit\n"
        "os.wait(); assert store.root.is_dir()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stderr == ""
    assert not Path(done.stdout.strip()).exists()


def test_closed_store_says_so(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    ask(store)
    store.close()
    with pytest.raises(StoreError, match="closed already"):
        store.list_sessions()
    answers: list[str] = []

    def elsewhere() -> None:
        try:
            store.list_sessions()
        except StoreError as error:
            answers.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "closed already" in answers[0]


def test_forked_child_is_refused_and_harms_nobody(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "from tuichat.store import Store; from tuichat.api import StoreError\n"
        "store = Store.open(Path(sys.argv[1]))\n"
        "if os.fork() == 0:\n"
        "    try: store.list_sessions()\n"
        "    except StoreError as error: print(error, flush=True)\n"
        "    store.close(); os._exit(0)\n"
        "os.wait(); store.create_session(backend='b', model='m'); store.close()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert "before this process was forked" in done.stdout
    assert done.stderr == ""


def test_threads_have_connections_of_their_own_and_close_them(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(10):
                    ask(store)
                    store.list_sessions()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(store.list_sessions()) == 80
        assert len(list(store._database._connections)) == 1  # the others went with their threads


def test_killed_opener_leaves_no_lock_behind(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tuichat.store.database import _opening\n"
        "with _opening(Path(sys.argv[1])): print('in', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"in\n"
        child.send_signal(signal.SIGKILL)
    Store.open(tmp_path).close()


def _noise() -> bytes:
    from io import BytesIO

    from PIL import Image

    buffer = BytesIO()
    Image.effect_noise((300, 300), 80).save(buffer, "PNG")
    return buffer.getvalue()


NOISE = _noise()


def test_closing_waits_for_the_transactions_of_other_threads(tmp_path: Path) -> None:
    # Closing a connection under another thread's statement crashes the interpreter: the rounds
    # run in a process of their own.
    code = """
import sys, threading, time
from pathlib import Path
from tuichat.api import StoreError
from tuichat.store import Store

def write(store, session, poster, refused):
    try:
        for _ in range(200):
            store.post(session, "x" * 2000, [], poster=poster, backend="e", model="e")
            store.path(session)
    except StoreError as error:
        refused.append(str(error))

for number in range(20):
    store = Store.open(Path(sys.argv[1]) / str(number))
    owner = store.register_owner()
    session = store.create_session(system=None, backend="e", model="e")
    refused = []
    threads = [
        threading.Thread(target=write, args=(store, session, owner.token, refused))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.03)
    store.close()
    for thread in threads:
        thread.join()
    assert len(refused) == 2 and all("closed already" in text for text in refused), refused
    owner.release()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
