"""Fit: the arithmetic counts what the load makes, and a refusal says what would fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import ARCHITECTURES, answer, load_llava
from torch import nn
from transformers import AutoConfig

from tuichat import torchkit
from tuichat.api import BackendError, KnownModel, LoadRequest, Quantisation
from tuichat.torchkit.checkpoint import StoredTensor, stored_tensors
from tuichat.torchkit.fit import Footprint, check_fit, footprint, free_bytes
from tuichat.torchkit.reuse import state_of
from tuichat_llava.models import MODELS
from tuichat_llava.plugin import ARCHITECTURES as CLASSES

CPU = torch.device("cpu")


def tensors_of(module: nn.Module) -> dict[int, int]:
    """Storage → bytes of every parameter and of what unpacks it."""
    found = {}
    for child in module.modules():
        for parameter in child._parameters.values():
            held = [parameter, getattr(parameter, "SCB", None)]
            if (state := getattr(parameter, "quant_state", None)) is not None:
                nested = state.state2
                held += [state.absmax, state.code, state.offset, nested.absmax, nested.code]
            for tensor in held:
                if tensor is not None:
                    found[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
    return found


def of(folder: Path, dtype: torch.dtype, quantisation: Quantisation = "none") -> Footprint:
    return footprint(
        stored_tensors(folder), AutoConfig.from_pretrained(folder), dtype, quantisation
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("quantisation", ["none", "8bit", "4bit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_bytes_are_those_of_the_tensors_after_the_load(
    architecture: str,
    quantisation: Quantisation,
    dtype: torch.dtype,
    architecture_folders: dict[str, Path],
) -> None:
    folder = architecture_folders[architecture]
    loaded = load_llava(folder, quantize=quantisation, dtype=str(dtype).removeprefix("torch."))
    computed = of(folder, dtype, quantisation)
    seen: set[int] = set()
    real = {}
    for name, component in loaded.handle.components().items():
        tensors = tensors_of(component)
        real[name] = sum(size for place, size in tensors.items() if place not in seen)
        seen |= set(tensors)
    assert dict(computed.weights) == {name: size for name, size in real.items() if size}


def test_the_cache_and_the_features_are_those_of_a_turn(make_llava: Callable[..., Path]) -> None:
    from conversations import SCENES, ask

    folder = make_llava(text={"max_position_embeddings": 64})
    loaded = load_llava(folder, dtype="float16")
    answer(loaded, ask("Hello", SCENES[0], SCENES[1]), max_new_tokens=4)
    state = state_of(loaded.handle)
    held = sum(t.nbytes for layer in state.cache.layers for t in (layer.keys, layer.values))
    computed = of(folder, torch.float16)
    assert computed.cache == held // state.cache.get_seq_length() * 64
    assert computed.features == state.features.bytes // 8 * 64


def test_a_long_context_is_counted_to_a_bound(make_llava: Callable[..., Path]) -> None:
    short = make_llava(text={"max_position_embeddings": 8192})
    long = make_llava(text={"max_position_embeddings": 131_072})
    assert of(long, torch.float16) == of(short, torch.float16)


def test_what_is_free_here_is_less_than_what_there_is() -> None:
    import psutil

    free = free_bytes(CPU)
    assert free is not None
    assert 0 < free < psutil.virtual_memory().total
    assert free_bytes(torch.device("meta")) is None


def test_headers_of_several_files_are_one_checkpoint(
    architecture_folders: dict[str, Path], tmp_path: Path
) -> None:
    from transformers import LlavaForConditionalGeneration

    folder = architecture_folders["llava"]
    LlavaForConditionalGeneration.from_pretrained(folder).save_pretrained(
        tmp_path, max_shard_size="100KB"
    )
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    # A second copy of the weights, as some repositories have one, is not read and not counted.
    shutil.copy(folder / "model.safetensors", tmp_path / "consolidated.safetensors")
    assert of(tmp_path, torch.float16) == of(folder, torch.float16)


# --------------------------------------------------------------------------- refusals


def load(folder: Path, free: dict[str, int | None], **request: Any) -> Any:
    """Load on the CPU of a machine that has this much memory free."""
    return torchkit.load_hub_model(
        LoadRequest(str(folder), device="cpu", dtype="float16", **request),
        lambda _: None,
        accepted=CLASSES,
        known=MODELS,
        free=lambda device: free.get(str(device)),
    )


@pytest.fixture(scope="module")
def wide(make_llava: Callable[..., Path]) -> Path:
    """Most of it is in layers that can be packed."""
    return make_llava(
        text={"hidden_size": 256, "intermediate_size": 1024, "max_position_embeddings": 256}
    )


def test_a_model_is_refused_at_one_byte_too_little_and_not_before(wide: Path) -> None:
    need = of(wide, torch.float16).total
    assert load(wide, {"cpu": need}).handle.model.dtype is torch.float16
    assert load(wide, {"cpu": None}).handle.model.dtype is torch.float16
    with pytest.raises(BackendError, match=r"needs .* MB on cpu \(weights .* are free: "):
        load(wide, {"cpu": need - 1})


def test_only_what_fits_is_advised(wide: Path) -> None:
    packed = {kind: of(wide, torch.float16, kind).total for kind in ("8bit", "4bit")}
    both = "--quantize 8bit", "--quantize 4bit"

    def said(free: int, **request: Any) -> list[bool]:
        with pytest.raises(BackendError) as raised:
            load(wide, {"cpu": free}, **request)
        assert "\n" not in str(raised.value)
        return [way in str(raised.value) for way in (*both, "free memory, or use a smaller model")]

    assert said(packed["8bit"]) == [True, True, False]
    assert said(packed["8bit"] - 1) == [False, True, False]
    assert said(packed["4bit"] - 1) == [False, False, True]
    assert said(packed["8bit"] - 1, quantize="8bit") == [False, True, False]
    assert said(packed["4bit"] - 1, quantize="4bit") == [False, False, True]
    load(wide, {"cpu": packed["4bit"]}, quantize="4bit")


def test_another_device_and_another_model_are_advised() -> None:
    """A GPU that is too small, on a machine with more memory of its own: figures alone."""
    config = AutoConfig.for_model("llava", text_config={"model_type": "llama"})
    stored = {"language_model.model.norm.weight": StoredTensor((10**10,), "F16", 2 * 10**10)}
    free = {"cuda:0": 6 * 10**9, "cpu": 64 * 10**9}
    request = LoadRequest("llava-hf/llava-1.5-7b-hf")
    with pytest.raises(BackendError) as raised:
        check_fit(
            request,
            stored,
            config,
            torch.device("cuda", 0),
            torch.float16,
            known=MODELS,
            free=lambda device: free.get(str(device)),
        )
    sentence = str(raised.value)
    assert "needs 21.1 GB on cuda:0 (weights 20.0 GB, KV cache 1.1 GB" in sentence
    assert "--device cpu (64.0 GB are free there)" in sentence
    # The largest one that fits unquantised.
    assert "use llava-hf/llava-onevision-qwen2-0.5b-ov-hf (" in sentence


def test_a_smaller_model_may_have_to_be_quantised() -> None:
    config = AutoConfig.for_model("llava", text_config={"model_type": "llama"})
    stored = {"lm_head.weight": StoredTensor((10**10,), "F32", 4 * 10**10)}
    known = [KnownModel("a/b", memory={"none": 9 * 10**9, "4bit": 3 * 10**9})]
    with pytest.raises(BackendError, match=r"use a/b with --quantize 4bit \(3\.0 GB\)$"):
        check_fit(
            LoadRequest("x/y"),
            stored,
            config,
            CPU,
            torch.float16,
            known=known,
            free=lambda device: 4 * 10**9,
        )


def test_a_checkpoint_that_is_stored_packed_is_counted_as_it_lies() -> None:
    config = AutoConfig.for_model("llava", text_config={"model_type": "llama"})
    config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    stored = {
        "model.language_model.layers.0.mlp.up_proj.weight": StoredTensor((500, 1), "U8", 500),
        "model.language_model.layers.0.mlp.up_proj.weight.absmax": StoredTensor((9,), "F32", 36),
    }
    assert footprint(stored, config, torch.float16, "4bit").weights == {"language model": 536}
