"""Where a message is written.

Owns the text of the draft, its history, and what Enter, a paste and Backspace mean here. Refuses to
know images, commands and the engine: it posts what was typed. Invariant: Enter never sends within
``PASTE_GUARD_S`` of a paste nor while a paste is still being looked at, and text that a terminal
could obey never gets into the draft.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType, NoBinding
from textual.message import Message
from textual.widgets import TextArea

from tuichat.sanitize import sanitize

PASTE_GUARD_S = 0.1
"""Enter this soon after a paste belongs to the paste: a terminal that does not filter an end marker
out of what it pastes turns the rest into keys."""

_HISTORY = 100


class Composer(TextArea):
    """A text field that grows with its text, up to eight lines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # ``shift+\r`` is what Textual calls Shift+Enter under xterm's modifyOtherKeys.
        Binding("ctrl+j,shift+enter,alt+enter,shift+\\r", "new_line", "New line", show=False),
        Binding("pageup", "screen.scroll_transcript('page_up')", show=False),
        Binding("pagedown", "screen.scroll_transcript('page_down')", show=False),
        Binding("ctrl+up", "screen.scroll_transcript('up')", show=False),
        Binding("ctrl+down", "screen.scroll_transcript('down')", show=False),
        Binding("ctrl+home", "screen.scroll_transcript('home')", show=False),
        Binding("ctrl+end", "screen.scroll_transcript('end')", show=False),
        Binding("ctrl+c,super+c", "screen.copy_or_stop", show=False),
        Binding("ctrl+d", "delete_or_quit", show=False),
    ]

    @dataclass
    class Submitted(Message):
        """Enter was pressed on a draft that is not empty."""

        text: str

    @dataclass
    class Pasted(Message):
        """Text was pasted; it already stands in the draft."""

        text: str

    class BackspacedEmpty(Message):
        """Backspace was pressed with nothing to delete."""

    class QuitRequested(Message):
        """Ctrl+D was pressed in an empty draft."""

    def __init__(self, placeholder: str, *, id: str | None = None) -> None:
        super().__init__(
            soft_wrap=True,
            tab_behavior="focus",
            show_line_numbers=False,
            highlight_cursor_line=False,
            placeholder=placeholder,
            id=id,
        )
        self.paste_pending = False
        """Set while somebody finds out whether a paste names images."""
        self._pasted_at = float("-inf")
        self._history: list[str] = []
        self._shown: int | None = None  # index into the history; None: the draft itself
        self._draft = ""

    # ------------------------------------------------------------------ the draft

    def take(self) -> str:
        """The draft, which is empty afterwards and in the history."""
        text = self.text
        if text.strip() and (not self._history or self._history[-1] != text):
            self._history = [*self._history[-_HISTORY + 1 :], text]
        self._show_draft("")
        self._shown = None
        return text

    def give_back(self, text: str) -> None:
        """Put a draft that could not be sent before whatever has been typed since."""
        self._show_draft(f"{text}\n{self.text}" if self.text else text)
        self._shown = None

    def withdraw(self, pasted: str) -> None:
        """Take ``pasted`` out of the draft again: it was the path of an image."""
        before, found, after = self.text.rpartition(pasted)
        if found:
            self._show_draft(before + after)

    def _show_draft(self, text: str) -> None:
        self.text = text
        self.move_cursor(self.document.end)

    # ------------------------------------------------------------------ keys

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            if self.paste_pending or event.time - self._pasted_at < PASTE_GUARD_S:
                return
            if self.text.strip():
                self.post_message(self.Submitted(self.text))
        elif not event.is_printable:
            await self._run_binding(event)

    async def _run_binding(self, event: events.Key) -> None:
        """Run what a key is bound to here, now.

        Textual lets a key travel up to the application before it looks at bindings, and characters
        that arrived in the same read overtake it: "a", Ctrl+J, "b" would become "ab" and a line.
        """
        with contextlib.suppress(NoBinding):
            for binding in self._bindings.get_bindings_for_key(event.key):
                if await self.app.run_action(binding.action, self):
                    event.stop()
                    event.prevent_default()
                    return

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self._pasted_at = event.time  # when it arrived: a busy loop may come to it later
        text = sanitize(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        self.replace(text, *self.selection, maintain_selection_offset=False)
        self.post_message(self.Pasted(text))

    def action_new_line(self) -> None:
        """Insert a line break."""
        self.replace("\n", *self.selection, maintain_selection_offset=False)

    def action_delete_left(self) -> None:
        """Backspace; in an empty draft it is the screen's business."""
        if self.text:
            super().action_delete_left()
        else:
            self.post_message(self.BackspacedEmpty())

    def action_delete_or_quit(self) -> None:
        """Ctrl+D as in a shell: delete to the right, or leave when there is nothing."""
        if self.text:
            self.action_delete_right()
        else:
            self.post_message(self.QuitRequested())

    def action_cursor_up(self, select: bool = False) -> None:
        """One line up; on the first line, the message before."""
        if select or not self._browse(-1, at_edge=self.cursor_at_first_line):
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """One line down; on the last line, the message after."""
        if select or not self._browse(1, at_edge=self.cursor_at_last_line):
            super().action_cursor_down(select)

    def _browse(self, step: int, *, at_edge: bool) -> bool:
        """Show another message of the history; False if there is none that way."""
        if not at_edge or not self._history:
            return False
        count = len(self._history)
        at = count if self._shown is None else self._shown
        if not 0 <= at + step <= count:
            return False
        if self._shown is None:
            self._draft = self.text
        at += step
        self._shown = None if at == count else at
        self._show_draft(self._draft if self._shown is None else self._history[at])
        return True
