"""Muon: momentum whose update is orthogonalised, for the matrices inside layers.

Owns the optimiser step and the schedule. Refuses to know which model it trains. torch.optim.Muon
runs in bfloat16 and one matrix at a time, which is slower than float32 in batches on a CPU.

Invariant: matrices of one shape are updated together, in float32, in the order given.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalize(update: Tensor, steps: int = 5) -> Tensor:
    """Replace the singular values of a batch of matrices by about one (Newton-Schulz)."""
    a, b, c = _NEWTON_SCHULZ
    tall = update.shape[-2] > update.shape[-1]
    x = update.mT if tall else update
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, scaled by the square root of rows over columns."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for param in group["params"]:
                if param.grad is not None:
                    by_shape.setdefault(param.shape, []).append(param)
            for shape, params in by_shape.items():
                self._step_shape(group, shape, params)

    def _step_shape(self, group: dict, shape: torch.Size, params: list[nn.Parameter]) -> None:
        updates = []
        for param in params:
            state = self.state[param]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(param)
            state["momentum"].lerp_(param.grad, 1 - group["momentum"])
            updates.append(torch.lerp(param.grad, state["momentum"], group["momentum"]))
        scale = max(1.0, shape[0] / shape[1]) ** 0.5
        for param, update in zip(params, orthogonalize(torch.stack(updates)), strict=True):
            param.add_(update, alpha=-group["lr"] * scale)


class Optimizer:
    """Muon for the matrices in layers, AdamW for embeddings, norms, biases and the rest."""

    def __init__(self, modules: Iterable[nn.Module], muon_lr: float, adamw_lr: float) -> None:
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        seen: set[int] = set()
        for module in modules:
            for name, param in module.named_parameters():
                if id(param) in seen or not param.requires_grad:
                    continue
                seen.add(id(param))
                inner = param.ndim == 2 and ("layers." in name or "linear_" in name)
                (matrices if inner else others).append(param)
        self.params = matrices + others
        self._parts: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.AdamW(others, lr=adamw_lr, betas=(0.9, 0.98), weight_decay=0.0), adamw_lr)
        ]
        if matrices:
            self._parts.append((Muon(matrices, lr=muon_lr), muon_lr))

    def step(self, rate: float) -> None:
        """Clip, step at `rate` times the base learning rates, and clear the gradients."""
        nn.utils.clip_grad_norm_(self.params, 1.0)
        for part, base in self._parts:
            for group in part.param_groups:
                group["lr"] = base * rate
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict]:
        """State of both parts, for resuming."""
        return [part.state_dict() for part, _ in self._parts]

    def load_state_dict(self, states: list[dict]) -> None:
        """Resume from `state_dict`."""
        for (part, _), state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)
