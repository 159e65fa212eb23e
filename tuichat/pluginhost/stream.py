"""The deltas of one reply, as the host promises them.

Owns what ``tuichat_generate`` returned, until it is closed. Refuses to know where deltas go.
Invariant: every item is a ``Delta`` of encodable text; exactly the last has a ``stop_reason``, and
it has ``usage``; a plugin's exception arrives as a ``GenerationError``; a stopped reply ends. What
had to be mended is logged as a warning, which the conformance kit takes for a failure.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

from tuichat.api import Control, Delta, GenerationError, Prompt, StopReason, Usage
from tuichat.pluginhost.failures import to_sentence
from tuichat.pluginhost.registry import a_thing

_END = object()
_REASONS = get_args(StopReason)
_log = logging.getLogger(__name__)


def deltas(who: str, source: Any, prompt: Any, control: Control) -> Iterator[Delta]:
    """Iterate ``source``, checked and complete.

    Args:
        who: the backend, for sentences.
        source: what the hook returned.
        prompt: what ``source`` answers; its length is the fallback of ``Usage``.

    Raises:
        GenerationError: at once if ``source`` cannot be iterated; later, if it fails.
    """
    try:
        iterator = iter(source)
    except BaseException:
        problem = f"{who} answers tuichat_generate with {a_thing(source)}, not an iterator"
    else:
        return _deltas(who, iterator, _Ending(who, prompt, control), control)
    raise GenerationError(f"{problem}; tell its author")


class _Ending:
    """The last delta: the plugin's, with what it lacks."""

    def __init__(self, who: str, prompt: Any, control: Control) -> None:
        self._who = who
        self._control = control
        self._usage: Usage | None = None
        if isinstance(prompt, Prompt):
            self._fallback = Usage(len(prompt.ids), prompt.image_tokens)
        else:
            tokens = getattr(prompt, "tokens", 0)
            self._fallback = Usage(tokens if isinstance(tokens, int) else 0)

    def saw(self, delta: Delta) -> None:
        self._usage = delta.usage or self._usage

    def complete(self, delta: Delta) -> Delta:
        if delta.usage is None:
            _log.warning("%s ends a reply without usage", self._who)
            return replace(delta, usage=self._usage or self._fallback)
        return delta

    def invent(self) -> Delta:
        _log.warning("%s ends a reply without stop_reason", self._who)
        reason: StopReason = "stopped" if self._control.stopped else "end"
        return Delta(stop_reason=reason, usage=self._usage or self._fallback)

    def cut(self) -> Delta:
        _log.warning("%s goes on after it was told to stop", self._who)
        return Delta(stop_reason="stopped", usage=self._usage or self._fallback)


def _deltas(
    who: str, iterator: Iterator[Any], ending: _Ending, control: Control
) -> Iterator[Delta]:
    overdue = 0
    try:
        while True:
            item = _next(who, iterator)
            if item is _END:
                yield ending.invent()
                return
            delta = _checked(who, item)
            ending.saw(delta)
            if delta.stop_reason is not None:
                yield ending.complete(delta)
                return
            yield delta
            # One pass may be under way when the reader stops; its delta is due, the next is not.
            overdue = overdue + 1 if control.stopped else 0
            if overdue > 1:
                yield ending.cut()
                return
    finally:
        _close(who, iterator)


def _next(who: str, iterator: Iterator[Any]) -> Any:
    """The next item, or ``_END``."""
    try:
        return next(iterator)
    except StopIteration:
        return _END
    except BaseException as error:
        failure = to_sentence(error, f"{who} failed while it answered", GenerationError)
    raise failure


def _checked(who: str, item: Any) -> Delta:
    if not isinstance(item, Delta):
        raise GenerationError(f"{who} yields {a_thing(item)} where a Delta is due; tell its author")
    if not isinstance(item.text, str) or not isinstance(item.thinking, str):
        raise GenerationError(f"{who} yields a Delta whose text is not a str; tell its author")
    if item.stop_reason is not None and item.stop_reason not in _REASONS:
        raise GenerationError(
            f"{who} ends a reply for a reason that there is not ({a_thing(item.stop_reason)}); "
            f"it may be {', '.join(_REASONS)}; tell its author"
        )
    if item.usage is not None and not isinstance(item.usage, Usage):
        raise GenerationError(f"{who} yields a Delta whose usage is not a Usage; tell its author")
    text, thinking = _encodable(item.text), _encodable(item.thinking)
    if (text, thinking) != (item.text, item.thinking):
        _log.warning("%s yields half a character", who)
        return replace(item, text=text, thinking=thinking)
    return item


def _encodable(text: str) -> str:
    """Lone surrogates cannot be stored nor sent; the rest of the reply is worth keeping."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _close(who: str, iterator: Iterator[Any]) -> None:
    close = getattr(iterator, "close", None)
    if close is None:
        return
    try:
        close()
    except BaseException as error:
        # The reply is over; that the plugin fails to tidy up is for the log.
        to_sentence(error, f"{who} failed to end a reply")
