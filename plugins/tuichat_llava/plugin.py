"""The backend ``llava``: LLaVA-1.5 and its kin, in half precision, with a bundled demo model.

Owns what is LLaVA's own: which checkpoints there are and which class runs them. Everything else is
torchkit's, as it would be for a stranger's backend. Invariant: describing the backend imports
neither torch nor transformers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tuichat.api import (
    API_VERSION,
    BackendInfo,
    Capabilities,
    Conversation,
    DtypeReport,
    KnownModel,
    Loaded,
    LoadRequest,
    Option,
    ProgressCallback,
    Prompt,
    hookimpl,
)

_GIB = 1 << 30
_ATTENTION = ("sdpa", "eager", "flash_attention_2")

MODELS = (
    KnownModel(
        "llava-hf/llava-1.5-7b-hf",
        bytes=14_127_000_000,
        memory={"none": 15 * _GIB, "8bit": 9 * _GIB, "4bit": 6 * _GIB},
        context_length=4096,
    ),
    KnownModel(
        "llava-hf/llava-1.5-13b-hf",
        bytes=26_702_000_000,
        memory={"none": 27 * _GIB, "8bit": 16 * _GIB, "4bit": 10 * _GIB},
        context_length=4096,
    ),
    KnownModel(
        "xtuner/llava-llama-3-8b-v1_1-transformers",
        bytes=16_710_000_000,
        memory={"none": 17 * _GIB, "8bit": 11 * _GIB, "4bit": 7 * _GIB},
        context_length=8192,
    ),
)

CAPABILITIES = Capabilities(
    quantisations=("none", "8bit", "4bit"),
    attention=_ATTENTION,
    # LLaVA-1.5's USER: and ASSISTANT: are plain words; what is loaded says if its own are not.
    plain_text_markers=True,
)


@hookimpl
def tuichat_backend() -> BackendInfo:
    """Describe the backend."""
    return BackendInfo(
        title="LLaVA",
        api_version=API_VERSION,
        models=MODELS,
        default_model=MODELS[0].id,
        demo_model=str(Path(__file__).parent / "demo"),
        capabilities=CAPABILITIES,
        options=(
            Option(
                "attn",
                "str",
                _ATTENTION[0],
                "Attention implementation of the language model and the vision tower",
                scope="load",
                choices=_ATTENTION,
            ),
        ),
        requires=("torch", "transformers", "accelerate"),
    )


@hookimpl
def tuichat_load(request: LoadRequest, progress: ProgressCallback) -> Loaded:
    """Load a LLaVA checkpoint; float16 on a GPU unless something speaks against it."""
    from tuichat import torchkit
    from tuichat_llava.processor import processor_notices

    loaded = torchkit.load_hub_model(
        request,
        progress,
        accepted={"llava": "LlavaForConditionalGeneration"},
        refuse=_refuse,
        known=MODELS,
        capabilities=CAPABILITIES,
    )
    handle = loaded.handle
    found = processor_notices(handle.folder, handle.model.config, handle.square_tokens)
    return replace(loaded, facts=replace(loaded.facts, notices=(*loaded.facts.notices, *found)))


def _refuse(config: Any) -> str | None:
    tower = config.vision_config.model_type
    if tower in ("clip_vision_model", "siglip_vision_model"):
        return None
    return (
        f"its vision tower is a {tower}, whose images take rows of tokens of their own; the "
        "backend runs CLIP and SigLIP towers"
    )


@hookimpl
def tuichat_align_dtype(loaded: Loaded) -> DtypeReport:
    """Keep every component to the plan made at load."""
    from tuichat import torchkit

    return torchkit.align(loaded.handle, loaded.handle.plan)


@hookimpl
def tuichat_image_tokens(loaded: Loaded, width: int, height: int) -> int:
    """LLaVA scales every image to one square: the cost does not depend on its size."""
    return int(loaded.handle.square_tokens)


@hookimpl
def tuichat_assemble_prompt(loaded: Loaded, conversation: Conversation) -> Prompt:
    """The whole conversation in the checkpoint's own chat template."""
    from tuichat import torchkit

    handle = loaded.handle
    return torchkit.assemble_from_template(handle.template, conversation, handle.image_inputs)


@hookimpl
def tuichat_unload(loaded: Loaded) -> None:
    """Let go of caches and features; the weights go with the process."""
    from tuichat import torchkit

    torchkit.forget(loaded.handle)
