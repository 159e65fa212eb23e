"""What only a pseudo terminal shows: bytes, signals, legacy keys, and what a process imports."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

READY = "Ask about an image"
_DUMP = """
import json, pathlib
def dump(name):
    pathlib.Path({path!r}, name).write_text(json.dumps(sorted(sys.modules)))
"""


def test_nothing_heavy_is_imported_before_the_first_frame(start_terminal, tmp_path: Path) -> None:
    before = _DUMP.format(path=str(tmp_path)) + (
        "from tuichat.tui.screens.chat import ChatScreen\n"
        "begin = ChatScreen._begin\n"
        "def _begin(self):\n    dump('first')\n    begin(self)\n"
        "ChatScreen._begin = _begin\n"
    )
    terminal = start_terminal(before=before)
    terminal.until(READY)
    terminal.until("ready")
    loaded = set(json.loads((tmp_path / "first").read_text()))
    heavy = {
        "torch", "transformers", "PIL", "textual_image", "markdown_it", "sqlite3", "msgspec",
        "tuichat_llava", "tuichat_echo", "tuichat.engine.engine", "tuichat.store",
        "tuichat.images", "textual.widgets._markdown", "pygments.lexers",
    }  # fmt: skip
    assert loaded & heavy == set()


def test_the_screen_never_imports_torch_or_a_plugin(
    start_terminal, tmp_path: Path, image_file: Path
) -> None:
    before = _DUMP.format(path=str(tmp_path)) + "import atexit; atexit.register(dump, 'last')\n"
    terminal = start_terminal(image_file, before=before)
    terminal.until("1 token")
    terminal.send("hello\r")
    terminal.until("tok/s")
    terminal.send("\x11")
    assert terminal.ended() == 0
    loaded = set(json.loads((tmp_path / "last").read_text()))
    assert {"sqlite3", "PIL", "markdown_it"} <= loaded  # it was a whole chat
    assert loaded & {"torch", "transformers", "tuichat_echo", "textual_image"} == set()


def test_what_is_typed_before_the_first_frame_is_not_lost(start_terminal, image_file: Path) -> None:
    terminal = start_terminal(image_file)
    # Not before Textual has taken the echo off the line: until then the terminal is the shell's.
    while b"\x1b[?1049h" not in terminal.raw:
        terminal.read()
    terminal.send("typed ahead\r")
    terminal.until("64x40] typed ahead")  # with the image of the command line


@pytest.mark.parametrize("sequence", ["\x1b\r", "\x1b\n", "\n", "\x1b[13;2u", "\x1b[13;3u"])
def test_keys_that_make_a_new_line(start_terminal, sequence: str) -> None:
    terminal = start_terminal()
    terminal.until(READY)
    terminal.send("first")
    terminal.until("first")
    terminal.send(sequence)
    terminal.send("second")
    terminal.until("second")
    rows = [row for row in terminal.shown.splitlines() if "first" in row or "second" in row]
    assert [row.strip("│ ") for row in rows] == ["first", "second"]
    assert "You" not in terminal.shown


def test_keys_of_one_read_keep_their_order(start_terminal) -> None:
    terminal = start_terminal()
    terminal.until(READY)
    terminal.send("first\x7f\x7fe\nsecond\x1b[D\x1b[D!")
    terminal.until("seco!nd")
    rows = [row for row in terminal.shown.splitlines() if "fire" in row or "seco" in row]
    assert [row.strip("│ ") for row in rows] == ["fire", "seco!nd"]


def test_enter_sends(start_terminal) -> None:
    terminal = start_terminal()
    terminal.until(READY)
    terminal.send("first\r")
    terminal.until("user: first")


def test_bytes_that_are_not_utf8_do_not_end_the_program(start_terminal) -> None:
    terminal = start_terminal()
    terminal.until(READY)
    terminal.send(b"caf\xe9 ")
    terminal.send(b"\x1b[200~\xff\xfe.png\x1b[201~")
    terminal.until("caf� ��.png")
    terminal.send("ok")
    terminal.until("��.pngok")


def test_a_paste_that_contains_its_own_end_does_not_send(start_terminal) -> None:
    terminal = start_terminal()
    terminal.until(READY)
    terminal.send("\x1b[200~harmless\x1b[201~\rrm -rf")
    terminal.until("harmlessrm -rf")
    assert "You" not in terminal.shown


def test_a_dropped_path_becomes_a_chip(start_terminal, image_file: Path, tmp_path: Path) -> None:
    dropped = tmp_path / "a b.png"
    dropped.write_bytes(image_file.read_bytes())
    terminal = start_terminal()
    terminal.until(READY)
    terminal.send(f"\x1b[200~{tmp_path}/a\\ b.png \x1b[201~")
    terminal.until("1 a b.png")
    terminal.until("64×40")
    terminal.until(READY)


def test_sigterm_restores_the_terminal(start_terminal) -> None:
    terminal = start_terminal(options=("delay=0.05",))
    terminal.until("ready")
    terminal.send("a b c d e f g h i j k l m n o p q r s t u v w x y z\r")
    terminal.until("user: a")
    began = time.monotonic()
    terminal.signal(signal.SIGTERM)
    assert terminal.ended() == 128 + signal.SIGTERM
    assert time.monotonic() - began < 3
    for sequence in (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1003l", b"\x1b[?2004l", b"\x1b[<u"):
        assert terminal.raw.rfind(sequence) > terminal.raw.rfind(b"user: a"), sequence
    assert b"Traceback" not in terminal.raw


def test_a_hangup_ends_the_process_also_where_it_is_ignored(start_terminal) -> None:
    terminal = start_terminal(before="import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    terminal.until("ready")
    terminal.hang_up()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        pid, status = os.waitpid(terminal.pid, os.WNOHANG)
        if pid:
            terminal.code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.05)
    assert terminal.code not in (None, 0)


def test_a_fault_of_ours_is_one_line_after_the_screen_and_a_code(start_terminal) -> None:
    terminal = start_terminal(
        before="from tuichat.tui.screens.chat import ChatScreen\n"
        "def fail(self):\n"
        "    hostile = '\\x1b]52;c;eA==\\x07'\n"
        "    raise RuntimeError(hostile)\n"
        "ChatScreen.action_help = fail\n"
    )
    terminal.until(READY)
    terminal.send("\x1bOP")  # F1
    assert terminal.ended() == 1
    after = terminal.raw[terminal.raw.rfind(b"\x1b[?1049l") :]
    assert b"tuichat: the chat screen failed (RuntimeError" in after
    assert after.count(b"\n") == 1
    assert b"\x1b]52" not in terminal.raw
    assert b"Traceback" not in terminal.raw


def test_a_thread_that_hangs_does_not_keep_the_process(start_terminal) -> None:
    terminal = start_terminal(
        before="import asyncio, time\n"
        "from tuichat.engine import Engine\n"
        "async def hang(self):\n    await asyncio.to_thread(time.sleep, 120)\n"
        "Engine.prepare = hang\n"
    )
    terminal.until(READY)
    terminal.read(0.5)
    began = time.monotonic()
    terminal.send("\x11")
    assert terminal.ended() == 0
    assert time.monotonic() - began < 8
    assert terminal.raw.count(b"\x1b[?1049l") == 1  # left once, in the ordinary way


def test_an_unknown_session_is_told_after_the_screen(start_terminal) -> None:
    terminal = start_terminal(session="nosuch")
    assert terminal.ended() == 1
    assert b"nosuch" in terminal.raw[terminal.raw.rfind(b"\x1b[?1049l") :]


def test_what_libraries_write_stays_off_the_screen(start_terminal) -> None:
    terminal = start_terminal(
        before="import os, threading, warnings, logging\n"
        "def noise():\n"
        "    os.write(1, b'NOISE1'); os.write(2, b'NOISE2')\n"
        "    print('NOISE3'); warnings.warn('NOISE4'); logging.warning('NOISE5')\n"
        "from tuichat.tui.screens.chat import ChatScreen\n"
        "ChatScreen.action_help = lambda self: noise()\n"
    )
    terminal.until(READY)
    terminal.send("\x1bOP")
    terminal.send("after")
    terminal.until("after")
    assert b"NOISE" not in terminal.raw
    terminal.send("\x11")
    assert terminal.ended() == 0
    assert b"NOISE" not in terminal.raw


# The 17 kinds of text that must not be obeyed.
PAYLOADS = {
    "clipboard": "\x1b]52;c;aGFja2Vk\x07",
    "clipboard ended by ST": "\x1b]52;c;aGFja2Vk\x1b\\",
    "clear": "\x1b[2Jcleared",
    "colour": "\x1b[31mred",
    "C1 CSI": "\x9b31mred",
    "C1 OSC": "\x9d52;c;aGFja2Vk\x9c",
    "link": "\x1b]8;;http://evil.example\x1b\\here",
    "title": "\x1b]0;owned\x07",
    "graphics": "\x1b_Ga=T,f=24;AAAA\x1b\\",
    "device control": "\x1bP1$r0m\x1b\\",
    "delete": "abc\x7f\x7f\x7f",
    "shift out": "\x0e\x0f",
    "bell, backspace, carriage return": "\x07\x08\rover",
    "bidi override": "\u202egnp.exe\u2066",
    "hidden": "zero\u200bwidth\U000e0041tag",
    "markup": "[red]x[/red] [@click=app.quit]click[/]",
    "broken markup": "[/nope] x [red B [stage=x: [/ z [b + x",
}
_FORBIDDEN = [
    b"\x1b]52;c;", b"\x1b[2Jcleared", b"\x1b[31mred", "\x9b".encode(), "\x9c".encode(),
    "\x9d".encode(), b"\x1b]8;;http", b"\x1b]0;owned", b"\x1b_Ga=T", b"\x1bP1$r0m", b"\x7f",
    b"\x0e", b"\x0f", b"\x07", b"\x08", "\u202e".encode(), "\u2066".encode(),
    "\u200b".encode(), "\U000e0041".encode(),
]  # fmt: skip


def test_no_hostile_byte_reaches_the_terminal(
    start_terminal, tmp_path: Path, image_file: Path
) -> None:
    """Through file names, errors, the draft, the user's turn and the model's text."""
    everything = "".join(PAYLOADS.values())
    images, refused = [], []
    for number, payload in enumerate(PAYLOADS.values()):
        name = payload.replace("/", "_")
        good, bad = tmp_path / f"{number}{name}.png", tmp_path / f"bad{number}{name}.png"
        good.write_bytes(image_file.read_bytes())
        bad.write_bytes(b"no image")
        images.append(good)
        refused.append(bad)
    hostile = tmp_path / "hostile.json"
    hostile.write_text(json.dumps(everything))
    terminal = start_terminal(
        *refused,
        *images,
        # Key parsing would take the text apart: it is put into the draft as a history does.
        before="import json, pathlib\n"
        f"text = json.loads(pathlib.Path({str(hostile)!r}).read_text())\n"
        "from tuichat.tui.screens.chat import ChatScreen\n"
        "def post(self):\n"
        "    self._composer.insert('DRAFT ' )\n"
        "    from textual import events\n"
        "    self._composer.post_message(events.Paste(text))\n"
        "    self._complain(text)\n"
        "    self._transcript.notice(text)\n"
        "    chips = self._chips.claim()\n"
        "    self.run_worker(self._submit('RAW ' + text, None, chips), name='submit')\n"
        "ChatScreen.action_help = post\n",
        columns=120,
        rows=50,
    )
    terminal.until(f"{len(PAYLOADS)} ")
    terminal.until("ready")
    terminal.send("\x1bOP")
    terminal.until("DRAFT")
    terminal.until("tok/s")
    for _ in range(40):
        terminal.send("\x1b[5~")  # everything once over the screen
        terminal.read(0.05)
    # Textual ends its own mouse pointer sequence with a BEL.
    body = re.sub(rb"\x1b\]22;[a-z-]*\x07", b"", terminal.raw)
    found = [payload for payload in _FORBIDDEN if payload in body]
    assert found == []
    assert "[@click=app.quit]click[/]" in _text_once_shown(terminal)
    terminal.send("\x11")
    assert terminal.ended() == 0


def _text_once_shown(terminal) -> str:
    return re.sub(r"\x1b\[[0-9;?<>=]*[A-Za-z]", "", terminal.raw.decode("utf-8", "replace"))
