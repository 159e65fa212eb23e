"""Loading in 4 or 8 bits: the language model's layers only.

Owns which modules are left alone, the proof that they were, and the kernels that packed layers run
in. Refuses to know any architecture. Invariant: after a load, every linear layer of the language
model is packed and no other is: vision tower, projector, embeddings and ``lm_head`` keep their
precision. The library's own list of names to skip silently skips nothing when a name does not
match, so the modules are counted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tuichat.api import BackendError, Quantisation

# Rows that the kernel takes at once, and weights that share a scale.
_KERNEL_ROWS, _KERNEL_COLUMNS = 32, 64


def quantization_config(
    model_class: Any, config: Any, quantisation: Quantisation, dtype: torch.dtype
) -> Any:
    """A ``BitsAndBytesConfig`` for a model of this class and config.

    Args:
        model_class: transformers class, e.g. ``LlavaForConditionalGeneration``.
        config: its config.
        quantisation: ``8bit``, or ``4bit`` (nf4, double quantisation).
        dtype: what the packed layers compute in.

    Raises:
        BackendError: bitsandbytes is missing.
    """
    from transformers import BitsAndBytesConfig
    from transformers.utils import is_bitsandbytes_available

    if not is_bitsandbytes_available():
        raise BackendError(
            f"--quantize {quantisation} needs the package bitsandbytes: pip install bitsandbytes"
        )
    with torch.device("meta"):
        skeleton = model_class(config)
    skip = linear_names(skeleton, outside=language_layers(skeleton))
    if quantisation == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=skip)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
        llm_int8_skip_modules=skip,
    )


def language_layers(model: Any) -> nn.Module:
    """The stack of decoder layers of a vision-language model."""
    layers: nn.Module = model.get_decoder().layers
    return layers


def linear_names(model: nn.Module, *, outside: nn.Module) -> list[str]:
    """Full names of the linear layers that are not inside ``outside``."""
    inside = {id(module) for module in outside.modules()}
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module) not in inside
    ]


def spare_cpu_kernel(model: nn.Module) -> int:
    """Have 4-bit layers of an odd shape run without bitsandbytes' kernel for CPUs; how many.

    On a CPU with AVX512-BF16 the library packs every layer once more for that kernel, at the first
    forward, and fails on those that are not of its whole blocks.
    """
    spared = 0
    layer: Any
    for layer in model.modules():
        if not getattr(layer, "support_avx512bf16_for_cpu", False):
            continue
        if layer.out_features % _KERNEL_ROWS or layer.in_features % _KERNEL_COLUMNS:
            layer.support_avx512bf16_for_cpu = False
            spared += 1
    return spared


def verify_quantised(model: Any, quantisation: Quantisation) -> int:
    """Walk a loaded model; how many linear layers are packed.

    Raises:
        BackendError: a layer is packed that should not be, or the other way round.
    """
    inside = {id(module) for module in language_layers(model).modules()}
    packed = 0
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if not isinstance(module, nn.Linear) or weight is None:
            continue
        is_packed, wanted = not weight.is_floating_point(), quantisation != "none"
        if is_packed != (wanted and id(module) in inside):
            raise BackendError(
                f"{name} was {'' if is_packed else 'not '}quantised, against the plan that only "
                "the language model's layers are: please report it with the model's name, and "
                "load with --quantize none meanwhile"
            )
        packed += is_packed
    return packed
