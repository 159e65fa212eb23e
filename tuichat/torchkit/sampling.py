"""Logits to the next id.

Owns greedy choice, temperature and nucleus sampling. Refuses to know where logits come from.
Invariant: an id never comes out of logits that are not finite at their top.
"""

from __future__ import annotations

import math

import torch

from tuichat.api import GenerationParams
from tuichat.torchkit.failures import NotFinite


class Sampler:
    """Chooses ids for one reply, with a random generator of its own."""

    def __init__(self, params: GenerationParams, device: torch.device) -> None:
        self._temperature = params.temperature
        self._top_p = params.top_p
        self._generator: torch.Generator | None = None
        if self._temperature > 0:
            self._generator = torch.Generator(device=device)
            if params.seed is None:
                self._generator.seed()
            else:
                self._generator.manual_seed(params.seed)

    def choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, int]:
        """The next id, as a tensor (1,) on the logits' device and as a number.

        Args:
            logits: (vocabulary,), floating.

        Raises:
            NotFinite: NaN or infinity among the logits.
        """
        best = logits.argmax()
        # NaN counts as the largest: one look at the top finds it, and infinity.
        if not math.isfinite(float(logits[best])):
            raise NotFinite(images=False)
        if self._generator is None:
            return best.view(1), int(best)
        chosen = self._sample(logits.float() / self._temperature)
        return chosen, int(chosen)

    def _sample(self, logits: torch.Tensor) -> torch.Tensor:
        probabilities = logits.softmax(dim=-1)
        if self._top_p >= 1:
            return torch.multinomial(probabilities, 1, generator=self._generator)
        ordered, ids = probabilities.sort(descending=True)
        # The smallest set whose probability reaches top_p: what lies before an id counts.
        outside = ordered.cumsum(dim=-1) - ordered >= self._top_p
        outside[0] = False
        ordered = ordered.masked_fill(outside, 0.0)
        return ids[torch.multinomial(ordered, 1, generator=self._generator)]
