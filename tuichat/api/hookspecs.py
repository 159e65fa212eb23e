"""The hooks that a backend implements.

Owns their names, arguments and contracts. Refuses to know how they are called (that is
``pluginhost``). Invariant: a hook returns; it is never itself a generator function, because with
pluggy a ``yield`` in the body makes it answer for every model.

A backend is a module (or object) whose functions carry ``@hookimpl`` and whose name is registered
under the entry-point group ``tuichat.backends``; what stands left of the ``=`` there is what
follows ``--backend``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pluggy

from tuichat.api.types import (
    BackendInfo,
    Control,
    Conversation,
    Delta,
    DtypeReport,
    GenerationParams,
    Loaded,
    LoadRequest,
    ProgressCallback,
    Prompt,
)

PROJECT = "tuichat"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def tuichat_backend() -> BackendInfo | None:
    """Say what the backend is: title, models, limits, options.

    Called in a short-lived subprocess with a time-out, and in the worker. It must not import torch
    or anything else that is heavy: import that inside ``tuichat_load``.
    """


@hookspec(firstresult=True)
def tuichat_load(request: LoadRequest, progress: ProgressCallback) -> Loaded | None:
    """Load the model, once, in the worker.

    Raise ``tuichat.api.ModelNotAvailable`` with one sentence when the files are not there; any
    other exception is turned into a sentence by the host, its traceback into the log.
    """


@hookspec(firstresult=True)
def tuichat_align_dtype(loaded: Loaded) -> DtypeReport | None:
    """Make every boundary agree: pixels → vision tower → projector → language model.

    Called after the load and before every turn, so it is idempotent and cheap:
    ``DtypeReport.changed`` is empty when nothing moved since.
    """


@hookspec(firstresult=True)
def tuichat_image_tokens(loaded: Loaded, width: int, height: int) -> int | None:
    """How many tokens an image of ``width`` × ``height`` pixels will cost.

    Arithmetic only: unlike every other hook it may be called from another thread while the model
    generates.
    """


@hookspec(firstresult=True)
def tuichat_assemble_prompt(loaded: Loaded, conversation: Conversation) -> Prompt | Any | None:
    """Build the prompt from the whole conversation, every turn, images included.

    Role → image → text, in the model's own template; images stay in the turn that owns them. Text
    never becomes a control token or an image. Never truncate: the host drops whole oldest turns
    and asks again. Return a ``Prompt``, or anything else if the backend implements
    ``tuichat_generate`` itself; if that has an integer attribute ``tokens``, the host takes it for
    the prompt's length.
    """


@hookspec(firstresult=True)
def tuichat_generate(
    loaded: Loaded, prompt: Prompt | Any, params: GenerationParams, control: Control
) -> Iterator[Delta] | None:
    """Return an iterator of deltas, the last one with ``stop_reason`` and ``usage``.

    ``tuichat.torchkit`` implements it for every handle that satisfies its
    ``VisionLanguageModel``; most backends leave it alone. Poll ``control.stopped`` between forward
    passes. Do not write this hook as a generator function: return one.
    """


@hookspec
def tuichat_unload(loaded: Loaded) -> None:
    """Let the model's memory go. The process usually ends right after."""
