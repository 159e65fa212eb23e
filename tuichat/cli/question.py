"""One question on its way through the engine.

Owns the order of steps (open, attach, prepare, send, follow), interruption, and the two forms of
an answer. Refuses to know click and the command line. Invariant: an image that is refused is
refused before a model is loaded, and an interrupted reply is kept as far as it came.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from tuichat.api import GenerationError
from tuichat.cli.progress import Progress
from tuichat.engine import Engine, Settings
from tuichat.engine.events import (
    LoadProgressed,
    ModelReady,
    Noticed,
    ReplyEnded,
    ReplyExtended,
    ReplyQueued,
    ReplyStarted,
)
from tuichat.sanitize import sanitize

if TYPE_CHECKING:
    from tuichat.store import TurnRecord

INTERRUPTED = 130
TERMINATED = 143
_STOP_S = 10.0
"""Seconds that an interrupted reply may take to end before the program leaves it to the worker."""


class Answer:
    """What stands on stdout: the text as it comes, or one JSON object at the end.

    On a terminal the text passes ``sanitize``; into a pipe or a file it goes as it is.
    """

    def __init__(self, stream: TextIO, *, as_json: bool) -> None:
        self._stream = stream
        self._as_json = as_json
        self._is_terminal = stream.isatty()
        self._line_is_open = False

    def extend(self, text: str) -> None:
        """Another piece of the text. Raises BrokenPipeError when nobody reads any more."""
        if text and not self._as_json:
            self._write(sanitize(text) if self._is_terminal else text)
            self._line_is_open = not text.endswith("\n")

    def close_line(self) -> None:
        """End the last line, so that whatever is written next begins on its own."""
        if self._line_is_open:
            self._write("\n")
            self._line_is_open = False

    def finish(self, summary: dict[str, Any]) -> None:
        """The reply is over."""
        self.close_line()
        if self._as_json:
            # ASCII only: JSON's own escapes keep control characters off a terminal.
            self._write(json.dumps(summary) + "\n")

    def _write(self, text: str) -> None:
        # A locale that cannot spell a character must not end the answer.
        data = text.encode(self._stream.encoding or "utf-8", "replace")
        self._stream.buffer.write(data)
        self._stream.buffer.flush()


class Question:
    """One question: ``run`` answers it and returns the exit code."""

    def __init__(
        self,
        settings: Settings,
        text: str,
        images: Sequence[str],
        *,
        session: str | None,
        keep: bool,
        answer: Answer,
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._text = text
        self._images = images
        self._session = session
        self._keep = keep
        self._answer = answer
        self._progress = progress
        self._reply_id: int | None = None
        self._interrupted = 0
        """Exit status, once a signal came."""
        self._background: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """0 when it was answered, 130 or 143 when a signal ended it; everything else raises.

        Raises:
            TuichatError: it could not be answered; the text says why.
            BrokenPipeError: whoever read stdout is gone.
        """
        engine = await Engine.open(self._settings, session=self._session, keep=self._keep)
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for number, code in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)):
            loop.add_signal_handler(number, self._interrupt, engine, task, code)
        try:
            return await self._run(engine)
        except asyncio.CancelledError:
            if not self._interrupted:
                raise
        finally:
            self._progress.wipe()
            await engine.close()
        # Not by returning: the end of the loop waits for threads, such as one that waits for a
        # backend that does not describe itself.
        os._exit(self._interrupted)

    async def _run(self, engine: Engine) -> int:
        images = [await engine.attach(path) for path in self._images]
        for image in images:
            if image.notice:
                self._progress.note(image.notice)
        await engine.prepare()
        posted = await engine.send(self._text, images)
        self._reply_id = posted.reply_id
        try:
            ended = await self._follow(engine, posted.reply_id)
            turn = engine.turn(posted.reply_id)
            self._progress.wipe()
            # The event decides: the store may not have taken the reply's end yet.
            if ended.state in ("failed", "interrupted"):
                self._answer.close_line()
                raise GenerationError(ended.error or "the answer broke off; ask again")
            self._answer.finish(self._summary(engine, turn))
        except BrokenPipeError:
            await engine.stop(posted.reply_id)
            raise
        if ended.state == "stopped" and not self._interrupted:
            raise GenerationError("the answer was stopped by `tuichat stop`")
        return self._interrupted

    async def _follow(self, engine: Engine, reply_id: int) -> ReplyEnded:
        """Show what happens until the reply is over; how it ended."""
        async for event in engine.events():
            match event:
                case LoadProgressed():
                    self._progress.load(
                        event.stage,
                        event.done,
                        event.total,
                        event.unit,
                        event.detail,
                        event.rate,
                        event.remaining_s,
                    )
                case ModelReady():
                    self._progress.note(_loaded(engine, event))
                case Noticed(text=text):
                    self._progress.note(text)
                case ReplyQueued(ahead=ahead) if event.reply_id == reply_id and ahead:
                    self._progress.note(f"waiting for {ahead} other answer(s) of this model")
                case ReplyStarted(notices=notices) if event.reply_id == reply_id:
                    for notice in notices:
                        self._progress.note(notice)
                case ReplyExtended(text=text) if event.reply_id == reply_id:
                    self._progress.wipe()
                    self._answer.extend(text)
                case ReplyEnded() if event.reply_id == reply_id:
                    return event
        raise AssertionError("the engine's events do not end")

    def _interrupt(self, engine: Engine, task: asyncio.Task[Any], code: int) -> None:
        """The first signal stops the reply and waits for its end, the second leaves at once."""
        if self._interrupted:
            os._exit(code)
        self._interrupted = code
        if self._reply_id is None:
            task.cancel()
            return
        stopping = asyncio.create_task(engine.stop(self._reply_id))
        self._background.add(stopping)
        asyncio.get_running_loop().call_later(_STOP_S, task.cancel)

    def _summary(self, engine: Engine, turn: TurnRecord) -> dict[str, Any]:
        """The object of ``--json``: keys are there always, values that are not known are null."""
        usage, timing = turn.usage or {}, turn.timing or {}
        kept = not engine.store_is_temporary
        return {
            "session": engine.session_id if kept else None,
            "turn": turn.id if kept else None,
            "text": turn.text,
            "stop_reason": turn.stop_reason,
            "usage": {
                key: usage.get(key)
                for key in ("prompt_tokens", "image_tokens", "reused_tokens", "new_tokens")
            },
            "timing": {
                "load_s": engine.load_s,
                **{key: timing.get(key) for key in ("first_token_s", "total_s", "tokens_per_s")},
            },
            "dtype": turn.dtype or [],
            "backend": turn.backend,
            "model": turn.model,
        }


def _loaded(engine: Engine, ready: ModelReady) -> str:
    """One sentence: what was loaded, in which dtypes, and why in those."""
    dtypes = ", ".join(dict.fromkeys(row.compute for row in ready.dtype))
    reason = f" ({ready.dtype_reason})" if ready.dtype_reason else ""
    in_dtypes = f" in {dtypes}{reason}" if dtypes else ""
    return f"{engine.backend_title} loaded{in_dtypes}, {ready.load_s:.1f} s"
