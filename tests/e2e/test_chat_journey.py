"""A person's whole way through the chat, in a real terminal, with a real vision-language model."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEMO = ("--backend", "llava", "--model", "demo")
CTRL_Q = "\x11"
NOISE = re.compile(rb"Traceback|Warning|Loading (weights|checkpoint)|it/s\]|\bINFO\b|\bWARN")
"""What libraries like to print."""


def questions_and_answers(screen, image: Path) -> None:
    """Ask about the image while the model loads, then again without it."""
    screen.wait_for(re.escape(image.name))
    screen.wait_for("llava demo")
    # Sent at once: it is queued until the model is there.
    screen.type("What colour is the circle?\r")
    screen.wait_for(r"\bred\b", 90)
    screen.type("How many shapes are there?\r")
    screen.wait_for(r"\bone shape\b")


def both_turns(screen) -> None:
    for words in ("What colour is the circle", r"\bred\b", "How many shapes", r"\bone shape\b"):
        screen.wait_for(words)


def test_ask_twice_leave_and_come_back(terminal, scene):
    screen = terminal(*DEMO, str(scene), columns=80, lines=24)
    questions_and_answers(screen, scene)
    resident = int(
        re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{screen.process.pid}/status").read_text())[1]
    )
    assert resident < 120 * 1024, f"{resident} kB are resident"
    maps = Path(f"/proc/{screen.process.pid}/maps").read_text()
    assert "libtorch" not in maps
    screen.type(CTRL_Q)
    assert screen.wait_until_gone() == 0
    assert b"\x1b[?1049l" in screen.raw[-400:], "the screen before is back"
    assert not NOISE.search(screen.raw)

    again = terminal("--session", "last", columns=80, lines=24)
    both_turns(again)
    # The image is still there for the model, which knows nothing of the first program.
    again.wait_for("ready", 90)
    again.type("What shape is it?\r")
    again.wait_for(r"What shape is it\?[\s\S]*\bcircle\b")
    again.type(CTRL_Q)
    assert again.wait_until_gone() == 0


class Tmux:
    """A tmux server of its own, with one window."""

    def __init__(self, socket: Path, columns: int, lines: int, argv: list[str]) -> None:
        self._base = ["tmux", "-f", "/dev/null", "-S", str(socket)]
        size = ["-x", str(columns), "-y", str(lines)]
        # The shell stays when the program is gone, so its exit status can be read.
        command = f"{shlex.join(argv)}; echo exit status $?; exec sleep 600"
        self._run("new-session", "-d", *size, command)

    def _run(self, *args: str) -> str:
        done = subprocess.run(
            [*self._base, *args], capture_output=True, text=True, timeout=20, check=True
        )
        return done.stdout

    @property
    def text(self) -> str:
        return self._run("capture-pane", "-p")

    def type(self, text: str) -> None:
        for piece in re.split(r"([\r\x11])", text):
            if piece in ("\r", CTRL_Q):
                self._run("send-keys", "Enter" if piece == "\r" else "C-q")
            elif piece:
                self._run("send-keys", "-l", piece)

    def wait_for(self, pattern: str, timeout: float = 60) -> re.Match[str]:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if match := re.search(pattern, self.text, re.M):
                return match
            time.sleep(0.1)
        raise AssertionError(f"{pattern!r} is not on the screen:\n{self.text}")

    def close(self) -> None:
        subprocess.run([*self._base, "kill-server"], capture_output=True, check=False)


@pytest.fixture
def tmux(tmp_path, home, monkeypatch):
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed (the same way is walked on a pseudo-terminal above)")
    monkeypatch.setenv("LANG", "C.UTF-8")
    running = []

    def start(*args: str, columns: int, lines: int) -> Tmux:
        argv = [sys.executable, "-m", "tuichat", *args]
        socket = Path(os.environ["TUICHAT_HOME"]) / f"tmux{len(running)}"
        running.append(Tmux(socket, columns, lines, argv))
        return running[-1]

    yield start
    for window in running:
        window.close()


def test_the_same_in_tmux(tmux, scene):
    screen = tmux(*DEMO, str(scene), columns=200, lines=50)
    questions_and_answers(screen, scene)
    both_turns(screen)
    screen.type(CTRL_Q)
    screen.wait_for("exit status 0")
    again = tmux("--session", "last", columns=200, lines=50)
    both_turns(again)
    again.type(CTRL_Q)
    again.wait_for("exit status 0")


def test_an_unknown_backend_is_one_line_and_no_screen(terminal):
    screen = terminal("--backend", "lava")
    assert screen.wait_until_gone() == 2
    screen.wait_for("did you mean 'llava'")
    assert b"\x1b" not in screen.raw
    assert screen.raw.count(b"\n") == 1


def test_a_dumb_terminal_is_refused(terminal):
    screen = terminal(TERM="dumb")
    assert screen.wait_until_gone() == 2
    screen.wait_for("needs a terminal")
    assert b"\x1b" not in screen.raw


def test_progress_of_ask_on_a_terminal_leaves_no_trace(terminal, scene):
    screen = terminal("ask", *DEMO, str(scene), "What colour is the circle?")
    assert screen.wait_until_gone(90) == 0
    lines = [line for line in screen.text.splitlines() if line]
    assert "red" in lines[-1]
    assert b"\r\x1b[K" in screen.raw, "progress was shown"
    assert not any("loading" in line for line in lines)
    assert not NOISE.search(screen.raw)
