"""All 81 combinations of dtypes run for every architecture, and agree with float32."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.functional import has_avx512bf16
from conversations import SCENES, SHAPES, ask
from dtype_grid import (
    DTYPES,
    aligned,
    bound,
    cast_components,
    distance,
    last_logits,
    norms_to_float32,
    pack,
    twin,
    unhook,
    unpacked,
)
from small_models import ARCHITECTURES, demo_folder, load_llava, prompt_of

from tuichat.api import Loaded, Prompt

NAMES = (*ARCHITECTURES, "demo")

EXACT = 1e-5

KINDS = {
    "nf4": ("4bit", EXACT),
    "nf4 in the CPU's kernel": ("4bit", 2e-2 if has_avx512bf16() else EXACT),
    "int8": ("8bit", 2e-2),
}
"""How the language model is packed, and what that costs in any dtype. int8 rounds the activations
too, to 8 bits of each row's largest: as coarse as bfloat16. A CPU with AVX512-BF16 multiplies nf4
in bfloat16, whatever the layer was told to compute in."""


@pytest.fixture(scope="session")
def grid_folders(make_llava: Callable[..., Path]) -> dict[str, Path]:
    # Weights of an ordinary size: large random ones amplify every rounding beyond any bound. The
    # CPU's kernel for packed weights wants rows in blocks of 32.
    text = {"hidden_size": 64, "intermediate_size": 128}
    folders = {name: make_llava(architecture=name, scale=0.05, text=text) for name in ARCHITECTURES}
    return {**folders, "demo": demo_folder()}


@pytest.fixture(scope="session")
def grid_models(grid_folders: dict[str, Path]) -> dict[str, Loaded]:
    return {name: load_llava(folder) for name, folder in grid_folders.items()}


def question_for(loaded: Loaded, name: str) -> Prompt:
    """One image of many tiles for OneVision, scaled down behind its tower; two for the others."""
    images = (SHAPES[7],) if name == "llava_onevision" else (SCENES[0], SHAPES[2])
    return prompt_of(loaded, ask("What is it?", *images))


@pytest.mark.parametrize("name", NAMES)
def test_all_81_combinations_agree_with_float32(name: str, grid_models: dict[str, Loaded]) -> None:
    loaded = grid_models[name]
    prompt = question_for(loaded, name)
    reference = last_logits(loaded.handle, prompt, torch.float32)
    ran = 0
    for vision, projector, language in itertools.product(DTYPES, repeat=3):
        handle = twin(loaded)
        cast_components(handle, vision=vision, projector=projector, language=language)
        with aligned(handle) as report:
            assert not report.changed
            for pixels in DTYPES:
                chain = (vision, projector, language, pixels)
                error = distance(last_logits(handle, prompt, pixels), reference)
                assert error <= bound(*chain), (chain, error)
                ran += 1
        inputs = {row.component: row.input for row in report.rows}
        assert inputs["vision tower"] == inputs["pixels"] == str(vision).removeprefix("torch.")
        assert inputs["projector"] == str(projector).removeprefix("torch.")
        assert inputs["language model"] == str(language).removeprefix("torch.")
    assert ran == 81


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_plain_transformers_does_not_run_what_alignment_runs(
    name: str, grid_models: dict[str, Loaded]
) -> None:
    """The grid is worth something."""
    handle = twin(grid_models[name])
    prompt = prompt_of(grid_models[name], ask("What?", SCENES[0]))
    cast_components(handle, vision=torch.float32, projector=torch.float16, language=torch.bfloat16)
    with pytest.raises(RuntimeError, match="dtype"):
        last_logits(handle, prompt, torch.float32)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("working", [torch.float16, torch.bfloat16])
def test_norms_kept_in_float32_run_and_stay(
    name: str, working: torch.dtype, grid_folders: dict[str, Path], grid_models: dict[str, Loaded]
) -> None:
    loaded = load_llava(grid_folders[name], dtype=str(working).removeprefix("torch."))
    prompt = question_for(grid_models[name], name)
    reference = last_logits(grid_models[name].handle, prompt, torch.float32)
    handle = twin(loaded)
    assert norms_to_float32(handle.model) >= 10
    with aligned(handle, working) as report:
        assert not report.changed
        assert {row.compute for row in report.rows[1:]} == {str(working).removeprefix("torch.")}
        assert handle.model.get_decoder().norm.weight.dtype is torch.float32
        for pixels in DTYPES:
            assert distance(last_logits(handle, prompt, pixels), reference) <= bound(working)


# --------------------------------------------------------------------------- packed weights


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_81_combinations_with_a_quantised_language_model(
    kind: str, name: str, grid_folders: dict[str, Path], grid_models: dict[str, Loaded]
) -> None:
    """The reference is the same quantised weights as plain ones, all in float32."""
    quantise, floor = KINDS[kind]
    exact = twin(grid_models[name])
    prompt = question_for(grid_models[name], name)
    ran = 0
    for language in DTYPES:
        working = str(language).removeprefix("torch.")
        loaded = load_llava(grid_folders[name], quantize=quantise, dtype=working)
        handle, base = loaded.handle, loaded.handle.model.base_model
        unhook(handle.plan)
        if kind == "nf4":
            without_cpu_kernel(handle.model)
        put_in(base, exact)
        reference = last_logits(unpacked(handle), prompt, torch.float32)
        for vision, projector in itertools.product(DTYPES, repeat=2):
            put_in(base, exact)
            base.vision_tower.to(vision)
            base.multi_modal_projector.to(projector)
            with aligned(handle) as report:
                assert not report.changed
                for pixels in DTYPES:
                    chain = (vision, projector, language, pixels)
                    error = distance(last_logits(handle, prompt, pixels), reference)
                    limit = max(bound(*chain), floor)
                    assert error <= limit, (chain, error)
                    ran += 1
            packed = {row.component: row.quantised for row in report.rows}
            assert packed["language model"] == kind.split()[0]
            assert packed["vision tower"] is packed["projector"] is packed["lm_head"] is None
    assert ran == 81


def without_cpu_kernel(model: torch.nn.Module) -> None:
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def put_in(base: Any, exact: Any) -> None:
    """The vision side of an exact model, copied into another."""
    base.vision_tower = copy.deepcopy(exact.model.base_model.vision_tower)
    base.multi_modal_projector = copy.deepcopy(exact.model.base_model.multi_modal_projector)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("component", ["vision tower", "projector"])
def test_packed_weights_anywhere(component: str, name: str, grid_models: dict[str, Loaded]) -> None:
    """The first weight of a component may be packed: what it computes in is its dtype."""
    prompt = question_for(grid_models[name], name)
    for compute, language in itertools.product(DTYPES, repeat=2):
        handle = twin(grid_models[name])
        assert pack(handle.components()[component], compute) >= 2
        parts = handle.components()
        parts["language model"].to(language)
        parts["lm_head"].to(language)
        reference = last_logits(unpacked(handle), prompt, torch.float32)
        with aligned(handle) as report:
            row = next(row for row in report.rows if row.component == component)
            assert row.quantised == "nf4"
            assert "int" not in row.input
            for pixels in DTYPES:
                error = distance(last_logits(handle, prompt, pixels), reference)
                limit = max(bound(compute, language, pixels), EXACT)
                assert error <= limit, (compute, language, pixels, error)
