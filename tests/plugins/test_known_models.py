"""The sizes of the known checkpoints, counted again on models of their shape, without weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from small_models import load_llava
from transformers import AutoConfig

from tuichat_llava import plugin
from tuichat_llava.models import MODELS

CLIP = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "projection_dim": 768,
}
SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 26,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
    "vision_use_head": False,
}


def language(kind: str, *shape: int, tied: bool = False) -> dict[str, Any]:
    """A text config: hidden, intermediate, layers, heads, KV heads, vocabulary, context."""
    names = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
        "max_position_embeddings",
    )
    return {
        "model_type": kind,
        **dict(zip(names, shape, strict=True)),
        "tie_word_embeddings": tied,
    }


VICUNA_7B = language("llama", 4096, 11008, 32, 32, 32, 32064, 4096)
VICUNA_13B = language("llama", 5120, 13824, 40, 40, 40, 32064, 4096)
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llava-hf/llava-1.5-7b-hf": ("llava", CLIP, VICUNA_7B),
    "llava-hf/llava-1.5-13b-hf": ("llava", CLIP, VICUNA_13B),
    "xtuner/llava-llama-3-8b-v1_1-transformers": (
        "llava",
        CLIP,
        language("llama", 4096, 14336, 32, 32, 8, 128320, 8192),
    ),
    "llava-hf/llava-v1.6-mistral-7b-hf": (
        "llava_next",
        CLIP,
        language("mistral", 4096, 14336, 32, 32, 8, 32064, 32768),
    ),
    "llava-hf/llava-v1.6-vicuna-7b-hf": ("llava_next", CLIP, VICUNA_7B),
    "llava-hf/llava-v1.6-vicuna-13b-hf": ("llava_next", CLIP, VICUNA_13B),
    "llava-hf/llava-v1.6-34b-hf": (
        "llava_next",
        CLIP,
        language("llama", 7168, 20480, 60, 56, 8, 64064, 4096),
    ),
    "llava-hf/llava-onevision-qwen2-0.5b-ov-hf": (
        "llava_onevision",
        SIGLIP,
        language("qwen2", 896, 4864, 24, 14, 2, 152000, 32768, tied=True),
    ),
    "llava-hf/llava-onevision-qwen2-7b-ov-hf": (
        "llava_onevision",
        SIGLIP,
        language("qwen2", 3584, 18944, 28, 28, 4, 152128, 32768),
    ),
}


def test_every_known_model_is_counted_here() -> None:
    assert [model.id for model in MODELS] == list(ARCHITECTURES)
    assert plugin.tuichat_backend().models == MODELS


@pytest.mark.parametrize("known", MODELS, ids=lambda known: known.id)
def test_sizes_are_those_of_the_architecture(known: Any) -> None:
    kind, vision, text = ARCHITECTURES[known.id]
    config = AutoConfig.for_model(
        kind,
        vision_config=vision,
        text_config=text,
        tie_word_embeddings=text["tie_word_embeddings"],
    )
    with torch.device("meta"):
        model = getattr(transformers, plugin.ARCHITECTURES[kind])(config)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    packed = sum(
        module.weight.numel()
        for module in model.get_decoder().layers.modules()
        if isinstance(module, torch.nn.Linear)
    )
    heads = text["num_key_value_heads"]
    width = text["hidden_size"] // text["num_attention_heads"]
    cache = 2 * 2 * text["num_hidden_layers"] * heads * width
    assert known.bytes == 2 * parameters
    assert known.context_length == text["max_position_embeddings"]
    beside = 2 * (parameters - packed) + cache * min(known.context_length, 8192) + (1 << 30)
    assert known.memory["none"] == beside + 2 * packed
    assert known.memory["8bit"] == beside + packed
    assert known.memory["4bit"] == pytest.approx(beside + 0.5159 * packed, rel=1e-3)


@pytest.mark.parametrize("architecture", ["llava", "llava_next", "llava_onevision"])
def test_a_local_folder_is_recognised_by_its_config(
    architecture: str, architecture_folders: dict[str, Path]
) -> None:
    folder = architecture_folders[architecture]
    loaded = load_llava(folder)
    assert type(loaded.handle.model).__name__ == plugin.ARCHITECTURES[architecture]
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == architecture
    assert loaded.facts.context_length == config["text_config"]["max_position_embeddings"]
    assert loaded.facts.notices == ()


def test_what_a_quantised_layer_takes_is_what_is_said(make_llava: Callable[..., Path]) -> None:
    """bytes for each packed weight, measured on a model whose layers are of whole blocks."""
    from tuichat_llava.models import _BYTES_PER_PACKED_WEIGHT

    text = {"hidden_size": 512, "intermediate_size": 1024}
    folder = make_llava(layers=2, text=text)
    for quantise in ("8bit", "4bit"):
        model = load_llava(folder, quantize=quantise, dtype="float16").handle.model
        weights = [
            module.weight
            for module in model.get_decoder().layers.modules()
            if isinstance(module, torch.nn.Linear)
        ]
        count = taken = 0
        for weight in weights:
            taken += weight.numel() * weight.element_size()
            if (state := getattr(weight, "quant_state", None)) is None:
                count += weight.numel()
                continue
            count += state.shape.numel()
            taken += state.absmax.numel() * state.absmax.element_size()
            taken += state.state2.absmax.numel() * state.state2.absmax.element_size()
        assert taken / count == pytest.approx(_BYTES_PER_PACKED_WEIGHT[quantise], rel=0.002)
