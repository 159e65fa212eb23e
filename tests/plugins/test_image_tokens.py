"""What an image costs: the arithmetic against the features that the models really make."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conversations import SHAPES, SIZES, ask, image_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image as PILImage
from small_models import answer, load_llava, prompt_of
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaNextConfig,
    LlavaNextModel,
    LlavaOnevisionConfig,
    LlavaOnevisionModel,
    SiglipVisionConfig,
)
from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

from tuichat.api import BackendError, Conversation, Loaded, Turn
from tuichat_llava import plugin
from tuichat_llava.tiles import Tiles, tile_limit

EXTREMES = ((1, 1), (1, 4000), (4000, 1), (4000, 300), (300, 4000), (20_000, 10), (10_000, 10_000))


@pytest.fixture(scope="session")
def loaded(architecture_folders: dict[str, Path]) -> dict[str, Loaded]:
    return {name: load_llava(folder) for name, folder in architecture_folders.items()}


# --------------------------------------------------------------------------- of real size


@lru_cache
def packing(kind: str) -> Any:
    """A model whose tower and grid are those of the checkpoints on the hub, one feature wide.

    No tower runs: it is the model's own packing of tiles into tokens that is asked.
    """
    text = LlamaConfig(
        hidden_size=1,
        intermediate_size=1,
        num_hidden_layers=1,
        num_attention_heads=1,
        vocab_size=8,
        head_dim=2,
    )
    tower = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "patch_size": 14}
    if kind == "llava_next":
        vision = CLIPVisionConfig(image_size=336, num_attention_heads=1, **tower)
        return LlavaNextModel(LlavaNextConfig(vision_config=vision, text_config=text))
    vision = SiglipVisionConfig(image_size=384, num_attention_heads=1, **tower)
    return LlavaOnevisionModel(LlavaOnevisionConfig(vision_config=vision, text_config=text))


def packed_tokens(kind: str, width: int, height: int, together: int = 1) -> int:
    """Tokens that the model of transformers makes of tiles of an image of this size."""
    model = packing(kind)
    config, vision = model.config, model.config.vision_config
    side = vision.image_size // vision.patch_size
    tiles = 1
    if together == 1 or kind == "llava_next":
        tiles = image_size_to_num_patches(
            (height, width), config.image_grid_pinpoints, vision.image_size
        )
    if kind == "llava_next":
        options = {"vision_feature_select_strategy": "default"}
    else:
        options = {"vision_aspect_ratio": config.vision_aspect_ratio}
    packed, lengths = model.pack_image_features(
        [torch.zeros(tiles, side * side, 1)],
        torch.tensor([[height, width]]),
        image_newline=model.image_newline,
        **options,
    )
    assert packed[0].shape[0] == int(lengths[0])
    return int(lengths[0])


@pytest.mark.parametrize("kind", ["llava_next", "llava_onevision"])
def test_tokens_of_the_real_checkpoints_sizes(kind: str) -> None:
    tiles = Tiles.of(packing(kind).config)
    assert tiles is not None
    pixels = st.one_of(st.integers(1, 4000), st.integers(1, 40))

    @settings(max_examples=400, deadline=None)
    @given(pixels, pixels, st.integers(1, 3))
    @example(4000, 300, 1)
    @example(1, 1, 2)
    def check(width: int, height: int, together: int) -> None:
        expected = packed_tokens(kind, width, height, together)
        assert tiles.tokens(width, height, together) == expected

    check()
    for width, height in EXTREMES:
        assert tiles.tokens(width, height) == packed_tokens(kind, width, height)


def test_the_figures_that_people_know() -> None:
    """LLaVA-NeXT's 2,880 of a square image and OneVision's 729 and its newline beside others."""
    following = Tiles.of(packing("llava_next").config)
    onevision = Tiles.of(packing("llava_onevision").config)
    assert following is not None
    assert onevision is not None
    assert following.tokens(672, 672) == 576 + 48 * 48 + 48
    assert onevision.tokens(384, 384) == 729 + 27 * 27 + 27
    assert onevision.tokens(4000, 3000, together=2) == 730
    # Nine tiles' worth of features is the most, but for the tolerance and the newlines.
    assert onevision.tokens(2304, 2304) <= 729 + 9 * 729 + math.ceil(9 * 27)


def test_the_limit_of_onevision_is_read_from_its_config() -> None:
    assert tile_limit("anyres_max_9") == 9
    assert tile_limit("anyres_max_12") == 12
    assert tile_limit("pad") is None


# --------------------------------------------------------------------------- through a real tower


@pytest.mark.parametrize("name", ["llava", "llava_next", "llava_onevision"])
def test_tokens_are_the_features_of_a_real_tower(name: str, loaded: dict[str, Loaded]) -> None:
    handle = loaded[name].handle
    for width, height in (*SIZES, (400, 30), (3, 3), (1, 400), (2000, 10)):
        image = image_of(PILImage.new("RGB", (width, height), "red"))
        for together in (1, 2, 4):
            inputs, tokens = handle.image_inputs(image, together)
            with torch.inference_mode():
                assert handle.image_features(inputs).shape[0] == tokens
            assert handle.images.tokens(width, height, together) == tokens
        assert (
            plugin.tuichat_image_tokens(loaded[name], width, height)
            == (handle.image_inputs(image)[1])
        )


def test_an_image_alone_costs_no_less_than_beside_others(loaded: dict[str, Loaded]) -> None:
    """What is shown before sending is the most that an image can cost."""
    for one in loaded.values():
        for width, height in SIZES:
            alone = plugin.tuichat_image_tokens(one, width, height)
            assert one.handle.images.tokens(width, height, together=2) <= alone


def test_tiles_differ_with_the_image_and_the_usage_says_so(loaded: dict[str, Loaded]) -> None:
    for name, kinds in (("llava", 1), ("llava_next", 4), ("llava_onevision", 4)):
        costs = set()
        for image in SHAPES:
            usage = answer(loaded[name], ask("x", image), max_new_tokens=1)[-1].usage
            assert usage is not None
            assert usage.image_tokens == (
                plugin.tuichat_image_tokens(loaded[name], image.width, image.height)
            )
            costs.add(usage.image_tokens)
        assert (len(costs) == 1) if kinds == 1 else (len(costs) >= kinds)


def test_an_image_that_is_joined_by_another_is_shown_anew(loaded: dict[str, Loaded]) -> None:
    """OneVision's tiles are for an image that is alone; nothing of them is taken for the other."""
    one = loaded["llava_onevision"]
    turns = (Turn("user", "x", (SHAPES[3],)),)
    alone = prompt_of(one, Conversation(None, turns))
    both = prompt_of(
        one, Conversation(None, (*turns, Turn("assistant", "y"), Turn("user", "z", (SHAPES[1],))))
    )
    assert alone.spans[0].length > both.spans[0].length == 5
    for prompt in (alone, both, alone):
        usage = answer(one, prompt, max_new_tokens=2)[-1].usage
        assert usage is not None
        assert usage.image_tokens == prompt.image_tokens


def test_an_endless_image_beside_another_is_not_padded_to_a_square_of_gigabytes(
    loaded: dict[str, Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuichat.torchkit import images

    monkeypatch.setattr(images, "_MAX_PADDED", 100)
    processor = loaded["llava_onevision"].handle.image_processor
    sides: list[int] = []
    pad = processor.pad_to_square
    monkeypatch.setattr(
        processor,
        "pad_to_square",
        lambda image, **options: sides.append(max(image.shape)) or pad(image, **options),
    )
    endless = image_of(PILImage.new("RGB", (5000, 2), "blue"))
    _, tokens = loaded["llava_onevision"].handle.image_inputs(endless, 2)
    assert tokens == 5
    assert max(sides) == 100


def test_a_count_that_is_not_the_models_is_found_at_load(make_llava: Callable[..., Path]) -> None:
    from tuichat.torchkit.images import ProcessedImages

    one = load_llava(make_llava(architecture="llava_next"))
    handle = one.handle
    wrong = ProcessedImages(handle.image_processor, handle.image_features, lambda *_: 7)
    with pytest.raises(BackendError, match="for which the backend counts 7"):
        wrong.warm_up()


def test_a_model_without_tiles_has_no_arithmetic() -> None:
    assert Tiles.of(SimpleNamespace(model_type="llava")) is None
