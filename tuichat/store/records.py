"""The values that the store hands out.

Owns the frozen dataclasses of the store's interface. Refuses to know SQL. Invariant: immutable, and
all text in them is raw, exactly as it was put in: whoever shows it sanitises it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tuichat.api import Role

ReplyState = Literal["queued", "running", "done", "stopped", "failed", "interrupted"]
"""Life of a reply: queued → running → one of the other four, which are final."""

FINAL: Final = frozenset({"done", "stopped", "failed", "interrupted"})
OPEN: Final = ("queued", "running")


class Head(enum.Enum):
    """Type of ``HEAD``."""

    HEAD = enum.auto()


class Leave(enum.Enum):
    """Type of ``LEAVE``."""

    LEAVE = enum.auto()


HEAD: Final = Head.HEAD
"""As a parent: the session's current leaf, looked up in the transaction that posts."""

LEAVE: Final = Leave.LEAVE
"""As a new value: leave the field as it is (None means: empty it)."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One conversation, without its turns."""

    id: str
    """Ten characters of lower-case Crockford base32; later sessions sort after earlier ones."""
    title: str
    """Given, or the first question's first line, shortened."""
    created_at: float
    """Seconds since the epoch, as are all times."""
    updated_at: float
    """When a turn was last posted or finished."""
    backend: str | None
    model: str | None
    system: str | None
    turns: int
    """Messages of both roles, siblings included."""
    images: int
    """Attachments, counted once for each turn that has them."""
    head: int | None = None
    """The current leaf's turn id; None while nothing was posted."""


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """An image in the blob folder, under the name that it was attached with."""

    digest: str
    """sha256 of the stored bytes, in hex."""
    name: str
    format: str
    """Pillow's name, e.g. ``PNG``."""
    width: int
    """Pixels, after the EXIF orientation was applied."""
    height: int
    size: int
    """Bytes."""
    notice: str | None = None
    """e.g. ``frame 1 of 3``."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One committed piece of a running reply."""

    seq: int
    """1, 2, 3…"""
    text: str
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One message. A user turn is always ``done``; the rest concerns replies."""

    id: int
    parent_id: int | None
    session_id: str
    role: Role
    text: str
    """Of a running reply: the chunks so far."""
    thinking: str
    images: tuple[ImageRecord, ...]
    state: ReplyState
    stop_reason: str | None
    error: str | None
    """Why it failed or was interrupted, one sentence for people."""
    usage: dict[str, Any] | None
    timing: dict[str, Any] | None
    dtype: list[Any] | None
    """Rows of the dtype report that it was generated with."""
    notices: list[str]
    backend: str | None
    model: str | None
    params: dict[str, Any]
    poster: str | None
    """Token of the engine that posted it."""
    owner: str | None
    """Token of the worker that claimed it."""
    created_at: float
    finished_at: float | None
    siblings: tuple[int, ...]
    """Ids of all turns with the same parent and role, itself included, oldest first."""
    last_seq: int
    """Number of the last chunk that ``text`` contains; 0 before the first."""


@dataclass(frozen=True, slots=True)
class Posted:
    """What ``Store.post`` committed."""

    user_id: int
    reply_id: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a reply ended: what ``Store.finish`` writes into it."""

    state: ReplyState
    stop_reason: str | None = None
    error: str | None = None
    usage: Mapping[str, Any] | None = None
    timing: Mapping[str, Any] | None = None
    dtype: list[Any] | None = None
    notices: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A turn that contains every word of the query."""

    session_id: str
    turn_id: int
    role: Role
    title: str
    """The session's."""
    snippet: str
    """One line around the first word found."""
    created_at: float
