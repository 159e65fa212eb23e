"""Numbers for people.

Owns how bytes, tokens, seconds, pixels and dtypes are written. Refuses to know where they come
from. Invariant: short, one unit, never a raw float; what is unknown is left out, not shown as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuichat.api import DtypeRow

_SHORT_DTYPE = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
_SHORT_COMPONENT = {"vision tower": "vision", "language model": "language"}
# What the reader is told about by name; the rest (pixels, lm_head) follows one of these.
_SHOWN_COMPONENTS = ("vision tower", "projector", "language model")


def size(count: float) -> str:
    """Bytes: ``312 B``, ``21 kB``, ``6.2 MB``."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000 or unit == "GB":
            return f"{count:.1f} {unit}" if count < 10 else f"{count:.0f} {unit}"
    raise AssertionError("unreachable")


def seconds(value: float) -> str:
    """A duration: ``4 ms``, ``0.31 s``, ``12 s``, ``3 min``."""
    if value < 0.1:
        return f"{1000 * value:.0f} ms"
    if value < 10:
        return f"{value:.2f} s" if value < 1 else f"{value:.1f} s"
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min"


def plural(count: int, noun: str) -> str:
    """``1 token``, ``1,024 tokens``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def pixels(width: int, height: int) -> str:
    """``640×480``."""
    return f"{width}×{height}"


def model_name(model: str) -> str:
    """The last part of a hub id or a path: what a person calls the model."""
    return model.rstrip("/").rsplit("/", 1)[-1]


def speed(tokens_per_s: float) -> str:
    """``41 tok/s``."""
    return f"{tokens_per_s:.1f} tok/s" if tokens_per_s < 10 else f"{tokens_per_s:,.0f} tok/s"


def reply_figures(usage: Mapping[str, Any] | None, timing: Mapping[str, Any] | None) -> list[str]:
    """What a finished reply cost, most telling first."""
    parts: list[str] = []
    if timing and (first := timing.get("first_token_s")) is not None:
        parts.append(f"first token {seconds(first)}")
    if timing and (rate := timing.get("tokens_per_s")):
        parts.append(speed(rate))
    if usage and (new := usage.get("new_tokens")):
        parts.append(plural(new, "token"))
    if usage and (prompt := usage.get("prompt_tokens")):
        reused = usage.get("reused_tokens") or 0
        parts.append(f"prompt {prompt:,}" + (f", {reused:,} reused" if reused else ""))
    return parts


def dtypes(rows: Sequence[DtypeRow]) -> str:
    """Every component's dtype: ``all fp32``, or ``vision, projector fp16 · language nf4/fp16``."""
    named = [row for row in rows if row.component in _SHOWN_COMPONENTS] or list(rows)
    groups: dict[str, list[str]] = {}
    for row in named:
        short = _SHORT_DTYPE.get(row.compute, row.compute)
        kind = f"{row.quantised}/{short}" if row.quantised else short
        groups.setdefault(kind, []).append(_SHORT_COMPONENT.get(row.component, row.component))
    if len(groups) == 1:
        return f"all {next(iter(groups))}"
    return " · ".join(f"{', '.join(names)} {kind}" for kind, names in groups.items())
