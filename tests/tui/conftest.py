"""A chat screen in a test: with Pilot, or on a pseudo terminal.

Both run the real engine, the real store and a real worker; the backend is the example echo, which
answers with what it was given. Pilot sees widgets; only the pseudo terminal sees bytes, signals
and what a terminal makes of keys.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyte
import pytest
from textual.pilot import Pilot

_SUPPORT = Path(__file__).resolve().parents[1] / "support"
PATIENCE_S = 60.0  # a worker starts within a second; this machine may be busy with others


@pytest.fixture(scope="session")
def echo_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the example backend is installed."""
    sys.path.insert(0, str(_SUPPORT))
    try:
        from echo_env import install_echo
    finally:
        sys.path.remove(str(_SUPPORT))
    site = tmp_path_factory.mktemp("echo-site")
    install_echo(site)
    return site


@pytest.fixture
def chat_home(monkeypatch: pytest.MonkeyPatch, echo_site: Path, tmp_path: Path) -> Iterator[Path]:
    """An empty TUICHAT_HOME, short enough for a socket, in whose processes echo is installed."""
    import shutil
    import tempfile

    home = Path(tempfile.mkdtemp(prefix="tt-", dir="/tmp"))
    monkeypatch.setenv("TUICHAT_HOME", str(home))
    monkeypatch.setenv("PYTHONPATH", str(echo_site))
    monkeypatch.syspath_prepend(str(echo_site))
    monkeypatch.chdir(tmp_path)
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def image_file(tmp_path: Path) -> Path:
    """A red disc on a light ground, 64×40."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (64, 40), (240, 240, 230))
    ImageDraw.Draw(image).ellipse((8, 8, 32, 32), fill=(200, 30, 40))
    path = tmp_path / "disc.png"
    image.save(path)
    return path


# ---------------------------------------------------------------------------- Pilot

OpenChat = Callable[..., "contextlib.AbstractAsyncContextManager[Chat]"]


class Chat:
    """A running chat and what a person would see of it."""

    def __init__(self, app, pilot: Pilot) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def screen(self):
        return self.app.screen

    @property
    def composer(self):
        return self.screen.query_one("#composer")

    @property
    def chips(self):
        return self.screen.query_one("#chips").chips

    @property
    def engine(self):
        return self.screen._link.engine

    @property
    def seen(self) -> str:
        """Everything in the transcript, top to bottom, as plain text."""
        return text_of(self.screen.query_one("#transcript"))

    async def until(self, what: Callable[[], object], why: str = "") -> None:
        """Wait for something to become true."""
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain for {why or what}; seen:\n{self.seen}")
            await self.pilot.pause(0.02)
        await self.pilot.pause()

    async def until_seen(self, text: str, times: int = 1) -> None:
        """Wait for ``text`` to stand in the transcript."""
        await self.until(lambda: self.seen.count(text) >= times, repr(text))

    async def until_ready(self) -> None:
        """Wait for the model."""
        await self.until(lambda: self.engine and self.engine.phase == "ready", "the model")

    async def until_answered(self, replies: int = 1) -> None:
        """Wait for that many replies to have ended, on the screen too."""

        def answered() -> bool:
            if self.engine is None or self._drawing():
                return False
            states = [turn.state for turn in self.engine.transcript() if turn.role == "assistant"]
            return len(states) == replies and not {"queued", "running"} & set(states)

        await self.until(answered, f"{replies} replies")

    def _drawing(self) -> bool:
        return any(worker.name == "draw" and worker.is_running for worker in self.app.workers)

    async def say(self, text: str) -> None:
        """Write a message and send it."""
        self.composer.insert(text)
        await self.pilot.press("enter")

    async def paste(self, text: str) -> None:
        """Paste as a terminal with bracketed paste does."""
        from textual import events

        self.composer.post_message(events.Paste(text))
        await self.pilot.pause()


def text_of(widget) -> str:
    """The plain text of every leaf under ``widget``, one a line."""
    from textual.widgets import Static

    lines = [
        str(node.visual)
        for node in widget.walk_children()
        if isinstance(node, Static) and node.display
    ]
    return "\n".join(line for line in lines if line)


@pytest.fixture
def open_chat(chat_home: Path) -> OpenChat:
    """``async with open_chat(images, session=…, size=…, options=…) as chat``."""
    from tuichat.engine import Settings
    from tuichat.tui.app import ChatApp

    @asynccontextmanager
    async def chat(
        *images: Path | str,
        session: str | None = None,
        keep: bool = True,
        size: tuple[int, int] = (80, 24),
        backend: str = "echo",
        model: str | None = None,
        options: tuple[str, ...] = (),
    ) -> AsyncIterator[Chat]:
        settings = Settings(backend=backend, model=model, options=options)
        app = ChatApp(settings, [str(image) for image in images], session, keep)
        async with app.run_test(size=size) as pilot:
            shown = Chat(app, pilot)
            await pilot.pause()
            try:
                yield shown
            finally:
                await shown.until(lambda: shown.engine or app._exit, "the engine")
                if not app._exit:
                    await app.screen.close()

    return chat


# ---------------------------------------------------------------------------- pseudo terminal


class Terminal:
    """A program on a pseudo terminal, and the screen that it draws."""

    def __init__(self, argv: list[str], env: dict[str, str], columns: int, rows: int) -> None:
        self.raw = b""
        self.code: int | None = None
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.pid, self._fd = pty.fork()
        if self.pid == 0:  # pragma: no cover - the child
            os.execvpe(argv[0], argv, env)
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, size)

    @property
    def shown(self) -> str:
        """The screen as a person sees it."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def send(self, data: bytes | str) -> None:
        """Type."""
        os.write(self._fd, data.encode() if isinstance(data, str) else data)

    def read(self, for_s: float = 0.05) -> bool:
        """Take what the program writes during ``for_s`` seconds; False when it is gone."""
        deadline = time.monotonic() + for_s
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self._fd], [], [], left)
            if not ready:
                return True
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                return False
            if not data:
                return False
            self.raw += data
            # pyte 0.8 does not know private modes of CSI u and CSI t, and would print them.
            self._stream.feed(_without_queries(data))
        return True

    def until(self, text: str, patience_s: float = PATIENCE_S) -> None:
        """Wait for ``text`` on the screen."""
        deadline = time.monotonic() + patience_s
        while text not in self.shown:
            alive = self.read()
            if text in self.shown:
                return
            assert alive, f"the program ended; {text!r} is not on:\n{self.shown}"
            assert time.monotonic() < deadline, f"{text!r} is not on:\n{self.shown}"

    def ended(self, patience_s: float = 20.0) -> int:
        """Wait for the program to end; its exit code, negative for a signal."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.read()
                self.code = os.waitstatus_to_exitcode(status)
                return self.code
        raise AssertionError(f"still there after {patience_s} s:\n{self.shown}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program."""
        os.kill(self.pid, number)

    def hang_up(self) -> None:
        """Close the terminal's end of the line."""
        os.close(self._fd)
        self._fd = -1

    def close(self) -> None:
        """End the program, whatever it does."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
        if self._fd >= 0:
            os.close(self._fd)


def _without_queries(data: bytes) -> bytes:
    import re

    return re.sub(rb"\x1b\[[<>=?]?[\d;]*(?:u|\$p)", b"", data)


StartTerminal = Callable[..., Terminal]

_START = """
import sys
from tuichat.engine.settings import Settings
from tuichat.tui.app import run_chat
{before}
settings = Settings(backend={backend!r}, model={model!r}, options={options!r})
sys.exit(run_chat(settings, {images!r}, {session!r}, True))
"""


@pytest.fixture
def start_terminal(chat_home: Path) -> Iterator[StartTerminal]:
    """Run the chat on a pseudo terminal; ``before`` is code that runs in it first."""
    opened: list[Terminal] = []

    def start(
        *images: Path | str,
        before: str = "",
        backend: str = "echo",
        model: str | None = None,
        options: tuple[str, ...] = (),
        session: str | None = None,
        env: dict[str, str] | None = None,
        columns: int = 80,
        rows: int = 24,
    ) -> Terminal:
        code = _START.format(
            before=before,
            backend=backend,
            model=model,
            options=options,
            images=[str(image) for image in images],
            session=session,
        )
        environment = {
            **os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})
        }  # fmt: skip
        terminal = Terminal([sys.executable, "-c", code], environment, columns, rows)
        opened.append(terminal)
        return terminal

    yield start
    for terminal in opened:
        terminal.close()
