"""The backend ``llava`` with a client's mistake in it, chosen by ``-o fault=…``.

Owns the mistakes. Refuses to know questions and scenes: `bench_demo.py` installs this module as a
distribution of its own and measures what each mistake costs. Invariant: everything but the mistake
is the real backend in a real worker.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tuichat.api import (
    BackendInfo,
    Conversation,
    Image,
    Loaded,
    LoadRequest,
    Option,
    ProgressCallback,
    Turn,
    hookimpl,
)
from tuichat_llava import plugin
from tuichat_llava.plugin import (
    tuichat_align_dtype,
    tuichat_assemble_prompt,
    tuichat_image_tokens,
    tuichat_unload,
)

if TYPE_CHECKING:
    from PIL import Image as PILImage

    from tuichat.store import Store, TurnRecord

__all__ = [
    "tuichat_align_dtype",
    "tuichat_assemble_prompt",
    "tuichat_image_tokens",
    "tuichat_unload",
]

Turns = tuple[Turn, ...]

# The first turn's image behind its text, in what the checkpoint's own template wrote.
_TEXT_FIRST = (
    "{%- set whole -%}ORIGINAL{%- endset -%}"
    "{%- set before, image, after = whole.partition('Image 1:<image>\n') -%}"
    "{%- set question, answer, rest = after.partition(' ASSISTANT:') -%}"
    "{{- before ~ question ~ '\n' ~ image.rstrip() ~ answer ~ rest if image else whole -}}"
)


def _forget_images(turns: Turns) -> Turns:
    """The images of earlier turns are dropped from the history."""
    return (*(replace(turn, images=()) for turn in turns[:-1]), turns[-1])


def _swap_images(turns: Turns) -> Turns:
    """The images of the conversation come in the opposite order."""
    images = [image for turn in turns for image in turn.images]
    return tuple(replace(turn, images=tuple(images.pop() for _ in turn.images)) for turn in turns)


class _OtherImages:
    """Each image is taken for the one that came before it, in whichever conversation."""

    def __init__(self) -> None:
        self._instead: dict[str, PILImage.Image] = {}
        self._latest: PILImage.Image | None = None

    def __call__(self, turns: Turns) -> Turns:
        return tuple(replace(turn, images=tuple(map(self._other, turn.images))) for turn in turns)

    def _other(self, image: Image) -> Image:
        if image.digest not in self._instead:
            # Decoded now: the conversation that it belongs to may be gone when it is shown.
            before, self._latest = self._latest, image.open()
            self._instead[image.digest] = before or self._latest.rotate(180)
        other = self._instead[image.digest]
        return replace(image, open=lambda: other, width=other.width, height=other.height)


def _blue_for_red(turns: Turns) -> Turns:
    """The channels of each image come as blue, green and red."""
    return tuple(replace(turn, images=tuple(map(_bgr, turn.images))) for turn in turns)


def _bgr(image: Image) -> Image:
    def open_swapped() -> PILImage.Image:
        from PIL import Image as PILImage

        return PILImage.merge("RGB", image.open().split()[::-1])

    return replace(image, open=open_swapped)


def _put_text_first(folder: Path) -> None:
    """A template with the text before the image, in the first turn."""
    path = folder / "chat_template.jinja"
    path.write_text(_TEXT_FIRST.replace("ORIGINAL", path.read_text("utf-8")), "utf-8")


def _leave_unnormalised(folder: Path) -> None:
    """Image processor settings without the normalisation."""
    path = folder / "processor_config.json"
    settings = json.loads(path.read_text("utf-8"))
    settings["image_processor"]["do_normalize"] = False
    path.write_text(json.dumps(settings), "utf-8")


IN_CONVERSATIONS: dict[str, Callable[[Turns], Turns]] = {
    "forget-images": _forget_images,
    "swap-images": _swap_images,
    "other-image": _OtherImages(),
    "blue-for-red": _blue_for_red,
}
IN_CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    "text-first": _put_text_first,
    "not-normalised": _leave_unnormalised,
}
FAULTS = ("none", *IN_CONVERSATIONS, *IN_CHECKPOINTS)


@hookimpl
def tuichat_backend() -> BackendInfo:
    """The real backend's description, with one more option."""
    info = plugin.tuichat_backend()
    fault = Option("fault", "str", "none", "What to do wrong", scope="load", choices=FAULTS)
    return replace(info, title="LLaVA, broken on purpose", options=(*info.options, fault))


@hookimpl
def tuichat_load(request: LoadRequest, progress: ProgressCallback) -> Loaded:
    """Load the model, or a copy of its folder that has the fault in it."""
    fault = str(request.options["fault"])
    with tempfile.TemporaryDirectory(prefix="broken-llava-") as scratch:
        if fault in IN_CHECKPOINTS:
            folder = Path(scratch) / "checkpoint"
            shutil.copytree(request.model, folder)
            IN_CHECKPOINTS[fault](folder)
            request = replace(request, model=str(folder))
        loaded = plugin.tuichat_load(request, progress)
    if fault in IN_CONVERSATIONS:
        _mistake_history(IN_CONVERSATIONS[fault])
    return loaded


def _mistake_history(change: Callable[[Turns], Turns]) -> None:
    """Have the worker make another conversation of what is stored.

    The mistake cannot be in ``tuichat_assemble_prompt``: the host counts and names the images of a
    prompt, and refuses one that has lost or swapped some.
    """
    from tuichat.worker import history

    conversation_of = history.conversation_of

    def mistaken(
        store: Store, history: Sequence[TurnRecord], system: str | None
    ) -> tuple[Conversation, list[str]]:
        conversation, notices = conversation_of(store, history, system)
        return replace(conversation, turns=change(conversation.turns)), notices

    history.conversation_of = mistaken
