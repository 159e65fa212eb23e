"""How many tokens an image takes in LLaVA-NeXT and OneVision: by arithmetic, before any pixel.

Owns the tiling: which resolution an image is scaled to, what padding is cut off again, where
newlines stand, what OneVision scales down. Refuses to know pixels and processors. Invariant: the
count equals the features that the model itself makes of an image of that size. It is checked
against real ones at load, and again for every image that is shown to the model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# OneVision scales the tiles' features down when they are this much more than its limit.
_TOLERANCE = 1.1


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiling of one checkpoint."""

    pixels: int
    """Side of a tile, in pixels: what the vision tower takes."""
    features: int
    """Features along the side of a tile."""
    resolutions: tuple[tuple[int, int], ...]
    """(height, width) in pixels that an image may be scaled to."""
    limit: int | None = None
    """OneVision: beyond the features of this many tiles, they are scaled down. None for NeXT."""

    @classmethod
    def of(cls, config: Any) -> Tiles | None:
        """The tiling that a model's config describes; None if the model makes no tiles."""
        if config.model_type not in ("llava_next", "llava_onevision"):
            return None
        vision = config.vision_config
        limit = None
        if config.model_type == "llava_onevision":
            limit = tile_limit(config.vision_aspect_ratio)
        return cls(
            pixels=vision.image_size,
            features=vision.image_size // vision.patch_size,
            resolutions=tuple((height, width) for height, width in config.image_grid_pinpoints),
            limit=limit,
        )

    def tokens(self, width: int, height: int, together: int = 1) -> int:
        """Tokens of an image of ``width`` × ``height`` pixels.

        Args:
            width: pixels.
            height: pixels.
            together: images in the whole prompt. OneVision cuts an image into tiles only when it
                is alone.
        """
        whole = self.features**2
        if self.limit is not None and together > 1:
            return whole + 1
        rows, columns = self._without_padding(width, height)
        if self.limit is not None:
            excess = math.sqrt(rows * columns / (self.limit * whole))
            if excess > _TOLERANCE:
                rows, columns = int(rows // excess), int(columns // excess)
        # The whole image as one tile, then the tiles' features row by row, each with its newline.
        return whole + rows * columns + rows

    def _without_padding(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of the tiles' features, less those that hold nothing but padding."""
        from transformers.image_processing_utils import select_best_resolution

        best_height, best_width = select_best_resolution((height, width), list(self.resolutions))
        rows = best_height // self.pixels * self.features
        columns = best_width // self.pixels * self.features
        # The operations and their order are the model's: rounding must fall on the same side.
        if width / height > columns / rows:
            used = int(round(height * (columns / width), 7))
            rows -= (rows - used) // 2 * 2
        else:
            used = int(round(width * (rows / height), 7))
            columns -= (columns - used) // 2 * 2
        return rows, columns


def tile_limit(aspect_ratio: str) -> int | None:
    """The number in OneVision's ``anyres_max_9``; None if there is none."""
    found = re.fullmatch(r"anyres_max_(\d+)", aspect_ratio)
    return int(found[1]) if found else None


def token_count(config: Any) -> Callable[[int, int, int], int] | None:
    """Tokens by width, height and images in the prompt; None if every image takes the same."""
    tiles = Tiles.of(config)
    return tiles.tokens if tiles is not None else None
