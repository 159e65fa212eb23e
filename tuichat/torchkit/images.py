"""Images on their way into a vision tower.

Owns an image processor's output, one image at a time, and how many tokens it takes. Refuses to know
models: it is given a function that makes features. Invariant: the number of an image's tokens is
either counted on the model's real features, or by arithmetic that agreed with them at load; it is
never computed from a processor's settings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from PIL import Image as PILImage

from tuichat.api import BackendError, Image, ImageRefused
from tuichat.torchkit.reuse import ByteBoundedCache, tensor_bytes

log = logging.getLogger(__name__)

INPUT_BYTES = 128 << 20
"""Bound on the processed images that are kept of one model, in bytes."""

TokenCount = Callable[[int, int, int], int]
"""Width and height of an image in pixels, images in the whole prompt → tokens of the image."""

_Inputs = Mapping[str, Any]

# An image beyond this aspect is cut around its middle before a processor that looks only at the
# middle square: scaling the short side up first would need gigabytes.
_MAX_ASPECT = 16

# A processor that answers with this treats an image that is alone in its prompt differently.
_GROUPED = "batch_num_images"

# An image with a longer side is scaled down before a processor that pads it to a square.
_MAX_PADDED = 8192


class ProcessedImages:
    """The image processor of one model, one image at a time, with what it made kept by digest."""

    def __init__(
        self,
        processor: Any,
        features: Callable[[_Inputs], torch.Tensor],
        count: TokenCount | None = None,
    ) -> None:
        """Stand between a processor and a model.

        Args:
            processor: transformers image processor.
            features: its output for one image → (n, hidden).
            count: tokens by arithmetic, for models whose images differ; checked by ``warm_up``.
        """
        self._processor = processor
        self._features = features
        self._count = count
        self._square = 0
        self._lengths: dict[str, int] = {}
        self._kept: ByteBoundedCache[tuple[_Inputs, int]] = ByteBoundedCache(
            INPUT_BYTES, _inputs_bytes
        )

    def inputs(self, image: Image, together: int = 1) -> tuple[_Inputs, int]:
        """The processor's output for one image, and how many tokens the image takes.

        Args:
            image: what to process; the output is kept by its digest, within ``INPUT_BYTES``.
            together: images in the whole prompt, this one counted.

        Raises:
            ImageRefused: the image cannot be decoded or processed.
        """
        key = image.digest, self._grouped(together)
        if (known := self._kept.get(key)) is not None:
            return known
        try:
            pixels = image.open()
            inputs = self._process(pixels, together)
        except (OSError, ValueError) as error:
            raise ImageRefused(
                f"{image.name} ({image.width} × {image.height}) cannot be prepared for this "
                f"model: {error}; remove it or attach another image"
            ) from error
        if self._count is None:
            length = self._counted(inputs)
        else:
            length = self._count(*pixels.size, together)
        self._kept.put(key, (inputs, length))
        return inputs, length

    def tokens(self, width: int, height: int, together: int = 1) -> int:
        """Tokens that an image of ``width`` × ``height`` pixels takes. Arithmetic only.

        Without arithmetic of the model's own this is what ``warm_up`` counted, which is right for
        a processor that makes one size of every image.
        """
        return self._square if self._count is None else self._count(width, height, together)

    def warm_up(self) -> None:
        """Run the vision tower and the projector once, and hold the arithmetic against it.

        Raises:
            BackendError: the arithmetic counts other than the model.
        """
        blank = PILImage.new("RGB", (64, 64), (127, 127, 127))
        self._square = self._counted(self._process(blank, 1))
        if self._count is not None and (counted := self._count(64, 64, 1)) != self._square:
            raise BackendError(
                f"the model makes {self._square} tokens of an image for which the backend counts "
                f"{counted}: its config.json does not describe its image tiles; use another model"
            )

    def _grouped(self, together: int) -> bool:
        return together > 1 and _GROUPED in self._processor.model_input_names

    def _process(self, pixels: PILImage.Image, together: int) -> _Inputs:
        """The processor's output for one image, as tensors whose first axis is 1."""
        if not self._grouped(together):
            pixels = _middle(pixels, self._processor)
            return dict(self._processor(images=[pixels], return_tensors="pt"))
        # What it makes of one image depends on whether there are others: one more, as small as can
        # be, stands for them.
        if max(pixels.size) > _MAX_PADDED:
            pixels = pixels.copy()
            pixels.thumbnail((_MAX_PADDED, _MAX_PADDED))
        other = PILImage.new("RGB", (1, 1))
        both = self._processor(images=[[pixels, other]], return_tensors="pt")
        return {name: value if name == _GROUPED else value[:1] for name, value in both.items()}

    def _counted(self, inputs: _Inputs) -> int:
        """How many features the model makes of these inputs.

        Counted on the real features, once for every shape of inputs: class tokens and feature
        selection are the model's own business.
        """
        key = str(
            [
                (name, value.shape, None if value.is_floating_point() else value.tolist())
                for name, value in sorted(inputs.items())
                if isinstance(value, torch.Tensor)
            ]
        )
        if key not in self._lengths:
            with torch.inference_mode():
                self._lengths[key] = self._features(inputs).shape[0]
        return self._lengths[key]


def _inputs_bytes(value: tuple[_Inputs, int]) -> int:
    return sum(tensor_bytes(t) for t in value[0].values() if isinstance(t, torch.Tensor))


def _middle(image: PILImage.Image, processor: Any) -> PILImage.Image:
    """The image, or its middle if a processor that crops the middle square gets a very long one."""
    width, height = image.size
    short = min(width, height)
    crops = getattr(processor, "do_center_crop", False)
    # One that makes tiles looks at the whole image; what it crops are the tiles.
    tiles = getattr(processor, "image_grid_pinpoints", None)
    if max(width, height) <= _MAX_ASPECT * short or not crops or tiles:
        return image
    keep = _MAX_ASPECT * short
    left, top = (width - min(width, keep)) // 2, (height - min(height, keep)) // 2
    return image.crop((left, top, left + min(width, keep), top + min(height, keep)))
