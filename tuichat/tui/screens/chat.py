"""The chat screen.

Owns what keys, commands, pastes and clicks do, and the way of a draft into the engine. Refuses to
draw turns (``widgets``) and to read events (``reports``). Invariant: a draft leaves the screen only
when the engine has committed it; refused or failed, its text and images are in the composer again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Static

from tuichat.api.errors import TuichatError
from tuichat.tui import dropped, figures
from tuichat.tui.commands import Called, nearest, read_command
from tuichat.tui.help import help_text, hint_text
from tuichat.tui.link import CLOSE_S, EngineLink
from tuichat.tui.widgets.chips import Chip, Chips
from tuichat.tui.widgets.composer import Composer
from tuichat.tui.widgets.status import StatusLine
from tuichat.tui.widgets.thumbnail import Source
from tuichat.tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from textual.widgets import Markdown

    from tuichat.engine import Engine, Settings
    from tuichat.engine.events import Event
    from tuichat.store import TurnRecord
    from tuichat.tui.reports import Reporter

TWICE_S = 2.0
"""Two presses of Ctrl+C within this many seconds leave."""

_STORING = ("submit", "attach")  # names of workers that write into the store
_IDLE_KEYS = "Enter send · Ctrl+J new line · /help"
_BUSY_KEYS = "Esc stop · Enter queue another"
_LEAVE_KEYS = "Ctrl+C again to leave"
_COPIED = "Copied"


class Left(Message):
    """The reader wants to leave."""


@dataclass
class Failed(Message):
    """There can be no chat, for the reason that ``sentence`` gives."""

    sentence: str


class ChatScreen(Screen[None]):
    """Transcript, chips, composer, status line."""

    AUTO_FOCUS = "#composer"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop the reply", show=False),
        Binding("f1", "help", "Help", show=False),
        # Nothing else takes the focus, so there is nowhere to go with Tab.
        Binding("tab,shift+tab", "nothing", show=False),
    ]

    def __init__(
        self, settings: Settings, images: Sequence[str], session: str | None, keep: bool
    ) -> None:
        super().__init__()
        self._link = EngineLink(settings, session, keep)
        self._images = images
        self._reporter: Reporter | None = None
        self._posting = asyncio.Lock()  # messages are committed in the order of Enter
        self._insisted = ""  # a line that looked like a path; pressed again, it is sent
        self._interrupted_at = float("-inf")
        self._transcript = Transcript(self._pixels, _reply_name, id="transcript")
        self._chips = Chips(self._pixels, id="chips")
        self._composer = Composer("Ask about an image…", id="composer")
        self._status = StatusLine(settings.backend, settings.model or "", id="status")

    def compose(self) -> ComposeResult:
        with self._transcript:
            yield Static(hint_text(), classes="hint")
        with Vertical(id="draft"):
            yield self._chips
            yield self._composer
        yield self._status

    def on_mount(self) -> None:
        """Everything that takes time comes after the first frame."""
        self._show_keys()
        # They wait for the engine, but they stand there already: a message that is sent at once,
        # typed before the first frame, has them.
        self._attach_files(Path(path) for path in self._images)
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self.run_worker(self._open(), name="open")

    # ------------------------------------------------------------------ the engine

    async def _open(self) -> None:
        try:
            engine = await self._link.open()
        except TuichatError as error:
            self.app.post_message(Failed(str(error)))
            return
        from tuichat.tui.reports import Reporter

        self._reporter = Reporter(engine, self._transcript, self._status, self._chips)
        self._reporter.show_session()
        self.run_worker(self._listen(engine), name="listen")
        try:
            await engine.start()
        except TuichatError as error:
            self._status.show(phase="failed")
            self._reporter.complain(str(error))

    async def _listen(self, engine: Engine) -> None:
        async for event in engine.events():
            self._deliver(event)

    def _deliver(self, event: Event) -> None:
        assert self._reporter is not None
        try:
            self._reporter.show(event)
        except TuichatError as error:  # the store could not be read: the next event may be luckier
            self._reporter.complain(str(error))
        self._show_keys()
        self._measure()

    def _measure(self) -> None:
        """Ask what the images of the draft cost, as soon as there is a model to ask."""
        engine = self._link.engine
        if engine is not None and engine.phase == "ready":
            for width, height in self._chips.unmeasured():
                self.run_worker(engine.measure(width, height), name="measure")

    async def close(self) -> None:
        """Finish what is on its way into the store, stop drawing, let go of the engine."""
        storing = [worker for worker in self.workers if worker.name in _STORING]
        waits = (worker.wait() for worker in storing)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*waits, return_exceptions=True)
        self.workers.cancel_all()
        await self._link.close()

    def _pixels(self, digest: str) -> Source:
        return partial(self._link.thumbnail, digest)

    # ------------------------------------------------------------------ a draft on its way

    @on(Composer.Submitted)
    def _submitted(self) -> None:
        text = self._composer.take()
        called = read_command(text)
        if called is not None and called.command is not None:
            self._run_command(called)
        else:
            # The message has the images that stand there now, not those attached a moment later.
            self.run_worker(self._submit(text, called, self._chips.claim()), name="submit")

    async def _submit(self, text: str, called: Called | None, chips: tuple[Chip, ...]) -> None:
        async with self._posting:
            sent = False
            try:
                if not await self._is_something_else(text, called):
                    sent = await self._post(text, chips)
            finally:
                if sent:
                    for chip in chips:
                        self._chips.drop(chip)
                else:
                    self._chips.release(chips)

    async def _is_something_else(self, text: str, called: Called | None) -> bool:
        """Attach or complain, if the line is the path of images or means a command."""
        if dropped.looks_like_path(text):
            if found := await asyncio.to_thread(dropped.find_images, text):
                self._attach_files(found)
                return True
            if called is None and dropped.is_lone_image_path(text) and text != self._insisted:
                self._insisted = text
                self._composer.give_back(text)
                self._complain(dropped.not_here(text))
                return True
        if called is None:
            return False
        self._composer.give_back(text)
        meant = nearest(called.name)
        guess = f" did you mean /{meant}?" if meant else ""
        self._complain(f"There is no command /{called.name};{guess} /help lists them.")
        return True

    async def _post(self, text: str, chips: tuple[Chip, ...]) -> bool:
        """Have the engine commit a message; False if it could not, and the draft is back."""
        for chip in chips:
            await chip.settled.wait()
        records = [chip.record for chip in chips if chip.record is not None]
        if len(records) < len(chips):  # one was refused, and said so
            self._composer.give_back(text)
            return False
        try:
            engine = await self._link.ready()
            posted = await engine.send(text, records)
        except TuichatError as error:
            self._composer.give_back(text)
            self._complain(str(error))
            return False
        assert self._reporter is not None
        self._reporter.show_posted(posted.user_id, posted.reply_id)
        self._transcript.anchor()
        self._show_keys()
        return True

    def _complain(self, sentence: str) -> None:
        self._transcript.notice(sentence, "error")

    # ------------------------------------------------------------------ images

    @on(Composer.Pasted)
    def _pasted(self, event: Composer.Pasted) -> None:
        if not event.text:
            self._transcript.notice(
                "The paste held no text; to attach an image, paste its path or type /attach PATH."
            )
            return
        self._composer.paste_pending = True
        self.run_worker(self._look_at_paste(event.text), name="paste")

    async def _look_at_paste(self, text: str) -> None:
        try:
            found = await asyncio.to_thread(dropped.find_images, text)
        finally:
            self._composer.paste_pending = False
        if found:
            self._composer.withdraw(text)
            self._attach_files(found)
        elif dropped.is_lone_image_path(text):
            self._insisted = text.strip()
            self._complain(dropped.not_here(text))

    @on(Composer.BackspacedEmpty)
    def _remove_last(self) -> None:
        if chips := self._chips.chips:
            self._chips.drop(chips[-1])

    @on(Chip.Removed)
    def _remove(self, event: Chip.Removed) -> None:
        self._chips.drop(event.chip)

    def _attach_files(self, paths: Iterable[Path]) -> None:
        for path in paths:
            chip = self._chips.begin(path.name or str(path))
            self.run_worker(self._attach_file(path, chip), name="attach")

    async def _attach_file(self, path: Path, chip: Chip) -> None:
        try:
            engine = await self._link.ready()
            record = await engine.attach(path)
        except TuichatError as error:
            self._chips.refuse(chip)
            self._complain(str(error))
            return
        self._chips.ready(chip, record)
        self._measure()

    async def _attach_named(self, argument: str) -> None:
        self._attach_files(await asyncio.to_thread(dropped.named_paths, argument))

    # ------------------------------------------------------------------ commands and keys

    def _run_command(self, called: Called) -> None:
        assert called.command is not None
        match called.command.name:
            case "attach" if called.argument:
                self.run_worker(self._attach_named(called.argument), name="attach")
            case "attach":
                self._complain("/attach needs the path of an image: /attach PATH.")
            case "detach":
                self._detach_number(called.argument)
            case "stop":
                self.action_stop()
            case "new":
                self._new_session()
            case "help":
                self.action_help()
            case "quit":
                self.app.post_message(Left())

    def _detach_number(self, argument: str) -> None:
        chips = self._chips.chips
        if argument.isdecimal() and 1 <= int(argument) <= len(chips):
            self._chips.drop(chips[int(argument) - 1])
        elif not chips:
            self._complain("No image is attached to this message.")
        else:
            self._complain(f"/detach needs the number of an image, 1 to {len(chips)}.")

    def _new_session(self) -> None:
        engine = self._link.engine
        if engine is None or engine.active:
            self._complain("A reply is still under way: stop it (Esc) before /new.")
            return
        engine.new_session()
        self._transcript.clear()
        self._status.show(context_used=0)

    def action_help(self) -> None:
        """Show keys and commands in the transcript."""
        self._transcript.notice(help_text(), "help")

    def action_nothing(self) -> None:
        """Take a key that must not move the focus."""

    def action_stop(self) -> None:
        """Stop the reply that is running."""
        engine = self._link.engine
        if engine is not None and engine.active:
            self._transcript.wait(engine.active[0], "stopping")
            self.run_worker(engine.stop(), name="stop")

    def action_copy_or_stop(self) -> None:
        """Copy what is selected, else stop the reply, else leave at the second press."""
        if selected := self._composer.selected_text or self.get_selected_text():
            self.app.copy_to_clipboard(selected)
            self._flash(_COPIED)
        elif self._link.busy:
            self.action_stop()
        elif monotonic() - self._interrupted_at < TWICE_S:
            self.app.post_message(Left())
        else:
            self._interrupted_at = monotonic()
            self._flash(_LEAVE_KEYS)

    def action_scroll_transcript(self, how: str) -> None:
        """Scroll while the composer keeps the focus."""
        getattr(self._transcript, f"scroll_{how}")()

    @on(Composer.QuitRequested)
    def _quit_requested(self) -> None:
        self.app.post_message(Left())

    def on_key(self, event: events.Key) -> None:
        """A character that reached nobody belongs into the composer.

        The composer takes every one that it gets, so what comes here was typed before it had the
        focus: before the first frame, or after a click that took the focus away.
        """
        if event.is_printable or event.key == "enter":
            event.stop()
            self._composer.focus()
            self._composer.post_message(events.Key(event.key, event.character))

    def on_paste(self, event: events.Paste) -> None:
        """So does a paste."""
        if self.focused is not self._composer:
            self._composer.focus()
            self._composer.post_message(events.Paste(event.text))
            event.stop()

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Show where a link leads; it is never opened on this machine."""
        self._transcript.notice(event.href)

    def _flash(self, what: str) -> None:
        """Say ``what``, a constant of ours, for a moment where the keys stand."""
        self._composer.border_subtitle = Content(what)
        self.set_timer(TWICE_S, self._show_keys)

    def _show_keys(self) -> None:
        self._composer.border_subtitle = _BUSY_KEYS if self._link.busy else _IDLE_KEYS


def _reply_name(turn: TurnRecord) -> str:
    """What the reader calls the model of a reply."""
    backend, model = turn.backend or "reply", figures.model_name(turn.model or "")
    return f"{backend} · {model}" if model and model != backend else backend
