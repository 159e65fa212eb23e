"""The checkpoints that the backend is known to run, and what they take.

Owns their names and sizes. Refuses to import anything heavy: the numbers are written down, and a
test builds every architecture without weights and counts them again. Invariant: ``bytes`` is twice
the parameters, because all of them are stored in 16 bits; ``memory`` is the weights as they are
loaded, plus the KV cache of up to 8,192 tokens in 16 bits, plus ``_WORKSPACE``.
"""

from __future__ import annotations

from tuichat.api import KnownModel, Quantisation

_WORKSPACE = 1 << 30
"""Activations, image features and the library's own buffers, in bytes."""

_CACHED_TOKENS = 8192

_BYTES_PER_PACKED_WEIGHT: dict[Quantisation, float] = {
    "none": 2,
    "8bit": 1,
    # Half a byte; 8 bits of scale for 64 weights; 32 bits of scale for 256 of those scales.
    "4bit": 0.5 + 1 / 64 + 4 / (64 * 256),
}


def _known(id: str, *, parameters: int, packed: int, cache: int, context: int) -> KnownModel:
    """A model from the counts of its architecture.

    Args:
        id: hub id.
        parameters: of the whole model.
        packed: those in the language model's linear layers, which quantisation packs.
        cache: bytes of KV cache for each token, in 16 bits.
        context: tokens, prompt and answer together.
    """
    beside = 2 * (parameters - packed) + cache * min(context, _CACHED_TOKENS) + _WORKSPACE
    return KnownModel(
        id,
        bytes=2 * parameters,
        memory={
            quantisation: beside + int(packed * each)
            for quantisation, each in _BYTES_PER_PACKED_WEIGHT.items()
        },
        context_length=context,
    )


MODELS = (
    _known(
        "llava-hf/llava-1.5-7b-hf",
        parameters=7_063_427_072,
        packed=6_476_005_376,
        cache=524_288,
        context=4096,
    ),
    _known(
        "llava-hf/llava-1.5-13b-hf",
        parameters=13_351_494_656,
        packed=12_687_769_600,
        cache=819_200,
        context=4096,
    ),
    _known(
        "xtuner/llava-llama-3-8b-v1_1-transformers",
        parameters=8_355_272_704,
        packed=6_979_321_856,
        cache=131_072,
        context=8192,
    ),
    _known(
        "llava-hf/llava-v1.6-mistral-7b-hf",
        parameters=7_566_747_648,
        packed=6_979_321_856,
        cache=131_072,
        context=32_768,
    ),
    _known(
        "llava-hf/llava-v1.6-vicuna-7b-hf",
        parameters=7_063_431_168,
        packed=6_476_005_376,
        cache=524_288,
        context=4096,
    ),
    _known(
        "llava-hf/llava-v1.6-vicuna-13b-hf",
        parameters=13_351_499_776,
        packed=12_687_769_600,
        cache=819_200,
        context=4096,
    ),
    _known(
        "llava-hf/llava-v1.6-34b-hf",
        parameters=34_752_083_968,
        packed=33_470_545_920,
        cache=245_760,
        context=4096,
    ),
    _known(
        "llava-hf/llava-onevision-qwen2-0.5b-ov-hf",
        parameters=893_675_552,
        packed=357_826_560,
        cache=12_288,
        context=32_768,
    ),
    _known(
        "llava-hf/llava-onevision-qwen2-7b-ov-hf",
        parameters=8_030_807_584,
        packed=6_525_288_448,
        cache=57_344,
        context=32_768,
    ),
)
