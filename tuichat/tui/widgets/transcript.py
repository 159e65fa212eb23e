"""The conversation on the screen.

Owns the order of turns and notices, what of a long session is shown, and staying at the bottom.
Refuses to know the engine. Its interface is what the virtualised transcript of a later issue
replaces: ``show_turns``, ``add_user_turn``, ``begin_reply``, ``wait``, ``note``, ``extend``,
``end_reply``, ``notice``, ``clear``. Invariant: at most ``SHOWN`` turns of a resumed session become
widgets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from tuichat.tui.text import plain_line
from tuichat.tui.widgets.thumbnail import Source
from tuichat.tui.widgets.turn import ReplyTurn, UserTurn

if TYPE_CHECKING:
    from tuichat.store import TurnRecord

SHOWN = 50
"""Turns of a resumed session that are mounted: a widget costs 0.4 MB and 14 ms."""

_SPINS_PER_S = 8
NoticeKind = Literal["info", "error", "help"]
_MARKS: dict[NoticeKind, tuple[str, str]] = {
    "info": ("›", "bold $text-secondary"),
    "error": ("✗", "bold $text-error"),
    "help": ("", ""),
}


class Notice(Horizontal):
    """A sentence between the turns; its mark stands before all its lines."""

    def __init__(self, text: Content, kind: NoticeKind) -> None:
        super().__init__(classes=f"-{kind}")
        self._mark = Content.styled(*_MARKS[kind])
        self._text = text

    def compose(self) -> ComposeResult:
        if self._mark.plain:
            yield Static(Content.assemble(self._mark), classes="mark")
        yield Static(Content.assemble(self._text))


class Transcript(VerticalScroll):
    """Turns and notices, oldest first."""

    can_focus = False  # the composer keeps the focus, so that no typed character is ever lost

    def __init__(
        self,
        source: Callable[[str], Source],
        name_of: Callable[[TurnRecord], str],
        *,
        id: str | None = None,
    ) -> None:
        """``source`` gives the pixels of the image with a digest, ``name_of`` a reply's model."""
        super().__init__(id=id)
        self._source = source
        self._name_of = name_of
        self._replies: dict[int, ReplyTurn] = {}
        self._known: set[int] = set()

    def on_mount(self) -> None:
        """Stay at the bottom until the reader scrolls up."""
        self.anchor()
        self.set_interval(1 / _SPINS_PER_S, self._spin)

    # ------------------------------------------------------------------ what is shown

    def show_turns(self, turns: Sequence[TurnRecord]) -> None:
        """Show a session from its beginning, or the last ``SHOWN`` turns of it."""
        hidden = max(0, len(turns) - SHOWN)
        if hidden:
            self._add(Static(Content(f"… {hidden} earlier turns, not shown"), classes="earlier"))
        for turn in turns[hidden:]:
            if turn.role == "user":
                self.add_user_turn(turn)
            else:
                self.begin_reply(turn)
                if turn.state not in ("queued", "running"):
                    self.end_reply(turn)

    def clear(self) -> None:
        """Show nothing, as before the first turn."""
        self._replies.clear()
        self._known.clear()
        self.query("UserTurn, ReplyTurn, Notice, .earlier").remove()
        self.remove_class("-used")

    def knows(self, turn_id: int) -> bool:
        """Whether that turn stands here."""
        return turn_id in self._known

    def add_user_turn(self, turn: TurnRecord) -> None:
        """What the reader said."""
        self._known.add(turn.id)
        self._add(UserTurn(turn, self._source))

    def begin_reply(self, turn: TurnRecord) -> None:
        """A reply that is queued or running, with what it has so far."""
        self._known.add(turn.id)
        widget = self._replies[turn.id] = ReplyTurn(turn, self._name_of(turn))
        if turn.state in ("queued", "running"):
            widget.extend(turn.text, turn.thinking)
        self._add(widget)

    def wait(self, reply_id: int, what: str) -> None:
        """Say what a reply that has no text yet is waiting for."""
        if (reply := self._replies.get(reply_id)) is not None:
            reply.wait(what)

    def note(self, reply_id: int, notices: Sequence[str]) -> None:
        """What the reader should know about the prompt of a reply."""
        if (reply := self._replies.get(reply_id)) is not None:
            reply.notice(notices)

    def extend(self, reply_id: int, text: str, thinking: str = "") -> None:
        """More of a reply."""
        if (reply := self._replies.get(reply_id)) is not None:
            reply.extend(text, thinking)

    def end_reply(self, turn: TurnRecord) -> None:
        """A reply is over and is ``turn``."""
        if (reply := self._replies.pop(turn.id, None)) is not None:
            reply.end(turn)

    def notice(self, text: str | Content, kind: NoticeKind = "info") -> None:
        """A sentence between the turns; a ``Content`` is ours and keeps its styles."""
        self._add(Notice(text if isinstance(text, Content) else plain_line(text), kind))

    # ------------------------------------------------------------------ inside

    def _add(self, widget: Static | Notice | UserTurn | ReplyTurn) -> None:
        if not isinstance(widget, Notice):
            self.add_class("-used")  # the hint has done its service
        self.mount(widget)

    def _spin(self) -> None:
        for reply in self._replies.values():
            reply.spin()
