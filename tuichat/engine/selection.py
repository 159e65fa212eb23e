"""From settings to a worker.

Owns the check of what was asked for against what the backend says of itself. Refuses to know
sessions. Invariant: everything that can be refused without loading a model is refused here, in one
sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuichat.api import BackendError, Capabilities
from tuichat.engine.settings import Settings
from tuichat.sanitize import sanitize_line
from tuichat.worker.protocol import WorkerSpec


@dataclass(frozen=True, slots=True)
class Selection:
    """A backend and a model that can be tried."""

    title: str
    model: str
    """The model's name for people: ``demo`` stays ``demo``, wherever its files lie."""
    spec: WorkerSpec
    turn_options: dict[str, Any]
    declared: Capabilities
    """The backend's limits, until the loaded model says better."""


def select(settings: Settings) -> Selection:
    """What ``settings`` come to; may run the describing subprocess, so it takes up to seconds.

    Raises:
        BackendError: the backend does not exist, does not work, or does not take these settings.
    """
    from tuichat.pluginhost import catalog

    name = settings.backend
    entry = catalog.describe(name)
    info = entry.info
    if info is None or entry.problem is not None:
        raise BackendError(entry.problem or f"Backend {name} cannot be used.")
    if entry.missing:
        raise BackendError(
            f"Backend {name} needs {', '.join(entry.missing)}: "
            f"run `pip install {' '.join(entry.missing)}`."
        )
    quantisations = info.capabilities.quantisations
    if settings.quantize and settings.quantize not in quantisations:
        raise BackendError(
            f"Backend {name} does not quantise to {settings.quantize}: "
            f"it takes {', '.join(quantisations)}."
        )
    load_options, turn_options = catalog.parse_options(info, settings.options)
    model = _absolute(catalog.resolve_model(info, entry.ref, settings.model))
    selection = Selection(
        title=info.title,
        model="demo" if settings.model == "demo" else model,
        spec=WorkerSpec(
            backend=name,
            model=model,
            revision=settings.revision,
            device=settings.device,
            dtype=settings.dtype,
            quantize=settings.quantize,
            options=load_options,
            offline=settings.offline,
            distribution=f"{entry.ref.distribution} {entry.ref.version}",
        ),
        turn_options=turn_options,
        declared=info.capabilities,
    )
    try:
        _ = selection.spec.identity
    except UnicodeEncodeError as error:
        raise BackendError(
            f"{sanitize_line(str(error.object))} is not valid UTF-8: rename the folder, or give "
            "another value."
        ) from None
    return selection


def _absolute(model: str) -> str:
    """A local folder by its full path: the worker stands in another folder than the caller."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.is_dir() else model
