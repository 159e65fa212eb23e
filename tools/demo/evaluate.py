"""Measuring an exported checkpoint: exact answers on fresh scenes, through plain transformers.

Owns the test dialogues, generation as any client would do it, and the mistakes of a client
("ablations") whose cost tells whether a test on this model would notice them. Refuses to know how
the model was trained: it reads a folder.

Invariant: scenes come as PNG or JPEG bytes of 60 to 2,000 pixels and go through the shipped
processor and template; earlier turns hold the right answers, so each answer is judged by itself.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoProcessor, LlavaForConditionalGeneration

from .dialogues import NATURAL, Dialogue, make_dialogue
from .render import encode, render
from .scenes import sample_scene

Messages = list[dict[str, Any]]
_BATCH = 32


@dataclass(frozen=True)
class Case:
    """A conversation that ends with a question, its images in order, and the right answer."""

    kind: str
    turn: int
    messages: Messages
    images: tuple[Image.Image, ...]
    answer: str


class Client:
    """The plainest possible client of a checkpoint."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        self.processor = AutoProcessor.from_pretrained(folder, backend="pil")
        self.model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()
        self.after_template: Callable[[str], str] = lambda text: text
        self.after_pixels: Callable[[torch.Tensor], torch.Tensor] = lambda pixels: pixels

    def read_layer(self, layer: int) -> None:
        """Take the image features from another layer of the vision tower."""
        self.model.config.vision_feature_layer = layer
        self.model.model.config.vision_feature_layer = layer

    def ask(self, messages: Messages, images: Iterable[Image.Image]) -> str:
        """The greedy answer."""
        return self.ask_many([(messages, tuple(images))])[0]

    @torch.no_grad()
    def ask_many(self, chats: list[tuple[Messages, tuple[Image.Image, ...]]]) -> list[str]:
        """The greedy answers to several conversations at once, padded on the left."""
        texts = [
            self.after_template(
                self.processor.apply_chat_template(
                    messages, add_generation_prompt=True, tokenize=False
                )
            )
            for messages, _ in chats
        ]
        shown = [image for _, images in chats for image in images]
        inputs = self.processor(text=texts, images=shown or None, return_tensors="pt", padding=True)
        if "pixel_values" in inputs:
            pixels = self.after_pixels(inputs["pixel_values"])
            inputs["pixel_values"] = pixels.to(self.model.dtype)
        out = self.model.generate(**inputs, max_new_tokens=40, do_sample=False)
        answers = out[:, inputs["input_ids"].shape[1] :]
        decode = self.processor.tokenizer.decode
        return [decode(answer, skip_special_tokens=True).strip() for answer in answers]


def _message(question: str, images: int) -> dict[str, Any]:
    content: list[dict[str, str]] = [{"type": "image"} for _ in range(images)]
    return {"role": "user", "content": [*content, {"type": "text", "text": question}]}


def cases_of(dialogue: Dialogue, images: list[Image.Image]) -> list[Case]:
    """One case for every turn."""
    messages: Messages = []
    if dialogue.system:
        messages.append({"role": "system", "content": dialogue.system})
    cases, shown = [], 0
    for number, turn in enumerate(dialogue.turns):
        messages.append(_message(turn.question, len(turn.images)))
        shown += len(turn.images)
        kind = turn.kind
        cases.append(Case(kind, number, list(messages), tuple(images[:shown]), turn.answer))
        messages.append({"role": "assistant", "content": turn.answer})
    return cases


def draw_cases(seed: int, dialogues: int, images: int, turns: int) -> list[Case]:
    """Cases of fresh dialogues about `images` images each, all shown."""
    rng = random.Random(f"evaluate {seed} {images} {turns}")
    cases = []
    for _ in range(dialogues):
        scenes = [sample_scene(rng) for _ in range(images)]
        drawn = [Image.open(io.BytesIO(encode(render(scene, rng), rng))) for scene in scenes]
        for image in drawn:
            image.load()
        cases += cases_of(make_dialogue(rng, scenes, turns, held_out=True, shares=NATURAL), drawn)
    return cases


def exact(client: Client, cases: list[Case]) -> list[bool]:
    """Which answers are right to the letter."""
    # Conversations of like length share a batch, so that little is spent on padding.
    order = sorted(range(len(cases)), key=lambda i: len(str(cases[i].messages)))
    right = [False] * len(cases)
    for start in range(0, len(order), _BATCH):
        places = order[start : start + _BATCH]
        answers = client.ask_many([(cases[i].messages, cases[i].images) for i in places])
        for i, answer in zip(places, answers, strict=True):
            right[i] = answer == cases[i].answer
    return right


# What a client can do wrong. Each takes a case and returns the case that the client would send.


def drop_history_images(case: Case) -> Case:
    """The images of earlier turns are forgotten."""
    last = case.messages[-1]
    kept = sum(part["type"] == "image" for part in last["content"])
    texts = []
    for message in case.messages[:-1]:
        content = message["content"]
        if not isinstance(content, str):
            content = [part for part in content if part["type"] == "text"]
        texts.append({**message, "content": content})
    images = case.images[len(case.images) - kept :]
    return replace(case, messages=[*texts, last], images=images)


def swap_images(case: Case) -> Case:
    """The images arrive in the wrong order."""
    return replace(case, images=tuple(reversed(case.images)))


def other_images(case: Case, others: list[Case]) -> Case:
    """Some other conversation's images."""
    same = [c for c in others if len(c.images) == len(case.images) and c.images != case.images]
    other = same[(id(case) // 64) % len(same)]
    return replace(case, images=other.images)


def swap_red_and_blue(case: Case) -> Case:
    """BGR for RGB."""
    swapped = (Image.merge("RGB", image.convert("RGB").split()[::-1]) for image in case.images)
    return replace(case, images=tuple(swapped))


def image_after_text(text: str) -> str:
    """In the first turn the image follows the question; applied to the rendered template."""
    head, image, rest = text.partition("Image 1:<image>\n")
    question, assistant, tail = rest.partition(" ASSISTANT:")
    return f"{head}{question}\n{image.rstrip()}{assistant}{tail}" if image else text
