"""One reply, from prompt to text.

Owns prefill and decoding for every handle that is a ``VisionLanguageModel``. Refuses to know
roles, templates and the store. Invariants: what the cache of an earlier turn serves is not computed
again and changes no token; positions and an all-ones mask are always passed; once the reader asked
to stop, at most one more forward pass runs; a failure leaves a model that answers the next turn; no
text is made of numbers that are not finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from tuichat.api import (
    BackendError,
    Control,
    Delta,
    GenerationParams,
    Prompt,
    PromptTooLong,
    Span,
    StopReason,
    Usage,
)
from tuichat.torchkit.detokenize import TextStream
from tuichat.torchkit.failures import NotFinite, generation_failure, release_memory
from tuichat.torchkit.overflow import widen
from tuichat.torchkit.reuse import Layout, state_of
from tuichat.torchkit.sampling import Sampler
from tuichat.torchkit.vlm import VisionLanguageModel

PREFILL_CHUNK = 512
"""Positions computed between two looks at ``control.stopped``."""


def generate(
    model: VisionLanguageModel, prompt: Prompt, params: GenerationParams, control: Control
) -> Iterator[Delta]:
    """Answer a prompt: one delta for each piece of text, the last one with usage and reason.

    Raises, when the first delta is asked for or later:
        PromptTooLong: nothing is left of the model's context.
        GenerationError: the model failed, with the reason and what to do.
        BackendError: the prompt contradicts itself or the model.
    """
    try:
        yield from _Reply(model, prompt, params, control).run()
        return
    except BackendError:
        raise
    except Exception as error:
        failure = generation_failure(error, model.device, len(prompt.ids))
    # Outside of the handler: the new error must not lead to the old one, whose frames hold tensors.
    state_of(model).clear()
    release_memory(model.device)
    raise failure


def layout_of(prompt: Prompt) -> Layout:
    """A prompt's ids, positions and spans as tensors on the CPU.

    Raises:
        BackendError: lengths that do not agree, or spans that overlap or leave the prompt.
    """
    ids = torch.tensor(prompt.ids, dtype=torch.int64)
    length = ids.shape[0]
    if prompt.position_ids is None:
        positions = torch.arange(length).view(1, -1)
    else:
        positions = torch.tensor(prompt.position_ids, dtype=torch.int64)
        positions = positions.view(-1, positions.shape[-1])
    if positions.shape[1] != length or length == 0:
        raise BackendError(
            f"the backend assembled a prompt of {length} ids with {positions.shape[1]} positions; "
            "both must be the same number, and not 0"
        )
    spans = tuple(sorted(prompt.spans, key=lambda span: span.start))
    end = 0
    for span in spans:
        if span.start < end or span.length < 1 or span.start + span.length > length:
            raise BackendError(
                f"the backend placed an image at positions {span.start} to "
                f"{span.start + span.length} of a prompt of {length}, where it cannot be"
            )
        end = span.start + span.length
    return Layout(ids, positions, spans)


class _Reply:
    """The generation of one reply."""

    def __init__(
        self,
        model: VisionLanguageModel,
        prompt: Prompt,
        params: GenerationParams,
        control: Control,
    ) -> None:
        self._model = model
        self._control = control
        self._state = state_of(model)
        self._layout = layout_of(prompt)
        self._length = len(self._layout)
        self._budget = _budget(model, self._length, params.max_new_tokens)
        self._sampler = Sampler(params, model.device)
        self._next_position = (
            int(self._layout.positions.max()) + 1
            if prompt.next_position is None
            else prompt.next_position
        )
        self._usage = Usage(prompt_tokens=self._length, image_tokens=prompt.image_tokens)
        self._cache: Any = None
        self._computed = 0
        """Positions of the prompt and of the reply that the cache holds."""
        self._new_ids: list[int] = []

    def run(self) -> Iterator[Delta]:
        text = TextStream(self._model.tokenizer)
        reason: StopReason = "stopped"
        try:
            if (first := self._first()) is not None:
                for id in self._ids(*first):
                    reason = "length"
                    if id in self._model.facts.end_ids:
                        reason = "end"
                        break
                    if piece := text.push(id):
                        yield Delta(text=piece)
                    if self._control.stopped:
                        reason = "stopped"
                        break
        except GeneratorExit:
            self._remember()
            raise
        self._remember()
        usage = replace(self._usage, new_tokens=len(self._new_ids))
        rest = text.finish(complete=reason == "end")
        yield Delta(text=rest, usage=usage, stop_reason=reason)

    # ------------------------------------------------------------------ prefill

    def _first(self) -> tuple[torch.Tensor, int] | None:
        """The first id, as a tensor and as a number; None if stopped before it was computed."""
        while True:
            self._cache, self._computed = self._state.take(self._layout, self._model.new_cache)
            self._usage = replace(self._usage, reused_tokens=self._computed)
            try:
                logits = self._prefill()
                return None if logits is None else self._sampler.choose(logits)
            except NotFinite as overflow:
                # Nothing was shown yet, so the turn can begin again: once for each side.
                if not widen(self._model, overflow):
                    raise
            self._state = state_of(self._model)

    @torch.inference_mode()
    def _prefill(self) -> torch.Tensor | None:
        """Compute what the cache does not hold; logits of the last position, None if stopped."""
        model, device, start = self._model, self._model.device, self._computed
        # The kept prefix ends inside no span: each image is behind it or wholly before us.
        images = [
            (span, slice(span.start - start, span.start - start + span.length))
            for span in self._layout.spans
            if span.start >= start
        ]
        ids = self._layout.ids[start:].clone()
        for _, place in images:
            # Placeholder ids can lie outside of the embedding table; features stand there anyway.
            ids[place] = 0
        embeds = model.embed(ids.to(device))
        for span, place in images:
            if self._control.stopped:
                return None
            features = self._features(span)
            embeds[place] = features.to(device=embeds.device, dtype=embeds.dtype)
        positions = _model_positions(self._layout.positions[:, start:].to(device))
        mask = torch.ones(1, self._length, dtype=torch.bool, device=device)
        logits = None
        for begin in range(start, self._length, PREFILL_CHUNK):
            if self._control.stopped:
                return None
            end = min(begin + PREFILL_CHUNK, self._length)
            logits = model.forward(
                embeds[None, begin - start : end - start],
                positions[..., begin - start : end - start],
                mask[:, :end],
                self._cache,
            )
            self._computed = end
        return logits

    def _features(self, span: Span) -> torch.Tensor:
        """Features of one image, (length, hidden), from the cache or the vision tower."""
        # A model may make more than one thing of an image: OneVision's tiles are for one that is
        # alone in its prompt. The lengths tell them apart.
        key = span.digest, span.length
        features = self._state.features.get(key)
        if features is None:
            features = self._model.image_features(span.inputs)
            if not bool(features.isfinite().all()):
                raise NotFinite(images=True)
            self._state.features.put(key, features)
        if features.shape[0] != span.length:
            raise BackendError(
                f"an image takes {span.length} tokens of the prompt, but the model makes "
                f"{features.shape[0]} features of it; the backend counts image tokens wrongly"
            )
        return features

    # ------------------------------------------------------------------ decoding

    def _ids(self, chosen: torch.Tensor, id: int) -> Iterator[int]:
        """The reply's ids from the first on, each computed only when it is asked for."""
        device = self._model.device
        steps = torch.arange(self._budget, device=device).view(1, -1) + self._next_position
        positions = _model_positions(steps.expand(self._layout.positions.shape[0], -1))
        mask = torch.ones(1, self._length + self._budget, dtype=torch.bool, device=device)
        self._new_ids.append(id)
        yield id
        for step in range(self._budget - 1):
            chosen, id = self._step(
                chosen, positions[..., step : step + 1], mask[:, : self._length + step + 1]
            )
            self._new_ids.append(id)
            yield id

    @torch.inference_mode()
    def _step(
        self, chosen: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        embeds = self._model.embed(chosen)
        logits = self._model.forward(embeds[None], positions, mask, self._cache)
        self._computed += 1
        return self._sampler.choose(logits)

    def _remember(self) -> None:
        """Leave the cache to the next turn, with what stands in it."""
        layout, computed = self._layout, self._computed
        if computed > self._length:
            extra = computed - self._length
            steps = torch.arange(extra).view(1, -1) + self._next_position
            layout = Layout(
                torch.cat([layout.ids, torch.tensor(self._new_ids[:extra], dtype=torch.int64)]),
                torch.cat([layout.positions, steps.expand(layout.positions.shape[0], -1)], dim=1),
                layout.spans,
            )
        spans = tuple(span for span in layout.spans if span.start < computed)
        kept = Layout(layout.ids[:computed], layout.positions[:, :computed], spans)
        self._state.keep(self._cache, kept)
        self._cache = None


def _model_positions(positions: torch.Tensor) -> torch.Tensor:
    """(rows, L) as a model takes it: (1, L), or (3, 1, L) for several rows."""
    return positions if positions.shape[0] == 1 else positions[:, None]


def _budget(model: VisionLanguageModel, length: int, wanted: int) -> int:
    """How many ids may be generated."""
    context = model.facts.context_length
    if context is None:
        return max(wanted, 1)
    if length >= context:
        raise PromptTooLong(
            f"the prompt takes {length} tokens and the model has room for {context}, answer "
            "included: send a shorter message, or fewer images"
        )
    return max(min(wanted, context - length), 1)
