"""Engine, wire, worker and store together: real processes, the example backend."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuichat.api import BackendError, SessionNotFound
from tuichat.engine import events, workers

Draw = Callable[[str, str], Path]


async def test_a_question_is_answered_and_stored(open_engine: Any) -> None:
    talk = await open_engine()
    reply = await talk.ask("Hello there")
    assert reply.state == "done"
    assert reply.stop_reason == "end"
    assert reply.text == "user: Hello there"
    assert talk.shown(reply.id) == reply.text
    assert reply.usage["prompt_tokens"] == 3
    assert reply.timing["total_s"] >= reply.timing["first_token_s"] >= 0
    assert [turn.text for turn in talk.engine.transcript()] == ["Hello there", reply.text]


async def test_every_turn_is_made_of_the_whole_history(open_engine: Any, picture: Draw) -> None:
    talk = await open_engine(system="Be brief.")
    red = await talk.engine.attach(picture("red.png", "red"))
    blue = await talk.engine.attach(picture("blue.png", "blue"))
    await talk.ask("One", red)
    await talk.ask("Two")
    reply = await talk.ask("Three", blue)
    lines = reply.text.split("\n")
    assert lines[0] == "system: Be brief."
    assert lines[1] == f"user: [{red.digest[:8]} 40x30] One"
    assert lines[-1] == f"user: [{blue.digest[:8]} 40x30] Three"
    # Once in its turn, once in the first answer, twice in the second, which quotes both.
    assert reply.text.count(red.digest[:8]) == 4
    assert reply.usage["image_tokens"] == 2


async def test_a_session_goes_on_in_another_process_s_engine(
    open_engine: Any, picture: Draw
) -> None:
    first = await open_engine()
    image = await first.engine.attach(picture("red.png", "red"))
    await first.ask("Look", image)
    (first.engine._hold).release()
    second = await open_engine(session="last")
    assert second.engine.session_id == first.engine.session_id
    reply = await second.ask("Again")
    assert image.digest[:8] in reply.text
    with pytest.raises(SessionNotFound):
        await open_engine(session="zzzzzzzzzz")


async def test_messages_sent_before_the_model_is_there_wait_their_turn(open_engine: Any) -> None:
    talk = await open_engine()
    posted = [await talk.engine.send(f"m{n}") for n in range(4)]
    assert talk.engine.phase in ("absent", "starting")
    assert len(talk.engine.active) == 4
    for each in posted:
        assert (await talk.ended(each.reply_id)).state == "done"
    ended = [e.reply_id for e in talk.heard if isinstance(e, events.ReplyEnded)]
    assert ended == [each.reply_id for each in posted]
    # Each was asked with its predecessor's answer as its parent.
    assert "m0" in talk.engine.turn(posted[3].reply_id).text


async def test_stop_keeps_what_there_is(open_engine: Any) -> None:
    talk = await open_engine(options=("delay=0.05",))
    posted = await talk.engine.send("word " * 200)
    await talk.began(posted.reply_id)
    stopped_at = time.monotonic()
    await talk.engine.stop()
    ended = await talk.ended(posted.reply_id)
    assert time.monotonic() - stopped_at < 2
    assert ended.state == "stopped"
    reply = talk.engine.turn(posted.reply_id)
    assert reply.stop_reason == "stopped"
    assert reply.text
    assert talk.shown(reply.id) == reply.text
    assert len(reply.text.split()) < 200
    assert (await talk.ask("next")).state == "done"


async def test_a_waiting_reply_can_be_stopped(open_engine: Any) -> None:
    talk = await open_engine(options=("delay=0.05",))
    running = await talk.engine.send("word " * 100)
    waiting = await talk.engine.send("later")
    await talk.began(running.reply_id)
    await talk.engine.stop(waiting.reply_id)
    assert (await talk.ended(waiting.reply_id)).state == "stopped"
    assert talk.engine.turn(running.reply_id).state == "running"
    await talk.engine.stop(running.reply_id)
    await talk.ended(running.reply_id)


async def test_a_reply_is_stopped_before_there_is_a_worker(open_engine: Any) -> None:
    talk = await open_engine()
    posted = await talk.engine.send("never mind")
    await talk.engine.stop(posted.reply_id)
    assert (await talk.ended(posted.reply_id)).state == "stopped"
    assert talk.engine.turn(posted.reply_id).state == "stopped"
    assert (await talk.ask("but this")).text == "user: never mind\n\nbut this"


async def test_a_killed_worker_interrupts_the_reply_and_the_next_message_starts_another(
    open_engine: Any,
) -> None:
    talk = await open_engine(options=("delay=0.05",))
    posted = await talk.engine.send("word " * 200)
    await talk.began(posted.reply_id)
    killed = talk.engine.worker_pid
    os.kill(killed, signal.SIGKILL)
    ended = await talk.ended(posted.reply_id, timeout=5)
    assert ended.state == "interrupted"
    assert "SIGKILL" in ended.error
    assert "\n" not in ended.error
    reply = talk.engine.turn(posted.reply_id)
    assert reply.state == "interrupted"
    assert reply.text.startswith(talk.shown(reply.id))
    assert talk.shown(reply.id)
    await talk.engine.stop()
    again = await talk.engine.send("still there?")
    await talk.began(again.reply_id)
    assert talk.engine.worker_pid not in (None, killed)
    await talk.engine.stop()
    await talk.ended(again.reply_id)


async def test_another_answer_to_a_question_is_a_sibling_of_the_first(open_engine: Any) -> None:
    talk = await open_engine()
    first = await talk.ask("once more")
    again = await talk.engine.regenerate(first.id)
    assert (await talk.ended(again)).state == "done"
    reply = talk.engine.turn(again)
    assert reply.siblings == (first.id, again)
    assert [turn.id for turn in talk.engine.transcript()][-1] == again
    assert reply.text == "user: once more"


async def test_two_clients_share_one_worker(open_engine: Any) -> None:
    talks = await asyncio.gather(*(open_engine() for _ in range(4)))
    replies = await asyncio.gather(*(talk.ask(f"from {n}") for n, talk in enumerate(talks)))
    assert len({talk.engine.worker_pid for talk in talks}) == 1
    assert [reply.text for reply in replies] == [f"user: from {n}" for n in range(4)]
    assert len(workers.list_workers()) == 1


async def test_the_worker_ends_with_its_last_client(open_engine: Any) -> None:
    talk = await open_engine()
    await talk.ask("hi")
    pid = talk.engine.worker_pid
    child = next(c for c in workers._children if c.pid == pid)
    await talk.engine._link.close()
    assert await asyncio.to_thread(child.wait, 10) == 0
    assert workers.list_workers() == []


async def test_a_reply_outlives_its_client(open_engine: Any) -> None:
    talk = await open_engine(options=("delay=0.02",))
    posted = await talk.engine.send("word " * 60)
    later = await talk.engine.send("and this")
    await talk.began(posted.reply_id)
    session = talk.engine.session_id
    child = next(c for c in workers._children if c.pid == talk.engine.worker_pid)
    await talk.engine._link.close()
    talk.engine._owner.release()
    talk.engine._hold.release()
    other = await open_engine(session=session)
    assert await asyncio.to_thread(child.wait, 30) == 0
    assert other.engine.turn(posted.reply_id).state == "done"
    assert other.engine.turn(later.reply_id).state == "done"


async def test_stop_worker_keeps_the_partial_reply(open_engine: Any) -> None:
    talk = await open_engine(options=("delay=0.05",))
    posted = await talk.engine.send("word " * 200)
    await talk.began(posted.reply_id)
    (handle,) = workers.list_workers()
    assert handle.backend == "echo"
    await workers.stop_worker(handle)
    assert (await talk.ended(posted.reply_id)).state == "stopped"
    assert talk.engine.turn(posted.reply_id).text
    assert workers.list_workers() == []


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"backend": "ecko"}, "echo"),
        ({"options": ("volume=11",)}, "volume"),
        ({"options": ("delay=soon",)}, "delay"),
        ({"quantize": "4bit"}, "4bit"),
        ({"model": "demo"}, "demo"),
    ],
)
async def test_what_cannot_be_is_refused_without_a_worker(
    open_engine: Any, settings: dict[str, Any], sentence: str
) -> None:
    talk = await open_engine(**settings)
    with pytest.raises(BackendError, match=sentence):
        await talk.engine.start()
    posted = await talk.engine.send("kept all the same")
    ended = await talk.ended(posted.reply_id)
    assert ended.state == "failed"
    assert sentence in ended.error
    assert talk.engine.turn(posted.reply_id).error == ended.error
    assert talk.engine.transcript()[0].text == "kept all the same"
    assert workers.list_workers() == []


async def test_a_second_window_on_a_session_is_told(open_engine: Any) -> None:
    first = await open_engine()
    await first.ask("mine")
    second = await open_engine(session="last")
    notice = await second.until(lambda e: isinstance(e, events.Noticed))
    assert "another tuichat" in notice.text
    await second.ask("yours")
    assert [t.text for t in first.engine.transcript() if t.role == "user"] == ["mine", "yours"]


async def test_nothing_is_kept_when_nothing_should_be(open_engine: Any, short_home: Path) -> None:
    talk = await open_engine(keep=False)
    assert talk.engine.store_is_temporary
    assert (await talk.ask("secret")).text == "user: secret"
    assert not (short_home / "data" / "tuichat.db").exists()


async def test_a_store_that_cannot_be_written_is_replaced_and_it_is_said(
    open_engine: Any, short_home: Path
) -> None:
    (short_home / "data").write_text("a file where the folder should be")
    talk = await open_engine()
    notice = await talk.until(lambda e: isinstance(e, events.Noticed))
    assert "not being saved" in notice.text
    assert (await talk.ask("all the same")).text == "user: all the same"


def test_the_engine_brings_no_model_code() -> None:
    import subprocess

    code = (
        "import sys, tuichat.engine.engine, tuichat.worker.server;"
        "heavy = {'torch', 'transformers', 'PIL', 'textual', 'tuichat_llava'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
