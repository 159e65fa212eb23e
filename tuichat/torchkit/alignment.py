"""Dtype alignment: pixels → vision tower → projector → language model → lm_head.

Owns the plan of which dtype every component keeps, and the repair when one has changed. Refuses to
decide the working dtype (``dtype`` does) and to know any architecture: a component is a module with
a name. Invariant: after ``align``, whatever crosses a boundary arrives in the dtype of the floating
weights that it meets first, on their device, so no combination of dtypes can raise in a forward.

Two repairs, chosen by what is safe and named in the report: the weights are cast back to the plan;
or, where they cannot be (quantised, on no device, out of the plan's range), the activations are
cast at the boundary.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tuichat.api import DtypeReport, DtypeRow
from tuichat.torchkit import reuse
from tuichat.torchkit.dtype import name_of
from tuichat.torchkit.vlm import VisionLanguageModel

log = logging.getLogger(__name__)

_Fingerprint = tuple[tuple[str, torch.dtype, torch.device], ...]

# Float tables up to this many elements are kept as they were after loading (rotary frequencies):
# a stray ``.half()`` rounds them, and casting back does not bring the digits back.
_SNAPSHOT_ELEMENTS = 1 << 16


def boundary_dtype(module: nn.Module) -> torch.dtype | None:
    """The dtype of the floating weights that the module's input meets first.

    That is the first convolution or linear layer in order of registration. Norms are skipped,
    because they may be kept in float32, and embeddings, because their input is ids. A packed
    weight (``uint8``, ``int8``) answers with the dtype that it computes in. None if the module has
    no floating weight at all.
    """
    for child in module.modules():
        weight = child._parameters.get("weight")
        if weight is None or weight.ndim < 2 or isinstance(child, nn.Embedding) or is_norm(child):
            continue
        if weight.is_floating_point():
            return weight.dtype
        if (compute := _compute_dtype(child)) is not None:
            return compute
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point() and "embed" not in name:
            return parameter.dtype
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), None)


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a normalisation layer, by its class's name: every model has its own."""
    return "norm" in type(module).__name__.lower()


def quantisation_of(module: nn.Module) -> str | None:
    """``nf4``, ``fp4``, ``int8`` … if the module holds packed weights, else None."""
    for child in module.modules():
        weight = child._parameters.get("weight")
        if weight is None or weight.is_floating_point():
            continue
        kind = getattr(weight, "quant_type", None)
        return str(kind) if kind else name_of(weight.dtype)
    return None


def _compute_dtype(module: nn.Module) -> torch.dtype | None:
    compute = getattr(module, "compute_dtype", None)
    if compute is None:
        state = getattr(module._parameters.get("weight"), "quant_state", None)
        compute = getattr(state, "dtype", None)
    return compute if isinstance(compute, torch.dtype) and compute.is_floating_point else None


@dataclass
class _Boundary:
    """A forward pre-hook that brings floating activations to one dtype and device."""

    dtype: torch.dtype
    device: torch.device | None

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map(self.cast, args)), {k: self.cast(v) for k, v in kwargs.items()}

    def cast(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        dtype = self.dtype if value.is_floating_point() else value.dtype
        return value.to(device=self.device, dtype=dtype)


@dataclass
class _NormOutput:
    """A forward hook: what a float32 norm answers goes on in the component's dtype."""

    dtype: torch.dtype

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        return output.to(self.dtype) if isinstance(output, torch.Tensor) else output


@dataclass
class ComponentPlan:
    """What one component is to look like."""

    dtype: torch.dtype
    """dtype of the boundary: its input arrives in it."""
    parameters: dict[str, torch.dtype]
    """dtype of each floating parameter."""
    buffers: dict[str, tuple[torch.dtype, torch.Tensor | None]]
    """dtype of each floating buffer, and a copy of the small ones."""
    fingerprint: _Fingerprint = ()
    reason: str = ""
    untold: bool = False
    """It was altered since the last report; the next one says so."""
    hooks: list[Any] = field(default_factory=list)
    hooked: weakref.ref[nn.Module] | None = None


@dataclass
class AlignmentPlan:
    """The dtype that every component keeps; made once, after the load."""

    components: dict[str, ComponentPlan]
    reason: str = ""
    """Why the working dtype was chosen, in words."""
    automatic: bool = False
    """Nobody asked for the dtype by name: a component whose float16 overflows may get another."""


_plans: weakref.WeakKeyDictionary[Any, AlignmentPlan] = weakref.WeakKeyDictionary()


def plan_of(model: VisionLanguageModel) -> AlignmentPlan | None:
    """The plan that a model was last aligned to, or None."""
    return _plans.get(model)


def plan_alignment(
    model: VisionLanguageModel,
    dtype: torch.dtype | None = None,
    reason: str = "",
    *,
    automatic: bool = False,
) -> AlignmentPlan:
    """Make the plan from what was loaded.

    Args:
        model: the loaded model.
        dtype: working dtype; a component whose boundary differs is to be cast to it, while inside
            a component that has it already, weights kept in another dtype (norms in float32) stay.
            None keeps every component as it is: then only activations are cast.
        reason: why ``dtype`` was chosen, in words.
        automatic: nobody asked for ``dtype`` by name.
    """
    components = {}
    for name, module in model.components().items():
        boundary = boundary_dtype(module)
        if boundary is None:
            continue
        target = dtype or boundary
        mixed = boundary == target
        packed = quantisation_of(module) is not None
        components[name] = ComponentPlan(
            dtype=boundary if packed else target,
            parameters={
                key: value.dtype if mixed or packed else target
                for key, value in module.named_parameters()
                if value.is_floating_point()
            },
            buffers={
                key: (value.dtype, value.clone() if value.numel() <= _SNAPSHOT_ELEMENTS else None)
                for key, value in module.named_buffers()
                if value.is_floating_point() and value.device.type != "meta"
            },
        )
    return AlignmentPlan(components, reason, automatic)


def align(model: VisionLanguageModel, plan: AlignmentPlan) -> DtypeReport:
    """Bring every component back to the plan and every boundary into agreement.

    Idempotent, and cheap when nothing moved: one look at the dtype and device of every tensor.
    ``changed`` names the components that this call altered, or a reply before it.
    """
    _plans[model] = plan
    rows = []
    modules = model.components()
    for name, component in plan.components.items():
        module = modules[name]
        first = component.hooked is None
        moved = _fingerprint(module) != component.fingerprint or _replaced(module, component)
        notes = []
        if moved:
            notes = _repair(module, component)
            if not notes and not first:
                notes = ["its weights were replaced since the last turn; their dtype is right"]
            _install(module, component)
            component.fingerprint = _fingerprint(module)
            component.reason = "; ".join(notes) or "as loaded"
        if notes:
            log.warning("alignment of the %s: %s", name, component.reason)
        if notes and not first:
            # What was computed with other weights is worth nothing to the next turn.
            reuse.forget(model)
        rows.append(_row(name, module, component, changed=bool(notes) or component.untold))
        component.untold = False
    if (vision := plan.components.get("vision tower")) is not None:
        rows.insert(0, _pixels_row(vision, modules["vision tower"]))
    return DtypeReport(tuple(rows), plan.reason)


def _fingerprint(module: nn.Module) -> _Fingerprint:
    return tuple(
        (name, tensor.dtype, tensor.device)
        for tensors in (module.named_parameters(), module.named_buffers())
        for name, tensor in tensors
    )


def _replaced(module: nn.Module, component: ComponentPlan) -> bool:
    return component.hooked is None or component.hooked() is not module


def _repair(module: nn.Module, component: ComponentPlan) -> list[str]:
    """Cast weights and buffers back to the plan; what was done, in words.

    A component is cast as a whole or not at all: half of it in another dtype would only move the
    disagreement inside, where no boundary is.
    """
    floating = {k: p for k, p in module.named_parameters() if p.is_floating_point()}
    wrong = {
        name: parameter
        for name, parameter in floating.items()
        if parameter.dtype != component.parameters.setdefault(name, component.dtype)
    }
    notes = []
    for name, parameter in wrong.items():
        if (obstacle := _unsafe(parameter, component.parameters[name])) is not None:
            component.dtype = parameter.dtype
            component.parameters = dict.fromkeys(floating, parameter.dtype)
            wrong = {k: p for k, p in floating.items() if p.dtype != parameter.dtype}
            notes.append(
                f"left in {name_of(parameter.dtype)} ({obstacle}): its input is cast instead"
            )
            break
    cast: dict[tuple[torch.dtype, torch.dtype], int] = {}
    for name, parameter in wrong.items():
        if parameter.device.type == "meta":
            continue
        have, want = parameter.dtype, component.parameters[name]
        parameter.data = parameter.data.to(want)
        cast[have, want] = cast.get((have, want), 0) + 1
    for name, buffer in module.named_buffers():
        planned = component.buffers.get(name)
        if planned is None or buffer.dtype == planned[0]:
            continue
        dtype, snapshot = planned
        cast[buffer.dtype, dtype] = cast.get((buffer.dtype, dtype), 0) + 1
        buffer.data = (buffer if snapshot is None else snapshot).to(buffer.device, dtype)
    for (have, want), count in cast.items():
        lost = torch.finfo(have).eps > torch.finfo(want).eps
        notes.append(
            f"{count} weights found in {name_of(have)}, cast to {name_of(want)}"
            + (", which does not bring back the digits they lost" if lost else "")
        )
    return notes


def _unsafe(parameter: nn.Parameter, want: torch.dtype) -> str | None:
    """Why this parameter cannot be cast to ``want``, or None."""
    if parameter.device.type == "meta":
        return "its weights are offloaded"
    if torch.finfo(want).max < torch.finfo(parameter.dtype).max and parameter.numel():
        largest = float(parameter.data.abs().amax())
        if largest > torch.finfo(want).max:
            return f"a weight of {largest:.3g} does not fit {name_of(want)}"
    return None


def _install(module: nn.Module, component: ComponentPlan) -> None:
    """Put the casting hooks on a component, instead of those that were there."""
    for hook in component.hooks:
        hook.remove()
    component.hooks.clear()
    device = next((p.device for p in module.parameters() if p.device.type != "meta"), None)
    boundary = _Boundary(component.dtype, device)
    component.hooks.append(module.register_forward_pre_hook(boundary, with_kwargs=True))
    for child in module.modules():
        weight = child._parameters.get("weight")
        if weight is None or not is_norm(child) or weight.dtype == component.dtype:
            continue
        # A norm of another dtype: torch refuses mixed operands in a layer norm, and a linear layer
        # behind it would refuse what it answers.
        into = _Boundary(weight.dtype, device)
        component.hooks.append(child.register_forward_pre_hook(into, with_kwargs=True))
        component.hooks.append(child.register_forward_hook(_NormOutput(component.dtype)))
    component.hooked = weakref.ref(module)


def _row(name: str, module: nn.Module, component: ComponentPlan, changed: bool) -> DtypeRow:
    quantised = quantisation_of(module)
    first = next(module.parameters())
    stored = "uint8" if quantised in ("nf4", "fp4") else quantised
    return DtypeRow(
        component=name,
        weights=stored or name_of(component.dtype),
        compute=name_of(component.dtype),
        input=name_of(component.dtype),
        device=str(first.device),
        quantised=quantised,
        changed=changed,
        reason=component.reason,
    )


def _pixels_row(vision: ComponentPlan, module: nn.Module) -> DtypeRow:
    dtype = name_of(vision.dtype)
    return DtypeRow(
        component="pixels",
        weights="float32",
        compute=dtype,
        input=dtype,
        device=str(next(module.parameters()).device),
        reason="cast to the dtype of the vision tower's patch embedding",
    )
