"""Language stage: the language model learns to answer from features that are the truth.

Owns its loop. While the vision tower learns to see, this learns to find a word of the question
among patches, to keep images apart and to word answers; a learning rate much above the one used
here stays on the plateau of guessing for good.

Invariant: as in `vision_stage.py`.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from .batches import ONE_IMAGE, Batch, Mix, Score, batches, fixed_batches
from .dataset import SceneSet
from .model import LanguageModel, OracleFeatures, fast_matmuls
from .muon import Optimizer
from .render import GRID
from .schedule import Budget, Log, flat_then_linear, load_stage, save_stage
from .tokenizer import ChatEncoder

BATCH = 48
MUON_LR, ADAMW_LR = 0.006, 1e-3
_NOISE = 0.2
_ONE_IMAGE_SHARE = 0.2
_REPORT_EVERY, _SAVE_EVERY = 100, 200


def train_language(state: Path, scenes: Path, seed: int, budget: Budget, log: Log) -> None:
    """Run the stage from where it stands to its end."""
    torch.manual_seed(seed)
    encoder = ChatEncoder(GRID * GRID)
    language, oracle = LanguageModel(len(encoder)), OracleFeatures(encoder.words)
    modules = {"language": language, "oracle": oracle}
    optimizer = Optimizer(modules.values(), MUON_LR, ADAMW_LR)
    load_stage(state / "language.pt", modules, optimizer, budget)
    train, valid = SceneSet(scenes, "train"), SceneSet(scenes, "valid")
    checks = fixed_batches(valid, encoder, Mix(), 160, seed=1)
    simple = batches(train, encoder, ONE_IMAGE, BATCH, f"simple {seed}", budget.step)
    full = batches(train, encoder, Mix(), BATCH, f"full {seed}", budget.step)
    while budget.progress() < 1:
        batch = next(simple if budget.progress() < _ONE_IMAGE_SHARE else full)
        with fast_matmuls():
            logits = answer(batch, train, language, oracle, _NOISE)
        loss = F.cross_entropy(logits.float(), batch.targets)
        loss.backward()
        optimizer.step(budget.warm() * flat_then_linear(budget.progress(), 0.35, 0.1))
        budget.advance()
        if budget.step % 20 == 0:
            log(f"language {budget.step} {budget.spent:.0f}s loss {loss.item():.3f}")
        if budget.step % _REPORT_EVERY == 0:
            score = Score()
            with torch.no_grad():
                for check in checks:
                    score.add(check, answer(check, valid, language, oracle, 0.0))
            log(f"language {budget.step} {score}")
        if budget.step % _SAVE_EVERY == 0:
            save_stage(state / "language.pt", modules, optimizer, budget)
    save_stage(state / "language.pt", modules, optimizer, budget)


def answer(
    batch: Batch, scenes: SceneSet, language: LanguageModel, oracle: OracleFeatures, noise: float
) -> torch.Tensor:
    """Logits of the answers, the images being replaced by the truth."""
    features = None
    if batch.examples:
        features = oracle(scenes.labels(batch.examples), language.embedding, noise).flatten(0, 1)
    return language.logits(language.embed(batch.ids, features), batch.keep)
