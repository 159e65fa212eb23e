"""PUBLIC: what a backend built on torch and transformers calls.

Owns loading, dtype alignment, 4-bit and 8-bit loading, prompts from the checkpoint's own chat
template, and generation with prefix reuse. Refuses to know any single backend: a third party
calls the same functions as the bundled ones. Invariant: importing this package imports neither
torch nor transformers; every name below is resolved when it is first used, so a worker can
register ``tuichat.torchkit.hooks`` for a backend that has no torch at all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuichat.torchkit.alignment import AlignmentPlan, align, boundary_dtype, plan_alignment
    from tuichat.torchkit.dtype import Resolved, resolve_device, resolve_dtype
    from tuichat.torchkit.generation import generate
    from tuichat.torchkit.hub import HubVisionLanguageModel
    from tuichat.torchkit.loading import Accepted, load_hub_model
    from tuichat.torchkit.reuse import forget
    from tuichat.torchkit.template import ChatTemplate, assemble_from_template
    from tuichat.torchkit.tokens import PromptTokenizer
    from tuichat.torchkit.vlm import VisionLanguageModel

_HOMES = {
    "Accepted": "loading",
    "AlignmentPlan": "alignment",
    "ChatTemplate": "template",
    "HubVisionLanguageModel": "hub",
    "PromptTokenizer": "tokens",
    "Resolved": "dtype",
    "VisionLanguageModel": "vlm",
    "align": "alignment",
    "assemble_from_template": "template",
    "boundary_dtype": "alignment",
    "forget": "reuse",
    "generate": "generation",
    "load_hub_model": "loading",
    "plan_alignment": "alignment",
    "resolve_device": "dtype",
    "resolve_dtype": "dtype",
}

__all__ = [
    "Accepted",
    "AlignmentPlan",
    "ChatTemplate",
    "HubVisionLanguageModel",
    "PromptTokenizer",
    "Resolved",
    "VisionLanguageModel",
    "align",
    "assemble_from_template",
    "boundary_dtype",
    "forget",
    "generate",
    "load_hub_model",
    "plan_alignment",
    "resolve_device",
    "resolve_dtype",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # No module here carries the name of something that it defines: importing it would bind the
    # module under that name, and hide the value.
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
