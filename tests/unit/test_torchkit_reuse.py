"""Which prefix of a prompt a KV cache serves, and what stays bounded."""

from __future__ import annotations

import gc

import torch
from hypothesis import given
from hypothesis import strategies as st

from tuichat.api import Prompt, Span
from tuichat.torchkit.generation import layout_of
from tuichat.torchkit.reuse import ByteBoundedCache, Layout, common_prefix, forget, state_of

IMAGE = 9


def layout(*parts: int | str) -> Layout:
    """A prompt of ids, and of images of three positions, named by their digest."""
    ids: list[int] = []
    spans = []
    for part in parts:
        if isinstance(part, str):
            spans.append(Span(len(ids), 3, part))
            ids += [IMAGE] * 3
        else:
            ids.append(part)
    return layout_of(Prompt(ids, tuple(spans)))


def key(prompt: Layout) -> list[object]:
    """What stands at each position, so that alike positions are equal."""
    keys: list[object] = list(zip(prompt.ids.tolist(), prompt.positions.T.tolist(), strict=True))
    for span in prompt.spans:
        for offset in range(span.length):
            keys[span.start + offset] = (span.digest, offset, span.length)
    return [str(item) for item in keys]


def test_a_longer_prompt_keeps_all_that_was_there() -> None:
    assert common_prefix(layout(1, "a", 2), layout(1, "a", 2, 3, 4)) == 5


def test_at_least_one_position_is_computed() -> None:
    assert common_prefix(layout(1, 2, 3), layout(1, 2, 3)) == 2
    assert common_prefix(layout(1, 2, 3), layout(1, 2)) == 1
    assert common_prefix(layout(1), layout(1)) == 0


def test_another_image_under_the_same_ids_is_not_kept() -> None:
    old, new = layout(1, "a", 2, "b", 3), layout(1, "a", 2, "c", 3)
    assert old.ids.tolist() == new.ids.tolist()
    assert common_prefix(old, new) == 5


def test_the_prefix_never_ends_inside_an_image() -> None:
    assert common_prefix(layout(1, 2, "a", 3), layout(1, 2, "a")) == 2
    assert common_prefix(layout(1, "a", 2), layout(1, "a", "a", 5)) == 4


def test_placeholder_ids_as_text_are_no_image() -> None:
    text = layout_of(Prompt([1, IMAGE, IMAGE, IMAGE, 2]))
    assert common_prefix(layout(1, "a", 2), text) == 1
    assert common_prefix(text, layout(1, "a", 2)) == 1


def test_positions_count_too() -> None:
    ids = [1, 2, 3, 4]
    plain = layout_of(Prompt(ids))
    shifted = layout_of(Prompt(ids, position_ids=[0, 1, 1, 2]))
    rows = layout_of(Prompt(ids, position_ids=[[0, 1, 2, 3]] * 3))
    assert common_prefix(plain, shifted) == 2
    assert common_prefix(plain, rows) == 0
    assert common_prefix(rows, rows) == 3


_PARTS = st.lists(st.sampled_from([1, 2, 3, "a", "b"]), min_size=1, max_size=8)


@given(_PARTS, _PARTS)
def test_the_invariant(old_parts: list[int | str], new_parts: list[int | str]) -> None:
    old, new = layout(*old_parts), layout(*new_parts)
    kept = common_prefix(old, new)
    assert 0 <= kept <= min(len(old), len(new) - 1)
    assert key(old)[:kept] == key(new)[:kept]
    assert not any(s.start < kept < s.start + s.length for s in (*old.spans, *new.spans))
    # And it is the longest one that may be: one more position would break a rule.
    longest = max(
        n
        for n in range(len(new))
        if key(old)[:n] == key(new)[:n]
        and not any(s.start < n < s.start + s.length for s in (*old.spans, *new.spans))
    )
    assert kept == longest


def test_a_cache_of_bytes_lets_the_oldest_go() -> None:
    cache: ByteBoundedCache[bytes] = ByteBoundedCache(10, len)
    cache.put("a", b"12345")
    cache.put("b", b"1234")
    assert cache.get("a") == b"12345"
    cache.put("c", b"123")
    assert cache.get("b") is None
    assert cache.get("a") == b"12345"
    assert cache.bytes == 8
    cache.put("a", b"1")
    assert cache.bytes == 4
    cache.put("large", b"x" * 50)
    assert cache.get("large") is not None
    assert cache.bytes == 50
    cache.clear()
    assert cache.bytes == 0
    assert cache.get("large") is None


def test_state_lives_as_long_as_its_model() -> None:
    class Model:
        pass

    model = Model()
    state = state_of(model)
    assert state_of(model) is state
    state.features.put("a", torch.zeros(4))
    forget(model)
    assert state.features.bytes == 0
    assert state_of(model) is not state
    forget(Model())
    del model, state
    gc.collect()


class _Uncroppable:
    is_croppable = False


class _SlidingWindowPassed:
    is_croppable = True

    def crop(self, _: int) -> None:
        raise RuntimeError("the window was passed")


def test_a_cache_that_cannot_be_cropped_is_made_anew() -> None:
    for cache in (_Uncroppable(), _SlidingWindowPassed()):
        state = state_of(cache)
        state.keep(cache, layout(1, 2, 3, 4))
        fresh = object()
        assert state.take(layout(1, 2, 5), lambda fresh=fresh: fresh) == (fresh, 0)
        # Growing needs no cropping.
        state.keep(cache, layout(1, 2, 3))
        assert state.take(layout(1, 2, 3, 4), object) == (cache, 3)
