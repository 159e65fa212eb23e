"""Conversations at random, and what the official processors make of them.

Shared by the tests and by ``benchmarks/check_prompt_ids.py``, so that the long check runs what the
short one does.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

from PIL import Image as PILImage
from PIL import ImageDraw
from small_tokenizers import TEXTS
from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    LlavaNextProcessor,
    LlavaOnevisionProcessor,
    LlavaProcessor,
)

from tuichat.api import Conversation, Image, Turn

# --------------------------------------------------------------------------- images


def image_of(picture: PILImage.Image, name: str = "image.png") -> Image:
    """An ``Image`` of the plugin API from pixels."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    return Image(digest, name, picture.width, picture.height, lambda: picture)


def scene(
    colour: str = "red", shape: str = "circle", size: int = 200, width: int | None = None
) -> Image:
    """One shape on white, of the kind that the demo model knows; ``size`` is the height."""
    width = width or size
    picture = PILImage.new("RGB", (width, size), "white")
    box = [0.35 * width, 0.35 * size, 0.65 * width, 0.65 * size]
    draw = ImageDraw.Draw(picture)
    if shape == "circle":
        draw.ellipse(box, fill=colour)
    else:
        draw.rectangle(box, fill=colour)
    return image_of(picture, f"{colour}-{shape}.png")


SCENES = [scene(colour, shape) for colour in ("red", "blue", "green") for shape in ("circle", "sq")]

SIZES = ((1, 1), (64, 48), (30, 200), (400, 60), (333, 333), (150, 90), (25, 26), (500, 380))
"""(width, height): of tiles in every arrangement."""

SHAPES = [scene("red", "circle", height, width) for width, height in SIZES]
"""Images of ``SIZES``."""


# --------------------------------------------------------------------------- conversations


def random_conversation(
    rng: random.Random, *, system: bool = True, exchanges: int = 8, images: int = 4
) -> Conversation:
    """One to ``exchanges`` turns of the user, all but the last one answered.

    Up to ``images`` images in any of them, several in one turn, the same one twice, of any size; a
    turn may be images alone.
    """
    turns = []
    left = rng.randint(0, images)
    count = rng.randint(1, exchanges)
    for index in range(count):
        shown = left if index == count - 1 and rng.random() < 0.5 else rng.randint(0, min(2, left))
        left -= shown
        turns.append(Turn("user", _text(rng), tuple(rng.choices(SCENES + SHAPES, k=shown))))
        if index < count - 1:
            turns.append(Turn("assistant", _text(rng)))
    prompt = rng.choice((None, "You are brief.", "  Answer in one word.\n"))
    return Conversation(prompt if system else None, tuple(turns))


def _text(rng: random.Random) -> str:
    return " ".join(rng.choices(TEXTS, k=rng.randint(1, 3)))


def ask(text: str, *images: Image, system: str | None = None) -> Conversation:
    """A conversation of one question."""
    return Conversation(system, (Turn("user", text, images),))


# --------------------------------------------------------------------------- the official way


def official_processor(folder: Path) -> Any:
    """The processor of transformers for a checkpoint, with the checkpoint's own chat template."""
    image_processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    if kind == "llava_onevision":
        # It insists on a video processor, which cannot exist without torchvision.
        with patch.object(LlavaOnevisionProcessor, "check_argument_for_proper_class"):
            return LlavaOnevisionProcessor(
                image_processor,
                AutoTokenizer.from_pretrained(folder),
                video_processor=None,
                chat_template=(folder / "chat_template.jinja").read_text(),
                **_settings(folder),
            )
    processors = {"llava": LlavaProcessor, "llava_next": LlavaNextProcessor}
    processor = processors[kind].from_pretrained(folder, image_processor=image_processor)
    processor.image_processor = image_processor
    return processor


def _settings(folder: Path) -> dict[str, Any]:
    settings = json.loads((folder / "processor_config.json").read_text())
    keys = ("num_image_tokens", "vision_feature_select_strategy", "vision_aspect_ratio")
    return {key: settings[key] for key in keys}


def official_ids(processor: Any, conversation: Conversation, parts: bool = True) -> list[int]:
    """What the processor of transformers makes of a conversation, with its own template.

    Args:
        processor: from ``official_processor``.
        conversation: the turns.
        parts: whether the template takes messages as lists of parts; otherwise as strings.
    """
    messages: list[dict[str, Any]] = []
    if conversation.system is not None:
        messages.append(_message("system", conversation.system, [], parts))
    for turn in conversation.turns:
        messages.append(_message(turn.role, turn.text, [i.open() for i in turn.images], parts))
    if parts:
        encoded = processor.apply_chat_template(
            messages, tokenize=True, return_dict=True, add_generation_prompt=True
        )
        return list(encoded["input_ids"][0])
    # A template of strings: the official way is to render, then to call the processor.
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    images = [image.open() for turn in conversation.turns for image in turn.images]
    bos = processor.tokenizer.bos_token
    adds = bos is None or not text.startswith(bos)
    encoded = processor(text=text, images=images or None, add_special_tokens=adds)
    return list(encoded["input_ids"][0])


def _message(role: str, text: str, images: list[Any], parts: bool) -> dict[str, Any]:
    if not parts:
        lines = ["<image>"] * len(images) + ([text] if text or not images else [])
        return {"role": role, "content": "\n".join(lines)}
    content: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
    if text or not images:
        content.append({"type": "text", "text": text})
    return {"role": role, "content": content}
