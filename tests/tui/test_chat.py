"""Everything that a person does on the chat screen, with the real engine and a real worker."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from textual import events
from textual.widgets import Markdown, Static

from tuichat.api import StoreError
from tuichat.engine.events import ReplyEnded


async def test_a_message_is_answered_and_kept(open_chat) -> None:
    async with open_chat() as chat:
        await chat.say("hello there")
        await chat.until_answered()
        assert "You\nhello there" in chat.seen
        assert "user: hello there" in chat.seen
        assert "first token" in chat.seen
        assert "tok/s" in chat.seen
        assert chat.composer.text == ""
        user, reply = chat.engine.transcript()
        assert (user.text, reply.text, reply.state) == (
            "hello there",
            "user: hello there",
            "done",
        )


async def test_an_image_is_a_chip_then_part_of_the_turn_and_remembered(
    open_chat, image_file: Path
) -> None:
    async with open_chat(image_file) as chat:
        await chat.until(lambda: chat.chips and chat.chips[0].tokens is not None, "the cost")
        chip = str(chat.chips[0]._facts.visual)
        size = image_file.stat().st_size
        assert chip == f"1 disc.png\n64×40 · {size} B\n1 token"
        await chat.say("what is it")
        await chat.until_answered()
        assert not chat.chips
        assert f"1 disc.png\n64×40 · {size} B\nwhat is it" in chat.seen
        digest = chat.engine.transcript()[0].images[0].digest[:8]
        assert f"user: [{digest} 64x40] what is it" in chat.seen
        # The second turn has no image of its own; the model sees the first one again.
        await chat.say("and now")
        await chat.until_answered(2)
        assert chat.seen.count(f"[{digest} 64x40]") == 3  # answer, its echo in history, twice


async def test_typing_and_sending_before_the_model_is_there(open_chat) -> None:
    async with open_chat() as chat:
        await chat.pilot.press(*"early")
        assert chat.composer.text == "early"
        await chat.pilot.press("enter")
        await chat.until_seen("early")
        await chat.until_answered()
        assert "user: early" in chat.seen


async def test_escape_stops_the_reply_and_keeps_what_it_has(open_chat) -> None:
    async with open_chat(options=("delay=0.1",)) as chat:
        await chat.until_ready()
        await chat.say(" ".join(f"w{number}" for number in range(100)))
        await chat.until_seen("user: w0")
        await chat.pilot.press("escape")
        await chat.until_answered()
        reply = chat.engine.transcript()[1]
        assert reply.state == "stopped"
        assert "w0" in reply.text
        assert "w99" not in reply.text
        assert "■ stopped" in chat.seen


async def test_messages_queue_behind_a_running_reply(open_chat) -> None:
    async with open_chat(options=("delay=0.05",)) as chat:
        await chat.until_ready()
        await chat.say("one two three four five six seven eight")
        await chat.say("second")
        await chat.until_answered(2)
        texts = [turn.text for turn in chat.engine.transcript()]
        assert texts[0].startswith("one")
        assert texts[2] == "second"
        assert [turn.state for turn in chat.engine.transcript()] == ["done"] * 4


async def test_ctrl_c_copies_else_stops_else_hints_and_leaves_at_the_second(open_chat) -> None:
    async with open_chat(options=("delay=0.1",)) as chat:
        await chat.until_ready()
        chat.composer.insert("copied")
        chat.composer.select_all()
        await chat.pilot.press("ctrl+c")
        assert chat.app.clipboard == "copied"
        chat.composer.clear()
        await chat.say(" ".join("x" * 50))
        await chat.until_seen("user: x")
        await chat.pilot.press("ctrl+c")
        await chat.until_answered()
        assert chat.engine.transcript()[1].state == "stopped"
        await chat.pilot.press("ctrl+c")
        assert "again" in str(chat.composer.border_subtitle)
        assert not chat.app._exit
        await chat.pilot.press("ctrl+c")
        await chat.until(lambda: chat.app._exit, "the end")
        assert chat.app.return_code == 0


@pytest.mark.parametrize("how", ["ctrl+q", "ctrl+d", "/quit"])
async def test_ways_to_leave(open_chat, how: str) -> None:
    async with open_chat() as chat:
        await chat.until(lambda: chat.engine, "the engine")
        if how.startswith("/"):
            await chat.say(how)
        else:
            await chat.pilot.press(how)
        await chat.until(lambda: chat.app._exit, "the end")
        assert chat.app.return_code == 0


async def test_ctrl_d_deletes_while_there_is_a_draft(open_chat) -> None:
    async with open_chat() as chat:
        chat.composer.insert("ab")
        await chat.pilot.press("home", "ctrl+d")
        assert chat.composer.text == "b"
        assert not chat.app._exit


async def test_a_send_that_fails_gives_text_and_images_back(
    open_chat, image_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_chat(image_file) as chat:
        await chat.until(lambda: chat.chips and chat.chips[0].record, "the chip")

        async def full(*_args: object) -> None:
            raise StoreError("The disk is full: nothing was stored.")

        with monkeypatch.context() as patch:
            patch.setattr(chat.engine, "send", full)
            await chat.say("do not lose me")
            await chat.until_seen("The disk is full")
        assert chat.composer.text == "do not lose me"
        assert [chip.file_name for chip in chat.chips] == ["disc.png"]
        await chat.pilot.press("enter")
        await chat.until_answered()
        assert "64x40] do not lose me" in chat.seen


async def test_a_refused_image_is_one_sentence_and_changes_nothing(
    open_chat, image_file: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "notes.png"
    bad.write_text("just text")
    async with open_chat(image_file) as chat:
        await chat.until(lambda: chat.chips, "the chip")
        chat.composer.insert("half a draft")
        await chat.screen._attach_named(str(bad))
        await chat.until_seen("notes.png")
        await chat.until(lambda: len(chat.chips) == 1, "the refusal")
        assert chat.composer.text == "half a draft"
        assert chat.seen.count("✗") == 1


async def test_a_message_with_an_image_that_is_refused_is_not_sent(
    open_chat, image_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuichat.engine import Engine

    (tmp_path / "empty.png").touch()
    attach, gate = Engine.attach, asyncio.Event()

    async def slow(engine: Engine, path: Path):
        await gate.wait()
        return await attach(engine, path)

    monkeypatch.setattr(Engine, "attach", slow)
    async with open_chat(image_file, tmp_path / "empty.png") as chat:
        await chat.say("what is this")
        assert chat.composer.text == ""
        gate.set()
        await chat.until_seen("empty.png")
        await chat.until(lambda: chat.composer.text == "what is this", "the draft")
        assert chat.engine.transcript() == []
        # What was good of it is still there.
        await chat.until(lambda: [c.file_name for c in chat.chips] == ["disc.png"], "the chip")


async def test_attach_and_detach_by_command(open_chat, image_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "a b (1).png"
    other.write_bytes(image_file.read_bytes())
    async with open_chat() as chat:
        await chat.say(f"/attach {image_file}")
        await chat.until(lambda: len(chat.chips) == 1, "the first")
        await chat.say(f"/image {tmp_path}/a\\ b\\ (1).png")
        await chat.until(lambda: len(chat.chips) == 2 and chat.chips[1].record, "the second")
        await chat.say("/detach 1")
        assert [chip.file_name for chip in chat.chips] == ["a b (1).png"]
        assert str(chat.chips[0]._facts.visual).startswith("1 ")
        await chat.say("/detach 5")
        assert "1 to 1" in chat.seen
        await chat.say("/attach")
        assert "needs the path" in chat.seen
        await chat.say("/attach nowhere.png")
        await chat.until_seen("nowhere.png")
        assert len(chat.chips) == 1
        assert chat.engine.transcript() == []


async def test_backspace_and_the_cross_remove_an_image(open_chat, image_file: Path) -> None:
    async with open_chat(image_file, image_file) as chat:
        await chat.until(lambda: all(chip.record for chip in chat.chips), "the chips")
        await chat.pilot.click("#chips Remove")
        await chat.until(lambda: len(chat.chips) == 1, "one chip")
        await chat.pilot.press("x", "backspace")
        assert len(chat.chips) == 1
        await chat.pilot.press("backspace")
        assert not chat.chips


async def test_an_unknown_command_names_the_nearest_and_keeps_the_line(open_chat) -> None:
    async with open_chat() as chat:
        await chat.say("/atach x.png")
        await chat.until_seen("There is no command /atach; did you mean /attach?")
        assert chat.composer.text == "/atach x.png"


async def test_a_path_on_a_line_of_its_own_is_attached_and_not_sent(
    open_chat, image_file: Path
) -> None:
    async with open_chat() as chat:
        await chat.say(str(image_file))
        await chat.until(lambda: len(chat.chips) == 1, "the chip")
        await chat.say("disc.png")
        await chat.until(lambda: len(chat.chips) == 2, "the second chip")
        assert chat.engine.transcript() == []
        assert chat.composer.text == ""


async def test_an_image_without_suffix_at_the_root_is_not_a_command(
    open_chat, image_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuichat.tui import dropped

    def at_root(text: str) -> list[Path]:
        return [image_file] if text == "/photo" else []

    monkeypatch.setattr(dropped, "find_images", at_root)  # tests cannot write to /
    async with open_chat() as chat:
        await chat.say("/photo")
        await chat.until(lambda: len(chat.chips) == 1, "the chip")


async def test_a_missing_path_is_told_and_sent_when_insisted_on(open_chat) -> None:
    async with open_chat() as chat:
        await chat.say("/home/nobody/cat.png")
        await chat.until_seen("/home/nobody/cat.png is not on this machine")
        assert chat.composer.text == "/home/nobody/cat.png"
        await chat.pilot.press("enter")
        await chat.until_answered()
        assert chat.engine.transcript()[0].text == "/home/nobody/cat.png"


async def test_a_pasted_path_is_attached_and_other_text_stays(open_chat, image_file: Path) -> None:
    async with open_chat() as chat:
        chat.composer.insert("before ")
        await chat.paste(f"'{image_file}' ")
        await chat.until(lambda: chat.chips, "the chip")
        assert chat.composer.text == "before "
        await chat.paste("look at disc.png please\r\nnow")
        await chat.pilot.pause(0.2)
        assert chat.composer.text == "before look at disc.png please\nnow"
        assert len(chat.chips) == 1
        await chat.paste("/tmp/not/here.png")
        await chat.until_seen("not on this machine")
        assert chat.composer.text.endswith("now/tmp/not/here.png")


async def test_enter_right_after_a_paste_does_not_send(open_chat) -> None:
    async with open_chat() as chat:
        for event in (events.Paste("rm -rf"), events.Key("enter", "\r")):
            chat.composer.post_message(event)
        await chat.pilot.pause(0.2)
        assert chat.composer.text == "rm -rf"
        await chat.pilot.press("enter")
        await chat.until_answered()
        assert chat.engine.transcript()[0].text == "rm -rf"


async def test_control_characters_never_get_into_the_draft(open_chat) -> None:
    async with open_chat() as chat:
        await chat.paste("a\x1b]52;c;eA==\x07b\u202ec\x9bd")
        assert chat.composer.text == "a␛]52;c;eA==␇bc\ufffdd"


async def test_the_composer_grows_to_eight_lines(open_chat) -> None:
    async with open_chat() as chat:
        assert chat.composer.size.height == 1
        await chat.pilot.press("a", "ctrl+j", "b", "shift+enter", "c", "alt+enter", "d")
        assert chat.composer.text == "a\nb\nc\nd"
        assert chat.composer.size.height == 4
        await chat.pilot.press(*["ctrl+j"] * 10)
        assert chat.composer.size.height == 8


async def test_typed_characters_land_in_the_composer_wherever_the_focus_is(open_chat) -> None:
    async with open_chat() as chat:
        await chat.pilot.click("#transcript")
        await chat.pilot.press("h")
        chat.screen.set_focus(None)
        await chat.pilot.press("i", "tab", "!")
        assert chat.composer.text == "hi!"


async def test_up_and_down_walk_through_what_was_said(open_chat) -> None:
    async with open_chat() as chat:
        await chat.say("first")
        await chat.say("second")
        await chat.until_answered(2)
        await chat.pilot.press(*"draft", "up")
        assert chat.composer.text == "second"
        await chat.pilot.press("up")
        assert chat.composer.text == "first"
        await chat.pilot.press("up", "down", "down")
        assert chat.composer.text == "draft"


async def test_a_killed_worker_leaves_the_reply_marked_and_the_next_message_is_answered(
    open_chat,
) -> None:
    async with open_chat(options=("delay=0.1",)) as chat:
        await chat.until_ready()
        await chat.say(" ".join("x" * 60))
        await chat.until_seen("user: x")
        os.kill(chat.engine.worker_pid, signal.SIGKILL)
        await chat.until_seen("◇ interrupted")
        await chat.until_answered()
        assert chat.seen.count("what it had answered is kept") == 1
        assert "x" in chat.engine.transcript()[1].text
        await chat.say("again")
        await chat.until_answered(2)
        assert chat.engine.transcript()[3].state == "done"


async def test_a_session_is_continued_with_its_images(open_chat, image_file: Path) -> None:
    async with open_chat(image_file) as chat:
        await chat.say("remember")
        await chat.until_answered()
    async with open_chat(session="last") as chat:
        await chat.until_seen("64x40] remember")
        assert "1 disc.png" in chat.seen
        await chat.say("what was it")
        await chat.until_answered(2)
        assert len(chat.engine.transcript()) == 4


async def test_only_the_end_of_a_long_session_is_mounted(open_chat, chat_home: Path) -> None:
    from tuichat.store import Store

    store = Store.open()
    owner = store.register_owner()
    session = store.create_session(system=None, backend="echo", model="echo")
    for number in range(40):
        posted = store.post(
            session, f"q{number}", [], poster=owner.token, backend="echo", model="echo"
        )
        assert store.claim(posted.reply_id, owner.token)
        store.finish(posted.reply_id, owner=owner.token, state="done")
    owner.release()
    store.close()
    async with open_chat(session="last") as chat:
        await chat.until_seen("30 earlier turns")
        assert "q39" in chat.seen
        assert "q14" not in chat.seen


async def test_a_second_tuichat_on_the_same_session_is_told(open_chat) -> None:
    async with open_chat() as first:
        await first.say("mine")
        await first.until_answered()
        async with open_chat(session="last") as second:
            await second.until_seen("open in another tuichat")


async def test_a_new_session_begins_empty_and_the_old_one_stays(open_chat) -> None:
    async with open_chat() as chat:
        await chat.say("old")
        await chat.until_answered()
        old = chat.engine.session_id
        await chat.say("/new")
        await chat.until(lambda: "user: old" not in chat.seen, "an empty transcript")
        await chat.say("new")
        await chat.until_answered()
        assert chat.engine.session_id != old
        assert chat.engine.transcript()[1].text == "user: new"


async def test_an_unknown_backend_is_one_sentence_with_the_nearest_name(open_chat) -> None:
    async with open_chat(backend="ecko") as chat:
        await chat.until_seen("ecko")
        assert "echo" in chat.seen
        assert chat.seen.count("✗") == 1
        assert chat.screen._status.status.phase == "failed"


async def test_an_unknown_session_ends_the_program_with_its_sentence(open_chat) -> None:
    async with open_chat(session="nosuchsession") as chat:
        await chat.until(lambda: chat.app._exit, "the end")
        assert "nosuchsession" in chat.app.fault
        assert chat.app.return_code == 1


async def test_replies_are_markdown_with_html_shown_and_links_not_opened(
    open_chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    import webbrowser

    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url, *_: opened.append(url))
    async with open_chat() as chat:
        await chat.say("**bold** <b>html</b> <script>x</script> [here](https://example.org/a)")
        await chat.until_answered()
        body = chat.screen.query_one("ReplyTurn Markdown", Markdown)
        assert "bold <b>html</b> <script>x</script> here" in chat.seen
        body.post_message(Markdown.LinkClicked(body, "https://example.org/a"))
        await chat.until_seen("https://example.org/a", times=2)
        assert opened == []


async def test_a_streamed_reply_ends_as_the_whole_text_parsed_at_once(open_chat) -> None:
    text = "# T\n\n- a\n\n- b [x]\n\n```py\n1\n\n2\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n[x]: https://e.org"
    async with open_chat(options=("delay=0.02",)) as chat:
        await chat.say(text)
        await chat.until_answered()
        streamed = chat.screen.query_one("ReplyTurn Markdown", Markdown)
        assert streamed.source == f"user: {text}"
        from tuichat.tui.widgets.turn import markdown_parser

        whole = Markdown(streamed.source, parser_factory=markdown_parser, open_links=False)
        await chat.screen.mount(whole)
        await chat.pilot.pause()

        def shape(markdown: Markdown) -> list[tuple[str, str]]:
            return [(type(node).__name__, str(node.render())) for node in markdown.query(Static)]

        assert shape(streamed) == shape(whole)


async def test_help_lists_every_key_and_command(open_chat) -> None:
    async with open_chat(size=(100, 60)) as chat:
        await chat.pilot.press("f1")
        from tuichat.tui.commands import COMMANDS
        from tuichat.tui.help import KEYS

        assert all(command.usage in chat.seen for command in COMMANDS)
        assert all(key in chat.seen for key, _ in KEYS)


async def test_copying_takes_what_the_mouse_selected_in_the_transcript(open_chat) -> None:
    async with open_chat() as chat:
        await chat.say("select me")
        await chat.until_answered()
        said = chat.screen.query_one("UserTurn .said")
        await chat.pilot.mouse_down(said, offset=(0, 0))
        await chat.pilot.hover(said, offset=(6, 0))
        await chat.pilot.mouse_up(said, offset=(6, 0))
        await chat.pilot.press("ctrl+c")
        assert chat.app.clipboard.startswith("select")
        await chat.pilot.press("y")
        assert chat.composer.text == "y"


async def test_stop_and_help_by_command(open_chat) -> None:
    async with open_chat(options=("delay=0.1",)) as chat:
        await chat.until_ready()
        await chat.say(" ".join("x" * 60))
        await chat.until_seen("user: x")
        await chat.say("/stop")
        await chat.until_answered()
        assert chat.engine.transcript()[1].state == "stopped"
        await chat.say("/keys")
        assert "Keys" in chat.seen


async def test_a_new_session_waits_for_the_reply_to_end(open_chat) -> None:
    async with open_chat(options=("delay=0.1",)) as chat:
        await chat.until_ready()
        await chat.say(" ".join("x" * 30))
        await chat.until_seen("user: x")
        await chat.say("/new")
        await chat.until_seen("still under way")
        await chat.say("/stop")
        await chat.until_answered()


async def test_an_empty_paste_says_how_to_attach(open_chat) -> None:
    async with open_chat() as chat:
        await chat.paste("")
        assert "/attach PATH" in chat.seen


async def test_scrolling_up_lets_go_of_the_bottom_and_sending_returns_to_it(open_chat) -> None:
    async with open_chat() as chat:
        await chat.say("\n".join(f"line {number}" for number in range(60)))
        await chat.until_answered()
        transcript = chat.screen.query_one("#transcript")
        assert transcript.scroll_y == transcript.max_scroll_y > 0
        await chat.pilot.press("ctrl+home")
        await chat.until(lambda: transcript.scroll_y == 0, "the top")
        await chat.say("again")
        await chat.until_answered(2)
        await chat.until(lambda: transcript.scroll_y == transcript.max_scroll_y, "the bottom")
        await chat.pilot.press("pageup")
        await chat.until(lambda: transcript.scroll_y < transcript.max_scroll_y, "a page up")
        await chat.pilot.press("pagedown")
        await chat.until(lambda: transcript.scroll_y == transcript.max_scroll_y, "a page down")


async def test_a_store_that_cannot_be_written_is_told_and_the_chat_goes_on(
    open_chat, chat_home: Path
) -> None:
    (chat_home / "data").write_text("a file where the folder should be")
    async with open_chat() as chat:
        await chat.until_seen("not being saved")
        await chat.say("hello")
        await chat.until_answered()
        assert "user: hello" in chat.seen


async def test_an_image_that_is_gone_from_the_store_leaves_its_name(
    open_chat, image_file: Path, chat_home: Path
) -> None:
    async with open_chat(image_file) as chat:
        await chat.say("look")
        await chat.until_answered()
        digest = chat.engine.transcript()[0].images[0].digest
    for blob in (chat_home / "data" / "blobs").rglob(f"*{digest[8:]}*"):
        blob.unlink()
    async with open_chat(session="last") as chat:
        await chat.until_seen("1 disc.png")
        await chat.until_seen("look")


async def test_every_event_of_the_engine_is_shown(open_chat) -> None:
    """Those that echo does not cause: progress of a load, notices, thinking, a cut answer."""
    from tuichat.api import DtypeRow, ModelFacts
    from tuichat.engine.events import (
        LoadProgressed,
        ModelReady,
        Noticed,
        ReplyExtended,
        ReplyQueued,
        ReplyStarted,
        WorkerChanged,
    )

    async with open_chat(options=("delay=0.1",)) as chat:
        await chat.until_ready()
        deliver = chat.screen._deliver
        deliver(WorkerChanged("loading"))
        deliver(LoadProgressed("weights", 6e6, 26e6, "bytes", "", 2e6, 10.0))
        shown = str(chat.screen._status.render())
        assert "loading the weights 6.0 MB of 26 MB · 2.0 MB/s · 10 s left" in shown
        rows = (DtypeRow("language model", "uint8", "float16", "float16", "cuda", "nf4"),)
        facts = ModelFacts(context_length=2048, notices=("patch_size was filled in",))
        deliver(ModelReady(2.0, facts, rows, "float16: because"))
        await chat.until_seen("float16: because")
        await chat.until_seen("patch_size was filled in")
        assert "all nf4/fp16" in str(chat.screen._status.render())
        deliver(Noticed("something [b]happened[/b]"))
        await chat.until_seen("something [b]happened[/b]")
        await chat.say(" ".join("x" * 30))
        await chat.until_seen("user: x")
        reply = chat.engine.active[0]
        deliver(ReplyQueued(reply, 2))
        deliver(ReplyStarted(reply, 613, 576, ("2 old turns were left out",)))
        deliver(ReplyExtended(reply, "", "let me think"))
        await chat.until_seen("2 old turns were left out")
        await chat.until_seen("let me think")
        assert "context 613/2,048" in str(chat.screen._status.render())
        await chat.say("/stop")
        await chat.until_answered()


async def test_line_breaks_of_a_reply_stay(open_chat) -> None:
    async with open_chat() as chat:
        await chat.say("one\ntwo")
        await chat.until_answered()
        assert "user: one\ntwo" in chat.seen


async def test_a_store_that_fails_under_an_event_is_told_and_the_rest_is_shown(
    open_chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_chat() as chat:
        await chat.until_ready()

        def broken(_turn_id: int) -> None:
            raise StoreError("The store cannot be read: the disk is gone.")

        with monkeypatch.context() as patch:
            patch.setattr(chat.engine, "turn", broken)
            chat.screen._deliver(ReplyEnded(10_000, "done", None))
        await chat.until_seen("The store cannot be read")
        await chat.say("still here")
        await chat.until_answered()


async def test_leaving_twice_is_leaving_once(open_chat) -> None:
    async with open_chat() as chat:
        await chat.until_ready()
        await asyncio.gather(chat.app._leave(0), chat.app._leave(0))
        assert chat.app.return_code == 0
