"""Vision stage: the vision tower learns by itself what each patch shows.

Owns its loop. Trained end to end, a model this small sits on a long plateau before it perceives
edges; dense labels lead it past that in minutes.

Invariant: batches depend on the seed and the step alone, so that a resumed run sees what an
uninterrupted one would have seen.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from .dataset import SceneSet
from .model import DenseHeads, VisionTower, fast_matmuls
from .muon import Optimizer
from .schedule import Budget, Log, flat_then_linear, load_stage, save_stage

BATCH = 32
MUON_LR, ADAMW_LR = 0.02, 3e-3
_REPORT_EVERY, _SAVE_EVERY = 100, 500


def train_vision(state: Path, scenes: Path, seed: int, budget: Budget, log: Log) -> None:
    """Run the stage from where it stands to its end."""
    torch.manual_seed(seed)
    tower, heads = VisionTower(), DenseHeads()
    modules = {"vision": tower, "heads": heads}
    optimizer = Optimizer(modules.values(), MUON_LR, ADAMW_LR)
    load_stage(state / "vision.pt", modules, optimizer, budget)
    train, valid = SceneSet(scenes, "train"), SceneSet(scenes, "valid")
    while budget.progress() < 1:
        rng = random.Random(f"vision {seed} {budget.step}")
        examples = [train.draw(rng) for _ in range(BATCH)]
        noise = np.random.default_rng(rng.getrandbits(32))
        pixels = train.images([(index, symmetry) for index, symmetry, _ in examples], noise)
        with fast_matmuls():
            features = tower.features(pixels)
        loss = heads.loss(features, train.labels(examples))
        loss.backward()
        optimizer.step(budget.warm() * flat_then_linear(budget.progress(), 0.4, 0.03))
        budget.advance()
        if budget.step % _REPORT_EVERY == 0:
            shares = score_vision(tower, heads, valid)
            text = " ".join(f"{name} {share:.3f}" for name, share in shares.items())
            log(f"vision {budget.step} {budget.spent:.0f}s loss {loss.item():.3f} {text}")
        if budget.step % _SAVE_EVERY == 0:
            save_stage(state / "vision.pt", modules, optimizer, budget)
    save_stage(state / "vision.pt", modules, optimizer, budget)


@torch.no_grad()
def score_vision(tower: VisionTower, heads: DenseHeads, valid: SceneSet) -> dict[str, float]:
    """Accuracy per field on a fixed draw of held-out scenes."""
    rng = random.Random(0)
    examples = [valid.draw(rng) for _ in range(192)]
    noise = np.random.default_rng(0)
    pixels = valid.images([(index, symmetry) for index, symmetry, _ in examples], noise)
    return heads.accuracy(tower.features(pixels), valid.labels(examples))
