"""Which device and which dtype a model runs in.

Owns the one decision about the working dtype, with its reason in words. Refuses to know models and
components: it sees a device, what was asked for and what the checkpoint was trained in.
Invariant: an explicit request is honoured, and whatever is slow or different from the wish is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tuichat.api import BackendError

NAMES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

# Below this many bytes of float32 weights a CPU gains nothing from halving them.
_SMALL_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Resolved:
    """The working dtype of a model."""

    dtype: torch.dtype
    reason: str
    """Why this one, in words."""
    notices: tuple[str, ...] = ()
    """Sentences for the reader: what is slow, or not what was asked for."""


def name_of(dtype: torch.dtype) -> str:
    """``torch.float16`` → ``float16``."""
    return str(dtype).removeprefix("torch.")


def resolve_device(requested: str) -> torch.device:
    """The device for ``auto``, ``cpu``, ``cuda``, ``cuda:1`` or ``mps``.

    Raises:
        BackendError: the device is not there, or the name is not a device.
    """
    if requested == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    try:
        device = torch.device(requested)
    except RuntimeError:
        raise BackendError(
            f"{requested!r} is not a device: use auto, cpu, cuda, cuda:1 … or mps"
        ) from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise BackendError(
                f"--device {requested}: torch finds no CUDA GPU here; use --device cpu or auto"
            )
        if (device.index or 0) >= count:
            raise BackendError(
                f"--device {requested}: this machine has {count} CUDA GPU(s), cuda:0 to "
                f"cuda:{count - 1}"
            )
        return torch.device("cuda", device.index or 0)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise BackendError("--device mps: torch finds no Metal GPU here; use --device cpu or auto")
    return device


def resolve_dtype(
    requested: str,
    device: torch.device,
    *,
    preferred: torch.dtype = torch.float16,
    checkpoint: torch.dtype | None = None,
    parameters: int = 0,
) -> Resolved:
    """Decide the working dtype once.

    Args:
        requested: ``auto``, ``float32``, ``float16`` or ``bfloat16``.
        device: where the model will run.
        preferred: what the backend runs in on a GPU, if nothing speaks against it.
        checkpoint: dtype that the weights are stored in, if known.
        parameters: how many weights the model has; 0 when unknown.

    Raises:
        BackendError: ``requested`` is none of these names.
    """
    if requested != "auto":
        if requested not in NAMES:
            raise BackendError(
                f"--dtype {requested} is not known: use auto, {', '.join(sorted(NAMES))}"
            )
        return _explicit(NAMES[requested], device)
    if device.type == "cpu":
        return _for_cpu(preferred, parameters)
    if device.type == "cuda":
        return _for_cuda(device, preferred, checkpoint)
    return Resolved(torch.float16, f"float16: the half precision that {device.type} is fast in")


def wider_than_float16(device: torch.device) -> torch.dtype:
    """A dtype with float32's range: bfloat16 where the device computes in it, else float32."""
    has_bfloat16 = (
        _cuda_has_bfloat16(device)
        if device.type == "cuda"
        else device.type == "cpu" and _cpu_has_bfloat16()
    )
    return torch.bfloat16 if has_bfloat16 else torch.float32


def _explicit(dtype: torch.dtype, device: torch.device) -> Resolved:
    name = name_of(dtype)
    notices: tuple[str, ...] = ()
    if device.type == "cpu" and dtype is torch.float16:
        notices = ("float16 is slow on a CPU; --dtype auto picks what is fast here.",)
    if device.type == "cuda" and dtype is torch.bfloat16 and not _cuda_has_bfloat16(device):
        notices = ("This GPU has no bfloat16 arithmetic: it is emulated, and slow.",)
    return Resolved(dtype, f"{name}: asked for with --dtype", notices)


def _for_cuda(
    device: torch.device, preferred: torch.dtype, checkpoint: torch.dtype | None
) -> Resolved:
    bfloat16 = _cuda_has_bfloat16(device)
    if not bfloat16 and torch.bfloat16 in (preferred, checkpoint):
        major, minor = torch.cuda.get_device_capability(device)
        reason = f"float16: this GPU (compute capability {major}.{minor}) has no bfloat16"
        return Resolved(torch.float16, reason, (f"The model runs in {reason}.",))
    if checkpoint is torch.bfloat16:
        return Resolved(
            torch.bfloat16,
            "bfloat16: what the checkpoint is stored in, whose range float16 does not have",
        )
    return Resolved(preferred, f"{name_of(preferred)}: the backend's default on a GPU")


def _for_cpu(preferred: torch.dtype, parameters: int) -> Resolved:
    instead = f"instead of {name_of(preferred)}, which is slow on a CPU"
    if preferred is torch.float32:
        instead = "the backend's default"
    if 0 < parameters * 4 <= _SMALL_BYTES:
        return Resolved(torch.float32, f"float32: the model is small enough for it; {instead}")
    if _cpu_has_bfloat16():
        return Resolved(torch.bfloat16, f"bfloat16: this CPU computes in it; {instead}")
    return Resolved(torch.float32, f"float32: this CPU has no fast 16-bit format; {instead}")


def _cuda_has_bfloat16(device: torch.device) -> bool:
    major, _ = torch.cuda.get_device_capability(device)
    # ROCm reports capabilities of its own; every GPU that it supports has bfloat16.
    return bool(torch.version.hip) or major >= 8


def _cpu_has_bfloat16() -> bool:
    # torch before 2.9 cannot say what the CPU can do; float32 is right there, only slower.
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) for name in ("amx_bf16", "avx512_bf16", "arm_bf16"))
