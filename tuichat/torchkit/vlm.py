"""What torchkit needs of a model.

Owns the ``VisionLanguageModel`` protocol. Refuses to know prompts, sampling, and what stays
between turns. Invariant: the language model is only ever run on embeddings, with explicit
positions and an all-ones mask, so image features go in the same way for every architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from tuichat.api import ModelFacts


@runtime_checkable
class VisionLanguageModel(Protocol):
    """A loaded model that torchkit can align and generate with."""

    @property
    def tokenizer(self) -> Any:
        """transformers tokenizer; decodes what is generated."""
        ...

    @property
    def device(self) -> torch.device:
        """Where embeddings, positions and masks go."""
        ...

    @property
    def facts(self) -> ModelFacts:
        """End ids and context length."""
        ...

    def components(self) -> Mapping[str, nn.Module]:
        """Name → module, in order of the data's way: ``vision tower``, ``projector``,
        ``language model``, ``lm_head``; asked for anew every time."""
        ...

    def image_features(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Features of one image, (n, hidden), from the image processor's output."""
        ...

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token embeddings, (L, hidden), of ids (L,) int64 on ``device``."""
        ...

    def forward(
        self,
        embeds: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        cache: Any,
    ) -> torch.Tensor:
        """Run the language model and let the cache grow.

        Args:
            embeds: (1, L, hidden).
            position_ids: (1, L), or (3, 1, L).
            attention_mask: (1, past + L), all ones.
            cache: what ``new_cache`` returned, holding ``past`` positions.

        Returns:
            Logits of the last position, (vocabulary,), floating.
        """
        ...

    def new_cache(self) -> Any:
        """An empty KV cache."""
        ...
