"""From whatever a plugin raises to one sentence.

Owns the wording of a plugin's failure and the log entry behind it. Refuses to know what the plugin
was asked. Invariant: what leaves here is one bounded line without control characters, and keeps no
frame alive, so that no tensor of a failed call outlives it.
"""

from __future__ import annotations

import logging
import traceback

from tuichat.api.errors import BackendError, TuichatError
from tuichat.sanitize import sanitize, sanitize_line

_LIMIT = 240
_SENTENCE_LIMIT = 600
_log = logging.getLogger(__name__)


def brief(text: str, limit: int = _LIMIT) -> str:
    """The first line of ``text`` that says anything, sanitised and bounded."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    line = sanitize_line(line)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def cause_of(error: BaseException) -> str:
    """``ValueError: no such layer``; with the innermost exception behind it, if there is one.

    A plugin that answers an ImportError with advice of its own must not hide which package was
    missing: both are said.
    """
    inner, relation = error, ""
    seen = {id(error)}
    while (following := _behind(inner)) is not None and id(following) not in seen:
        seen.add(id(following))
        relation = "caused by" if following is inner.__cause__ else "after"
        inner = following
    told = _told(error)
    return told if inner is error else f"{told} ({relation} {_told(inner)})"


def to_sentence(
    error: BaseException, failed: str, kind: type[BackendError] = BackendError
) -> TuichatError:
    """What to raise instead of ``error``; the traceback goes to the log.

    Args:
        error: caught from a plugin, SystemExit and KeyboardInterrupt included.
        failed: beginning of the sentence, e.g. ``Backend 'echo' failed to load the model``.
        kind: type of the result, unless ``error`` is a TuichatError: that is made for people
            already, and is handed on, its text made one bounded line where it is not.

    Raise the result outside the ``except`` block: there it would get ``error`` as its context.
    """
    if isinstance(error, TuichatError):
        result: TuichatError = error
        if (line := brief(str(error), _SENTENCE_LIMIT)) != str(error):
            error.args = (line,)
        _log.info("%s: %s", failed, traceback_text(error))
    else:
        result = kind(f"{failed}: {cause_of(error)}; the traceback is in the log")
        _log.error("%s\n%s", result, traceback_text(error))
    _let_go(error)
    return result


def traceback_text(error: BaseException) -> str:
    """The formatted traceback as sanitised text: a log record must not hold the exception."""
    return sanitize("".join(traceback.format_exception(error)))


def _behind(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


def _told(error: BaseException) -> str:
    kind = brief(type(error).__name__, 60)
    try:
        message = brief(str(error))
    except Exception:  # a __str__ that raises is the plugin's, too
        message = ""
    return f"{kind}: {message}" if message else kind


def _let_go(error: BaseException) -> None:
    """Cut ``error`` loose from frames and from the exceptions behind it."""
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        following = following.__cause__ or following.__context__
    for link in chain:
        # Frames may lie on a reference cycle (a plugin that keeps its exception): clear them
        # now rather than at the next garbage collection.
        traceback.clear_frames(link.__traceback__)
        link.__traceback__ = None
        link.__cause__ = link.__context__ = None
