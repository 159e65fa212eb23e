"""float16 that overflows: the part of the model where it did gets another dtype, once, and says so.

The models are real ones whose weights make activations beyond 65,504, float16's largest number,
and whose results are of an ordinary size again. ``--dtype auto`` chooses float16 on a GPU only:
here it is asked for, and the plan is told that nobody did.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conversations import SCENES, ask
from dtype_grid import distance
from safetensors.torch import load_file, save_file
from small_models import answer, load_llava, prompt_of, text_of

from tuichat import torchkit
from tuichat.api import GenerationError, Loaded
from tuichat.torchkit.alignment import quantisation_of
from tuichat.torchkit.dtype import wider_than_float16
from tuichat_llava import plugin

WIDE = wider_than_float16(torch.device("cpu"))

# Norm, first and second linear layer of a block: what the first one answers is too large.
TOWER = ("encoder.layers.0.layer_norm2", "encoder.layers.0.mlp.fc1", "encoder.layers.0.mlp.fc2")
TEXT = (
    "language_model.model.layers.0.post_attention_layernorm",
    "language_model.model.layers.0.mlp.up_proj",
    "language_model.model.layers.0.mlp.down_proj",
)


@pytest.fixture
def overflowing(
    make_llava: Callable[..., Path], tmp_path: Path
) -> Callable[[tuple[str, ...]], Path]:
    """A checkpoint with blocks that overflow."""

    def make(*blocks: tuple[str, ...]) -> Path:
        folder = Path(shutil.copytree(make_llava(scale=0.1), tmp_path / "overflowing"))
        tensors = load_file(folder / "model.safetensors")
        for block in blocks:
            for module, factor in zip(block, (100.0, 2e4, 1e-4), strict=True):
                tensors[next(k for k in tensors if k.endswith(f"{module}.weight"))] *= factor
        assert max(float(tensor.abs().max()) for tensor in tensors.values()) < 65504
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder

    return make


def load_automatic(folder: Path, **request: Any) -> Loaded:
    loaded = load_llava(folder, dtype="float16", **request)
    loaded.handle.plan.automatic = True
    return loaded


def dtypes(loaded: Loaded) -> dict[str, torch.dtype | None]:
    parts = loaded.handle.components()
    return {name: torchkit.boundary_dtype(part) for name, part in parts.items()}


def told(loaded: Loaded) -> dict[str, str]:
    report = plugin.tuichat_align_dtype(loaded)
    return {row.component: row.reason for row in report.rows if row.changed}


def test_a_tower_that_overflows_is_widened_and_the_turn_goes_on(
    overflowing: Callable[..., Path],
) -> None:
    folder = overflowing(TOWER)
    loaded = load_automatic(folder)
    question = ask("Hello", SCENES[0])
    inputs = prompt_of(loaded, question).spans[0].inputs
    with torch.inference_mode():
        assert not loaded.handle.image_features(inputs).isfinite().all()
    first = answer(loaded, question)
    assert text_of(first)
    assert first[-1].usage is not None
    assert first[-1].usage.prompt_tokens == len(prompt_of(loaded, question).ids)
    half = torch.float16
    assert dtypes(loaded) == {
        "vision tower": WIDE,
        "projector": WIDE,
        "language model": half,
        "lm_head": half,
    }
    with torch.inference_mode():
        features = loaded.handle.image_features(inputs).float()
        exact = load_llava(folder, dtype="float32").handle.image_features(inputs)
    assert distance(features, exact) <= 2e-2
    said = told(loaded)
    assert set(said) == {"vision tower", "projector"}
    assert "float16 overflowed in the features of an image" in said["vision tower"]
    assert told(loaded) == {}
    again = answer(loaded, question)
    assert again[-1].usage is not None
    assert again[-1].usage.reused_tokens == again[-1].usage.prompt_tokens - 1


@pytest.mark.parametrize("quantise", ["none", "4bit"])
def test_a_language_model_that_overflows_is_widened(
    quantise: str, overflowing: Callable[..., Path]
) -> None:
    loaded = load_automatic(overflowing(TEXT), quantize=quantise)
    assert text_of(answer(loaded, ask("Hello", SCENES[0])))
    half = torch.float16
    assert dtypes(loaded) == {
        "vision tower": half,
        "projector": half,
        "language model": WIDE,
        "lm_head": WIDE,
    }
    packed = quantisation_of(loaded.handle.components()["language model"])
    assert packed == (None if quantise == "none" else "nf4")
    said = told(loaded)
    assert set(said) == {"language model", "lm_head"}
    assert "float16 overflowed in its logits" in said["lm_head"]


def test_each_side_is_widened_once_in_one_turn(overflowing: Callable[..., Path]) -> None:
    loaded = load_automatic(overflowing(TOWER, TEXT))
    assert text_of(answer(loaded, ask("Hello", SCENES[0])))
    assert set(dtypes(loaded).values()) == {WIDE}
    assert len(told(loaded)) == 4


def test_what_overflows_in_every_dtype_ends_the_turn(overflowing: Callable[..., Path]) -> None:
    loaded = load_automatic(overflowing(TOWER))
    loaded.handle.model.lm_head.weight.data[7] = float("nan")
    with pytest.raises(GenerationError, match="in its logits"):
        answer(loaded, ask("Hello", SCENES[0]))
    assert set(dtypes(loaded).values()) == {WIDE}


def test_a_dtype_that_was_asked_for_is_kept(overflowing: Callable[..., Path]) -> None:
    loaded = load_llava(overflowing(TOWER), dtype="float16")
    with pytest.raises(GenerationError, match="start again with --dtype bfloat16"):
        answer(loaded, ask("Hello", SCENES[0]))
    assert set(dtypes(loaded).values()) == {torch.float16}
    assert told(loaded) == {}


def test_int8_layers_are_not_tried_again(overflowing: Callable[..., Path]) -> None:
    """They multiply in float16, whatever they are given."""
    loaded = load_automatic(overflowing(), quantize="8bit")
    loaded.handle.model.lm_head.weight.data[7] = float("nan")
    with pytest.raises(GenerationError, match="in its logits"):
        answer(loaded, ask("Hello", SCENES[0]))
    assert set(dtypes(loaded).values()) == {torch.float16}


def test_only_auto_makes_a_plan_that_may_change(overflowing: Callable[..., Path]) -> None:
    folder = overflowing()
    assert load_llava(folder).handle.plan.automatic
    assert not load_llava(folder, dtype="float16").handle.plan.automatic
