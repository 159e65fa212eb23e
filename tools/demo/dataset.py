"""The rendered scenes as arrays, and the dense labels of their patches.

Owns batches: pixels as the image processor would give them, under a symmetry drawn by lot and
with slight changes of brightness and noise, and for each patch what covers it. Refuses to know
dialogues and models.

Invariant: pixels, labels and the `Scene` returned for an example are under the same symmetry.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .render import GRID, IMAGE_SIZE, NO_OWNER, scene_from_json
from .scenes import COLORS, KINDS, SYMMETRIES, Scene, Symmetry, column, row, size_name

# Pixels reach the vision tower as -5 to 5. CLIP's own figures would do as well, but the layer norm
# behind the patch embedding makes up for a client that forgets them; it cannot for a tenth.
IMAGE_MEAN = (0.5, 0.5, 0.5)
IMAGE_STD = (0.1, 0.1, 0.1)
GROUND_COLORS = (*COLORS, "grey")
TONES = ("light", "dark")
IGNORE = -100


@dataclass(frozen=True)
class PatchLabels:
    """What each patch shows, (batch, patches) each; `IGNORE` where there is nothing to say."""

    kind: Tensor  # 0 none, then KINDS
    color: Tensor  # 0 none, then COLORS
    size: Tensor  # 0 small, 1 big
    column: Tensor
    row: Tensor
    center: Tensor  # 1 on the patch that holds a shape's centre
    ground: Tensor  # index into GROUND_COLORS, on patches without a shape
    tone: Tensor  # 0 plain, then TONES
    xy: Tensor  # (batch, patches, 2): the centre of the covering shape, 0 elsewhere


def _transform(pixels: np.ndarray, symmetry: Symmetry) -> np.ndarray:
    """Apply a symmetry to an array whose first two axes are y and x."""
    if symmetry.transpose:
        pixels = pixels.swapaxes(0, 1)
    return pixels[:: -1 if symmetry.flip_y else 1, :: -1 if symmetry.flip_x else 1]


def normalize(pixels: np.ndarray) -> Tensor:
    """(n, height, width, 3) in 0..255 to the (n, 3, height, width) that a vision tower takes."""
    mean, std = np.float32(IMAGE_MEAN) * 255, np.float32(IMAGE_STD) * 255
    normal = (pixels.astype(np.float32) - mean) / std
    return torch.from_numpy(np.ascontiguousarray(normal.transpose(0, 3, 1, 2)))


def label_patches(scenes: list[Scene], owners: np.ndarray) -> PatchLabels:
    """Labels of the patches, from the facts of each scene and the owner of each patch."""
    count, patches = owners.shape
    fields = {
        name: np.full((count, patches), IGNORE, dtype=np.int64)
        for name in ("size", "column", "row", "ground", "tone")
    }
    kind, color, center = (np.zeros((count, patches), dtype=np.int64) for _ in range(3))
    xy = np.zeros((count, patches, 2), dtype=np.float32)
    for i, scene in enumerate(scenes):
        if scene.background.name is not None:
            *tone, name = scene.background.name.split()
            free = owners[i] == NO_OWNER
            fields["ground"][i, free] = GROUND_COLORS.index(name)
            fields["tone"][i, free] = TONES.index(tone[0]) + 1 if tone else 0
        for index, shape in enumerate(scene.shapes):
            own = owners[i] == index
            kind[i, own] = KINDS.index(shape.kind) + 1
            color[i, own] = COLORS.index(shape.color) + 1
            xy[i, own] = (shape.x, shape.y)
            center[i, int(shape.y * GRID) * GRID + int(shape.x * GRID)] = 1
            size, col, line = size_name(shape), column(shape), row(shape)
            if size is not None:
                fields["size"][i, own] = int(size == "big")
            if col is not None:
                fields["column"][i, own] = col
            if line is not None:
                fields["row"][i, own] = line
    tensors = {name: torch.from_numpy(array) for name, array in fields.items()}
    rest = (torch.from_numpy(array) for array in (kind, color, center, xy))
    return PatchLabels(**tensors, **dict(zip(("kind", "color", "center", "xy"), rest, strict=True)))


class SceneSet:
    """All shards of a split, in memory."""

    def __init__(self, folder: Path, split: str) -> None:
        names = sorted(folder.glob(f"{split}*.npz"))
        shards = [np.load(name) for name in names if not name.name.endswith(".part.npz")]
        self.pixels = np.concatenate([shard["pixels"] for shard in shards])
        self.owners = np.concatenate([shard["owners"] for shard in shards])
        self.scenes: list[Scene] = []
        for name in sorted(folder.glob(f"{split}*.jsonl")):
            lines = name.read_text(encoding="utf-8").splitlines()
            self.scenes += [scene_from_json(line) for line in lines]

    def __len__(self) -> int:
        return len(self.scenes)

    def draw(self, rng: random.Random) -> tuple[int, Symmetry, Scene]:
        """An example: which image, under which symmetry, and what is then true of it."""
        index = rng.randrange(len(self.scenes))
        symmetry = rng.choice(SYMMETRIES)
        return index, symmetry, symmetry.apply(self.scenes[index])

    def images(self, examples: list[tuple[int, Symmetry]], noise: np.random.Generator) -> Tensor:
        """Pixel values of the examples, slightly altered."""
        count = len(examples)
        pixels = np.empty((count, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.float32)
        for i, (index, symmetry) in enumerate(examples):
            pixels[i] = _transform(self.pixels[index], symmetry)
        shape = (count, 1, 1, 1)
        pixels *= noise.uniform(0.94, 1.04, shape).astype(np.float32)
        pixels += noise.uniform(-5, 5, (count, 1, 1, 3)).astype(np.float32)
        strength = noise.uniform(0, 4, shape) * (noise.random(shape) < 0.3)
        grain = noise.standard_normal(pixels.shape, dtype=np.float32)
        pixels += grain * strength.astype(np.float32)
        return normalize(pixels.clip(0, 255))

    def labels(self, examples: list[tuple[int, Symmetry, Scene]]) -> PatchLabels:
        """Patch labels of the examples."""
        owners = np.stack([
            _transform(self.owners[index].reshape(GRID, GRID), symmetry).reshape(-1)
            for index, symmetry, _ in examples
        ])  # fmt: skip
        return label_patches([scene for _, _, scene in examples], owners)
