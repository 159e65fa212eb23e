"""How long a stage runs, at which learning rate, and how it is resumed.

Owns budgets, checkpoints of a stage and the averaging of gradients between two processes. Refuses
to know models and data.

Invariant: the rate depends on progress alone, and progress is stored with the state, so a stage
that was interrupted ends as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from .muon import Optimizer

WARMUP_STEPS = 30
Log = Callable[[str], None]


@dataclass
class Budget:
    """A stage ends after `steps`, or after `seconds` where those are fewer."""

    steps: int
    seconds: float = math.inf
    step: int = 0
    spent: float = 0.0
    _tick: float | None = None

    def progress(self) -> float:
        """0 at the start, 1 at the end."""
        return max(self.step / self.steps, self.spent / self.seconds)

    def advance(self) -> None:
        """Count one step and the time since the one before; loading the data is not counted."""
        now = time.monotonic()
        self.spent += now - (self._tick or now)
        self._tick = now
        self.step += 1

    def warm(self) -> float:
        """The share of the learning rate that the first steps may use."""
        return min(1.0, (self.step + 1) / WARMUP_STEPS)


def flat_then_linear(progress: float, decay: float, floor: float) -> float:
    """1, then down to `floor` in a straight line over the last `decay` of the stage."""
    return 1.0 if progress < 1 - decay else max(floor, (1 - progress) / decay)


def cosine(progress: float, floor: float) -> float:
    """Half a cosine from 1 to `floor`."""
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def save_stage(
    path: Path, modules: dict[str, nn.Module], optimizer: Optimizer | None, budget: Budget | None
) -> None:
    """Write a stage's state; a reader never sees half of it."""
    state: dict[str, object] = {name: module.state_dict() for name, module in modules.items()}
    if optimizer is not None:
        state["optimizer"] = optimizer.state_dict()
    if budget is not None:
        state["budget"] = (budget.step, budget.spent, budget.progress())
    partial = path.with_suffix(".part")
    torch.save(state, partial)
    partial.rename(path)


def load_stage(
    path: Path, modules: dict[str, nn.Module], optimizer: Optimizer | None, budget: Budget | None
) -> bool:
    """Read what `save_stage` wrote; False where there is nothing yet."""
    if not path.exists():
        return False
    state = torch.load(path, weights_only=True)
    for name, module in modules.items():
        module.load_state_dict(state[name])
    if optimizer is not None and "optimizer" in state:
        optimizer.load_state_dict(state["optimizer"])
    if budget is not None and "budget" in state:
        budget.step, budget.spent, _ = state["budget"]
    return True


def average_gradients(params: list[nn.Parameter], budget: Budget) -> None:
    """Make the gradients of all processes their mean; alone, nothing is done.

    The time spent is averaged along with them: the processes must agree on the learning rate and
    on when to stop.
    """
    if not dist.is_initialized():
        return
    grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in params]
    flat = torch.cat([*(grad.reshape(-1) for grad in grads), torch.tensor([budget.spent])])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    *parts, spent = flat.split([*(p.numel() for p in params), 1])
    budget.spent = spent.item()
    for param, part in zip(params, parts, strict=True):
        param.grad = part.view_as(param)


def stage_done(path: Path) -> bool:
    """Whether the stage that writes `path` has run to its end."""
    if not path.exists():
        return False
    budget = torch.load(path, weights_only=True).get("budget")
    return budget is None or budget[2] >= 1.0
