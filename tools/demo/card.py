"""The model card: what the checkpoint is, how often it is right, and what it cannot do.

Owns the measurement plan and the page. Refuses to state a figure that it has not just measured.

Invariant: every figure on the card is the exact-match share on scenes drawn after training.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch

from .evaluate import (
    Case,
    Client,
    draw_cases,
    drop_history_images,
    exact,
    image_after_text,
    other_images,
    swap_images,
    swap_red_and_blue,
)

GROUPS = {
    "colour": ("color", "sole color", "is color"),
    "shape": ("shape", "sole shape", "is kind"),
    "count": ("count",),
    "presence": ("exists", "exists color"),
    "size": ("size", "is size", "extreme size"),
    "position": ("where", "half x", "half y", "is half", "extreme place", "cell"),
    "relation of two": (
        "is related",
        "how related",
        "what related",
        "compare size",
        "is larger",
    ),
    "description": ("describe",),
    "background": ("background",),
    "which image, how many images": ("which image", "how many images", "missing image"),
    "small talk and off-topic": ("off-topic", "greeting", "thanks", "goodbye", "praise", "about"),
}
_ORDINALS = ("first", "second", "latest", "last", "newest", "recent", "1", "2", "which", "Which")
Rows = list[tuple[str, int, float]]


def _share(results: list[bool]) -> float:
    return 100 * sum(results) / max(1, len(results))


def _names_an_image(case: Case) -> bool:
    """Whether the question picks one of several images."""
    question = case.messages[-1]["content"][-1]["text"]
    words = set(question.replace("?", "").replace(",", "").replace(".", "").split())
    return case.kind == "which image" or bool(words & set(_ORDINALS))


def _by_group(cases: list[Case], results: list[bool]) -> Rows:
    tally: dict[str, list[bool]] = defaultdict(list)
    for case, right in zip(cases, results, strict=True):
        kind = case.kind.removeprefix("it ").removeprefix("and ").removeprefix("other image ")
        name = next((name for name, kinds in GROUPS.items() if kind in kinds), kind)
        tally[name].append(right)
    return [(name, len(tally[name]), _share(tally[name])) for name in GROUPS if name in tally]


def accuracy(client: Client, seed: int, scale: int, log: Callable[[str], None]) -> dict[str, Rows]:
    """Tables: single questions by kind, and all the groups of conversations."""
    single = draw_cases(seed, 40 * scale, 1, 1)
    results = exact(client, single)
    tables = {"single": _by_group(single, results)}
    groups: Rows = [("single questions", len(single), _share(results))]
    later = [case for case in draw_cases(seed, 8 * scale, 1, 6) if case.turn > 0]
    groups.append(("later turns, one image", len(later), _share(exact(client, later))))
    two = [case for case in draw_cases(seed, 12 * scale, 2, 5) if len(case.images) == 2]
    results = exact(client, two)
    groups.append(("two images shown, any question", len(two), _share(results)))
    pairs = zip(two, results, strict=True)
    chosen = [right for case, right in pairs if _names_an_image(case)]
    groups.append(("... that names an image, or asks which", len(chosen), _share(chosen)))
    three = [case for case in draw_cases(seed, 3 * scale, 3, 6) if len(case.images) == 3]
    groups.append(("three images shown, any question", len(three), _share(exact(client, three))))
    tables["groups"] = groups
    for rows in tables.values():
        for name, count, share in rows:
            log(f"{name}: {share:.1f} % of {count}")
    return tables


def _ablate(
    client: Client, cases: list[Case], change: Callable[[Case], Case]
) -> tuple[float, float]:
    return _share(exact(client, cases)), _share(exact(client, [change(case) for case in cases]))


def _talks_of_shapes(case: Case) -> bool:
    return not any(case.kind in GROUPS[name] for name in list(GROUPS)[-2:]) and bool(case.images)


def ablations(client: Client, seed: int, scale: int) -> list[tuple[str, int, float, float]]:
    """What each mistake of a client costs on the questions that it bears on."""
    single = [c for c in draw_cases(seed + 1, 6 * scale, 1, 1) if _talks_of_shapes(c)]
    later = [c for c in draw_cases(seed + 1, 3 * scale, 1, 4) if c.turn > 0 and _talks_of_shapes(c)]
    later = [c for c in later if not any(p["type"] == "image" for p in c.messages[-1]["content"])]
    # Where both images give the same answer nothing can be lost by swapping them.
    two = [c for c in draw_cases(seed + 1, 12 * scale, 2, 4) if len(c.images) == 2]
    two = [c for c in two if _names_an_image(c) and c.kind != "how many images"]
    words = ("red", "blue")
    asked = (*GROUPS["colour"], *GROUPS["shape"], "describe")
    colored = [c for c in draw_cases(seed + 2, 24 * scale, 1, 1) if c.kind in asked]
    colored = [c for c in colored if any(word in c.answer for word in words)]
    rows = []
    for name, cases, change in (
        ("image dropped from history, later turns", later, drop_history_images),
        ("some other image", single, lambda case: other_images(case, single)),
        ("two images swapped, questions that name one", two, swap_images),
        ("red and blue swapped, answers with red or blue", colored, swap_red_and_blue),
    ):
        rows.append((name, len(cases), *_ablate(client, cases, change)))
    before = _share(exact(client, single))

    def broken(name: str) -> None:
        rows.append((name, len(single), before, _share(exact(client, single))))

    client.after_template = image_after_text
    broken("image after the text, first turn")
    client.after_template = lambda text: text
    config = client.processor.image_processor
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (config.image_mean, config.image_std))
    client.after_pixels = lambda pixels: pixels * std + mean
    broken("pixels not normalised")
    client.after_pixels = lambda pixels: pixels
    client.read_layer(-1)
    broken("the vision tower's last layer read, not the one before it")
    client.read_layer(-2)
    return rows


def _table(head: tuple[str, ...], rows: list[tuple]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = (f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_card(folder: Path, log: Callable[[str], None], seed: int = 11, scale: int = 40) -> None:
    """Measure the checkpoint in `folder` and write its README.md."""
    client = Client(folder)
    tables = accuracy(client, seed, scale, log)
    lost = ablations(client, seed, scale)
    dtypes: Rows = []
    for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16)):
        other = Client(folder, dtype)
        cases = draw_cases(seed, 8 * scale, 1, 1)
        dtypes.append((name, len(cases), _share(exact(other, cases))))
    for row in (*lost, *dtypes):
        log(" ".join(str(cell) for cell in row))
    parameters = sum(p.numel() for p in client.model.parameters())
    page = _PAGE.format(
        parameters=f"{parameters:,}",
        size=f"{(folder / 'model.safetensors').stat().st_size:,}",
        groups=_table(("conversations", "answers", "exact, %"), tables["groups"]),
        single=_table(("single question about", "answers", "exact, %"), tables["single"]),
        lost=_table(("a client's mistake", "answers", "before, %", "after, %"), lost),
        dtypes=_table(("weights", "answers", "exact, %"), dtypes),
    )
    (folder / "README.md").write_text(page, encoding="utf-8")


_PAGE = """\
# The demo model of the llava backend

A `LlavaForConditionalGeneration` of {parameters} parameters ({size} bytes in float16) that talks
about coloured shapes, so that tuichat can be tried, and tested, without a download. CLIP vision
tower (64 x 64 pixels, patches of 8), two-layer projector, Llama. It loads with the ordinary
classes of transformers.

**What it knows**: circles, squares and triangles in red, orange, yellow, green, blue, purple,
black and white, one to three at a time, anywhere on a plain or graded background: their colour,
shape, number, presence, size, position and relation; the background; and, with several images,
which is which. It answers in English, in one short sentence. To everything else it says
"I only know coloured shapes.", and without an image "I do not see an image. Please attach one."

**Data**: drawn by `tools/train_demo_models.py`, which trains it from a seed on two cores; nothing
was downloaded and no person's images or texts were used. Licence: that of tuichat.

## How often it is right

The whole answer must be right to the letter. Scenes are fresh, as PNG or JPEG of 60 to 2,000
pixels; earlier turns hold the right answers.

{groups}

{single}

{dtypes}

## What a client's mistake costs

{lost}

## Limits

- Shapes of a radius between 0.1 and 0.3 of the image's short side, apart from one another, in
  images no longer than twice their width. Smaller, larger, touching or other shapes are guessed.
- Positions near a third of the image, sizes between small and big (a half-extent of 0.155 to 0.19
  of the short side) and tones between two colours may be called either.
- A question without an ordinal is about the latest image; "it" is the shape that the answer before
  singled out.
- It has seen up to four images and six turns in a conversation.
- Asked for the place, the size or the relation of a shape that is not there, it makes one up; asked
  for its colour or its presence, it says that there is none.
- In an image without shapes, such as a landscape, it still sees shapes when asked about shapes.
- Which of two named shapes is larger is little better than a guess.
- It does not read, count beyond three, or know any object of the world.
"""
