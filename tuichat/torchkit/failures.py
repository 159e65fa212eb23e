"""Exceptions of torch and transformers as sentences for people.

Owns what went wrong in words, with what to do about it. Refuses to know where it is shown.
Invariant: what comes out holds no reference to the exception, whose frames keep tensors alive: a
turn that ran out of memory would make every later one run out too.
"""

from __future__ import annotations

import logging
import traceback

import torch

from tuichat.api import GenerationError

log = logging.getLogger(__name__)


class NotFinite(GenerationError):
    """The model computed NaN or infinity."""

    def __init__(self, *, images: bool) -> None:
        """Say where.

        Args:
            images: whether it is in the features of an image; otherwise it is in the logits.
        """
        self.images = images
        self.where = "in the features of an image" if images else "in its logits"
        super().__init__(
            f"the model computed numbers that are not finite ({self.where}), usually because "
            "float16 overflowed: start again with --dtype bfloat16 or --dtype float32"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the machine itself, had no memory left."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in str(error) or "out of memory" in str(error).lower()
    )


def first_line(error: BaseException) -> str:
    """What an exception says, in one line."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def free_memory(device: torch.device) -> str:
    """What is free on a device, in words; empty where torch cannot say."""
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    return f" ({free / 2**30:.1f} of {total / 2**30:.1f} GiB are free)"


def generation_failure(error: Exception, device: torch.device, tokens: int) -> GenerationError:
    """The sentence for an exception in a turn; its traceback goes to the log and its frames go.

    Args:
        error: what the model raised.
        device: where it ran.
        tokens: length of the prompt.
    """
    if isinstance(error, GenerationError):
        return error
    log.error("generation failed\n%s", "".join(traceback.format_exception(error)))
    memory, message, kind = is_out_of_memory(error), first_line(error), type(error).__name__
    traceback.clear_frames(error.__traceback__)
    error.__traceback__ = None
    if memory:
        return GenerationError(
            f"{device} ran out of memory on a prompt of {tokens} tokens{free_memory(device)}: "
            "start a new session, attach fewer images, or load the model with --quantize 4bit"
        )
    return GenerationError(
        f"the model failed while it was answering ({kind}: {message}); the next "
        "message can be sent, and the log has the details"
    )


def release_memory(device: torch.device) -> None:
    """Give cached blocks back to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
