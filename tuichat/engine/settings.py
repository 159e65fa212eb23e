"""What the person asked for.

Owns ``Settings``: the options of the command line, as they were given. Refuses to know what they
mean to a backend. Invariant: cheap to import and to make, so that it can stand before the first
frame.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """How to chat."""

    backend: str
    model: str | None = None
    """Hub id, path, ``demo``, or None for the backend's default."""
    revision: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    quantize: str | None = None
    """``none``, ``4bit``, ``8bit``, or None for the backend's default."""
    system: str | None = None
    max_new_tokens: int = 1024
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    offline: bool = False
    options: tuple[str, ...] = ()
    """``KEY=VALUE`` pairs for the backend, unchecked."""
