"""Questions that compare shapes of one scene: relative position and relative size.

Owns their truth, as `questions.py` does for single shapes. Refuses to know dialogues.

Invariant: only clear cases are asked: centres well apart along the axis in question, sizes that
differ by a third.
"""

from __future__ import annotations

import random

from . import phrases
from .questions import Question, asked_noun, inventory, listing, looks, pose, references
from .scenes import COLORS, KINDS, Scene, Shape

_CLEAR = 0.13
_SIZE_RATIO = 1.3
_OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


def _offset(relation: str, shape: Shape, other: Shape) -> float:
    """Positive where the relation holds, by how much."""
    return {
        "left of": other.x - shape.x, "right of": shape.x - other.x,
        "above": other.y - shape.y, "below": shape.y - other.y,
    }[relation]  # fmt: skip


def _pair(rng: random.Random, scene: Scene) -> tuple[tuple[str, Shape], tuple[str, Shape]] | None:
    """Two shapes that can both be named."""
    named = [(refs, s) for s in scene.shapes if (refs := references(scene, s))]
    if len(named) < 2:
        return None
    (refs, shape), (other_refs, other) = rng.sample(named, 2)
    return (rng.choice(refs), shape), (rng.choice(other_refs), other)


def ask_is_related(rng: random.Random, scene: Scene) -> Question | None:
    """Whether one shape is left of, right of, above or below another."""
    pair = _pair(rng, scene)
    if pair is None:
        return None
    (noun, shape), (other_noun, other) = pair
    relation = rng.choice(tuple(phrases.RELATIONS))
    offset = _offset(relation, shape, other)
    if abs(offset) < _CLEAR:
        return None
    true = relation if offset > 0 else _OPPOSITE[relation]
    answer = f"{'Yes' if offset > 0 else 'No'}, the {noun} is {true} the {other_noun}."
    return pose(
        rng, "is related", answer, (noun, shape), ref=asked_noun(rng, noun),
        other=asked_noun(rng, other_noun), relation=rng.choice(phrases.RELATIONS[relation]),
    )  # fmt: skip


def ask_how_related(rng: random.Random, scene: Scene) -> Question | None:
    """Where one shape is as seen from another, along the axis that matters."""
    pair = _pair(rng, scene)
    if pair is None:
        return None
    (noun, shape), (other_noun, other) = pair
    offsets = {relation: _offset(relation, shape, other) for relation in phrases.RELATIONS}
    true = max(offsets, key=lambda relation: offsets[relation])
    across = min(abs(shape.x - other.x), abs(shape.y - other.y))
    if offsets[true] < 1.5 * _CLEAR or offsets[true] < 1.6 * across:
        return None
    answer = f"The {noun} is {true} the {other_noun}."
    return pose(
        rng, "how related", answer, (noun, shape), ref=asked_noun(rng, noun),
        other=asked_noun(rng, other_noun),
    )  # fmt: skip


def ask_what_related(rng: random.Random, scene: Scene) -> Question | None:
    """What is left of, right of, above or below a shape."""
    named = [(refs, s) for s in scene.shapes if (refs := references(scene, s))]
    if not named or len(scene.shapes) < 2:
        return None
    refs, shape = rng.choice(named)
    noun = rng.choice(refs)
    relation = rng.choice(tuple(phrases.RELATIONS))
    offsets = [(_offset(relation, s, shape), s) for s in scene.shapes if s is not shape]
    if any(abs(offset) < _CLEAR for offset, _ in offsets):
        return None
    found = [s for offset, s in offsets if offset > 0]
    if len(found) > 1 and rng.random() < 0.5:
        return None
    found.sort(key=lambda s: (KINDS.index(s.kind), COLORS.index(s.color)))
    focus = (looks(found[0]), found[0]) if len(found) == 1 else None
    if not found:
        answer = f"Nothing is {relation} the {noun}."
    elif len(found) == 2 and looks(found[0]) == looks(found[1]):
        answer = f"There are {inventory(found)} {relation} the {noun}."
    else:
        listed = listing([f"the {looks(s)}" for s in found])
        answer = f"T{listed[1:]} {'is' if focus else 'are'} {relation} the {noun}."
    return pose(
        rng, "what related", answer, focus, ref=asked_noun(rng, noun),
        relation=rng.choice(phrases.RELATIONS[relation]),
    )  # fmt: skip


def ask_extreme_size(rng: random.Random, scene: Scene) -> Question | None:
    """Which shape is the largest or the smallest."""
    if len(scene.shapes) < 2:
        return None
    most = rng.choice(tuple(phrases.MOST))
    ranked = sorted(scene.shapes, key=lambda s: s.extent, reverse=most == "largest")
    first, second = ranked[0].extent, ranked[1].extent
    if max(first, second) < _SIZE_RATIO * min(first, second):
        return None
    noun = looks(ranked[0])
    answer = f"The {noun} is the {most} shape."
    return pose(
        rng, "extreme size", answer, (noun, ranked[0]),
        most=rng.choice(phrases.MOST[most]),
    )  # fmt: skip


def ask_compare_size(rng: random.Random, scene: Scene) -> Question | None:
    """Which of two shapes is larger or smaller."""
    pair = _pair(rng, scene)
    if pair is None:
        return None
    (noun, shape), (other_noun, other) = pair
    if max(shape.extent, other.extent) < _SIZE_RATIO * min(shape.extent, other.extent):
        return None
    more = rng.choice(tuple(phrases.MORE))
    fits = (shape.extent > other.extent) == (more == "larger")
    fields = {
        "ref": asked_noun(rng, noun), "other": asked_noun(rng, other_noun),
        "more": rng.choice(phrases.MORE[more]),
    }  # fmt: skip
    if rng.random() < 0.5:
        winner = (noun, shape) if fits else (other_noun, other)
        return pose(rng, "compare size", f"The {winner[0]} is {more}.", winner, **fields)
    true = more if fits else {"larger": "smaller", "smaller": "larger"}[more]
    answer = f"{'Yes' if fits else 'No'}, the {noun} is {true} than the {other_noun}."
    return pose(rng, "is larger", answer, (noun, shape), **fields)
