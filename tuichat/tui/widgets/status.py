"""The status line.

Owns what is said of the worker in one row, and what is left out first when the row is narrow.
Refuses to know the engine. Invariant: one row, never wrapped, and the phase of the worker is the
last thing to go; each phase has its own mark and word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widget import Widget

from tuichat.tui import figures
from tuichat.tui.text import plain_line

if TYPE_CHECKING:
    from tuichat.api import DtypeRow
    from tuichat.engine.events import LoadProgressed

_PHASES = {
    "absent": ("○", "no model loaded", "$text-muted"),
    "starting": ("◌", "starting the worker", "$text-warning"),
    "loading": ("◌", "loading", "$text-warning"),
    "ready": ("●", "ready", "$text-success"),
    "failed": ("✗", "not loaded", "$text-error"),
}
_STAGES = {
    "import": "loading the libraries",
    "download": "downloading",
    "weights": "loading the weights",
    "align": "aligning dtypes",
    "warmup": "warming up",
}
_UNDER_WAY = ("starting", "loading")
_SLOW_S = 2  # seconds after which the line says how long it has been
_GAP = 3  # columns between the left and the right half


@dataclass(frozen=True, slots=True)
class Status:
    """All that the line can say."""

    backend: str
    model: str = ""
    phase: str = "absent"
    progress: str = ""
    dtypes: str = ""
    context_used: int = 0
    context_limit: int | None = None
    tokens_per_s: float = 0.0


def describe_progress(event: LoadProgressed) -> str:
    """``loading the weights 12 of 26 MB · 10 MB/s · 3 s left``."""
    parts = [_STAGES.get(event.stage, event.stage)]
    if event.unit == "bytes":
        total = f" of {figures.size(event.total)}" if event.total else ""
        parts[0] += f" {figures.size(event.done)}{total}"
        if event.rate:
            parts.append(f"{figures.size(event.rate)}/s")
    elif event.unit:
        total = f" of {event.total:.0f}" if event.total else ""
        parts[0] += f", {event.unit} {event.done:.0f}{total}"
    if event.remaining_s is not None and event.remaining_s >= 1:
        parts.append(f"{figures.seconds(event.remaining_s)} left")
    return " · ".join(parts)


class StatusLine(Widget):
    """Backend, model and phase on the left; dtypes, context and speed on the right."""

    ALLOW_SELECT = False

    def __init__(self, backend: str, model: str = "", *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._status = Status(backend, model)
        self._since = monotonic()  # when the phase began

    def on_mount(self) -> None:
        """Count the seconds of a phase that takes some."""
        self.set_interval(1.0, self._tick)

    def _tick(self) -> None:
        if self._status.phase in _UNDER_WAY:
            self.refresh()

    @property
    def status(self) -> Status:
        """What is shown now."""
        return self._status

    def show(self, **changes: object) -> None:
        """Change some fields of ``Status``."""
        before = self._status
        self._status = replace(before, **changes)  # type: ignore[arg-type]
        if self._status.phase != before.phase:
            self._since = monotonic()
        self.refresh()

    def progress(self, event: LoadProgressed) -> None:
        """The model comes nearer."""
        self.show(progress=describe_progress(event))

    def loaded(self, rows: Sequence[DtypeRow], context_limit: int | None) -> None:
        """The model is there."""
        self.show(progress="", dtypes=figures.dtypes(rows), context_limit=context_limit)

    def render(self) -> Content:
        """The halves, as much of them as the width allows."""
        width = self.content_size.width
        left = self._left(self._status)
        right: list[Content] = []
        # Most wanted first; what does not fit beside the rest is left out.
        for part in self._right(self._status):
            trial = Content("   ").join([*right, part])
            if left.cell_length + _GAP + trial.cell_length <= width:
                right.append(part)
        shown = Content("   ").join(right)
        gap = max(1, width - left.cell_length - shown.cell_length)
        return Content.assemble(left, " " * gap, shown)

    def _left(self, status: Status) -> Content:
        mark, word, style = _PHASES[status.phase]
        model = figures.model_name(status.model)
        name = Content.assemble(
            plain_line(status.backend, "bold"),
            plain_line(f" {model}" if model and model != status.backend else ""),
        )
        elapsed = int(monotonic() - self._since)
        slow = status.phase in _UNDER_WAY and elapsed >= _SLOW_S
        waited = Content.styled(f" · {elapsed} s", style) if slow else Content()
        return Content.assemble(
            (f"{mark} ", style), name, "  ", plain_line(status.progress or word, style), waited
        )

    def _right(self, status: Status) -> list[Content]:
        parts: list[Content] = []
        if status.context_limit and status.context_used:
            parts.append(self._meter(status.context_used, status.context_limit))
        elif status.context_limit:
            parts.append(Content(f"context {status.context_limit:,}"))
        elif status.context_used:
            parts.append(Content(f"context {status.context_used:,}"))
        if status.tokens_per_s:
            parts.append(Content(figures.speed(status.tokens_per_s)))
        if status.dtypes:
            parts.append(plain_line(status.dtypes))
        return parts

    @staticmethod
    def _meter(used: int, limit: int) -> Content:
        full = used / limit
        style = "$text-error" if full > 0.9 else "$text-warning" if full > 0.75 else ""
        return Content.styled(f"context {used:,}/{limit:,}", style)
