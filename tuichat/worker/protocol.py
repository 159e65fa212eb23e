"""The frames between a client and a worker.

Owns their types, their encoding and the bound on their size. Refuses to know what either side does
with them. Invariant: no history and no image crosses the wire, only ids of what is in the store; a
frame is 4 bytes of length (big-endian) and a msgpack map, never a pickle, never more than
``MAX_FRAME`` bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from typing import Any, Literal

import msgspec

from tuichat import __version__
from tuichat.api import DtypeRow, ModelFacts

PROTOCOL = 1
"""Raised with every change that an older peer would misread."""

EndState = Literal["done", "stopped", "failed", "interrupted"]

MAX_FRAME = 4 * 1024 * 1024
"""Bytes. The largest honest frame is one commit's text, a few kB."""


class WorkerSpec(msgspec.Struct, frozen=True):
    """What a worker is: one model, loaded in one way."""

    backend: str
    model: str
    """Hub id or path, ``demo`` and the default resolved."""
    revision: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    quantize: str | None = None
    options: dict[str, Any] = {}
    """Load-scoped options, complete."""
    offline: bool = False
    distribution: str = ""
    """The backend's distribution and version: an upgraded plugin is another worker."""

    @property
    def identity(self) -> str:
        """16 hex digits: equal exactly when one worker can serve both.

        The version of tuichat is not in it: a worker of another version is met, and told apart by
        the handshake, instead of holding the device a second time.

        Raises:
            UnicodeEncodeError: a setting cannot be written as UTF-8.
        """
        surroundings = {name: os.environ.get(name, "") for name in _SURROUNDINGS}
        # A worker that may open a connection serves one that may not: its model is loaded.
        key = msgspec.json.encode(
            (msgspec.structs.replace(self, offline=False), sys.prefix, surroundings),
            order="sorted",
        )
        return hashlib.sha256(key).hexdigest()[:16]


_SURROUNDINGS = ("CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_CACHE")
"""Environment variables that make another model, or another device, of the same settings."""


# --------------------------------------------------------------------------- client → worker


class Hello(msgspec.Struct, tag="hello"):
    """First frame of a client."""

    protocol: int = PROTOCOL
    version: str = __version__


class Run(msgspec.Struct, tag="run"):
    """Run reply ``reply_id`` of the store at ``store``."""

    reply_id: int
    store: str
    max_new_tokens: int = 1024
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    options: dict[str, Any] = {}


class Stop(msgspec.Struct, tag="stop"):
    """Stop a reply, running or queued; what it has is kept."""

    reply_id: int
    store: str
    """As in ``Run``: an id is unique in its store only."""


class Measure(msgspec.Struct, tag="measure"):
    """Ask what an image of that size will cost."""

    width: int
    height: int


class Shutdown(msgspec.Struct, tag="shutdown"):
    """End the worker: what runs is stopped and kept."""


# --------------------------------------------------------------------------- worker → client


class Welcome(msgspec.Struct, tag="welcome"):
    """First frame of a worker."""

    protocol: int
    version: str
    pid: int


class Loading(msgspec.Struct, tag="loading"):
    """``tuichat.api.Progress`` on its way."""

    stage: str
    done: float
    total: float | None
    unit: str
    detail: str


class Ready(msgspec.Struct, tag="ready"):
    """The model is loaded."""

    load_s: float
    """Seconds from the worker's start to here."""
    facts: ModelFacts
    dtype: tuple[DtypeRow, ...]
    dtype_reason: str


class LoadFailed(msgspec.Struct, tag="load_failed"):
    """The model cannot be loaded; the worker ends."""

    error: str


class Accepted(msgspec.Struct, tag="accepted"):
    """A ``Run`` is queued behind ``ahead`` others."""

    reply_id: int
    ahead: int


class Started(msgspec.Struct, tag="started"):
    """A reply has been claimed; its prompt is assembled and being computed."""

    reply_id: int
    prompt_tokens: int
    image_tokens: int
    notices: tuple[str, ...]
    """What was left out of the prompt, and what alignment repaired."""


class Text(msgspec.Struct, tag="text"):
    """What was just committed to the store as chunk ``seq``."""

    reply_id: int
    seq: int
    text: str
    thinking: str


class Finished(msgspec.Struct, tag="finished"):
    """A reply has ended; everything about it is in the store."""

    reply_id: int
    state: EndState
    error: str | None
    dtype: tuple[DtypeRow, ...]


class Cost(msgspec.Struct, tag="cost"):
    """Answer to ``Measure``; ``tokens`` is None when the backend cannot tell."""

    width: int
    height: int
    tokens: int | None


class Notice(msgspec.Struct, tag="notice"):
    """A sentence for the reader that belongs to no reply."""

    text: str


class Idle(msgspec.Struct, tag="idle"):
    """The model's thread has nothing to do; for the server only, never sent."""


ClientFrame = Hello | Run | Stop | Measure | Shutdown
WorkerFrame = (
    Welcome | Loading | Ready | LoadFailed | Accepted | Started | Text | Finished | Cost | Notice
)

_encoder = msgspec.msgpack.Encoder()
decode_client = msgspec.msgpack.Decoder(ClientFrame).decode
decode_worker = msgspec.msgpack.Decoder(WorkerFrame).decode


DecodeError = msgspec.DecodeError


class FrameError(Exception):
    """The peer sent something that is not a frame: the connection ends."""


def encode(frame: ClientFrame | WorkerFrame) -> bytes:
    """One frame, length first.

    Raises:
        FrameError: it exceeds the bound.
        UnicodeEncodeError: a client's frame holds a lone surrogate.
    """
    try:
        body = _encoder.encode(frame)
    except UnicodeEncodeError:
        # What a plugin says may hold anything; where a client's files are must stay exact.
        if isinstance(frame, ClientFrame):
            raise
        body = _encoder.encode(_encodable(frame))
    if len(body) > MAX_FRAME:
        raise FrameError(f"a frame of {len(body)} bytes exceeds the bound of {MAX_FRAME}")
    return len(body).to_bytes(4, "big") + body


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, tuple):
        return tuple(map(_encodable, value))
    if isinstance(value, msgspec.Struct):
        fields = {name: _encodable(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    return value


async def read_body(reader: asyncio.StreamReader) -> bytes | None:
    """The body of the next frame, None at the end of the stream.

    Raises:
        FrameError: a length beyond the bound.
    """
    try:
        length = int.from_bytes(await reader.readexactly(4), "big")
        if length > MAX_FRAME:
            raise FrameError(f"a frame of {length} bytes exceeds the bound of {MAX_FRAME}")
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        return None
