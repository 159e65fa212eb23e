"""Whatever goes wrong between engine, worker and store, every reply ends and is where it belongs.

The faults are real: a database that another process has locked, killed workers, a backend that
misbehaves (``faulty_backend.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tuichat import __version__
from tuichat.api import BackendError, WorkerError
from tuichat.engine import events, workers
from tuichat.store import Store
from tuichat.store import database as store_database
from tuichat.worker import protocol

Draw = Callable[[str, str], Path]


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_engine: Any) -> Any:
    """Opens engines on the backend ``faulty``."""
    site = tmp_path / "site"
    metadata = site / "faulty-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[tuichat.backends]\nfaulty = faulty_backend\n")
    shutil.copy(Path(__file__).parent / "faulty_backend.py", site)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))

    async def open_faulty(fault: str = "", delay: float = 0.0, **more: Any) -> Any:
        options = (f"fault={fault}", f"delay={delay}")
        return await open_engine(backend="faulty", options=options, **more)

    return open_faulty


@contextlib.contextmanager
def locked(home: Path) -> Iterator[None]:
    """Another process's transaction on the store, as long as this lasts."""
    connection = sqlite3.connect(home / "data" / "tuichat.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


async def stored_state(talk: Any, reply_id: int, wanted: str, within: float = 10) -> None:
    """Wait until the store says that a reply is in a state."""
    async with asyncio.timeout(within):
        while talk.engine.turn(reply_id).state != wanted:
            await asyncio.sleep(0.05)


# --------------------------------------------------------------------------- who gets what


async def test_replies_of_different_stores_are_not_taken_for_each_other(faulty: Any) -> None:
    a = await faulty(delay=0.05, keep=False)
    b = await faulty(delay=0.05, keep=False)
    first = await a.engine.send("AAA " * 20)
    await a.began(first.reply_id)
    second = await b.engine.send("BBB")
    assert first.reply_id == second.reply_id
    await b.until(lambda e: isinstance(e, events.ReplyQueued))
    assert a.engine.worker_pid == b.engine.worker_pid
    assert (await b.ended(second.reply_id)).state == "done"
    assert "BBB" in b.shown(second.reply_id)
    assert "AAA" not in b.shown(second.reply_id)
    assert "BBB" not in a.shown(first.reply_id)


async def test_stopping_one_store_s_reply_leaves_the_other_s_alone(faulty: Any) -> None:
    a = await faulty(delay=0.05, keep=False)
    b = await faulty(delay=0.05, keep=False)
    running = await a.engine.send("AAA " * 20)
    await a.began(running.reply_id)
    waiting = await b.engine.send("BBB")
    await b.until(lambda e: isinstance(e, events.ReplyQueued))
    await b.engine.stop(waiting.reply_id)
    assert (await b.ended(waiting.reply_id)).state == "stopped"
    assert (await a.ended(running.reply_id)).state == "done"


async def test_a_temporary_conversation_leaves_no_work_and_no_files_behind(faulty: Any) -> None:
    a = await faulty(delay=0.05)
    await a.ask("hi")
    b = await faulty(delay=0.05, keep=False)
    root = b.engine._store.root
    gone = await b.engine.send("word " * 400)
    await b.began(gone.reply_id)
    await b.close()
    assert not root.exists()
    began = time.monotonic()
    assert (await a.ask("next")).state == "done"
    assert time.monotonic() - began < 5
    descriptors = [
        str(link.readlink()) for link in Path(f"/proc/{a.engine.worker_pid}/fd").iterdir()
    ]
    assert not [path for path in descriptors if str(root) in path]
    assert not [e for e in a.heard if isinstance(e, events.Noticed)]


# --------------------------------------------------------------------------- the store fails


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers that give up a locked database after half a second instead of ten."""
    site = tmp_path / "impatient"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'tuichat.worker' in sys.orig_argv:\n"
        "    import tuichat.store.database\n"
        "    tuichat.store.database.BUSY_SECONDS = 0.5\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ['PYTHONPATH']}")
    assert store_database.BUSY_SECONDS == 10


async def test_an_ending_that_the_store_does_not_take_is_offered_again(
    faulty: Any, impatient: None, short_home: Path
) -> None:
    talk = await faulty(delay=0.05)
    posted = await talk.engine.send("AAA " * 4)
    await talk.began(posted.reply_id)
    with locked(short_home):
        ended = await talk.ended(posted.reply_id)
        assert ended.state == "done"
        assert len([e for e in talk.heard if isinstance(e, events.Noticed)]) == 1
    await stored_state(talk, posted.reply_id, "done")
    assert talk.engine.turn(posted.reply_id).text == talk.shown(posted.reply_id)
    assert (await talk.ask("and now")).state == "done"


async def test_a_load_that_fails_while_the_store_is_locked_is_still_told(
    faulty: Any, impatient: None, short_home: Path
) -> None:
    talk = await faulty("load fails after 1")
    posted = await talk.engine.send("one")
    await talk.until(lambda e: isinstance(e, events.ReplyQueued))
    with locked(short_home):
        ended = await talk.ended(posted.reply_id)
        assert ended.state == "failed"
        assert "the load says no" in ended.error
        await talk.until(lambda e: isinstance(e, events.WorkerChanged) and e.phase == "failed")


async def test_a_locked_store_while_a_waiting_reply_is_stopped_leaves_the_running_one(
    faulty: Any, impatient: None, short_home: Path
) -> None:
    talk = await faulty(delay=0.1)
    running = await talk.engine.send("word " * 30)
    waiting = await talk.engine.send("later")
    await talk.began(running.reply_id)
    with locked(short_home):
        await talk.engine.stop(waiting.reply_id)
        await talk.ended(waiting.reply_id)
    assert (await talk.ended(running.reply_id)).state == "done"


# --------------------------------------------------------------------------- start and end


async def test_all_that_was_asked_for_ends_when_there_is_no_worker(
    faulty: Any, short_home: Path
) -> None:
    (short_home / "run").write_text("a file where the folder of sockets should be")
    talk = await faulty()
    posted = [await talk.engine.send(text) for text in ("one", "two", "three")]
    for each in posted:
        ended = await talk.ended(each.reply_id)
        assert ended.state == "failed"
        assert "could not be started" in ended.error
        assert talk.engine.turn(each.reply_id).state == "failed"
    assert talk.engine.active == ()
    (short_home / "run").unlink()
    assert (await talk.ask("and now")).state == "done"


async def test_a_message_that_meets_a_dying_worker_is_answered_by_the_next(faulty: Any) -> None:
    talk = await faulty(delay=0.05)
    first = await talk.engine.send("one " * 30)
    await talk.began(first.reply_id)
    second = talk.engine._post("two", ())  # the first half of ``send``, already in its thread
    os.kill(talk.engine.worker_pid, signal.SIGKILL)
    while talk.engine._link._connection is not None:
        await asyncio.sleep(0)
    talk.engine._deliver(second.reply_id)
    assert (await talk.ended(first.reply_id)).state == "interrupted"
    assert (await talk.ended(second.reply_id)).state == "done"


async def test_a_worker_that_ends_before_it_takes_a_reply_is_not_tried_for_ever(
    faulty: Any,
) -> None:
    talk = await faulty("load exits")
    posted = await talk.engine.send("hello")
    ended = await talk.ended(posted.reply_id)
    assert ended.state in ("failed", "interrupted")
    await asyncio.sleep(0.5)
    assert talk.engine.phase in ("absent", "failed")
    assert talk.engine.active == ()


async def test_a_connection_that_is_lost_is_not_taken_for_a_dead_worker(faulty: Any) -> None:
    talk = await faulty(delay=0.05)
    posted = await talk.engine.send("word " * 30)
    await talk.began(posted.reply_id)
    other = await faulty(delay=0.05)
    await other.engine.start()
    talk.engine._link._connection._writer.transport.abort()
    ended = await talk.ended(posted.reply_id)
    assert ended.state == "done"
    assert talk.engine.turn(posted.reply_id).text.count("word") == 30


async def test_who_only_shares_a_worker_is_not_told_that_it_died_when_it_was_stopped(
    faulty: Any,
) -> None:
    starter, sharer = await faulty(), await faulty()
    await starter.ask("hi")
    await sharer.engine.start()
    await sharer.until(lambda e: isinstance(e, events.ModelReady))
    (handle,) = workers.list_workers()
    await workers.stop_worker(handle)
    for talk in (starter, sharer):
        gone = await talk.until(
            lambda e: isinstance(e, events.WorkerChanged) and e.phase == "absent"
        )
        assert gone.error is None
    assert (await sharer.ask("again")).state == "done"


async def test_a_worker_of_another_version_is_met_and_named(
    faulty: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = await faulty()
    await talk.ask("hi")
    other = await faulty()
    monkeypatch.setattr(workers, "__version__", "99.0")
    with pytest.raises(WorkerError, match=rf"tuichat {__version__} is running and this is 99.0"):
        await other.engine.start()


@pytest.mark.parametrize("fault", ["unload hangs", "image_tokens hangs"])
async def test_a_hook_that_hangs_does_not_keep_the_worker_alive(faulty: Any, fault: str) -> None:
    talk = await faulty(fault)
    await talk.ask("hi")
    await talk.engine.measure(10, 10)
    child = next(c for c in workers._children if c.pid == talk.engine.worker_pid)
    await talk.engine._link.close()
    assert await asyncio.to_thread(child.wait, 15) == 0


async def test_a_worker_that_does_not_answer_is_ended_by_stop(
    faulty: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "STOP_S", 1.0)
    talk = await faulty()
    await talk.ask("hi")
    child = next(c for c in workers._children if c.pid == talk.engine.worker_pid)
    os.kill(child.pid, signal.SIGSTOP)
    (handle,) = workers.list_workers()
    await workers.stop_worker(handle)
    assert await asyncio.to_thread(child.wait, 10) == -signal.SIGKILL


# --------------------------------------------------------------------------- what a backend says


@pytest.mark.parametrize("fault", ["a surrogate", "odd image tokens", "load prints"])
async def test_odd_values_of_a_backend_do_not_break_the_wire(faulty: Any, fault: str) -> None:
    talk = await faulty(fault)
    reply = await talk.ask("fine")
    assert reply.state == "done"
    assert talk.shown(reply.id).replace("?", "\udce9") == reply.text


async def test_a_word_larger_than_a_frame_is_shown_whole(faulty: Any) -> None:
    talk = await faulty("a long word")
    reply = await talk.ask("fine")
    assert reply.state == "done"
    assert len(reply.text) > protocol.MAX_FRAME
    assert talk.shown(reply.id) == reply.text


async def test_a_failed_load_is_told_whatever_is_in_its_sentence(faulty: Any) -> None:
    talk = await faulty("load fails with a surrogate")
    posted = await talk.engine.send("hello")
    ended = await talk.ended(posted.reply_id)
    assert ended.state == "failed"
    assert "no such file caf" in ended.error


async def test_the_image_of_a_message_whose_load_failed_is_still_known(
    faulty: Any, picture: Draw
) -> None:
    talk = await faulty("load fails after 0")
    image = await talk.engine.attach(picture("red.png", "red"))
    posted = await talk.engine.send("look", [image])
    await talk.ended(posted.reply_id)
    session = talk.engine.session_id
    await talk.close()
    talk = await faulty(session=session)
    assert (await talk.ask("what colour?")).text.startswith("user 1: look\n\nwhat colour?")


# --------------------------------------------------------------------------- settings


async def test_a_relative_model_is_the_folder_that_was_meant(
    faulty: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    for place in ("x", "y"):
        (tmp_path / place / "model").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / place)
        talk = await faulty("says its model", model="model")
        said.append((await talk.ask("where?")).text.strip())
    assert said == [str(tmp_path / "x" / "model"), str(tmp_path / "y" / "model")]


@pytest.mark.parametrize("setting", ["model", "device", "revision"])
async def test_a_setting_that_is_not_utf8_is_refused_in_a_sentence(
    faulty: Any, setting: str
) -> None:
    talk = await faulty()
    talk.engine.settings = replace(talk.engine.settings, **{setting: "caf\udce9"})
    with pytest.raises(BackendError, match="not valid UTF-8"):
        await talk.engine.start()
    posted = await talk.engine.send("kept")
    assert (await talk.ended(posted.reply_id)).state == "failed"


async def test_a_session_that_waits_for_another_process_holds_up_no_other(
    faulty: Any, short_home: Path
) -> None:
    talk = await faulty()
    await talk.ask("hi")
    # Another living process has a reply of this session under way.
    store = Store.open(short_home / "data")
    owner = store.register_owner()
    elsewhere = store.post(
        talk.engine.session_id, "slow", [], poster=owner.token, backend="other", model="other"
    )
    assert store.claim(elsewhere.reply_id, owner.token)
    blocked = await talk.engine.send("after that")
    await talk.until(lambda e: isinstance(e, events.ReplyQueued) and e.reply_id == blocked.reply_id)
    other = await faulty()
    assert (await other.ask("unrelated")).state == "done"
    store.finish(elsewhere.reply_id, owner=owner.token, state="done")
    assert (await talk.ended(blocked.reply_id)).state == "done"
    owner.release()
    store.close()


def test_the_record_of_a_worker_is_whole_or_absent(short_home: Path) -> None:
    runtime = short_home / "run"
    runtime.mkdir(mode=0o700)
    (runtime / "0123456789abcdef.json").write_text('{"identity": ')
    assert workers.list_workers() == []
    assert not (runtime / "0123456789abcdef.json").exists()


def test_no_worker_of_these_tests_is_left() -> None:
    left = [child for child in workers._children if child.poll() is None]
    for child in left:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)
    assert [child.pid for child in left if child.poll() is None] == []
