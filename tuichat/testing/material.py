"""What the conformance kit gives to a backend: images, conversations and a stop switch.

Owns nothing that a real conversation would not have. Invariant: an image made twice from the same
arguments has the same digest, as in the store.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace

from PIL import Image as PILImage
from PIL import ImageDraw

from tuichat.api import Conversation, Image, Turn


def drawn_image(
    colour: str = "red", width: int = 160, height: int = 120, *, name: str | None = None
) -> Image:
    """A PNG of ``width`` × ``height`` pixels: a filled circle in ``colour`` on white.

    Args:
        colour: any colour that Pillow knows.
        name: file name; by default the colour's.
    """
    canvas = PILImage.new("RGB", (width, height), "white")
    radius = min(width, height) // 4
    centre_x, centre_y = width // 2, height // 2
    box = (centre_x - radius, centre_y - radius, centre_x + radius, centre_y + radius)
    ImageDraw.Draw(canvas).ellipse(box, fill=colour)
    file = io.BytesIO()
    canvas.save(file, "PNG")
    return Image(
        digest=hashlib.sha256(file.getvalue()).hexdigest(),
        name=name or f"{colour}.png",
        width=width,
        height=height,
        open=canvas.copy,
    )


class Switch:
    """A ``Control`` that a test holds: set ``stopped`` and the reply must end."""

    def __init__(self, stopped: bool = False) -> None:
        self.stopped = stopped


def user(text: str, *images: Image) -> Turn:
    """A turn of the person."""
    return Turn("user", text, images)


def reply(text: str) -> Turn:
    """A turn of the model."""
    return Turn("assistant", text)


def talk(*turns: Turn) -> Conversation:
    """A conversation without a system prompt."""
    return Conversation(None, turns)


def dialogue(*images: Image) -> Conversation:
    """Three turns; the first image in the first, the others in the last."""
    return talk(
        user("What colour is the circle?", *images[:1]),
        reply("I am not sure."),
        user("Look again.", *images[1:]),
    )


def with_text(text: str, images: tuple[Image, ...]) -> Conversation:
    """``text`` in every place that a person or a model can write to, file names included."""
    named = tuple(replace(image, name=f"{text}.png") for image in images)
    return talk(user(f"a {text} b", *named), reply(f"c {text} d"), user(f"{text} e {text}"))
