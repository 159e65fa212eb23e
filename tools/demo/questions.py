"""Questions about one scene, and their true answers.

Owns the truth of every answer: one fixed short sentence per fact. Refuses to know how questions
follow one another, and images other than the one asked about (`dialogues.py`).

Invariant: a maker returns None rather than a question whose answer people could dispute, such as
the position of a shape near a boundary; where several shapes fit, the answer names them all.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from . import phrases
from .scenes import COLORS, KINDS, Scene, Shape, column, row, size_name

_HALF_GAP = 0.08
_SIDE_GAP = 0.13
_NOUN_SHAPE = "shape"
# Share of the questions that several shapes fit which are asked all the same.
_AMBIGUOUS = 0.2


@dataclass(frozen=True)
class Question:
    """A template with its fields, the answer, and the shape that "it" then means."""

    kind: str
    template: str
    fields: dict[str, str]
    answer: str
    focus: tuple[str, Shape] | None = None


Maker = Callable[[random.Random, Scene], Question | None]


def pose(
    rng: random.Random, name: str, answer: str, focus: tuple[str, Shape] | None = None,
    /, **fields: str,
) -> Question:  # fmt: skip
    """A question of the kind `name`, in one of its phrasings."""
    return Question(name, rng.choice(phrases.QUESTIONS[name]), fields, answer, focus)


def plural(noun: str, count: int) -> str:
    """ "two red circles", "a red circle", "no red circle"."""
    if count == 1:
        return f"a {noun}"
    return f"no {noun}" if count == 0 else f"{phrases.NUMBERS[count]} {noun}s"


def listing(parts: list[str]) -> str:
    """ "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def looks(shape: Shape) -> str:
    """ "red circle"."""
    return f"{shape.color} {shape.kind}"


def inventory(shapes: list[Shape] | tuple[Shape, ...]) -> str:
    """ "a red circle and two blue squares": by kind, then by colour, whatever the positions."""
    counts = Counter((KINDS.index(s.kind), COLORS.index(s.color)) for s in shapes)
    return listing([
        plural(f"{COLORS[color]} {KINDS[kind]}", counts[kind, color])
        for kind, color in sorted(counts)
    ])  # fmt: skip


def there_is(shapes: list[Shape] | tuple[Shape, ...]) -> str:
    """ "There is a red circle and a blue square."."""
    listed = inventory(shapes)
    return f"There {'is' if listed.startswith('a ') else 'are'} {listed}."


def references(scene: Scene, shape: Shape) -> list[str]:
    """Nouns that mean this shape and no other."""
    same_kind = sum(s.kind == shape.kind for s in scene.shapes)
    same_color = sum(s.color == shape.color for s in scene.shapes)
    both = sum(s.kind == shape.kind and s.color == shape.color for s in scene.shapes)
    nouns = [shape.kind] * 4 if same_kind == 1 else []
    nouns += [looks(shape)] * 2 if both == 1 else []
    nouns += [f"{shape.color} {_NOUN_SHAPE}"] if same_color == 1 else []
    return nouns + ([_NOUN_SHAPE] if len(scene.shapes) == 1 else [])


def _pick(rng: random.Random, scene: Scene) -> tuple[str, Shape] | None:
    """A shape that can be named, and its name."""
    shapes = list(scene.shapes)
    rng.shuffle(shapes)
    for shape in shapes:
        if nouns := references(scene, shape):
            return rng.choice(nouns), shape
    return None


def asked_noun(rng: random.Random, noun: str) -> str:
    """How the question may word the noun of the answer: "the red one" for "the red shape"."""
    words = noun.split()
    if words[-1] == _NOUN_SHAPE:
        words[-1] = rng.choice(
            ("shape", "shape", "one" if len(words) > 1 else "shape", "object", "thing")
        )
    return " ".join(words)


def _absent_or(rng: random.Random, present: list[str], pool: tuple[str, ...], share: float) -> str:
    """Mostly something that is there, sometimes something that is not."""
    if present and rng.random() > share:
        return rng.choice(present)
    absent = [item for item in pool if item not in present]
    return rng.choice(absent or list(pool))


def _several(rng: random.Random, found: list[Shape]) -> bool:
    """Whether a question is better not asked, because several shapes fit it."""
    return len(found) > 1 and rng.random() > _AMBIGUOUS


def ask_color(rng: random.Random, scene: Scene) -> Question | None:
    """The colour of the shape of some kind."""
    kind = _absent_or(rng, [s.kind for s in scene.shapes], KINDS, 0.12)
    if _several(rng, [s for s in scene.shapes if s.kind == kind]):
        return None
    return color_of(rng, scene, kind)


def color_of(rng: random.Random, scene: Scene, kind: str) -> Question:
    """The colour of the shape of this kind."""
    found = [s for s in scene.shapes if s.kind == kind]
    focus = (kind, found[0]) if len(found) == 1 else None
    answer = f"There is no {kind}." if not found else there_is(found)
    if focus:
        answer = f"The {kind} is {found[0].color}."
    return pose(rng, "color", answer, focus, kind=kind)


def ask_shape(rng: random.Random, scene: Scene) -> Question | None:
    """The kind of the shape of a colour."""
    color = _absent_or(rng, [s.color for s in scene.shapes], COLORS, 0.12)
    found = [s for s in scene.shapes if s.color == color]
    if _several(rng, found):
        return None
    answer = f"There is no {color} shape." if not found else there_is(found)
    focus = None
    if len(found) == 1:
        focus = (f"{color} shape", found[0])
        answer = f"The {color} shape is a {found[0].kind}."
    return pose(rng, "shape", answer, focus, color=color)


def ask_sole(rng: random.Random, scene: Scene) -> Question | None:
    """ "What colour is it?" of an image; with several shapes the answer names them all."""
    if _several(rng, list(scene.shapes)):
        return None
    kind = rng.choice(("sole color", "sole shape"))
    if len(scene.shapes) != 1:
        answer = there_is(scene.shapes) if scene.shapes else "There are no shapes."
        return pose(rng, kind, answer)
    shape = scene.shapes[0]
    if kind == "sole color":
        return pose(rng, kind, f"The {shape.kind} is {shape.color}.", (shape.kind, shape))
    noun = f"{shape.color} shape"
    return pose(rng, kind, f"The {noun} is a {shape.kind}.", (noun, shape))


def ask_exists(rng: random.Random, scene: Scene) -> Question:
    """Whether there is a circle, a red circle, a red shape."""
    form = rng.random()
    shape = rng.choice(scene.shapes) if scene.shapes else None
    if form < 0.45:
        kind = _absent_or(rng, [s.kind for s in scene.shapes], KINDS, 0.5)
        noun, found = kind, [s for s in scene.shapes if s.kind == kind]
    elif form < 0.85:
        kind = rng.choice((shape.kind, rng.choice(KINDS))) if shape else rng.choice(KINDS)
        color = shape.color if shape and rng.random() < 0.6 else rng.choice(COLORS)
        if rng.random() < 0.06:
            color = rng.choice(phrases.ASKED_ONLY_COLORS)
        noun = f"{color} {kind}"
        found = [s for s in scene.shapes if looks(s) == noun]
    else:
        color = _absent_or(rng, [s.color for s in scene.shapes], COLORS, 0.5)
        noun, found = f"{color} shape", [s for s in scene.shapes if s.color == color]
    # True of two circles as well: how many there are is another question.
    answer = f"{'Yes' if found else 'No'}, there is {'a' if found else 'no'} {noun}."
    focus = (noun, found[0]) if len(found) == 1 else None
    return pose(rng, "exists", answer, focus, ref=asked_noun(rng, noun))


def ask_exists_color(rng: random.Random, scene: Scene) -> Question:
    """Whether anything is red."""
    color = _absent_or(rng, [s.color for s in scene.shapes], COLORS, 0.5)
    found = any(s.color == color for s in scene.shapes)
    answer = f"Yes, there is something {color}." if found else f"No, there is nothing {color}."
    return pose(rng, "exists color", answer, color=color)


def ask_is_color(rng: random.Random, scene: Scene) -> Question | None:
    """Whether the circle is red."""
    kind = _absent_or(rng, [s.kind for s in scene.shapes], KINDS, 0.08)
    found = [s for s in scene.shapes if s.kind == kind]
    if _several(rng, found):
        return None
    color = rng.choice(found).color if found and rng.random() < 0.5 else rng.choice(COLORS)
    focus = None
    if len(found) == 1:
        focus = (kind, found[0])
        yes = "Yes" if found[0].color == color else "No"
        answer = f"{yes}, the {kind} is {found[0].color}."
    else:
        answer = there_is(found) if found else f"There is no {kind}."
    return pose(rng, "is color", answer, focus, kind=kind, color=color)


def ask_is_kind(rng: random.Random, scene: Scene) -> Question | None:
    """Whether the red shape is a circle."""
    colors = Counter(s.color for s in scene.shapes)
    found = [s for s in scene.shapes if colors[s.color] == 1]
    if not found:
        return None
    shape = rng.choice(found)
    kind = shape.kind if rng.random() < 0.5 else rng.choice(KINDS)
    yes, noun = "Yes" if kind == shape.kind else "No", f"{shape.color} shape"
    answer = f"{yes}, the {noun} is a {shape.kind}."
    return pose(rng, "is kind", answer, (noun, shape), kind=kind, color=shape.color)


def count_answer(noun: str, count: int) -> str:
    """ "I see two circles."."""
    return f"I see {phrases.NUMBERS[count]} {noun}{'' if count == 1 else 's'}."


def ask_count(rng: random.Random, scene: Scene) -> Question:
    """How many shapes, circles, red shapes or red circles there are."""
    form = rng.random()
    if form < 0.45:
        noun, count = "shape", len(scene.shapes)
    elif form < 0.8:
        kind = _absent_or(rng, [s.kind for s in scene.shapes], KINDS, 0.15)
        noun, count = kind, sum(s.kind == kind for s in scene.shapes)
    else:
        color = _absent_or(rng, [s.color for s in scene.shapes], COLORS, 0.15)
        noun, count = f"{color} shape", sum(s.color == color for s in scene.shapes)
    answer = count_answer(noun, count)
    *color_words, last = noun.split()
    thing = rng.choice(phrases.THINGS) if last == "shape" else last
    things = " ".join([*color_words, f"{thing}s"])
    return pose(rng, "count", answer, things=things)


def ask_where(
    rng: random.Random, scene: Scene, named: tuple[str, Shape] | None = None
) -> Question | None:
    """Which ninth of the image a shape's centre is in."""
    named = named or _pick(rng, scene)
    if named is None:
        return None
    noun, shape = named
    x, y = column(shape), row(shape)
    if x is None or y is None:
        return None
    answer = f"The {noun} is {phrases.PLACES[y][x]}."
    return pose(rng, "where", answer, named, ref=asked_noun(rng, noun))


def ask_half(rng: random.Random, scene: Scene) -> Question | None:
    """Whether a shape is left or right, at the top or at the bottom."""
    named = _pick(rng, scene)
    if named is None:
        return None
    noun, shape = named
    along_x = rng.random() < 0.5
    place, sides = (shape.x, ("left", "right")) if along_x else (shape.y, ("top", "bottom"))
    if abs(place - 0.5) < _HALF_GAP:
        return None
    true = phrases.SIDE_ANSWERS[sides[int(place > 0.5)]]
    ref = asked_noun(rng, noun)
    if rng.random() < 0.5:
        kind = "half x" if along_x else "half y"
        return pose(rng, kind, f"The {noun} is {true}.", named, ref=ref)
    side = rng.choice(sides)
    yes = "Yes" if phrases.SIDE_ANSWERS[side] == true else "No"
    answer = f"{yes}, the {noun} is {true}."
    return pose(rng, "is half", answer, named, ref=ref, side=rng.choice(phrases.SIDES[side]))


def ask_size(
    rng: random.Random, scene: Scene, named: tuple[str, Shape] | None = None
) -> Question | None:
    """Whether a shape is big or small."""
    plain = named is not None
    named = named or _pick(rng, scene)
    size = named and size_name(named[1])
    if named is None or size is None:
        return None
    noun = named[0]
    ref = asked_noun(rng, noun)
    if plain or rng.random() < 0.7:
        return pose(rng, "size", f"The {noun} is {size}.", named, ref=ref)
    asked = rng.choice(tuple(phrases.SIZES))
    answer = f"{'Yes' if asked == size else 'No'}, the {noun} is {size}."
    word = rng.choice(phrases.SIZES[asked])
    return pose(rng, "is size", answer, named, ref=ref, size=word)


def ask_background(rng: random.Random, scene: Scene) -> Question | None:
    """The colour of the background, where it has a name."""
    if scene.background.name is None:
        return None
    return pose(rng, "background", f"The background is {scene.background.name}.", things="shapes")


def ask_describe(rng: random.Random, scene: Scene) -> Question:
    """Everything that is there."""
    answer = f"I see {inventory(scene.shapes)}." if scene.shapes else "I see no shapes."
    focus = (scene.shapes[0].kind, scene.shapes[0]) if len(scene.shapes) == 1 else None
    things = rng.choice(("shapes", "objects", "things"))
    return pose(rng, "describe", answer, focus, things=things)


def ask_place(rng: random.Random, scene: Scene) -> Question | None:
    """What is furthest to a side, or in a corner or the middle."""
    if not scene.shapes:
        return None
    if len(scene.shapes) > 1 and rng.random() < 0.6:
        side = rng.choice(tuple(phrases.SIDES))
        sign = 1 if side in ("left", "top") else -1
        places = [sign * (s.x if side in ("left", "right") else s.y) for s in scene.shapes]
        ranked = sorted(zip(places, scene.shapes, strict=True), key=lambda pair: pair[0])
        shape = ranked[0][1]
        if ranked[1][0] - ranked[0][0] < _SIDE_GAP:
            return None
        answer = f"The {looks(shape)} is {phrases.SIDE_ANSWERS[side]}."
        side = rng.choice(phrases.SIDES[side])
        return pose(rng, "extreme place", answer, (looks(shape), shape), side=side)
    cells = [(column(s), row(s)) for s in scene.shapes]
    if any(x is None or y is None for x, y in cells):
        return None
    named = [(x, y) for x, y in cells if (x == 1) == (y == 1)]
    corners = [(0, 0), (2, 0), (0, 2), (2, 2), (1, 1)]
    cell = rng.choice(named) if named and rng.random() < 0.75 else rng.choice(corners)
    found = [s for s, at in zip(scene.shapes, cells, strict=True) if at == cell]
    place = phrases.PLACES[cell[1]][cell[0]]  # type: ignore[index]
    if len(found) > 1:
        return None
    answer = f"The {looks(found[0])} is {place}." if found else f"Nothing is {place}."
    focus = (looks(found[0]), found[0]) if found else None
    side = rng.choice(phrases.CENTER_WORDS) if cell == (1, 1) else place
    return pose(rng, "cell", answer, focus, side=side)
