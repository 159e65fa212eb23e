"""Whether a model fits, before a byte of its weights is read.

Owns the arithmetic of what a loaded model takes, and the sentence about what would fit. Refuses to
know how anything is loaded. Invariants: the bytes of the weights are those that the tensors really
have after the load, quantised or not; a model is refused only when what it takes is more than what
is free, without any margin, and nothing is advised that would not fit either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch

from tuichat.api import BackendError, KnownModel, LoadRequest, Quantisation
from tuichat.torchkit.checkpoint import StoredTensor
from tuichat.torchkit.dtype import resolve_dtype

CACHED_TOKENS = 8192
"""A longer context is not counted to its end: few conversations go there."""

FreeMemory = Callable[[torch.device], int | None]
"""Device → bytes that are free on it, or None where that cannot be told."""

# The first of these words in a tensor's name tells its component; all else is the language model.
_COMPONENTS = {
    "vision": "vision tower",
    "visual": "vision tower",
    "projector": "projector",
    "connector": "projector",
    "image_newline": "image newline",
    "lm_head": "lm_head",
}

# bitsandbytes, nf4 with double quantisation: half a byte a weight; a byte of scale for each block;
# a float32 of scale for each block of those scales; and a float32 offset and two code tables.
_BLOCK = 64
_BLOCK_OF_SCALES = 256
_TABLES_4BIT = 4 * (1 + 16 + 256)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of memory that a loaded model takes on its device."""

    weights: Mapping[str, int]
    """By component."""
    cache: int
    """KV cache of the context, up to ``CACHED_TOKENS``."""
    features: int
    """Features of as many images as that context can hold."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.weights.values()) + self.cache + self.features


def footprint(
    stored: Mapping[str, StoredTensor],
    config: Any,
    dtype: torch.dtype,
    quantisation: Quantisation = "none",
) -> Footprint:
    """What a checkpoint takes once it is loaded.

    Args:
        stored: its tensors, by name.
        config: transformers config of the whole model.
        dtype: working dtype, of weights, cache and features.
        quantisation: of the language model's layers.
    """
    text = config.get_text_config()
    as_stored = getattr(config, "quantization_config", None) is not None
    weights: dict[str, int] = {}
    for name, tensor in stored.items():
        component = _component(name)
        if component == "lm_head" and text.tie_word_embeddings:
            continue
        weights[component] = weights.get(component, 0) + (
            tensor.bytes if as_stored else _loaded_bytes(name, tensor, dtype, quantisation)
        )
    heads = text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    entries = 2 * text.num_hidden_layers * (getattr(text, "num_key_value_heads", heads)) * width
    tokens = min(getattr(text, "max_position_embeddings", CACHED_TOKENS), CACHED_TOKENS)
    return Footprint(
        weights,
        cache=tokens * entries * dtype.itemsize,
        features=tokens * text.hidden_size * dtype.itemsize,
    )


def _component(name: str) -> str:
    places = {name.find(word): component for word, component in _COMPONENTS.items() if word in name}
    return places[min(places)] if places else "language model"


def _loaded_bytes(
    name: str, tensor: StoredTensor, dtype: torch.dtype, quantisation: Quantisation
) -> int:
    if not tensor.floating:
        return tensor.bytes
    if quantisation == "none" or not _is_packed(name, tensor):
        return tensor.elements * dtype.itemsize
    if quantisation == "8bit":  # with a float32 of scale for each row
        return tensor.elements + 4 * tensor.shape[0]
    scales = -(-tensor.elements // _BLOCK)
    packed = -(-tensor.elements // 2)
    return packed + scales + 4 * -(-scales // _BLOCK_OF_SCALES) + _TABLES_4BIT


def _is_packed(name: str, tensor: StoredTensor) -> bool:
    """Whether it is a linear layer's weight in the language model's layers."""
    inside = _component(name) == "language model" and ".layers." in name
    return inside and name.endswith(".weight") and len(tensor.shape) == 2


# --------------------------------------------------------------------------- what is free


def free_bytes(device: torch.device) -> int | None:
    """Bytes that are free on a device: of a GPU's memory, or of the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    if device.type == "cpu":
        import psutil  # type: ignore[import-untyped]

        return int(psutil.virtual_memory().available)
    return None


def other_devices(device: torch.device) -> list[torch.device]:
    """The devices of this machine, this one left out."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    every = [*(torch.device("cuda", index) for index in range(count)), torch.device("cpu")]
    return [other for other in every if other != device]


# --------------------------------------------------------------------------- what would fit


def check_fit(
    request: LoadRequest,
    stored: Mapping[str, StoredTensor],
    config: Any,
    device: torch.device,
    dtype: torch.dtype,
    *,
    known: Sequence[KnownModel] = (),
    free: FreeMemory = free_bytes,
) -> None:
    """Refuse a model that does not fit on its device.

    Args:
        request: names the model and its quantisation.
        stored: the checkpoint's tensors, by name; nothing is refused if there are none.
        config: transformers config of the whole model.
        device: where it is to be loaded.
        dtype: working dtype.
        known: the backend's models, one of which may be smaller.
        free: bytes that are free on a device.

    Raises:
        BackendError: it does not fit; with the figures, and with what would.
    """
    available = free(device)
    chosen = request.quantize or "none"
    need = footprint(stored, config, dtype, chosen)
    if not stored or available is None or need.total <= available:
        return
    packed = {kind: footprint(stored, config, dtype, kind).total for kind in get_args(Quantisation)}
    ways = [
        f"load it with --quantize {kind} ({_size(packed[kind])})"
        for kind in ("8bit", "4bit")
        if packed[kind] < need.total and packed[kind] <= available
    ]
    for other in other_devices(device):
        room = free(other)
        elsewhere = _dtype_on(other, request, stored)
        if room is not None and footprint(stored, config, elsewhere, chosen).total <= room:
            ways.append(f"load it with --device {other} ({_size(room)} are free there)")
    ways += _smaller_model(request, known, available)
    advice = ", or ".join(ways) or "free memory, or use a smaller model"
    raise BackendError(
        f"{request.model} needs {_size(need.total)} on {device} (weights "
        f"{_size(sum(need.weights.values()))}, KV cache {_size(need.cache)}, image features "
        f"{_size(need.features)}), and {_size(available)} are free: {advice}"
    )


def _dtype_on(
    device: torch.device, request: LoadRequest, stored: Mapping[str, StoredTensor]
) -> torch.dtype:
    parameters = sum(tensor.elements for tensor in stored.values())
    return resolve_dtype(request.dtype, device, parameters=parameters).dtype


def _smaller_model(request: LoadRequest, known: Sequence[KnownModel], available: int) -> list[str]:
    """The largest known model that fits as it is asked for, else the one that takes least."""
    for kind in (request.quantize or "none", "4bit"):
        fitting = [m for m in known if m.id != request.model and _memory(m, kind) <= available]
        if fitting:
            best = max(fitting, key=lambda model: _memory(model, kind))
            option = "" if kind == "none" else f" with --quantize {kind}"
            return [f"use {best.id}{option} ({_size(_memory(best, kind))})"]
    return []


def _memory(model: KnownModel, kind: str) -> float:
    return model.memory.get(kind, float("inf"))


def _size(bytes: float) -> str:
    return f"{bytes / 1e9:.1f} GB" if bytes >= 1e8 else f"{bytes / 1e6:.1f} MB"
