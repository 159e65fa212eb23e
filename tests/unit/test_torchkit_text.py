"""Ids to text and logits to ids: no half characters, no numbers that are not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import llama2_tokenizer, llama3_tokenizer, metaspace_tokenizer

from tuichat.api import GenerationError, GenerationParams
from tuichat.torchkit.detokenize import TextStream
from tuichat.torchkit.sampling import Sampler

TOKENIZERS = [llama2_tokenizer(), llama3_tokenizer(), metaspace_tokenizer()]
CPU = torch.device("cpu")

_SIGNS = ["中文", "🎉", "👩‍👩‍👧‍👦", "é", "ü", " ", "  ", "\n", "word", "The", ",", "\ufffd"]
TEXTS = st.lists(
    st.sampled_from(_SIGNS),
    max_size=12,
).map("".join)


def streamed(tokenizer: object, ids: list[int]) -> list[str]:
    stream = TextStream(tokenizer)
    pieces = [stream.push(id) for id in ids]
    return [*pieces, stream.finish(complete=True)]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@settings(deadline=None)
@given(text=TEXTS)
def test_the_pieces_are_the_whole(tokenizer: object, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)  # type: ignore[attr-defined]
    whole = tokenizer.decode(ids, skip_special_tokens=True)  # type: ignore[attr-defined]
    assert "".join(streamed(tokenizer, ids)) == whole


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@settings(deadline=None)
@given(data=st.data())
def test_any_ids_at_all_come_out_as_the_whole(tokenizer: object, data: st.DataObject) -> None:
    size = len(tokenizer)  # type: ignore[arg-type]
    ids = data.draw(st.lists(st.integers(0, size - 1), max_size=20))
    whole = tokenizer.decode(ids, skip_special_tokens=True)  # type: ignore[attr-defined]
    text = "".join(streamed(tokenizer, ids))
    # Byte fallback takes back good characters when a bad byte follows; what was shown stays.
    assert text == whole or (tokenizer is TOKENIZERS[0] and "\ufffd" in whole)


@pytest.mark.parametrize("tokenizer", TOKENIZERS[:2])
def test_half_a_character_is_held_back(tokenizer: object) -> None:
    ids = tokenizer.encode("a鿆𓀀", add_special_tokens=False)  # type: ignore[attr-defined]
    assert len(ids) > 5  # byte by byte
    pieces = streamed(tokenizer, ids)
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces).strip() == "a鿆𓀀"


@pytest.mark.parametrize("tokenizer", TOKENIZERS[:2])
def test_a_reply_cut_inside_a_character_ends_before_it(tokenizer: object) -> None:
    ids = tokenizer.encode("ok 𓀀", add_special_tokens=False)  # type: ignore[attr-defined]
    stream = TextStream(tokenizer)
    text = "".join(stream.push(id) for id in ids[:-1]) + stream.finish(complete=False)
    assert text.strip() == "ok"
    assert "\ufffd" not in text


def params(**changes: object) -> GenerationParams:
    return GenerationParams(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_logits_that_are_not_finite_give_no_id(poison: float, dtype: torch.dtype) -> None:
    logits = torch.tensor([1.0, 2.0, poison, 3.0], dtype=dtype)
    with pytest.raises(GenerationError, match="float16 overflowed"):
        Sampler(params(), CPU).choose(logits)
    with pytest.raises(GenerationError):
        Sampler(params(), CPU).choose(torch.full((4,), float("-inf")))


def test_ids_that_a_model_rules_out_are_no_overflow() -> None:
    logits = torch.tensor([float("-inf"), 2.0, float("-inf")])
    assert Sampler(params(), CPU).choose(logits)[1] == 1


def test_greedy_takes_the_first_of_equals_as_transformers_does() -> None:
    logits = torch.tensor([0.0, 5.0, 5.0])
    chosen, id = Sampler(params(), CPU).choose(logits)
    assert id == int(chosen) == int(logits.argmax())


def test_sampling_follows_the_probabilities() -> None:
    logits = torch.log(torch.tensor([0.7, 0.2, 0.1]))
    sampler = Sampler(params(temperature=1.0, seed=7), CPU)
    counts = torch.bincount(torch.tensor([sampler.choose(logits)[1] for _ in range(4000)]))
    assert torch.allclose(counts / 4000, torch.tensor([0.7, 0.2, 0.1]), atol=0.03)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.log(torch.tensor([0.1, 0.5, 0.3, 0.1]))
    sampler = Sampler(params(temperature=1.0, top_p=0.6, seed=7), CPU)
    assert {sampler.choose(logits)[1] for _ in range(300)} == {1, 2}
    sharp = Sampler(params(temperature=1.0, top_p=0.4, seed=7), CPU)
    assert {sharp.choose(logits)[1] for _ in range(100)} == {1}


def test_temperature_sharpens() -> None:
    logits = torch.log(torch.tensor([0.6, 0.4]))
    cold = Sampler(params(temperature=0.05, seed=3), CPU)
    assert {cold.choose(logits)[1] for _ in range(100)} == {0}
