"""torchkit's implementation of ``tuichat_generate``, registered in every worker.

Owns nothing. Refuses to know backends: it answers for any handle that is a ``VisionLanguageModel``
and for no other. Invariant: importing this module does not import torch, so it can stand beside a
backend that has none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from tuichat.api import Control, Delta, GenerationParams, Loaded, Prompt, hookimpl


@hookimpl(trylast=True)
def tuichat_generate(
    loaded: Loaded, prompt: Prompt | Any, params: GenerationParams, control: Control
) -> Iterator[Delta] | None:
    """Generate for a handle that satisfies ``VisionLanguageModel``; None for every other."""
    if "torch" not in sys.modules or not isinstance(prompt, Prompt):
        return None
    from tuichat.torchkit.vlm import VisionLanguageModel

    if not isinstance(loaded.handle, VisionLanguageModel):
        return None
    from tuichat.torchkit.generation import generate

    return generate(loaded.handle, prompt, params, control)
