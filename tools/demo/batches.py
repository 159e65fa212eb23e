"""Batches of dialogues for training, and the exact-match score.

Owns how dialogues are drawn, padded and scored. Refuses to know how they are learnt.

Invariant: a batch depends on seed, rank and step alone; the images of a batch are in the order of
their tokens.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .dataset import SceneSet
from .dialogues import Dialogue, make_dialogue
from .scenes import Scene, Symmetry
from .tokenizer import PAD, ChatEncoder, Encoded

Example = tuple[int, Symmetry, Scene]
_WIDTH_STEP = 32
_POOL = 8  # batches that are sorted by length together


@dataclass(frozen=True)
class Mix:
    """Shares of dialogues with one, two, ... images; turns one to six; share without an image."""

    images: tuple[float, ...] = (60, 32, 6, 2)
    turns: tuple[float, ...] = (8, 10, 14, 20, 24, 24)
    blind: float = 0.05


ONE_IMAGE = Mix(images=(1,), blind=0.03)


@dataclass(frozen=True)
class Batch:
    """Right-padded ids, where answers are predicted, what they are, and the images."""

    ids: Tensor
    keep: Tensor
    targets: Tensor
    examples: list[Example]
    dialogues: list[Dialogue]


def draw_dialogue(
    rng: random.Random, scenes: SceneSet, mix: Mix, held_out: bool = False
) -> tuple[Dialogue, list[Example]]:
    """One dialogue and the images that it shows, in order."""
    count = rng.choices(range(1, len(mix.images) + 1), mix.images)[0]
    turns = rng.choices(range(1, len(mix.turns) + 1), mix.turns)[0]
    examples = [scenes.draw(rng) for _ in range(count)]
    blind = rng.random() < mix.blind
    dialogue = make_dialogue(rng, [s for _, _, s in examples], turns, blind, held_out)
    return dialogue, [] if blind else examples


def _collate(drawn: list[tuple[Encoded, Dialogue, list[Example]]]) -> Batch:
    # Few distinct widths: the kernels are compiled, and kept, for each shape.
    width = -(-max(len(encoded.ids) for encoded, _, _ in drawn) // _WIDTH_STEP) * _WIDTH_STEP
    ids = torch.full((len(drawn), width), PAD)
    trained = torch.zeros(len(drawn), width, dtype=torch.bool)
    for i, (encoded, _, _) in enumerate(drawn):
        ids[i, : len(encoded.ids)] = torch.tensor(encoded.ids)
        trained[i, : len(encoded.ids)] = torch.tensor(encoded.trained)
    keep = torch.zeros_like(trained)
    keep[:, :-1] = trained[:, 1:]
    examples = [example for _, _, group in drawn for example in group]
    return Batch(ids, keep, ids[trained], examples, [dialogue for _, dialogue, _ in drawn])


def batches(
    scenes: SceneSet, encoder: ChatEncoder, mix: Mix, size: int, key: str, first: int = 0
) -> Iterator[Batch]:
    """Endless batches from step `first` on; dialogues of like length share a batch."""
    pool = first // _POOL
    while True:
        # The order is the same for every rank, so that all have batches of like length at once.
        order = list(range(_POOL))
        random.Random(f"order {pool}").shuffle(order)
        rng = random.Random(f"{key} {pool}")
        drawn = []
        for _ in range(_POOL * size):
            dialogue, examples = draw_dialogue(rng, scenes, mix)
            drawn.append((encoder.encode(dialogue), dialogue, examples))
        drawn.sort(key=lambda item: len(item[0].ids))
        for place in order[first - pool * _POOL :]:
            yield _collate(drawn[place * size : (place + 1) * size])
        pool += 1
        first = pool * _POOL


def fixed_batches(
    scenes: SceneSet, encoder: ChatEncoder, mix: Mix, count: int, seed: int, size: int = 32
) -> list[Batch]:
    """Batches for scoring, the same every time."""
    rng = random.Random(f"score {seed}")
    drawn = []
    for _ in range(count):
        dialogue, examples = draw_dialogue(rng, scenes, mix, held_out=True)
        drawn.append((encoder.encode(dialogue), dialogue, examples))
    drawn.sort(key=lambda item: len(item[0].ids))
    return [_collate(drawn[i : i + size]) for i in range(0, count, size)]


class Score:
    """Share of answers that are right to the last token, by kind of question."""

    def __init__(self) -> None:
        self._right: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    def add(self, batch: Batch, logits: Tensor) -> None:
        """Count one batch, teacher-forced: whole answers agree with greedy generation."""
        right = torch.ones_like(batch.keep)
        right[batch.keep] = logits.argmax(-1) == batch.targets
        for row, dialogue in enumerate(batch.dialogues):
            places = batch.keep[row].nonzero()[:, 0]
            starts = [0, *((places.diff() > 1).nonzero()[:, 0] + 1).tolist(), len(places)]
            for turn, begin, end in zip(dialogue.turns, starts, starts[1:], strict=False):
                tally = self._right[turn.kind]
                tally[0] += int(right[row, places[begin:end]].all())
                tally[1] += 1

    @property
    def total(self) -> float:
        """Over all questions."""
        return sum(r for r, _ in self._right.values()) / sum(n for _, n in self._right.values())

    def __str__(self) -> str:
        ranked = sorted(self._right.items(), key=lambda item: -item[1][1])
        kinds = ", ".join(f"{kind} {100 * r / n:.0f}({n})" for kind, (r, n) in ranked)
        return f"exact {self.total:.3f}: {kinds}"
