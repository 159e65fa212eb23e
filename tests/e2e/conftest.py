"""Real terminals for real programs.

``terminal`` starts tuichat on a pseudo-terminal whose screen pyte draws, so a test reads what a
person would see. ``scene`` draws an image that the demo model can answer about.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte
import pytest


class Terminal:
    """A program on a pseudo-terminal of ``columns`` × ``lines`` cells."""

    def __init__(self, argv: list[str], env: dict[str, str], columns: int, lines: int) -> None:
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self.raw = bytearray()
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._master, 65536):
                with self._lock:
                    self.raw += data
                    # pyte stumbles over sequences that it does not know; the raw bytes have them.
                    with contextlib.suppress(Exception):
                        self._stream.feed(data)

    @property
    def text(self) -> str:
        """The screen, line by line."""
        with self._lock:
            return "\n".join(line.rstrip() for line in self._screen.display)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def wait_for(self, pattern: str, timeout: float = 60) -> re.Match[str]:
        """Wait until the screen shows ``pattern``."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if match := re.search(pattern, self.text, re.M):
                return match
            if self.process.poll() is not None:
                time.sleep(0.2)
                break
            time.sleep(0.05)
        if match := re.search(pattern, self.text, re.M):
            return match
        raise AssertionError(
            f"{pattern!r} is not on the screen (exit {self.process.poll()}):\n{self.text}"
        )

    def wait_until_gone(self, timeout: float = 20) -> int:
        """Wait for the program's end; its exit code."""
        return self.process.wait(timeout)

    def close(self) -> None:
        """End the program whatever it does."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
        self._reader.join(5)
        os.close(self._master)


StartTerminal = Callable[..., Terminal]


@pytest.fixture
def terminal(home: Path) -> Iterator[StartTerminal]:
    """Start ``tuichat ARGS…`` on a pseudo-terminal; several may run at once."""
    open_terminals: list[Terminal] = []

    def start(*args: str, columns: int = 100, lines: int = 30, **env: str) -> Terminal:
        full = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **env}
        started = Terminal([sys.executable, "-m", "tuichat", *args], full, columns, lines)
        open_terminals.append(started)
        return started

    yield start
    for started in open_terminals:
        started.close()


@pytest.fixture(autouse=True)
def _no_worker_is_left(home: Path) -> Iterator[None]:
    """Workers end by themselves; one that a failed test left behind must not outlive it."""
    yield
    subprocess.run(
        [sys.executable, "-m", "tuichat", "stop", "--all"],
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A red circle on light grey, 300 × 300 pixels."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (300, 300), (205, 205, 205))
    ImageDraw.Draw(image).ellipse((93, 93, 207, 207), fill=(215, 35, 35))
    path = tmp_path_factory.mktemp("scene") / "scene.png"
    image.save(path)
    return path
