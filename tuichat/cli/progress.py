"""What ``ask`` says on stderr while it works.

Owns the wording of progress and its rhythm. Refuses to know the engine: it is handed numbers and
sentences. Invariant: on a terminal one line is redrawn and wiped before anything else is written;
elsewhere nothing is redrawn, and a line is written when a stage begins and every ten seconds.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from tuichat.cli.table import clip
from tuichat.sanitize import sanitize_line
from tuichat.tui import figures

_REDRAW_S = 0.1
_REPEAT_S = 10.0
_STAGES = {
    "import": "starting",
    "download": "downloading",
    "weights": "loading",
    "align": "aligning dtypes",
    "warmup": "warming up",
}


class Progress:
    """Progress and notices on ``stream``; silent when ``quiet``."""

    def __init__(
        self, stream: TextIO, *, quiet: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._quiet = quiet
        self._redraws = stream.isatty()
        self._clock = clock
        self._written_at = float("-inf")
        self._stage = ""
        self._drawn = False

    def load(
        self,
        stage: str,
        done: float,
        total: float | None,
        unit: str,
        detail: str,
        rate: float | None = None,
        remaining_s: float | None = None,
    ) -> None:
        """The model comes nearer; arguments as in ``engine.events.LoadProgressed``."""
        now = self._clock()
        pause = _REDRAW_S if self._redraws else _REPEAT_S
        if self._quiet or (stage == self._stage and now - self._written_at < pause):
            return
        self._stage = stage
        self._written_at = now
        parts = [_STAGES.get(stage, stage), _amount(done, total, unit)]
        if rate is not None and unit == "bytes":
            parts.append(f"{figures.size(rate)}/s")
        if remaining_s is not None:
            parts.append(f"{figures.seconds(remaining_s)} left")
        parts.append(detail)
        self._show(", ".join(part for part in parts if part))

    def note(self, text: str) -> None:
        """A sentence for the reader."""
        if not self._quiet:
            self.wipe()
            self._write(f"tuichat: {sanitize_line(text)}\n")

    def wipe(self) -> None:
        """Take the progress line off the terminal: the answer may begin."""
        if self._drawn:
            self._write("\r\x1b[K")
            self._drawn = False

    def _show(self, text: str) -> None:
        line = f"tuichat: {sanitize_line(text)}"
        if self._redraws:
            self._write(f"\r\x1b[K{clip(line, shutil.get_terminal_size().columns - 1)}")
            self._drawn = True
        else:
            self._write(f"{line}\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            # Nobody reads stderr any more; the answer goes on.
            self._quiet = True


def _amount(done: float, total: float | None, unit: str) -> str:
    if unit == "bytes":
        return figures.size(done) + (f" of {figures.size(total)}" if total else "")
    if total:
        return f"{done:.0f} of {total:.0f} {unit}".rstrip()
    return ""
