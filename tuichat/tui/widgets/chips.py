"""The images of the message that is being written.

Owns their order, their numbers and what is known of each. Refuses to check or store an image.
Invariant: chips stand in the order in which they were attached and are numbered from 1; a chip
whose image is still being checked has no record and is never sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, HorizontalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from tuichat.tui import figures
from tuichat.tui.text import MUTED, joined, plain_line
from tuichat.tui.widgets.thumbnail import Source, Thumbnail

if TYPE_CHECKING:
    from tuichat.store import ImageRecord

PREVIEW = (14, 4)
"""Columns and rows of a chip's preview."""


class Remove(Static):
    """The cross of a chip."""

    ALLOW_SELECT = False

    class Clicked(Message):
        """The cross was clicked."""

    def __init__(self) -> None:
        super().__init__(Content("✕"))

    def on_click(self, event: events.Click) -> None:
        """Tell the chip."""
        event.stop()
        self.post_message(self.Clicked())


class Chip(Horizontal):
    """One image: number, preview, name, size, token cost."""

    @dataclass
    class Removed(Message):
        """The reader wants this image out of the message."""

        chip: Chip

    def __init__(self, name: str) -> None:
        super().__init__()
        self.file_name = name
        self.record: ImageRecord | None = None
        """None while the image is being checked and copied."""
        self.tokens: int | None = None
        self.claimed = False
        """It belongs to a message that is on its way; not shown."""
        self.asked = False
        """Somebody has asked what it costs."""
        self.settled = asyncio.Event()
        """Set once it is known whether the image can be attached."""
        self._number = 0
        self._preview = Thumbnail(*PREVIEW)
        self._facts = Static(Content())

    def compose(self) -> ComposeResult:
        yield self._preview
        yield self._facts
        yield Remove()

    def number(self, number: int) -> None:
        """Say which of the chips this is."""
        self._number = number
        self._describe()

    def ready(self, record: ImageRecord, source: Source) -> None:
        """The image is in the store."""
        self.record = record
        self.settled.set()
        self._preview.show(source, record.width, record.height)
        self._describe()

    def cost(self, tokens: int | None) -> None:
        """What the image will take of the loaded model's context."""
        self.tokens = tokens
        self._describe()

    def on_remove_clicked(self, event: Remove.Clicked) -> None:
        """The cross stands for the whole chip."""
        event.stop()
        self.post_message(self.Removed(self))

    def _describe(self) -> None:
        title = Content.assemble(
            (f"{self._number} ", "$text-accent bold"), plain_line(self.file_name, "bold")
        )
        if (record := self.record) is None:
            facts = [Content.styled("checking…", MUTED)]
        else:
            facts = [
                Content.styled(figures.pixels(record.width, record.height), MUTED),
                Content.styled(figures.size(record.size), MUTED),
            ]
        lines = [title, joined(facts, style=MUTED)]
        if self.tokens is not None:
            lines.append(Content.styled(figures.plural(self.tokens, "token"), MUTED))
        if self.record is not None and self.record.notice:
            lines.append(plain_line(self.record.notice, "$text-warning"))
        self._facts.update(Content("\n").join(lines))


class Chips(HorizontalScroll):
    """The row of chips above the composer; gone when there are none."""

    can_focus = False  # the composer keeps the focus, so that no typed character is ever lost

    def __init__(self, source: Callable[[str], Source], *, id: str | None = None) -> None:
        """``source`` gives the pixels of the image with a digest."""
        super().__init__(id=id)
        self._source = source
        self._chips: list[Chip] = []

    def on_mount(self) -> None:
        """Nothing is attached yet."""
        self.display = False

    @property
    def chips(self) -> tuple[Chip, ...]:
        """Those of the draft, in the order of their numbers."""
        return tuple(chip for chip in self._chips if not chip.claimed)

    def begin(self, name: str) -> Chip:
        """A chip for a file that is being checked."""
        chip = Chip(name)
        self._chips.append(chip)
        self.mount(chip)
        self._changed()
        self.call_after_refresh(self._show_last)
        return chip

    def ready(self, chip: Chip, record: ImageRecord) -> None:
        """The file of ``chip`` is in the store as ``record``."""
        chip.ready(record, self._source(record.digest))
        self.call_after_refresh(self._show_last)

    def cost(self, width: int, height: int, tokens: int | None) -> None:
        """What an image of that size costs, on every chip that has it."""
        for chip in self._chips:
            if chip.record and (chip.record.width, chip.record.height) == (width, height):
                chip.cost(tokens)

    def unmeasured(self) -> set[tuple[int, int]]:
        """Sizes whose cost nobody has asked for yet; they count as asked from now on."""
        chips = [chip for chip in self._chips if chip.record is not None and not chip.asked]
        for chip in chips:
            chip.asked = True
        return {(chip.record.width, chip.record.height) for chip in chips if chip.record}

    def drop(self, chip: Chip) -> None:
        """Take one chip away; the rest are numbered anew."""
        if chip in self._chips:
            self._chips.remove(chip)
            chip.remove()
            self._changed()

    def refuse(self, chip: Chip) -> None:
        """The file of ``chip`` cannot be attached."""
        chip.settled.set()
        self.drop(chip)

    def claim(self) -> tuple[Chip, ...]:
        """Take every chip for a message that is on its way."""
        chips = self.chips
        for chip in chips:
            chip.claimed = True
        self._changed()
        return chips

    def release(self, chips: tuple[Chip, ...]) -> None:
        """Show chips again whose message could not be sent."""
        for chip in chips:
            chip.claimed = False
        self._changed()

    def _show_last(self) -> None:
        self.scroll_to(x=self.max_scroll_x, animate=False)

    def _changed(self) -> None:
        for chip in self._chips:
            chip.display = not chip.claimed
        for number, chip in enumerate(self.chips, start=1):
            chip.number(number)
        self.display = bool(self.chips)
