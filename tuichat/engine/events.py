"""What the engine tells its two faces.

Owns the event types. Refuses to know who listens. Invariant: events are small, frozen and in the
order in which things happened; text in them is raw and has to pass ``sanitize`` before it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tuichat.api import DtypeRow, ModelFacts

if TYPE_CHECKING:
    from tuichat.worker.protocol import EndState

WorkerPhase = Literal["absent", "starting", "loading", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class WorkerChanged:
    """The worker of the current backend and model is in another phase."""

    phase: WorkerPhase
    error: str | None = None
    """One sentence, with ``failed``; also with ``absent`` when the worker died."""


@dataclass(frozen=True, slots=True)
class LoadProgressed:
    """The model comes nearer."""

    stage: str
    done: float
    total: float | None
    unit: str
    detail: str
    rate: float | None
    """``unit`` per second over the last seconds."""
    remaining_s: float | None


@dataclass(frozen=True, slots=True)
class ModelReady:
    """The model is loaded: what it is, and in which dtypes."""

    load_s: float
    facts: ModelFacts
    dtype: tuple[DtypeRow, ...]
    dtype_reason: str


@dataclass(frozen=True, slots=True)
class ReplyQueued:
    """A reply waits behind ``ahead`` others in the worker."""

    reply_id: int
    ahead: int


@dataclass(frozen=True, slots=True)
class ReplyStarted:
    """The worker computes the prompt of a reply."""

    reply_id: int
    prompt_tokens: int
    image_tokens: int
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplyExtended:
    """A piece of a reply, already in the store."""

    reply_id: int
    text: str
    thinking: str


@dataclass(frozen=True, slots=True)
class ReplyEnded:
    """A reply is over; ``engine.turn(reply_id)`` has its text, usage, timing and error."""

    reply_id: int
    state: EndState
    error: str | None


@dataclass(frozen=True, slots=True)
class ImageCosts:
    """Tokens that an image of that size takes in the loaded model; None: it cannot be told."""

    width: int
    height: int
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Noticed:
    """A sentence for the reader."""

    text: str


Event = (
    WorkerChanged
    | LoadProgressed
    | ModelReady
    | ReplyQueued
    | ReplyStarted
    | ReplyExtended
    | ReplyEnded
    | ImageCosts
    | Noticed
)
