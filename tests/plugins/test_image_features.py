"""Features put into the embeddings: the same logits and tokens as the model's own forward."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conversations import SCENES, SHAPES, ask, random_conversation
from small_models import (
    ARCHITECTURES,
    answer,
    ids_of,
    load_llava,
    prompt_of,
    text_of,
    without_end,
)

from tuichat import torchkit
from tuichat.api import Conversation, Loaded, Prompt, Turn


@pytest.fixture(scope="session")
def _loaded(architecture_folders: dict[str, Path]) -> dict[str, Loaded]:
    return {name: load_llava(folder) for name, folder in architecture_folders.items()}


@pytest.fixture(params=ARCHITECTURES)
def loaded(request: pytest.FixtureRequest, _loaded: dict[str, Loaded]) -> Iterator[Loaded]:
    """A random model of each architecture in float32, with nothing kept from other tests."""
    one = _loaded[request.param]
    torchkit.forget(one.handle)
    yield one
    torchkit.forget(one.handle)


def official_inputs(loaded: Loaded, conversation: Conversation) -> dict[str, Any]:
    """All images of a conversation through the image processor at once, as is official."""
    images = [image.open() for turn in conversation.turns for image in turn.images]
    if not images:
        return {}
    return dict(loaded.handle.image_processor(images=[images], return_tensors="pt"))


@torch.inference_mode()
def scattered_logits(loaded: Loaded, prompt: Prompt) -> torch.Tensor:
    """Logits of the last position, (vocabulary,), by torchkit's way."""
    handle, length = loaded.handle, len(prompt.ids)
    embeds = handle.embed(torch.tensor(list(prompt.ids)))
    for span in prompt.spans:
        embeds[span.start : span.start + span.length] = handle.image_features(span.inputs)
    mask = torch.ones(1, length, dtype=torch.bool)
    return handle.forward(embeds[None], torch.arange(length)[None], mask, handle.new_cache())


@torch.inference_mode()
def official_logits(loaded: Loaded, prompt: Prompt, conversation: Conversation) -> torch.Tensor:
    """Logits of the last position, (vocabulary,), by the model's own forward."""
    ids = torch.tensor([list(prompt.ids)])
    inputs = official_inputs(loaded, conversation)
    output = loaded.handle.model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        use_cache=True,
        logits_to_keep=1,
        **inputs,
    )
    return output.logits[0, -1]


@pytest.mark.parametrize("image", SHAPES, ids=lambda image: f"{image.width}x{image.height}")
def test_one_image_gives_the_very_same_logits(loaded: Loaded, image: Any) -> None:
    conversation = ask("What is it?", image)
    prompt = prompt_of(loaded, conversation)
    ours, theirs = (
        scattered_logits(loaded, prompt),
        official_logits(loaded, prompt, conversation),
    )
    assert torch.equal(ours, theirs)


def test_images_in_a_turn_and_across_turns_give_the_same_logits(loaded: Loaded) -> None:
    """Several images go through the tower in one batch there and one by one here."""
    turns = (
        Turn("user", "first", (SHAPES[1], SHAPES[3])),
        Turn("assistant", "ok"),
        Turn("user", "", (SCENES[0],)),
        Turn("assistant", "yes"),
        Turn("user", "and the first again?", (SHAPES[1],)),
    )
    rng = random.Random(11)
    for conversation in (
        Conversation("Be brief.", turns),
        *(random_conversation(rng, exchanges=4) for _ in range(8)),
    ):
        prompt = prompt_of(loaded, conversation)
        ours = scattered_logits(loaded, prompt)
        theirs = official_logits(loaded, prompt, conversation)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_tokens_equal_plain_generate(loaded: Loaded) -> None:
    rng = random.Random(13)
    for _ in range(4):
        conversation = random_conversation(rng, exchanges=3)
        prompt = prompt_of(loaded, conversation)
        ids = torch.tensor([list(prompt.ids)])
        out = loaded.handle.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=10,
            do_sample=False,
            **official_inputs(loaded, conversation),
        )
        theirs = out[0, ids.shape[1] :].tolist()
        assert ids_of(loaded, prompt, 10)[: len(theirs)] == theirs


# --------------------------------------------------------------------------- prefix reuse


def changed(rng: random.Random, conversation: Conversation) -> Iterator[Conversation]:
    """What a reader does to a conversation; every step begins from what stands in the cache."""
    system, turns = conversation.system, conversation.turns
    yield conversation
    yield conversation  # regenerated
    grown = (*turns, Turn("assistant", "Two shapes."), Turn("user", "And now?", (SHAPES[5],)))
    yield Conversation(system, grown)
    yield Conversation(system, (*grown, Turn("assistant", "No."), Turn("user", "Sure?")))
    place = rng.randrange(len(turns))
    edited = list(turns)
    edited[place] = replace(edited[place], text="Edited.")
    yield Conversation(system, tuple(edited))
    swapped = tuple(
        replace(turn, images=tuple(rng.choice(SHAPES + SCENES) for _ in turn.images))
        for turn in turns
    )
    yield Conversation(system, swapped)
    yield Conversation(system, turns[: 2 * rng.randrange((len(turns) + 1) // 2) + 1])  # forked
    yield ask("Another session altogether.", SHAPES[2], SCENES[1])
    yield conversation


def test_reuse_equals_recomputing_token_for_token(loaded: Loaded) -> None:
    rng = random.Random(17)
    endless = without_end(loaded)
    reused = turns = 0
    for _ in range(5):
        for conversation in changed(rng, random_conversation(rng, exchanges=3)):
            prompt = prompt_of(loaded, conversation)
            with_reuse = answer(endless, prompt, max_new_tokens=8)
            recomputed = answer(without_end(loaded), prompt, max_new_tokens=8)
            assert text_of(with_reuse) == text_of(recomputed)
            first, second = with_reuse[-1].usage, recomputed[-1].usage
            assert first is not None
            assert second is not None
            assert first.reused_tokens < first.prompt_tokens
            assert second.reused_tokens == 0
            reused += first.reused_tokens > 20
            turns += 1
    assert turns == 45
    assert reused > 15
