"""Joining the two halves, and training everything together.

Owns the start values of the projector (whitened random first layer, ridge regression for the
second, then gradient steps) and the joint loop on two processes. Refuses to know how the halves
were trained.

Invariant: all processes hold the same weights after every step, and one step is the same whether
or not the run was interrupted before it.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from .batches import Batch, Mix, Score, batches, fixed_batches
from .dataset import SceneSet
from .model import (
    HIDDEN,
    DenseHeads,
    LanguageModel,
    OracleFeatures,
    Projector,
    VisionTower,
    fast_matmuls,
)
from .muon import Optimizer
from .render import GRID
from .schedule import Budget, Log, average_gradients, cosine, load_stage, save_stage
from .tokenizer import ChatEncoder

BATCH = 24  # in each process
MUON_LR, ADAMW_LR = 6e-3, 6e-4
DENSE_WEIGHT = 0.05
_SHAPE_WEIGHT = 4.0  # patches with a shape against the others, when the projector is fitted
_JOIN_STEPS = 300
_REPORT_EVERY, _SAVE_EVERY = 200, 200


class Parts(nn.Module):
    """All modules of the joint stage."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vision, self.heads = VisionTower(), DenseHeads()
        self.projector, self.language = Projector(vocab_size), LanguageModel(vocab_size)

    def answer(self, batch: Batch, pixels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Logits of the answers, and the features of the vision tower."""
        features, embeddings = None, None
        if pixels is not None:
            features = self.vision.features(pixels)
            embeddings = self.projector(features).flatten(0, 1)
            embeddings = embeddings.to(self.language.embedding.weight.dtype)
        return self.language.logits(
            self.language.embed(batch.ids, embeddings), batch.keep
        ), features


def _features_and_targets(
    parts: Parts, oracle: OracleFeatures, scenes: SceneSet, rng: random.Random, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Patch features, the oracle's embeddings of the same patches, and their weights."""
    examples = [scenes.draw(rng) for _ in range(count)]
    noise = np.random.default_rng(rng.getrandbits(32))
    pixels = scenes.images([(index, symmetry) for index, symmetry, _ in examples], noise)
    labels = scenes.labels(examples)
    with torch.no_grad():
        features = parts.vision.features(pixels).flatten(0, 1)
        targets = oracle(labels, parts.language.embedding, 0.0).flatten(0, 1)
    weights = torch.where(labels.kind.flatten() > 0, _SHAPE_WEIGHT, 1.0)[:, None]
    return features, targets, weights


def _start_projector(
    projector: Projector, features: Tensor, targets: Tensor, weights: Tensor
) -> None:
    """Whitened random first layer, ridge regression for the second."""
    first, second = projector.inner.linear_1, projector.inner.linear_2
    mean = features.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(features.T))
    whiten = vectors / values.clamp(min=1e-4 * values.max()).sqrt() @ vectors.T
    mix = torch.linalg.qr(torch.randn(HIDDEN, HIDDEN))[0]
    with torch.no_grad():
        first.weight.copy_(mix @ whiten)
        first.bias.copy_(-(mix @ whiten) @ mean)
        hidden = F.gelu(first(features))
        design = torch.cat([hidden, torch.ones(len(hidden), 1)], dim=1)
        gram = design.T @ (design * weights) + 1e-2 * torch.eye(HIDDEN + 1)
        solution = torch.linalg.solve(gram, design.T @ (targets * weights))
        second.weight.copy_(solution[:-1].T)
        second.bias.copy_(solution[-1])


def join(state: Path, scenes: Path, seed: int, log: Log) -> None:
    """Fit the projector to the oracle's embeddings and write `joined.pt`."""
    torch.manual_seed(seed)
    encoder = ChatEncoder(GRID * GRID)
    parts, oracle = Parts(len(encoder)), OracleFeatures(encoder.words)
    load_stage(state / "vision.pt", {"vision": parts.vision, "heads": parts.heads}, None, None)
    load_stage(state / "language.pt", {"language": parts.language, "oracle": oracle}, None, None)
    train, valid = SceneSet(scenes, "train"), SceneSet(scenes, "valid")
    rng = random.Random(f"join {seed}")
    _start_projector(parts.projector, *_features_and_targets(parts, oracle, train, rng, 1024))
    budget = Budget(_JOIN_STEPS)
    optimizer = Optimizer([parts.projector], 5e-3, 1e-3)
    while budget.progress() < 1:
        features, targets, weights = _features_and_targets(parts, oracle, train, rng, 48)
        loss = ((parts.projector(features) - targets).square() * weights).mean() / weights.mean()
        (loss / targets.var()).backward()
        optimizer.step(budget.warm() * cosine(budget.progress(), 0.02))
        budget.advance()
        if budget.step % 100 == 0:
            log(f"join {budget.step} mse {loss.item():.5f} of variance {targets.var().item():.5f}")
    log(f"join {score(parts, valid, fixed_batches(valid, encoder, Mix(), 160, seed=1))}")
    save_stage(state / "joined.pt", {"parts": parts}, None, None)


@torch.no_grad()
def score(parts: Parts, scenes: SceneSet, checks: list[Batch]) -> Score:
    """Exact-match score on held-out scenes."""
    result = Score()
    for check in checks:
        with fast_matmuls():
            logits, _ = parts.answer(check, _pixels(check, scenes, 0))
        result.add(check, logits)
    return result


def _pixels(batch: Batch, scenes: SceneSet, seed: int) -> Tensor | None:
    if not batch.examples:
        return None
    noise = np.random.default_rng(seed)
    return scenes.images([(index, symmetry) for index, symmetry, _ in batch.examples], noise)


def train_joint(state: Path, scenes: Path, seed: int, budget: Budget, log: Log) -> None:
    """Run the stage in this process, one of those that torch.distributed knows, to its end."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    encoder = ChatEncoder(GRID * GRID)
    parts = Parts(len(encoder))
    optimizer = Optimizer([parts], MUON_LR, ADAMW_LR)
    load_stage(state / "joined.pt", {"parts": parts}, None, None)
    load_stage(state / "joint.pt", {"parts": parts}, optimizer, budget)
    train, valid = SceneSet(scenes, "train"), SceneSet(scenes, "valid")
    checks = fixed_batches(valid, encoder, Mix(), 320, seed=1) if rank == 0 else []
    drawn = batches(train, encoder, Mix(), BATCH, f"joint {seed} {rank}", budget.step)
    while budget.progress() < 1:
        batch = next(drawn)
        pixels = _pixels(batch, train, hash((seed, rank, budget.step)) % 2**32)
        with fast_matmuls():
            logits, features = parts.answer(batch, pixels)
        loss = F.cross_entropy(logits.float(), batch.targets)
        total = loss
        if features is not None:
            total = loss + DENSE_WEIGHT * parts.heads.loss(features, train.labels(batch.examples))
        total.backward()
        average_gradients(optimizer.params, budget)
        optimizer.step(budget.warm() * cosine(budget.progress(), 0.01))
        budget.advance()
        if rank == 0 and budget.step % 50 == 0:
            log(f"joint {budget.step} {budget.spent:.0f}s loss {loss.item():.4f}")
        if rank == 0 and budget.step % _REPORT_EVERY == 0:
            log(f"joint {budget.step} {score(parts, valid, checks)}")
        if rank == 0 and budget.step % _SAVE_EVERY == 0:
            save_stage(state / "joint.pt", {"parts": parts}, optimizer, budget)
    if rank == 0:
        log(f"joint {budget.step} {score(parts, valid, checks)}")
        save_stage(state / "joint.pt", {"parts": parts}, optimizer, budget)
