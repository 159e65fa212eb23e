"""Libraries that log and do not print.

Owns the switches of transformers and its relatives. Refuses to know where logs go: the host says.
Invariant: inside ``quiet_libraries`` no bar and no log line of theirs reaches a stream.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tuichat.api import Progress, ProgressCallback


@contextmanager
def quiet_libraries(progress: ProgressCallback) -> Iterator[None]:
    """Let the libraries log and not print, and turn their bar over weights into progress."""
    from transformers.utils import logging as transformers_logging

    for name in ("transformers", "huggingface_hub", "accelerate", "bitsandbytes"):
        logger = logging.getLogger(name)
        for handler in [h for h in logger.handlers if type(h) is logging.StreamHandler]:
            logger.removeHandler(handler)
        logger.propagate = True
    # In 8 bits this one warns of the same cast in every layer of every forward.
    logging.getLogger("bitsandbytes.autograd._functions").addFilter(_ONCE)
    transformers_logging.disable_progress_bar()
    before = transformers_logging.set_tqdm_hook(
        lambda _factory, args, kwargs: _Steps(progress, *args, **kwargs)
    )
    try:
        yield
    finally:
        transformers_logging.set_tqdm_hook(before)


class _Once(logging.Filter):
    """Lets every sentence pass once."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        said = message in self._said
        self._said.add(message)
        return not said


_ONCE = _Once()


class _Steps:
    """Stands in for a progress bar of transformers: reports how many weights are in place."""

    def __init__(self, progress: ProgressCallback, iterable: Any = None, **options: Any) -> None:
        self._progress = progress
        self._iterable = iterable
        self._total = options.get("total") or (len(iterable) if hasattr(iterable, "__len__") else 0)
        self._done = 0

    def update(self, count: int = 1) -> None:
        """Count steps."""
        self._done += count
        self._progress(Progress("weights", self._done, self._total or None, unit="layers"))

    def __iter__(self) -> Iterator[Any]:
        for item in self._iterable:
            yield item
            self.update()

    def __enter__(self) -> _Steps:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def close(self) -> None:
        """Part of a bar's interface."""

    def set_postfix(self, *_: Any, **__: Any) -> None:
        """Part of a bar's interface."""
