"""The life of a reply, in one process, in several, and under ``kill -9``."""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuichat.api import StoreError
from tuichat.store import Chunk, Owner, Posted, ReplyLost, ReplyState, Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data") as store:
        yield store


@pytest.fixture
def owner(store: Store) -> Iterator[Owner]:
    with store.register_owner() as owner:
        yield owner


def ask(store: Store, poster: str, session: str | None = None, text: str = "question") -> Posted:
    session = session or store.create_session(backend="b", model="m")
    return store.post(session, text, [], poster=poster, backend="b", model="m")


# ------------------------------------------------------------------ the ordinary life


def test_life(store: Store, owner: Owner) -> None:
    reply = ask(store, owner.token).reply_id
    assert store.claim(reply, owner.token)
    assert store.turn(reply).state == "running"
    assert store.turn(reply).owner == owner.token
    store.append(reply, 1, "It is ", "hm, ", owner=owner.token)
    store.append(reply, 2, "red.", "yes", owner=owner.token)
    running = store.turn(reply)
    assert (running.text, running.thinking, running.last_seq) == ("It is red.", "hm, yes", 2)
    assert store.chunks_since(reply, 0) == [Chunk(1, "It is ", "hm, "), Chunk(2, "red.", "yes")]
    assert store.chunks_since(reply, 1) == [Chunk(2, "red.", "yes")]
    assert store.search("red.") == []  # not before it has ended

    store.finish(
        reply,
        owner=owner.token,
        state="done",
        stop_reason="end",
        usage={"new_tokens": 4},
        timing={"total_s": 0.5},
        dtype=({"component": "projector"},),
        notices=("said once",),
    )
    done = store.turn(reply)
    assert (done.text, done.thinking, done.last_seq) == ("It is red.", "hm, yes", 2)
    assert (done.state, done.stop_reason, done.error) == ("done", "end", None)
    assert (done.usage, done.timing) == ({"new_tokens": 4}, {"total_s": 0.5})
    assert (done.dtype, done.notices) == ([{"component": "projector"}], ["said once"])
    assert done.finished_at is not None
    assert done.finished_at >= done.created_at
    assert store.chunks_since(reply, 0) == []
    assert [hit.turn_id for hit in store.search("red.")] == [reply]


@pytest.mark.parametrize("state", ["done", "stopped", "failed", "interrupted"])
def test_what_has_ended_stays_as_it_ended(store: Store, owner: Owner, state: ReplyState) -> None:
    reply = ask(store, owner.token).reply_id
    assert store.claim(reply, owner.token)
    store.finish(reply, owner=owner.token, state=state, error="why")
    ended = store.turn(reply)
    assert not store.claim(reply, owner.token)
    assert not store.interrupt(reply, "too late")
    with pytest.raises(ReplyLost):
        store.append(reply, 1, "x", owner=owner.token)
    with pytest.raises(ReplyLost):
        store.finish(reply, owner=owner.token, state="done")
    assert store.interrupt_dead() == []
    assert store.turn(reply) == ended


def test_only_the_owner_writes(store: Store, owner: Owner) -> None:
    reply = ask(store, owner.token).reply_id
    with pytest.raises(ReplyLost):  # not claimed yet
        store.append(reply, 1, "x", owner=owner.token)
    assert store.claim(reply, owner.token)
    assert not store.claim(reply, "another")
    for call in (
        lambda: store.append(reply, 1, "x", owner="another"),
        lambda: store.finish(reply, owner="another", state="done"),
    ):
        with pytest.raises(ReplyLost):
            call()
    assert store.turn(reply).text == ""


@pytest.mark.parametrize("seq", [0, 1, 3, -1])
def test_chunks_are_numbered_without_gaps(store: Store, owner: Owner, seq: int) -> None:
    reply = ask(store, owner.token).reply_id
    assert store.claim(reply, owner.token)
    store.append(reply, 1, "one", owner=owner.token)
    with pytest.raises(StoreError, match="does not follow"):
        store.append(reply, seq, "x", owner=owner.token)
    store.append(reply, 2, "two", owner=owner.token)
    assert store.turn(reply).text == "onetwo"


@pytest.mark.parametrize("state", ["queued", "running"])
def test_an_unfinished_state_finishes_nothing(
    store: Store, owner: Owner, state: ReplyState
) -> None:
    reply = ask(store, owner.token).reply_id
    assert store.claim(reply, owner.token)
    with pytest.raises(ValueError, match="does not end"):
        store.finish(reply, owner=owner.token, state=state)


def test_interrupt_keeps_what_there_is(store: Store, owner: Owner) -> None:
    session = store.create_session(backend="b", model="m")
    running = ask(store, owner.token, session).reply_id
    queued = ask(store, owner.token, session).reply_id
    assert store.claim(running, owner.token)
    store.append(running, 1, "partial answer", owner=owner.token)
    for reply, text in ((running, "partial answer"), (queued, "")):
        assert store.interrupt(reply, "The worker died.")
        assert not store.interrupt(reply, "again")
        turn = store.turn(reply)
        assert (turn.state, turn.error, turn.text) == ("interrupted", "The worker died.", text)
    assert [hit.turn_id for hit in store.search("partial")] == [running]


# ------------------------------------------------------------------ one after the other


def test_replies_of_a_session_run_in_order_one_at_a_time(store: Store, owner: Owner) -> None:
    session = store.create_session(backend="b", model="m")
    first, second, third = (ask(store, owner.token, session).reply_id for _ in range(3))
    assert store.blocked_by(first) is None
    assert store.blocked_by(third) == first
    assert not store.claim(second, owner.token)
    assert store.claim(first, owner.token)
    assert not store.claim(second, owner.token)
    elsewhere = ask(store, owner.token).reply_id
    assert store.claim(elsewhere, owner.token)  # another session waits for nobody
    store.finish(first, owner=owner.token, state="done")
    assert store.blocked_by(third) == second
    assert store.claim(second, owner.token)
    store.finish(second, owner=owner.token, state="failed")
    assert store.claim(third, owner.token)
    assert store.blocked_by(third) is None


def test_the_dead_hold_nobody_up(store: Store, owner: Owner) -> None:
    session = store.create_session(backend="b", model="m")
    running = ask(store, owner.token, session).reply_id
    queued = ask(store, "a dead poster", session).reply_id
    mine = ask(store, owner.token, session).reply_id
    assert store.claim(running, "a dead worker")
    assert store.claim(mine, owner.token)
    assert [store.turn(reply).state for reply in (running, queued, mine)] == [
        "interrupted",
        "interrupted",
        "running",
    ]


def _claim_all(root: Path, replies: list[int], barrier: object, wins: object) -> None:
    with Store.open(root) as store, store.register_owner() as owner:
        barrier.wait(30)  # type: ignore[attr-defined]
        wins.put([reply for reply in replies if store.claim(reply, owner.token)])  # type: ignore[attr-defined]
        barrier.wait(30)  # type: ignore[attr-defined]  # nobody dies before all have claimed


def test_processes_that_race_for_a_reply(store: Store, owner: Owner) -> None:
    replies = [ask(store, owner.token).reply_id for _ in range(40)]
    spawn = multiprocessing.get_context("spawn")
    barrier, wins = spawn.Barrier(3), spawn.Queue()
    racers = [
        spawn.Process(target=_claim_all, args=(store.root, replies, barrier, wins))
        for _ in range(3)
    ]
    for racer in racers:
        racer.start()
    won = [reply for _ in racers for reply in wins.get(timeout=60)]
    for racer in racers:
        racer.join(30)
        assert racer.exitcode == 0
    assert sorted(won) == replies


# ------------------------------------------------------------------ who is alive


def test_liveness(store: Store) -> None:
    owner = store.register_owner()
    with Store.open(store.root) as other:
        assert store.owner_alive(owner.token)
        assert other.owner_alive(owner.token)
        owner.release()
        owner.release()
        assert not other.owner_alive(owner.token)
    for token in ("", ".", "..", "a/b", "nobody", "x" * 300, "\0", "\ud800"):
        assert not store.owner_alive(token)


def test_leftovers_of_the_dead_are_swept(store: Store, owner: Owner) -> None:
    (store.root / "owners" / "77-dead").touch()
    with store.register_owner() as another:
        assert {path.name for path in (store.root / "owners").iterdir()} == {
            owner.token,
            another.token,
        }


def child(code: str, *args: str) -> subprocess.Popen[str]:
    head = "import os, sys, time\nfrom pathlib import Path\nfrom tuichat.store import Store\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + code, *args], stdout=subprocess.PIPE, text=True
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert process.stdout is not None
    process.stdout.close()


def test_a_forked_child_does_not_keep_its_dead_parent_alive(store: Store) -> None:
    parent = child(
        "owner = Store.open(Path(sys.argv[1])).register_owner()\n"
        "grandchild = os.fork()\n"
        "if grandchild == 0: time.sleep(60)\n"
        "print(owner.token, grandchild, flush=True); time.sleep(60)",
        str(store.root),
    )
    token, grandchild = line(parent).split()
    try:
        assert store.owner_alive(token)
        kill(parent)
        assert not store.owner_alive(token)
    finally:
        os.kill(int(grandchild), signal.SIGKILL)


def test_an_executed_child_does_not_keep_its_dead_parent_alive(store: Store) -> None:
    parent = child(
        "import subprocess\n"
        "owner = Store.open(Path(sys.argv[1])).register_owner()\n"
        "sleeper = subprocess.Popen(['sleep', '60'], close_fds=False)\n"
        "print(owner.token, sleeper.pid, flush=True); time.sleep(60)",
        str(store.root),
    )
    token, sleeper = line(parent).split()
    try:
        kill(parent)
        assert not store.owner_alive(token)
    finally:
        os.kill(int(sleeper), signal.SIGKILL)


# ------------------------------------------------------------------ kill -9

APPEND_FOR_EVER = """
store = Store.open(Path(sys.argv[1]))
owner = store.register_owner()
reply = int(sys.argv[2])
assert store.claim(reply, owner.token)
for seq in range(1, 10**9):
    store.append(reply, seq, f"[{seq}]", f"<{seq}>", owner=owner.token)
    print(seq, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 40, 300])
def test_kill_9_while_appending_loses_nothing_that_was_committed(
    store: Store, owner: Owner, lines: int
) -> None:
    reply = ask(store, owner.token).reply_id
    worker = child(APPEND_FOR_EVER, str(store.root), str(reply))
    shown = 0
    for _ in range(lines):
        shown = int(line(worker))
    assert store.interrupt_dead() == []  # it lives
    assert store.turn(reply).last_seq >= shown
    kill(worker)

    assert store.interrupt_dead(store.turn(reply).session_id) == [reply]
    turn = store.turn(reply)
    assert (turn.state, turn.owner is not None) == ("interrupted", True)
    assert turn.error is not None
    assert turn.last_seq >= shown
    assert turn.text == "".join(f"[{seq}]" for seq in range(1, turn.last_seq + 1))
    assert turn.thinking == "".join(f"<{seq}>" for seq in range(1, turn.last_seq + 1))
    assert [hit.turn_id for hit in store.search(f"[{shown}]")] == [reply]
    assert store.interrupt_dead() == []
    ask(store, owner.token, turn.session_id)  # and the session goes on


def test_kill_9_of_the_poster_interrupts_what_nobody_claimed(store: Store, owner: Owner) -> None:
    poster = child(
        "store = Store.open(Path(sys.argv[1]))\n"
        "owner = store.register_owner()\n"
        "for _ in range(2):\n"
        "    session = store.create_session(backend='b', model='m')\n"
        "    posted = store.post(session, 'q', [], poster=owner.token, backend='b', model='m')\n"
        "    print(posted.reply_id, flush=True)\n"
        "time.sleep(60)",
        str(store.root),
    )
    claimed, unclaimed = int(line(poster)), int(line(poster))
    assert store.interrupt_dead() == []
    assert store.claim(claimed, owner.token)
    kill(poster)
    assert store.interrupt_dead() == [unclaimed]  # the other has a living worker
    assert store.turn(claimed).state == "running"
    assert store.turn(unclaimed).state == "interrupted"


def test_interrupt_dead_of_one_session_leaves_the_others(store: Store) -> None:
    one, other = ask(store, "dead"), ask(store, "dead")
    session = store.turn(one.reply_id).session_id
    assert store.interrupt_dead(session) == [one.reply_id]
    assert store.interrupt_dead() == [other.reply_id]


def test_a_worker_that_was_declared_dead_cannot_write_any_more(store: Store) -> None:
    owner = store.register_owner()
    reply = ask(store, owner.token).reply_id
    assert store.claim(reply, owner.token)
    store.append(reply, 1, "kept", owner=owner.token)
    owner.release()
    assert store.interrupt_dead() == [reply]
    with pytest.raises(ReplyLost):
        store.append(reply, 2, "lost", owner=owner.token)
    assert store.turn(reply).text == "kept"


# ------------------------------------------------------------------ while it runs


def test_a_reader_never_sees_less_than_it_has_seen(store: Store, owner: Owner) -> None:
    """Reading turn and chunks is one moment: not even the folding at the end makes a gap."""
    posted = ask(store, owner.token)
    session = store.turn(posted.reply_id).session_id
    assert store.claim(posted.reply_id, owner.token)
    whole = "".join(f"{number} " for number in range(400))

    def write() -> None:
        for number in range(400):
            store.append(posted.reply_id, number + 1, f"{number} ", owner=owner.token)
        store.finish(posted.reply_id, owner=owner.token, state="done")

    writer = threading.Thread(target=write)
    writer.start()
    seen = ""
    while True:
        reply = store.path(session)[-1]
        assert whole.startswith(reply.text)
        assert len(reply.text) >= len(seen)
        seen = reply.text
        if reply.state == "done":
            break
    writer.join()
    assert seen == whole


def test_a_chunk_is_committed_in_less_than_a_millisecond(store: Store, owner: Owner) -> None:
    reply = ask(store, owner.token).reply_id
    assert store.claim(reply, owner.token)
    took: list[float] = []
    for seq in range(1, 501):
        start = time.perf_counter()
        store.append(reply, seq, "some words ", owner=owner.token)
        took.append(time.perf_counter() - start)
    assert statistics.median(took) < 0.001
