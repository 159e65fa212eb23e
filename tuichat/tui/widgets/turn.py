"""One turn of the transcript: what the reader said, or a reply.

Owns how a turn looks in each of its states, and the pace at which a streamed reply is drawn.
Refuses to know the store, the engine and the worker: it is given records and text. Invariant: a
reply is drawn at most ``FRAMES_PER_S`` times a second and never takes more than half of the event
loop; when it has ended, what stands here is its final text, parsed in one piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from tuichat.sanitize import sanitize
from tuichat.tui import figures
from tuichat.tui.text import MUTED, joined, plain, plain_line
from tuichat.tui.widgets.thumbnail import Source, Thumbnail

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from textual.widgets import Markdown

    from tuichat.store import ImageRecord, TurnRecord

FRAMES_PER_S = 15
_PREVIEWS = ((40, 36, 11), (22, 20, 6), (0, 14, 4))
"""From so many rows of the screen on, an image has so many columns and rows."""

# Mark, words and colour of the states that are not "done": never the colour alone.
_STATES = {
    "stopped": ("■", "stopped", "$text-warning"),
    "failed": ("✗", "failed", "$text-error"),
    "interrupted": ("◇", "interrupted", "$text-warning"),
}
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def markdown_parser() -> MarkdownIt:
    """GitHub's Markdown, with HTML as the text that it is, and with the line breaks as written."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("gfm-like", {"html": False})  # Textual would drop HTML without a trace
    parser.core.ruler.push("keep_breaks", _keep_breaks)
    return parser


def _keep_breaks(state: StateCore) -> None:
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"


class ImageTile(Horizontal):
    """An image of a turn that was sent: preview, name, size."""

    def __init__(self, record: ImageRecord, source: Source, number: int) -> None:
        super().__init__()
        self._record = record
        self._source = source
        self._number = number

    def compose(self) -> ComposeResult:
        record = self._record
        facts = joined(
            [
                Content(figures.pixels(record.width, record.height)),
                Content(figures.size(record.size)),
            ]
        )
        title = Content.assemble(
            (f"{self._number} ", "$text-accent bold"), plain_line(record.name, "bold")
        )
        height = self.app.size.height
        columns, rows = next(size for least, *size in _PREVIEWS if height >= least)
        yield Thumbnail(columns, rows)
        yield Static(Content("\n").join([title, facts.stylize(MUTED)]))

    def on_mount(self) -> None:
        """Ask for the preview."""
        record = self._record
        self.query_one(Thumbnail).show(self._source, record.width, record.height)


class UserTurn(Vertical):
    """What the reader said: images, then text."""

    def __init__(self, turn: TurnRecord, source: Callable[[str], Source]) -> None:
        super().__init__()
        self._turn = turn
        self._source = source

    def compose(self) -> ComposeResult:
        yield Static(Content.styled("You", "bold $text-primary"), classes="role")
        for number, record in enumerate(self._turn.images, start=1):
            yield ImageTile(record, self._source(record.digest), number)
        if self._turn.text:
            yield Static(plain(self._turn.text), classes="said")


class ReplyTurn(Vertical):
    """A reply, from the moment at which it is queued."""

    def __init__(self, turn: TurnRecord, name: str) -> None:
        """``name`` is what the reader calls the model."""
        super().__init__()
        self.turn = turn
        self._label = name
        self._waiting = ""
        self._pending: list[str] = []
        self._streamed = ""
        self._thinking = ""
        self._more = asyncio.Event()
        self._ended: TurnRecord | None = None
        self._body: Markdown | None = None
        self._notes = Static(Content(), classes="notices")
        self._thoughts = Static(Content(), classes="thinking")
        self._figures = Static(Content(), classes="figures")
        self._notices: Sequence[str] = turn.notices
        self._frame = 0

    def compose(self) -> ComposeResult:
        yield Static(plain_line(self._label, "bold $text-secondary"), classes="role")
        yield self._notes
        yield self._thoughts
        yield self._figures

    def on_mount(self) -> None:
        """Begin to draw; text may have come before the widget was there."""
        self._show_notices()
        self._show_thinking()
        self.run_worker(self._draw(), name="draw")

    # ------------------------------------------------------------------ told from outside

    def wait(self, what: str) -> None:
        """Say what the reply is waiting for."""
        self._waiting = what
        self._show_waiting(layout=True)

    def notice(self, notices: Sequence[str]) -> None:
        """What the reader should know about the prompt of this reply."""
        self._notices = notices
        self._show_notices()

    def extend(self, text: str, thinking: str = "") -> None:
        """More of the reply; drawn with the next frame."""
        if thinking:
            self._thinking += thinking
            self._show_thinking()
        if text:
            self._waiting = ""
            self._pending.append(sanitize(text))
            self._more.set()

    def end(self, turn: TurnRecord) -> None:
        """The reply is over and is ``turn``."""
        self._ended = turn
        self._thinking = turn.thinking
        self._notices = turn.notices
        self._more.set()

    def spin(self) -> None:
        """The next step of the sign that something is going on."""
        self._frame += 1
        self._show_waiting(layout=False)

    def _show_waiting(self, *, layout: bool) -> None:
        if self._ended is None:
            mark = SPINNER[self._frame % len(SPINNER)]
            waiting = plain_line(self._waiting)
            self._figures.update(
                Content.assemble((mark, "$text-secondary"), " ", waiting), layout=layout
            )

    # ------------------------------------------------------------------ drawing

    async def _draw(self) -> None:
        """Draw what has come, as often as the loop can afford, until the reply has ended."""
        while self._ended is None:
            await self._more.wait()
            self._more.clear()
            began = perf_counter()
            if self._pending:
                text = "".join(self._pending)
                self._pending.clear()
                self._streamed += text
                body = await self._ensure_body()
                await body.append(text)
                self.spin()
            if self._ended is None:
                cost = perf_counter() - began
                await asyncio.sleep(max(1 / FRAMES_PER_S - cost, cost))
        await self._finish(self._ended)

    async def _finish(self, turn: TurnRecord) -> None:
        final = sanitize(turn.text)
        if final:
            markdown = await self._ensure_body()
            # Appending parses block by block; the whole is parsed once more, because a link
            # reference or a loose list reaches back over blocks that were drawn already.
            if final != self._streamed or "\n" in final:
                await markdown.update(final)
            self._streamed = final
        self.turn = turn
        self._show_notices()
        self._show_thinking()
        self._figures.update(self._ending(turn))
        self.add_class(f"-{turn.state}")

    async def _ensure_body(self) -> Markdown:
        if self._body is None:
            from textual.widgets import Markdown

            self._body = Markdown(parser_factory=markdown_parser, open_links=False)
            await self.mount(self._body, before=self._figures)
        return self._body

    def _show_notices(self) -> None:
        self._notes.display = bool(self._notices)
        self._notes.update(Content("\n").join([plain_line(f"› {text}") for text in self._notices]))

    def _show_thinking(self) -> None:
        thinking = self._thinking.strip()
        self._thoughts.display = bool(thinking)
        self._thoughts.update(plain(thinking))

    def _ending(self, turn: TurnRecord) -> Content:
        """State, reason and figures, in one line or two."""
        costs = [Content(part) for part in figures.reply_figures(turn.usage, turn.timing)]
        if turn.stop_reason == "length":
            costs.insert(0, Content("cut at the limit of new tokens"))
        elif turn.state == "done" and not turn.text.strip():
            costs.insert(0, Content("the model answered nothing"))
        quiet = joined(costs)
        if turn.state not in _STATES:
            return quiet
        mark, word, style = _STATES[turn.state]
        state = Content.styled(f"{mark} {word}", f"bold {style}")
        if turn.error:
            reason = Content.assemble(state, ": ", plain_line(turn.error))
            return Content("\n").join([reason, quiet]) if quiet.plain else reason
        return joined([state, quiet])
