"""What the engine tells, on the screen.

Owns which part of the screen an event changes. Refuses to act: it only shows. Imported after the
first frame, because the events live in the engine's package. Invariant: every event of the engine
has its case here, and a reply that the screen has not seen yet is looked up before it is changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from tuichat.engine import Engine
from tuichat.engine.events import (
    Event,
    ImageCosts,
    LoadProgressed,
    ModelReady,
    Noticed,
    ReplyEnded,
    ReplyExtended,
    ReplyQueued,
    ReplyStarted,
    WorkerChanged,
)
from tuichat.store import TurnRecord
from tuichat.tui import figures
from tuichat.tui.widgets.chips import Chips
from tuichat.tui.widgets.status import StatusLine
from tuichat.tui.widgets.transcript import Transcript

_WAITS = {
    "absent": "waiting for the worker",
    "starting": "waiting for the worker to start",
    "loading": "queued, sent as soon as the model is loaded",
    "ready": "sent",
    "failed": "waiting for the worker",
}


_ELSEWHERE = "being written by another tuichat; open the session again to see the rest"


class Reporter:
    """Shows the events of one engine."""

    def __init__(
        self, engine: Engine, transcript: Transcript, status: StatusLine, chips: Chips
    ) -> None:
        self._engine = engine
        self._transcript = transcript
        self._status = status
        self._chips = chips
        self._told = ""  # the last complaint: a dead worker is told of by its reply and by itself

    def show_session(self) -> None:
        """The turns that are in the store, and where the engine stands."""
        turns = self._engine.transcript()
        self._transcript.show_turns(turns)
        for turn in turns:
            if turn.role == "assistant":
                self._show_costs(turn)
                if turn.state in ("queued", "running"):
                    self._transcript.wait(turn.id, _ELSEWHERE)

    def complain(self, sentence: str) -> None:
        """Show an error, unless it is the one that was shown last."""
        if sentence != self._told:
            self._told = sentence
            self._transcript.notice(sentence, "error")

    def show_posted(self, user_id: int, reply_id: int) -> None:
        """A message that has just been committed, and its reply."""
        for turn_id in (user_id, reply_id):
            self._ensure(turn_id)

    def show(self, event: Event) -> None:
        """Show one event."""
        match event:
            case WorkerChanged():
                self._worker_changed(event)
            case LoadProgressed():
                self._status.progress(event)
            case ModelReady():
                self._model_ready(event)
            case ReplyQueued():
                self._ensure(event.reply_id)
                if event.ahead:
                    behind = figures.plural(event.ahead, "other")
                    self._transcript.wait(event.reply_id, f"queued behind {behind}")
            case ReplyStarted():
                self._reply_started(event)
            case ReplyExtended():
                self._ensure(event.reply_id)
                self._transcript.extend(event.reply_id, event.text, event.thinking)
            case ReplyEnded():
                self._ensure(event.reply_id)
                turn = self._engine.turn(event.reply_id)
                self._told = event.error or ""
                self._transcript.end_reply(turn)
                self._show_costs(turn)
            case ImageCosts():
                self._chips.cost(event.width, event.height, event.tokens)
            case Noticed():
                self._transcript.notice(event.text)
            case _:
                assert_never(event)

    def _worker_changed(self, event: WorkerChanged) -> None:
        self._status.show(phase=event.phase, progress="")
        if event.error:
            self.complain(event.error)
        for reply_id in self._engine.active:
            self._transcript.wait(reply_id, _WAITS[event.phase])

    def _model_ready(self, event: ModelReady) -> None:
        self._status.show(phase="ready", model=self._engine.model)
        self._status.loaded(event.dtype, event.facts.context_length)
        if event.dtype_reason:
            self._transcript.notice(event.dtype_reason)
        for notice in event.facts.notices:
            self._transcript.notice(notice)

    def _reply_started(self, event: ReplyStarted) -> None:
        self._ensure(event.reply_id)
        prompt = figures.plural(event.prompt_tokens, "token")
        images = f", {event.image_tokens:,} of them image" if event.image_tokens else ""
        self._transcript.wait(event.reply_id, f"reading the prompt: {prompt}{images}")
        if event.notices:
            self._transcript.note(event.reply_id, event.notices)
        self._status.show(context_used=event.prompt_tokens)

    def _show_costs(self, turn: TurnRecord) -> None:
        if turn.usage:
            used = turn.usage.get("prompt_tokens", 0) + turn.usage.get("new_tokens", 0)
            self._status.show(context_used=used)
        if turn.timing and (speed := turn.timing.get("tokens_per_s")):
            self._status.show(tokens_per_s=speed)

    def _ensure(self, turn_id: int) -> None:
        """Show a turn that is not on the screen yet; an event may come before ``show_posted``."""
        if self._transcript.knows(turn_id):
            return
        turn = self._engine.turn(turn_id)
        if turn.parent_id is not None:
            self._ensure(turn.parent_id)
        if turn.role == "user":
            self._transcript.add_user_turn(turn)
        else:
            # Every piece of a reply that was posted here comes as an event: what the store has of
            # it already would be shown twice.
            self._transcript.begin_reply(replace(turn, text="", thinking=""))
            self._transcript.wait(turn_id, _WAITS[self._engine.phase])
