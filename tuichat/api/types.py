"""The values that pass between the host and a backend.

Owns the frozen dataclasses of the plugin API. Refuses to know torch, transformers, the store and
the screen: a backend without torch uses the same types. Invariant: everything here is immutable
once made, holds plain Python values (tensors only inside ``Span.inputs`` and ``Loaded.handle``,
which the host never looks into), and can be built by a stranger from this page alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from PIL import Image as PILImage

API_VERSION = 1
"""The version of this API; a backend states the one it was written for."""

Role = Literal["user", "assistant"]
Quantisation = Literal["none", "8bit", "4bit"]
StopReason = Literal["end", "length", "stopped", "error"]


# --------------------------------------------------------------------------- what a backend is


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A checkpoint that the backend is known to run."""

    id: str
    """Hub id, e.g. ``llava-hf/llava-1.5-7b-hf``."""
    revision: str = "main"
    """Branch, tag or commit that was tried."""
    bytes: int = 0
    """Size of the files on disk, in bytes; 0 when unknown."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes of device memory needed, by quantisation (``none``, ``8bit``, ``4bit``)."""
    context_length: int | None = None
    """Tokens, prompt and answer together."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Limits that the host enforces before anything is sent; ``None`` means no limit."""

    max_images_per_turn: int | None = None
    max_images: int | None = None
    """Images in a whole conversation."""
    system_prompt: bool = True
    quantisations: tuple[Quantisation, ...] = ("none",)
    thinking: bool = False
    """The model may answer with ``Delta.thinking`` before its answer."""
    attention: tuple[str, ...] = ()
    """Attention implementations that the backend accepts, first one the default."""
    max_concurrency: int = 1
    """Replies that may be generated at once by one loaded model."""
    plain_text_markers: bool = False
    """The role markers are ordinary words (Vicuna's ``USER:``): typed text can imitate a role,
    though never an image or a control token."""


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of the backend's own, given as ``-o NAME=VALUE``."""

    name: str
    type: Literal["int", "float", "bool", "str"]
    default: int | float | bool | str | None
    help: str
    scope: Literal["load", "turn"] = "turn"
    """``load``: part of a worker's identity, in ``LoadRequest.options``. ``turn``: may change
    with every message, in ``GenerationParams.options``."""
    choices: tuple[str, ...] = ()
    """Allowed values of a ``str`` option; empty means any."""


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What a backend says of itself before anything is loaded."""

    title: str
    """For people, e.g. ``LLaVA``."""
    api_version: int
    """``API_VERSION`` of the tuichat that the backend was written for."""
    models: tuple[KnownModel, ...] = ()
    default_model: str | None = None
    """Hub id or path that is used without ``--model``."""
    demo_model: str | None = None
    """Path of the checkpoint that ``--model demo`` selects, or None if none is shipped."""
    capabilities: Capabilities = field(default_factory=Capabilities)
    options: tuple[Option, ...] = ()
    requires: tuple[str, ...] = ()
    """Modules that must be importable for the backend to work, e.g. ``torch``; looked up without
    importing them, so that ``tuichat backends`` can say what is missing."""


# --------------------------------------------------------------------------- a conversation


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a conversation, checked when it was attached."""

    digest: str
    """sha256 of the stored bytes, in hex: the image's identity for every cache."""
    name: str
    """File name at attach time. Never part of a prompt."""
    width: int
    """Pixels, after the EXIF orientation was applied."""
    height: int
    open: Callable[[], PILImage.Image]
    """Decodes to an RGB image of (width, height): oriented, flattened on white, 8 bits."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. Its images stand before its text: role → image → text."""

    role: Role
    text: str
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """All that the model is to know, oldest turn first; the last turn is the user's."""

    system: str | None
    turns: tuple[Turn, ...]


# --------------------------------------------------------------------------- loading


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Which model to load, and how."""

    model: str
    """Hub id or local folder; ``demo`` and the default are resolved by the host already."""
    revision: str | None = None
    device: str = "auto"
    """``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``."""
    dtype: str = "auto"
    """``auto``, ``float32``, ``float16``, ``bfloat16``."""
    quantize: Quantisation | None = None
    """None: the backend's own default."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Load-scoped options, typed and complete (defaults filled in)."""
    offline: bool = False
    """Never open a connection: use what is on this machine."""
    cache_dir: str | None = None
    """Where downloads go; None: the library's own cache."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load has come."""

    stage: Literal["import", "download", "weights", "align", "warmup"]
    done: float = 0
    total: float | None = None
    """None when it is not known."""
    unit: Literal["bytes", "layers", "steps", ""] = ""
    detail: str = ""
    """A file name or a component."""


ProgressCallback = Callable[[Progress], None]
"""Called by ``tuichat_load`` as often as it likes; the host thins it out. May raise to cancel."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the loaded checkpoint really says; overrides ``BackendInfo``."""

    context_length: int | None = None
    """Tokens, prompt and answer together; None when there is no limit."""
    end_ids: frozenset[int] = frozenset()
    """Every id that ends a turn: the union of tokenizer, model and generation config."""
    capabilities: Capabilities = field(default_factory=Capabilities)
    notices: tuple[str, ...] = ()
    """Sentences for the reader about what was mended while loading."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model."""

    handle: Any
    """The backend's own object; the host hands it back and never looks into it."""
    facts: ModelFacts = field(default_factory=ModelFacts)


@dataclass(frozen=True, slots=True)
class DtypeRow:
    """One component at its boundary."""

    component: str
    """``pixels``, ``vision tower``, ``projector``, ``language model``, ``lm_head`` …"""
    weights: str
    """dtype that the weights are stored in, e.g. ``float16``, or ``uint8`` when packed."""
    compute: str
    """dtype that the component computes in."""
    input: str
    """dtype that its input arrives in after alignment."""
    device: str
    quantised: str | None = None
    """``nf4``, ``fp4``, ``int8`` or None."""
    changed: bool = False
    """Alignment altered something here in this call."""
    reason: str = ""
    """Why it is so, in words."""


@dataclass(frozen=True, slots=True)
class DtypeReport:
    """The dtype of every component, and what alignment did about it."""

    rows: tuple[DtypeRow, ...] = ()
    reason: str = ""
    """Why the working dtype was chosen, in words."""

    @property
    def changed(self) -> tuple[str, ...]:
        """Components that this call altered; empty when nothing moved."""
        return tuple(row.component for row in self.rows if row.changed)


# --------------------------------------------------------------------------- a turn


@dataclass(frozen=True, slots=True)
class Span:
    """The run of positions that one image occupies in a prompt."""

    start: int
    """Index into ``Prompt.ids``."""
    length: int
    """Positions."""
    digest: str
    """``Image.digest``: placeholder ids are alike for every image, digests are not."""
    inputs: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The image processor's output for this one image, keyword arguments of the vision tower."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """An assembled prompt: one id per cache position, image placeholders expanded."""

    ids: Sequence[int]
    spans: tuple[Span, ...] = ()
    position_ids: Sequence[int] | Sequence[Sequence[int]] | None = None
    """(L,) or (3, L), or None for 0…L−1."""
    next_position: int | None = None
    """The position where decoding goes on; None: L."""

    @property
    def image_tokens(self) -> int:
        """Cache positions that images take."""
        return sum(span.length for span in self.spans)


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """How to answer this one message."""

    max_new_tokens: int = 1024
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    seed: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Turn-scoped options, typed and complete."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one reply."""

    prompt_tokens: int = 0
    """The whole prompt, image tokens included."""
    image_tokens: int = 0
    reused_tokens: int = 0
    """Prompt tokens that came out of the cache of an earlier turn."""
    new_tokens: int = 0
    """Generated, the ending one included."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply, in order. Text is whole characters, never half of one."""

    text: str = ""
    thinking: str = ""
    usage: Usage | None = None
    """Running totals; the last delta must carry them."""
    stop_reason: StopReason | None = None
    """Set on the last delta only."""


class Control(Protocol):
    """The host's hand on a running generation."""

    @property
    def stopped(self) -> bool:
        """True once the reader asked to stop; poll it between forward passes."""
        ...
