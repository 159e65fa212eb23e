"""Models whose components each have a dtype of their own, as no loader would leave them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tuichat import torchkit
from tuichat.api import DtypeReport, Loaded, Prompt
from tuichat.torchkit import AlignmentPlan, plan_alignment

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def bound(*chain: torch.dtype) -> float:
    """How far logits may be from the float32 reference, ‖a−b‖/‖b‖, by the coarsest dtype."""
    return 2e-2 if torch.bfloat16 in chain else 5e-3 if torch.float16 in chain else 1e-6


def distance(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """‖a−b‖/‖b‖."""
    return float((logits - reference).norm() / reference.norm())


@torch.inference_mode()
def last_logits(handle: Any, prompt: Prompt, pixels: torch.dtype) -> torch.Tensor:
    """Logits of the prompt's last position, (vocabulary,) float32, pixels given in a dtype."""
    embeds = handle.embed(torch.tensor(list(prompt.ids), device=handle.device))
    for span in prompt.spans:
        inputs = {
            key: value.to(pixels) if value.is_floating_point() else value
            for key, value in span.inputs.items()
        }
        embeds[span.start : span.start + span.length] = handle.image_features(inputs).to(embeds)
    length = len(prompt.ids)
    logits = handle.forward(
        embeds[None],
        torch.arange(length, device=handle.device)[None],
        torch.ones(1, length, dtype=torch.bool, device=handle.device),
        handle.new_cache(),
    )
    return logits.float()


def twin(loaded: Loaded) -> Any:
    """A second handle over a copy of the weights, without a plan."""
    handle = loaded.handle
    unhook(handle.plan)
    copied = torchkit.HubVisionLanguageModel(
        copy.deepcopy(handle.model),
        tokenizer=handle.tokenizer,
        image_processor=handle.image_processor,
        template=handle.template,
        facts=handle.facts,
        folder=handle.folder,
    )
    torchkit.align(handle, handle.plan)
    return copied


def unhook(plan: AlignmentPlan) -> None:
    """Take the casts of a plan off its model."""
    for component in plan.components.values():
        for hook in component.hooks:
            hook.remove()
        component.hooks.clear()
        component.hooked = None


@contextmanager
def aligned(handle: Any, dtype: torch.dtype | None = None) -> Iterator[DtypeReport]:
    """Align a model to a plan made of what it is now, and take the casts off again."""
    plan = plan_alignment(handle, dtype)
    try:
        yield torchkit.align(handle, plan)
    finally:
        unhook(plan)


def cast_components(handle: Any, **dtypes: torch.dtype) -> None:
    """Leave every component in a dtype of its own, as no loader would."""
    parts = handle.components()
    parts["vision tower"].to(dtypes["vision"])
    parts["projector"].to(dtypes["projector"])
    parts["language model"].to(dtypes["language"])
    parts["lm_head"].to(dtypes["language"])


def norms_to_float32(model: nn.Module) -> int:
    """Norms as many libraries keep them; how many there are."""
    norms = [module for module in model.modules() if "norm" in type(module).__name__.lower()]
    for norm in norms:
        norm.float()
    return len(norms)


# --------------------------------------------------------------------------- packed weights


def pack(component: nn.Module, compute: torch.dtype) -> int:
    """Pack the linear layers of any component in nf4, in place; how many.

    Attention that reads its weights without calling its layers (SigLIP's pooling head) is left.
    """
    from bitsandbytes.nn import Linear4bit

    found = [
        (parent, name, child)
        for parent in component.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    for parent, name, child in found:
        packed = Linear4bit(
            child.in_features,
            child.out_features,
            bias=child.bias is not None,
            compute_dtype=compute,
            quant_type="nf4",
        )
        packed.load_state_dict(child.state_dict())
        setattr(parent, name, packed.to("cpu"))
    return len(found)


def unpacked(handle: Any) -> Any:
    """A model in float32 whose packed weights are what they stand for: the reference."""
    reference = copy.copy(handle)
    reference._loose = {}
    reference.model = copy.deepcopy(handle.model)
    for parent in list(reference.model.modules()):
        for name, child in list(parent.named_children()):
            weight = child._parameters.get("weight")
            if isinstance(child, nn.Linear) and not weight.is_floating_point():
                setattr(parent, name, _plain(child))
    for tensors in (reference.model.parameters(), reference.model.buffers()):
        for tensor in tensors:
            if tensor.is_floating_point():
                tensor.data = tensor.data.float()
    return reference


def _plain(layer: nn.Linear) -> nn.Linear:
    from bitsandbytes.functional import dequantize_4bit

    weight: Any = layer.weight
    if (state := getattr(weight, "quant_state", None)) is not None:
        values = dequantize_4bit(weight.data, state).float()
    else:
        scale = weight.SCB if weight.SCB is not None else layer.state.SCB
        values = weight.data.float() * scale.float()[:, None] / 127
    plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    plain.weight.data = values
    if layer.bias is not None:
        plain.bias.data = layer.bias.data.float()
    return plain
