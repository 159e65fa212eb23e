"""``VisionLanguageModel`` for the models of transformers.

Owns how such a model is taken apart and run, and its processed images. Refuses to know which
architecture it is: everything is asked of the model's own methods. Invariant: the number of an
image's tokens is counted on the model's real features, never computed from a processor's settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tuichat.api import BackendError, Image, ImageRefused, ModelFacts
from tuichat.torchkit.alignment import AlignmentPlan
from tuichat.torchkit.reuse import ByteBoundedCache, tensor_bytes
from tuichat.torchkit.template import ChatTemplate

INPUT_BYTES = 128 << 20
"""Bound on the processed images that are kept of one model, in bytes."""

# An image beyond this aspect is cut around its middle before a processor that looks only at the
# middle square: scaling the short side up first would need gigabytes.
_MAX_ASPECT = 16


class HubVisionLanguageModel:
    """Any transformers model with ``get_image_features``.

    Beyond the protocol it carries what a plugin of thirty lines needs: the chat template, the
    image processor and the alignment plan.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any,
        image_processor: Any,
        template: ChatTemplate,
        facts: ModelFacts,
        folder: Path,
    ) -> None:
        self.model = model
        self.image_processor = image_processor
        self.template = template
        self.folder = folder
        self.plan: AlignmentPlan | None = None
        """Set once after the load; ``align`` keeps the model to it."""
        self.square_tokens = 0
        """Tokens that a square image takes; set by ``warm_up``."""
        self._tokenizer = tokenizer
        self._facts = facts
        self._device: torch.device = model.get_input_embeddings().weight.device
        self._inputs: ByteBoundedCache[tuple[Mapping[str, Any], int]] = ByteBoundedCache(
            INPUT_BYTES, _inputs_bytes
        )
        self._lengths: dict[str, int] = {}

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer."""
        return self._tokenizer

    @property
    def device(self) -> torch.device:
        """The device of the token embeddings."""
        return self._device

    @property
    def facts(self) -> ModelFacts:
        """What the checkpoint says of itself."""
        return self._facts

    def components(self) -> Mapping[str, nn.Module]:
        """The parts that this model really has."""
        return hub_components(self.model)

    def image_features(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Features of one image, (n, hidden)."""
        on_device = {
            key: value.to(self._device) if isinstance(value, torch.Tensor) else value
            for key, value in inputs.items()
        }
        features = self.model.get_image_features(**on_device, return_dict=True).pooler_output
        if isinstance(features, torch.Tensor):
            return features.reshape(-1, features.shape[-1])
        return torch.cat([part.reshape(-1, part.shape[-1]) for part in features])

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token embeddings, (L, hidden)."""
        embeds: torch.Tensor = self.model.get_input_embeddings()(ids)
        return embeds

    def forward(
        self,
        embeds: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        cache: Any,
    ) -> torch.Tensor:
        """Logits of the last position, (vocabulary,)."""
        logits: torch.Tensor = self.model(
            inputs_embeds=embeds,
            position_ids=position_ids,
            attention_mask=attention_mask,
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return logits[0, -1]

    def new_cache(self) -> Any:
        """An empty ``DynamicCache`` of this model's layers."""
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    # ------------------------------------------------------------------ images

    def image_inputs(self, image: Image) -> tuple[Mapping[str, Any], int]:
        """The processor's output for one image, and how many tokens the image takes.

        Processed images are kept by digest, within ``INPUT_BYTES``.

        Raises:
            ImageRefused: the image cannot be decoded or processed.
        """
        if (known := self._inputs.get(image.digest)) is not None:
            return known
        try:
            pixels = _middle(image.open(), self.image_processor)
            inputs = dict(self.image_processor(images=[pixels], return_tensors="pt"))
        except (OSError, ValueError) as error:
            raise ImageRefused(
                f"{image.name} ({image.width} × {image.height}) cannot be prepared for this "
                f"model: {error}; remove it or attach another image"
            ) from error
        value = inputs, self.feature_count(inputs)
        self._inputs.put(image.digest, value)
        return value

    def warm_up(self) -> int:
        """Run the vision tower and the projector once; tokens of a square image.

        Raises:
            BackendError: components do not fit together.
        """
        from PIL import Image as PILImage

        blank = PILImage.new("RGB", (64, 64), (127, 127, 127))
        self.square_tokens = self.feature_count(
            dict(self.image_processor(images=[blank], return_tensors="pt"))
        )
        return self.square_tokens

    def feature_count(self, inputs: Mapping[str, Any]) -> int:
        """How many features the model makes of these inputs.

        Counted on the real features, once for every shape of inputs: class tokens, feature
        selection and tiles are the model's own business.
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
                self._lengths[key] = self.image_features(inputs).shape[0]
        return self._lengths[key]


def hub_components(model: Any) -> dict[str, nn.Module]:
    """The components of a transformers vision-language model, by their names here."""
    found: dict[str, nn.Module | None] = {
        "vision tower": _other_than(model, model.get_encoder(modality="image")),
        "projector": next(
            (
                getattr(model.base_model, name)
                for name in ("multi_modal_projector", "connector", "projector", "mm_projector")
                if isinstance(getattr(model.base_model, name, None), nn.Module)
            ),
            None,
        ),
        "language model": _other_than(model, model.get_decoder()),
        "lm_head": model.get_output_embeddings(),
    }
    if found["vision tower"] is None or found["language model"] is None:
        raise BackendError(
            f"{type(model).__name__} has no vision tower or no language model that torchkit "
            "could find; a backend for it needs its own VisionLanguageModel"
        )
    return {name: module for name, module in found.items() if module is not None}


def _other_than(model: Any, module: Any) -> nn.Module | None:
    return module if isinstance(module, nn.Module) and module is not model else None


def _inputs_bytes(value: tuple[Mapping[str, Any], int]) -> int:
    return sum(tensor_bytes(t) for t in value[0].values() if isinstance(t, torch.Tensor))


def _middle(image: Any, processor: Any) -> Any:
    """The image, or its middle if a processor that crops the middle square gets a very long one."""
    width, height = image.size
    short = min(width, height)
    if max(width, height) <= _MAX_ASPECT * short or not getattr(processor, "do_center_crop", False):
        return image
    keep = _MAX_ASPECT * short
    left, top = (width - min(width, keep)) // 2, (height - min(height, keep)) // 2
    return image.crop((left, top, left + min(width, keep), top + min(height, keep)))
