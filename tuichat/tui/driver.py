"""What Textual 8.2's terminal driver gets wrong, mended.

Owns the terminal's file descriptors while the screen is up. Refuses to know the chat. Invariant:
bytes that are not UTF-8, Alt+Enter of an old terminal, a library that writes to stdout or stderr,
and a signal each leave a screen that works or a terminal that is as it was. Every mend has a pty
test; on a Textual that it was not tried with, a mend that does not fit is left out.
"""

from __future__ import annotations

import codecs
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, cast

import textual

if TYPE_CHECKING:
    from textual.driver import Driver

TRIED = "8.2."
"""The Textual releases whose internals these mends were tried with."""

LEAVE_S = 1.0
"""Seconds from a signal to the end of the process, whatever still waits."""

_RESTORE = (
    "\x1b[?2004l"  # bracketed paste
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"  # mouse
    "\x1b[?1004l\x1b[?2048l\x1b[<u"  # focus reports, in-band resize, kitty keys
    "\x1b[?1049l\x1b[?25h\x1b[?7h\x1b[0m"  # main screen, cursor, line wrap, colours
)

_logger = logging.getLogger(__name__)


class _Key(StrEnum):
    """A key that Textual has no member for; its parser wants members of a str enum."""

    ALT_ENTER = "alt+enter"


def driver_class() -> type[Driver] | None:
    """The driver for this process; None leaves the choice to Textual (``TEXTUAL_DRIVER``)."""
    if os.environ.get("TEXTUAL_DRIVER") or not textual.__version__.startswith(TRIED):
        return None
    from textual import _ansi_sequences
    from textual.drivers import linux_driver

    # ESC CR is Alt+Enter of every terminal without the kitty protocol, tmux among them; as the
    # plain Enter that Textual makes of it, it would send half a message.
    sequences = cast(dict[str, tuple[StrEnum, ...]], _ansi_sequences.ANSI_SEQUENCES_KEYS)
    sequences["\x1b\r"] = sequences["\x1b\n"] = (_Key.ALT_ENTER,)
    # One byte that is not UTF-8 (a Latin-1 file name, dropped) would end the program.
    linux_driver.getincrementaldecoder = _lenient_decoder  # type: ignore[attr-defined,assignment]
    return linux_driver.LinuxDriver


def _lenient_decoder(encoding: str) -> Callable[[], codecs.IncrementalDecoder]:
    return lambda: codecs.getincrementaldecoder(encoding)(errors="replace")


@contextlib.contextmanager
def own_terminal() -> Iterator[None]:
    """Keep stdout and stderr of this process, C libraries included, off the screen.

    The driver writes to ``sys.__stderr__`` and measures ``sys.__stdout__``: both become a duplicate
    of the terminal, while descriptors 1 and 2 lead nowhere. Log records have their own file.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = (os.dup(1), os.dup(2))
    before = (sys.__stdout__, sys.__stderr__)
    sink = os.open(os.devnull, os.O_WRONLY)
    # "replace": a lone surrogate would end the thread that writes, and with it the screen.
    terminal = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    sys.__stdout__ = sys.__stderr__ = terminal  # type: ignore[misc]
    try:
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        yield
    finally:
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        sys.__stdout__, sys.__stderr__ = before  # type: ignore[misc]
        for descriptor in (sink, *kept):
            os.close(descriptor)
        with contextlib.suppress(OSError):
            terminal.close()


def leave_within(limit_s: float, code: int, *, restore: bool) -> None:
    """End the process after ``limit_s`` seconds, if it has not ended by then.

    Args:
        restore: write what leaves the alternate screen and turns mouse and paste reports off; not
            after a hang-up, when there is no terminal to write to.
    """

    def leave() -> None:
        if restore:
            with contextlib.suppress(OSError):
                # Not blocking: the link may be the reason why we are still here.
                terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
                os.write(terminal, _RESTORE.encode("ascii"))
        _logger.warning("ended by force")
        os._exit(code)

    timer = threading.Timer(limit_s, leave)
    timer.daemon = True
    timer.start()
