"""The chat program around its screen.

Owns the life of the process: themes, signals, the exit code, and what is written to the terminal
after the screen is gone. Refuses to know the chat (``screens.chat``). Invariant: whatever ends the
program, the terminal is as it was before, and nothing but one sentence of ours is written to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.screen import Screen

from tuichat.sanitize import sanitize_line
from tuichat.tui import driver, themes
from tuichat.tui.screens.chat import ChatScreen, Failed, Left

if TYPE_CHECKING:
    from tuichat.engine import Settings

_logger = logging.getLogger(__name__)


class ChatApp(App[None]):
    """``tuichat`` without a command."""

    TITLE = "tuichat"
    CSS_PATH: ClassVar[list[str | PurePath]] = [
        "screens/chat.tcss",
        "widgets/transcript.tcss",
        "widgets/chips.tcss",
        "widgets/composer.tcss",
        "widgets/status.tcss",
    ]

    def __init__(
        self, settings: Settings, images: Sequence[str], session: str | None, keep: bool
    ) -> None:
        super().__init__(driver_class=driver.driver_class())
        self._chat = (settings, images, session, keep)
        self.fault = ""
        """Why the program had to end, one sentence; empty if it was asked to."""
        self._leaving = False
        for theme in (themes.DARK, themes.LIGHT):
            self.register_theme(theme)
        if (name := themes.initial_theme()) is not None:
            self.theme = name

    def get_default_screen(self) -> Screen[None]:
        """The chat is there from the first frame."""
        return ChatScreen(*self._chat)

    def on_mount(self) -> None:
        """Have signals end the program the way a key does."""
        if self.is_headless:
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._signalled, signal.SIGTERM)
        # Also where it was ignored (nohup): a program without a terminal has nothing to wait for.
        loop.add_signal_handler(signal.SIGHUP, self._signalled, signal.SIGHUP)

    def _signalled(self, number: signal.Signals) -> None:
        code = 128 + number
        driver.leave_within(driver.LEAVE_S, code, restore=number != signal.SIGHUP)
        self.run_worker(self._leave(code), name="leave")

    async def on_left(self, event: Left) -> None:
        """The reader wants to leave."""
        await self._leave(0)

    async def on_failed(self, event: Failed) -> None:
        """There can be no chat."""
        self.fault = event.sentence
        await self._leave(1)

    async def action_quit(self) -> None:
        """Ctrl+Q, and the palette's Quit."""
        await self._leave(0)

    async def _leave(self, code: int) -> None:
        if self._leaving:
            return
        self._leaving = True
        for screen in self.screen_stack:
            if isinstance(screen, ChatScreen):
                await screen.close()
        self.exit(return_code=code)

    def copy_to_clipboard(self, text: str) -> None:
        """Copy, inside tmux too: as it is set up by default, it drops a program's OSC 52."""
        super().copy_to_clipboard(text)
        if os.environ.get("TMUX"):
            self.run_worker(_copy_through_tmux(text), name="copy")

    # ------------------------------------------------------------------ faults of our own

    def _handle_exception(self, error: Exception) -> None:
        """Log a fault of ours. Textual would print it with the values of all variables, and the
        text of a model is among them."""
        _logger.critical("the chat screen failed", exc_info=error)
        self.fault = (
            f"the chat screen failed ({type(error).__name__}: {error}); the conversation is in the "
            "store (tuichat --session last), the details are in the log"
        )
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()

    def _print_error_renderables(self) -> None:
        self._exit_renderables.clear()


def run_chat(settings: Settings, images: Sequence[str], session: str | None, keep: bool) -> int:
    """Open the chat and return the exit code of the process.

    Args:
        images: paths to attach to the first message.
        session: ``last``, an id or the beginning of one; None for a new session.
        keep: False for a store that vanishes afterwards.
    """
    return asyncio.run(_run(ChatApp(settings, images, session, keep)))


async def _copy_through_tmux(text: str) -> None:
    with contextlib.suppress(OSError):
        tmux = await asyncio.create_subprocess_exec(
            "tmux", "load-buffer", "-w", "-",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await tmux.communicate(text.encode())


async def _run(app: ChatApp) -> int:
    with driver.own_terminal():
        await app.run_async()
    code = app.return_code or 0
    if app.fault:
        code = code or 1
        sys.stderr.write(f"tuichat: {sanitize_line(app.fault)}\n")
        sys.stderr.flush()
    # Python would wait for every thread, and one may hang on a slow disk or a plugin that does not
    # answer: nothing that it could still do is wanted.
    driver.leave_within(driver.LEAVE_S, code, restore=False)
    return code
