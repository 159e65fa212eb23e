"""Another dtype for the part of a model whose float16 overflowed.

Owns the change of an alignment plan between two attempts at one turn. Refuses to know how an
overflow is found. Invariants: a dtype that was asked for by name is kept; each side of a model, the
one that makes features of images and the one that makes text, is changed at most once; the next
report of the alignment says so.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from tuichat.torchkit.alignment import ComponentPlan, align, plan_of, quantisation_of
from tuichat.torchkit.dtype import name_of, wider_than_float16
from tuichat.torchkit.failures import NotFinite
from tuichat.torchkit.vlm import VisionLanguageModel

log = logging.getLogger(__name__)

_TEXT_SIDE = ("language model", "lm_head")


def widen(model: VisionLanguageModel, overflow: NotFinite) -> bool:
    """Cast the side of a model that overflowed, and forget what was computed with it.

    bfloat16 where the device computes in it, else float32.

    Returns:
        Whether the turn is worth another attempt: not if the dtype was asked for by name, nothing
        on that side is in float16, or its packed weights compute in nothing else.
    """
    plan = plan_of(model)
    if plan is None or not plan.automatic:
        return False
    parts = {
        name: component
        for name, component in plan.components.items()
        if (name not in _TEXT_SIDE) is overflow.images and component.dtype is torch.float16
    }
    modules = model.components()
    # int8 layers multiply in float16, whatever they are given.
    if not parts or any(quantisation_of(modules[name]) == "int8" for name in parts):
        return False
    wide = wider_than_float16(model.device)
    for name, component in parts.items():
        _plan_in(wide, component, modules[name])
    untold = [component for component in plan.components.values() if component.untold]
    align(model, plan)
    for component in (*untold, *parts.values()):
        component.untold = True
    for name, component in parts.items():
        component.reason = (
            f"float16 overflowed {overflow.where}: the {name} runs in {name_of(wide)} since then"
        )
        log.warning(component.reason)
    return True


def _plan_in(wide: torch.dtype, component: ComponentPlan, module: nn.Module) -> None:
    def widened(dtype: torch.dtype) -> torch.dtype:
        return wide if dtype is torch.float16 else dtype

    component.dtype = wide
    component.fingerprint = ()  # nothing moved, but the plan did
    component.parameters = {key: widened(dtype) for key, dtype in component.parameters.items()}
    component.buffers = {
        key: (widened(dtype), snapshot) for key, (dtype, snapshot) in component.buffers.items()
    }
    layer: Any
    for layer in module.modules():
        if getattr(layer, "compute_dtype", None) is torch.float16:  # 4-bit layers
            layer.compute_dtype = wide
