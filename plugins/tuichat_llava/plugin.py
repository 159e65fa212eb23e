"""The backend ``llava``: LLaVA-1.5, NeXT and OneVision, in half precision, with a demo model.

Owns what is LLaVA's own: which checkpoints there are, which class runs them, what their settings
get wrong (``processor``) and what an image costs (``tiles``). Everything else is torchkit's, as it
would be for a stranger's backend. Invariant: describing the backend imports neither torch nor
transformers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from tuichat.api import (
    API_VERSION,
    BackendInfo,
    Capabilities,
    Conversation,
    DtypeReport,
    Loaded,
    LoadRequest,
    Option,
    ProgressCallback,
    Prompt,
    hookimpl,
)
from tuichat_llava.models import MODELS

_ATTENTION = ("sdpa", "eager", "flash_attention_2")

ARCHITECTURES = {
    "llava": "LlavaForConditionalGeneration",
    "llava_next": "LlavaNextForConditionalGeneration",
    "llava_onevision": "LlavaOnevisionForConditionalGeneration",
}

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
    from tuichat_llava.processor import mend, processor_notices, refusal
    from tuichat_llava.tiles import token_count

    loaded = torchkit.load_hub_model(
        request,
        progress,
        accepted=ARCHITECTURES,
        refuse=refusal,
        mend=mend,
        count_tokens=token_count,
        known=MODELS,
        capabilities=CAPABILITIES,
    )
    handle = loaded.handle
    found = processor_notices(handle.folder, handle.model.config, handle.images.tokens(1, 1))
    return replace(loaded, facts=replace(loaded.facts, notices=(*loaded.facts.notices, *found)))


@hookimpl
def tuichat_align_dtype(loaded: Loaded) -> DtypeReport:
    """Keep every component to the plan made at load."""
    from tuichat import torchkit

    return torchkit.align(loaded.handle, loaded.handle.plan)


@hookimpl
def tuichat_image_tokens(loaded: Loaded, width: int, height: int) -> int:
    """What an image costs when it is alone; beside others, OneVision's costs less."""
    return int(loaded.handle.images.tokens(width, height))


@hookimpl
def tuichat_assemble_prompt(loaded: Loaded, conversation: Conversation) -> Prompt:
    """The whole conversation in the checkpoint's own chat template."""
    from tuichat import torchkit

    handle = loaded.handle
    together = sum(len(turn.images) for turn in conversation.turns)
    inputs = partial(handle.image_inputs, together=together)
    return torchkit.assemble_from_template(handle.template, conversation, inputs)


@hookimpl
def tuichat_unload(loaded: Loaded) -> None:
    """Let go of caches and features; the weights go with the process."""
    from tuichat import torchkit

    torchkit.forget(loaded.handle)
