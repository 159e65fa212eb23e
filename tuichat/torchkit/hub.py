"""``VisionLanguageModel`` for the models of transformers.

Owns how such a model is taken apart and run. Refuses to know which architecture it is: everything
is asked of the model's own methods. Invariant: every floating parameter that an image's features
pass on their way belongs to a component, so alignment sees all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tuichat.api import BackendError, Image, ModelFacts
from tuichat.torchkit.alignment import AlignmentPlan
from tuichat.torchkit.images import ProcessedImages, TokenCount
from tuichat.torchkit.template import ChatTemplate


class HubVisionLanguageModel:
    """Any transformers model with ``get_image_features``.

    Beyond the protocol it carries what a plugin of thirty lines needs: the chat template, the
    images' processor and the alignment plan.
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
        count_tokens: TokenCount | None = None,
    ) -> None:
        self.model = model
        self.image_processor = image_processor
        self.template = template
        self.folder = folder
        self.plan: AlignmentPlan | None = None
        """Set once after the load; ``align`` keeps the model to it."""
        self._tokenizer = tokenizer
        self._facts = facts
        self._device: torch.device = model.get_input_embeddings().weight.device
        # Not this object's own method: nothing may keep a model that is let go of.
        features = partial(_image_features, model, self._device)
        self.images = ProcessedImages(image_processor, features, count_tokens)
        """Images as the vision tower takes them, and what they cost."""
        self._loose: dict[str, nn.ParameterList] = {}

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
        """The parts that this model really has.

        A parameter that stands between them and in none (``image_newline``, the embedding behind
        each row of tiles) is a component by itself, ``image newline``.
        """
        found = hub_components(self.model)
        behind = ("language model", "lm_head")
        language = {name: found.pop(name) for name in behind if name in found}
        for name, parameter in self.model.base_model.named_parameters(recurse=False):
            # One module for as long as the parameter is the same: alignment knows it again.
            kept = self._loose.get(name)
            if kept is None or kept[0] is not parameter:
                kept = self._loose[name] = nn.ParameterList([parameter])
            found[name.replace("_", " ")] = kept
        return {**found, **language}

    def image_features(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Features of one image, (n, hidden)."""
        return _image_features(self.model, self._device, inputs)

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

    def image_inputs(self, image: Image, together: int = 1) -> tuple[Mapping[str, Any], int]:
        """The processor's output for one of ``together`` images of a prompt, and its tokens.

        Raises:
            ImageRefused: the image cannot be decoded or processed.
        """
        return self.images.inputs(image, together)


def _image_features(model: Any, device: torch.device, inputs: Mapping[str, Any]) -> torch.Tensor:
    on_device = {
        key: value.to(device) if isinstance(value, torch.Tensor) else value
        for key, value in inputs.items()
    }
    features = model.get_image_features(**on_device, return_dict=True).pooler_output
    if isinstance(features, torch.Tensor):
        return features.reshape(-1, features.shape[-1])
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in features])


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
