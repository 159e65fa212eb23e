"""What one turn leaves for the next: the KV cache's prefix, and image features.

Owns which prompt stands behind a KV cache and how much of a new prompt it serves. Refuses to know
how a forward is run. Invariant: a kept prefix has the same ids, positions and image digests as the
new prompt, ends at no position inside an image, and leaves at least one position to compute.
"""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from tuichat.api import Span

log = logging.getLogger(__name__)

V = TypeVar("V")

FEATURE_BYTES = 256 << 20
"""Bound on cached image features of one model, in bytes."""


class ByteBoundedCache(Generic[V]):
    """Least-recently-used values, bounded by their bytes; the newest one is always kept."""

    def __init__(self, limit: int, size: Callable[[V], int]) -> None:
        self._limit = limit
        self._size = size
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self.bytes = 0

    def get(self, key: Hashable) -> V | None:
        """The value of ``key``, which becomes the most recently used one, or None."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]

    def put(self, key: Hashable, value: V) -> None:
        """Keep a value, and let go of the oldest ones beyond the bound."""
        if key in self._values:
            self.bytes -= self._size(self._values.pop(key))
        self._values[key] = value
        self.bytes += self._size(value)
        while self.bytes > self._limit and len(self._values) > 1:
            _, oldest = self._values.popitem(last=False)
            self.bytes -= self._size(oldest)

    def clear(self) -> None:
        """Let go of everything."""
        self._values.clear()
        self.bytes = 0


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes that a tensor's elements take."""
    return tensor.numel() * tensor.element_size()


@dataclass
class Layout:
    """A prompt as the cache sees it, on the CPU."""

    ids: torch.Tensor
    """(L,) int64."""
    positions: torch.Tensor
    """(rows, L) int64; one row, or three for multi-dimensional rotary positions."""
    spans: tuple[Span, ...]

    def __len__(self) -> int:
        return self.ids.shape[0]


def common_prefix(old: Layout, new: Layout) -> int:
    """How many leading positions of ``new`` the cache behind ``old`` serves.

    At most ``len(new) - 1``, because the last position's logits are needed; never inside a span.
    """
    if old.positions.shape[0] != new.positions.shape[0]:
        return 0
    limit = min(len(old), len(new) - 1)
    if limit <= 0:
        return 0
    same = (old.ids[:limit] == new.ids[:limit]) & (
        old.positions[:, :limit] == new.positions[:, :limit]
    ).all(dim=0)
    kept = limit if bool(same.all()) else int(same.int().argmin())
    old_spans = {span.start: span for span in old.spans}
    for span in new.spans:
        if span.start >= kept:
            break
        before = old_spans.get(span.start)
        alike = before is not None and (
            (before.length, before.digest) == (span.length, span.digest)
        )
        if not alike or span.start + span.length > kept:
            return span.start
    # A span that only the old prompt has begins where the ids differ, unless placeholder ids
    # stand in the new prompt as text.
    for span in old.spans:
        if span.start < kept and span not in new.spans:
            return span.start
    return kept


@dataclass
class ReuseState:
    """What is kept for one loaded model between turns."""

    cache: Any = None
    """transformers ``Cache`` holding ``layout``, or None."""
    layout: Layout | None = None
    features: ByteBoundedCache[torch.Tensor] = field(
        default_factory=lambda: ByteBoundedCache(FEATURE_BYTES, tensor_bytes)
    )
    """Image digest and length of its span → (n, hidden)."""

    def take(self, layout: Layout, new_cache: Callable[[], Any]) -> tuple[Any, int]:
        """A cache for ``layout`` and how many of its positions are computed already.

        The state lets go of its own cache: a forward that fails midway leaves one that is worth
        nothing, so ``keep`` puts it back only after every step.
        """
        cache, old = self.cache, self.layout
        self.cache = self.layout = None
        if cache is None or old is None:
            return new_cache(), 0
        kept = common_prefix(old, layout)
        if kept == 0 or not _crop(cache, len(old) - kept):
            return new_cache(), 0
        return cache, kept

    def keep(self, cache: Any, layout: Layout) -> None:
        """Remember the cache and what it holds."""
        self.cache, self.layout = cache, layout

    def clear(self) -> None:
        """Let go of the KV cache and of every image's features."""
        self.cache = self.layout = None
        self.features.clear()


def _crop(cache: Any, remove: int) -> bool:
    """Take the last ``remove`` positions off a cache; False if this kind of cache cannot."""
    if remove == 0:
        return True
    if not getattr(cache, "is_croppable", False):
        return False
    try:
        # transformers takes a negative count: how many positions to remove.
        cache.crop(-remove)
    except RuntimeError as error:  # a sliding window that was passed keeps no past to go back to
        log.info("the KV cache cannot be cropped (%s): the prompt is computed anew", error)
        return False
    return True


_states: weakref.WeakKeyDictionary[Any, ReuseState] = weakref.WeakKeyDictionary()


def state_of(model: Any) -> ReuseState:
    """The state of one loaded model; made when it is first asked for."""
    state = _states.get(model)
    if state is None:
        state = _states[model] = ReuseState()
    return state


def forget(model: Any) -> None:
    """Let go of everything that is kept for a model: its weights changed, or it is unloaded."""
    if (state := _states.pop(model, None)) is not None:
        state.clear()
