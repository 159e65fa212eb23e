"""Generation: the same tokens as plain transformers, with reuse, stop and failure as designed."""

from __future__ import annotations

import copy
import gc
import json
import random
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conversations import SCENES, ask, random_conversation, scene
from small_models import Stop, answer, ids_of, load_llava, prompt_of, text_of, without_end

from tuichat import torchkit
from tuichat.api import (
    Conversation,
    GenerationError,
    GenerationParams,
    Loaded,
    Prompt,
    PromptTooLong,
    Turn,
)
from tuichat.torchkit import generation, hooks
from tuichat.torchkit.reuse import state_of


@pytest.fixture(scope="session")
def _random_llava(style_folders: dict[str, Path]) -> Loaded:
    return load_llava(style_folders["vicuna"])


@pytest.fixture
def llava(_random_llava: Loaded) -> Iterator[Loaded]:
    """A random LLaVA: its answers are nonsense, and differ with every change of the prompt."""
    torchkit.forget(_random_llava.handle)
    yield _random_llava
    torchkit.forget(_random_llava.handle)


def _fresh(loaded: Loaded) -> Loaded:
    """The same model behind a handle that nothing is kept for."""
    handle = copy.copy(loaded.handle)
    return Loaded(handle, loaded.facts)


@contextmanager
def counted_forwards(module: torch.nn.Module) -> Iterator[list[int]]:
    calls: list[int] = []
    hook = module.register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        yield calls
    finally:
        hook.remove()


# --------------------------------------------------------------------------- the same tokens


def test_prefill_in_chunks_changes_no_token(llava: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompt_of(llava, random_conversation(random.Random(8), exchanges=3, images=3))
    whole = ids_of(llava, prompt, 24)
    monkeypatch.setattr(generation, "PREFILL_CHUNK", 7)
    with counted_forwards(llava.handle.model.get_decoder()) as calls:
        assert ids_of(llava, prompt, 24) == whole
    assert len(calls) == -(-len(prompt.ids) // 7) + 23


def test_the_demo_model_names_a_colour_and_goes_on_from_there(demo: Loaded) -> None:
    turns = (Turn("user", "What colour is the circle?", (scene("red"),)),)
    first = answer(demo, Conversation(None, turns))
    assert "red" in text_of(first)
    assert first[-1].stop_reason == "end"
    turns = (*turns, Turn("assistant", text_of(first)), Turn("user", "What shape is it?"))
    second = answer(demo, Conversation(None, turns))
    assert "circle" in text_of(second)
    usage = second[-1].usage
    assert usage is not None
    assert usage.reused_tokens >= usage.image_tokens > 0


def test_positions_and_next_position_are_the_prompts(llava: Loaded) -> None:
    """GLM-4V-9B's positions: an image of many entries over three positions."""
    ids = list(prompt_of(llava, ask("one two three four five")).ids)
    positions = [0, 1, 2, *[3] * 6, *range(4, len(ids) - 5)]
    prompt = Prompt(ids, position_ids=positions, next_position=positions[-1] + 1)
    model = llava.handle.model
    wanted: list[int] = []
    with torch.inference_mode():
        for step in range(8):
            steps = [*positions, *range(positions[-1] + 1, positions[-1] + 1 + step)]
            logits = model(
                inputs_embeds=model.get_input_embeddings()(torch.tensor([ids + wanted])),
                position_ids=torch.tensor([steps]),
                attention_mask=torch.ones(1, len(steps), dtype=torch.long),
                use_cache=False,
            ).logits
            wanted.append(int(logits[0, -1].argmax()))
    assert ids_of(llava, prompt, 8) == wanted
    assert ids_of(llava, Prompt(ids), 8) != wanted


# --------------------------------------------------------------------------- prefix reuse


def test_an_image_swapped_for_another_is_not_reused(llava: Loaded) -> None:
    handle = without_end(llava)
    red, blue = prompt_of(llava, ask("x", SCENES[0])), prompt_of(llava, ask("x", SCENES[2]))
    assert list(red.ids) == list(blue.ids)
    first = answer(handle, red)
    second = answer(handle, blue)
    usage = second[-1].usage
    assert usage is not None
    assert usage.reused_tokens == red.spans[0].start
    assert text_of(first) != text_of(second)


def test_pixels_go_through_the_vision_tower_once(llava: Loaded) -> None:
    handle = without_end(llava)
    tower = llava.handle.components()["vision tower"]
    prompt = prompt_of(llava, ask("x", SCENES[0], SCENES[1], SCENES[0]))
    with counted_forwards(tower) as calls:
        answer(handle, prompt)
        assert len(calls) == 2
        # Another text in front: the prefix cannot be kept, the features can.
        answer(handle, prompt_of(llava, ask("y", SCENES[1], SCENES[0], system="z")))
        assert len(calls) == 2


def test_a_reader_who_goes_away_leaves_a_cache_that_is_right(llava: Loaded) -> None:
    prompt = prompt_of(llava, ask("Tell me more", SCENES[0]))
    handle = without_end(llava)
    deltas = hooks.tuichat_generate(handle, prompt, GenerationParams(max_new_tokens=20), Stop())
    assert deltas is not None
    next(deltas)
    next(deltas)
    deltas.close()
    again = answer(handle, prompt, max_new_tokens=20)
    usage = again[-1].usage
    assert usage is not None
    assert usage.reused_tokens == len(prompt.ids) - 1
    assert text_of(again) == text_of(answer(without_end(llava), prompt, max_new_tokens=20))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_reuse_in_half_precision_agrees_where_the_model_is_sure(
    dtype: str, style_folders: dict[str, Path]
) -> None:
    loaded = load_llava(style_folders["demo"], dtype=dtype)
    turns: tuple[Turn, ...] = (Turn("user", "What colour is the circle?", (scene("blue"),)),)
    for question in ("What shape is it?", "How many shapes are there?", "Is there a square?"):
        conversation = Conversation(None, turns)
        with_reuse = answer(loaded, conversation)
        fresh = answer(_fresh(loaded), conversation)
        assert text_of(with_reuse) == text_of(fresh)
        turns = (*turns, Turn("assistant", text_of(fresh)), Turn("user", question))
    assert with_reuse[-1].usage is not None
    assert with_reuse[-1].usage.reused_tokens > with_reuse[-1].usage.image_tokens > 0


def test_memory_is_flat_over_many_turns(llava: Loaded) -> None:
    """What is kept is the cache of the newest prompt, and each image's features once."""
    loaded = without_end(llava)
    turns: tuple[Turn, ...] = (Turn("user", "x", (SCENES[0],)),)
    live: list[int] = []
    for _ in range(12):
        reply = text_of(answer(loaded, Conversation(None, turns), max_new_tokens=4))
        turns = (*turns, Turn("assistant", reply), Turn("user", "y", (SCENES[len(turns) % 2],)))
        gc.collect()
        live.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
    state = state_of(loaded.handle)
    assert state.layout is not None
    assert state.cache.get_seq_length() == len(state.layout)
    assert state.features.bytes == 2 * 4 * 48 * 4
    # The new tensors are two images' inputs; no turn leaves any of its own.
    assert max(live[3:]) - min(live[3:]) <= 4


# --------------------------------------------------------------------------- stop, end, length


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_stop_means_at_most_one_more_forward(llava: Loaded, after: int) -> None:
    prompt = prompt_of(llava, ask("Tell me everything", SCENES[0]))

    class Counting(Stop):
        """Notes how many forwards had run when it first said stop."""

        at_stop = -1

        @property
        def stopped(self) -> bool:
            said = Stop.stopped.fget(self)  # type: ignore[attr-defined]
            if said and self.at_stop < 0:
                self.at_stop = len(calls)
            return bool(said)

    control = Counting(after)
    with counted_forwards(llava.handle.model.get_decoder()) as calls:
        deltas = answer(without_end(llava), prompt, control, max_new_tokens=50)
    assert deltas[-1].stop_reason == "stopped"
    assert control.at_stop >= 0
    assert len(calls) - control.at_stop <= 1
    assert len(calls) < 10


def test_stop_between_chunks_of_a_long_prompt(
    llava: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "PREFILL_CHUNK", 8)
    prompt = prompt_of(llava, ask("word " * 60))
    handle = without_end(llava)
    with counted_forwards(llava.handle.model.get_decoder()) as calls:
        deltas = answer(handle, prompt, Stop(after=3))
        assert len(calls) == 3
    assert [delta.stop_reason for delta in deltas] == ["stopped"]
    assert deltas[0].usage is not None
    assert deltas[0].usage.new_tokens == 0
    # What was computed serves the next turn, and is right.
    again = answer(handle, prompt)
    assert again[-1].usage is not None
    assert again[-1].usage.reused_tokens == 24
    assert text_of(again) == text_of(answer(without_end(llava), prompt))


def test_every_end_id_ends_the_turn(
    llava: Loaded, style_folders: dict[str, Path], tmp_path: Path
) -> None:
    prompt = prompt_of(llava, ask("Hello", SCENES[0]))
    ids = ids_of(llava, prompt, 12)
    fourth = next(id for i, id in enumerate(ids) if i >= 3 and id not in ids[:i])
    folder = tmp_path / "two-ends"
    shutil.copytree(style_folders["vicuna"], folder)
    path = folder / "generation_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "eos_token_id": [config["eos_token_id"], fourth]}))
    loaded = load_llava(folder)
    assert loaded.facts.end_ids >= {config["eos_token_id"], fourth}
    deltas = answer(loaded, prompt, max_new_tokens=50)
    assert deltas[-1].stop_reason == "end"
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.new_tokens == ids.index(fourth) + 1


def test_max_new_tokens_and_context_limit_the_answer(llava: Loaded) -> None:
    loaded = without_end(llava)
    prompt = prompt_of(llava, ask("Hello"))
    deltas = answer(loaded, prompt, max_new_tokens=5)
    assert deltas[-1].stop_reason == "length"
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.new_tokens == 5
    loaded.handle._facts = replace(loaded.facts, context_length=len(prompt.ids) + 3)
    assert answer(loaded, prompt, max_new_tokens=50)[-1].usage.new_tokens == 3  # type: ignore[union-attr]
    loaded.handle._facts = replace(loaded.facts, context_length=len(prompt.ids))
    with pytest.raises(PromptTooLong, match=f"{len(prompt.ids)} tokens"):
        answer(loaded, prompt)


# --------------------------------------------------------------------------- failures


@contextmanager
def raising(module: torch.nn.Module, error: Exception, on_call: int) -> Iterator[None]:
    calls: list[int] = []

    def hook(*_: Any) -> None:
        calls.append(1)
        if len(calls) > on_call:
            raise error

    handle = module.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("on_call", [0, 5])
def test_an_exception_in_the_model_ends_the_reply(
    llava: Loaded, on_call: int, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = without_end(llava)
    prompt = prompt_of(llava, ask("Hello", SCENES[0]))
    whole = text_of(answer(loaded, prompt))
    layer = llava.handle.model.get_decoder().layers[0]
    with (
        raising(layer, ValueError("broken\ninside"), on_call),
        pytest.raises(GenerationError, match=r"ValueError: broken\)") as raised,
    ):
        answer(loaded, prompt)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    assert "Traceback" in caplog.text
    assert text_of(answer(loaded, prompt)) == whole


def test_out_of_memory_leaves_nothing_behind(llava: Loaded) -> None:
    loaded = without_end(llava)
    prompt = prompt_of(llava, ask("Hello", SCENES[0]))
    held: list[weakref.ref[torch.Tensor]] = []

    def allocate(*_: Any) -> None:
        big = torch.zeros(1 << 20)
        held.append(weakref.ref(big))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    hook = llava.handle.model.get_decoder().layers[1].register_forward_pre_hook(allocate)
    try:
        with pytest.raises(GenerationError, match="ran out of memory on a prompt of") as raised:
            answer(loaded, prompt)
    finally:
        hook.remove()
    gc.collect()
    assert held
    assert held[0]() is None
    assert "4bit" in str(raised.value)
    assert state_of(loaded.handle).cache is None
    assert state_of(loaded.handle).features.bytes == 0
    assert text_of(answer(loaded, prompt))


def test_nan_logits_never_become_text(llava: Loaded) -> None:
    loaded = without_end(llava)
    prompt = prompt_of(llava, ask("Hello"))
    weight = llava.handle.model.lm_head.weight
    saved = weight.data.clone()
    try:
        for poison in (float("nan"), float("inf")):
            weight.data[7] = poison
            with pytest.raises(GenerationError, match="--dtype bfloat16"):
                answer(loaded, prompt)
    finally:
        weight.data.copy_(saved)
    assert text_of(answer(loaded, prompt))


def test_overflow_in_the_vision_tower_is_found_in_the_features(
    style_folders: dict[str, Path],
) -> None:
    loaded = load_llava(style_folders["vicuna"], dtype="float16")
    projector = loaded.handle.components()["projector"]
    projector.linear_1.weight.data.mul_(1e4)
    projector.linear_2.weight.data.mul_(1e4)
    with pytest.raises(GenerationError, match="features of an image"):
        answer(loaded, ask("Hello", SCENES[0]))
    assert text_of(answer(loaded, ask("Hello"))) is not None


# --------------------------------------------------------------------------- sampling


def test_a_seed_makes_sampling_repeatable(llava: Loaded) -> None:
    loaded = without_end(llava)
    prompt = prompt_of(llava, ask("Hello", SCENES[0]))
    one = text_of(answer(loaded, prompt, temperature=1.0, seed=1))
    assert text_of(answer(loaded, prompt, temperature=1.0, seed=1)) == one
    others = {text_of(answer(loaded, prompt, temperature=1.0, seed=seed)) for seed in range(2, 6)}
    assert others - {one}
    greedy = text_of(answer(loaded, prompt))
    assert text_of(answer(loaded, prompt, temperature=1.0, top_p=1e-6, seed=3)) == greedy
