"""Dialogues of one to six turns about up to four images.

Owns the order of things: when images join, which image a question means, follow-ups ("and where
is it?"), and the small talk. Refuses to know pixels and tokens; the truth about one scene is in
`questions.py` and `relations.py`.

Invariant: a question without an ordinal is about the latest image shown so far, and "it" is the
shape that the turn before singled out in that image.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

from . import phrases, questions, relations
from .offtopic import off_topic
from .questions import Maker, Question
from .scenes import KINDS, Scene, Shape

# Shares of the questions that people ask about one image.
NATURAL: dict[Maker, float] = {
    questions.ask_color: 11, questions.ask_shape: 8, questions.ask_sole: 4,
    questions.ask_exists: 9, questions.ask_exists_color: 1.5, questions.ask_is_color: 3,
    questions.ask_is_kind: 1.5, questions.ask_count: 9, questions.ask_where: 10,
    questions.ask_half: 3, questions.ask_size: 7, questions.ask_describe: 8,
    questions.ask_background: 4, questions.ask_place: 5, relations.ask_is_related: 9,
    relations.ask_how_related: 3, relations.ask_what_related: 6,
    relations.ask_extreme_size: 5, relations.ask_compare_size: 3,
}  # fmt: skip
# What is learnt last is trained more often than people ask it.
_EMPHASIS: dict[Maker, float] = {
    questions.ask_where: 1.9, questions.ask_half: 3, questions.ask_size: 1.8,
    questions.ask_place: 2.4, relations.ask_is_related: 2.6, relations.ask_how_related: 6,
    relations.ask_what_related: 3, relations.ask_extreme_size: 2, relations.ask_compare_size: 6,
}  # fmt: skip
TRAINED = {maker: share * _EMPHASIS.get(maker, 1) for maker, share in NATURAL.items()}
SYSTEMS = (
    "You are a helpful assistant.", "Answer briefly.", "You are a tiny demo model.",
    "Answer the user's questions about the images.", "You are an expert in shapes. Be concise.",
    "A chat between a user and an assistant.",
)  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """A question with the images that come with it (indices into the scenes), and its answer."""

    images: tuple[int, ...]
    question: str
    answer: str
    kind: str


@dataclass(frozen=True)
class Dialogue:
    """A system message, possibly empty, and the turns."""

    system: str
    turns: tuple[Turn, ...]


@dataclass
class _State:
    """What the makers of turns need to know of the turns before."""

    rng: random.Random
    scenes: list[Scene]
    american: bool
    shown: int = 0
    fresh: bool = False  # an image came with this turn
    last: Question | None = None
    last_image: int = -1
    noun: str = "image"
    held_out: bool = False
    shares: dict[Maker, float] = field(default_factory=lambda: TRAINED)


def _finish(state: _State, text: str) -> str:
    """Spelling, capitals and punctuation as people vary them."""
    rng = state.rng
    text = text.replace("centre", "center") if state.american else text
    if state.american:
        text = text.replace("colour", "color").replace("Colour", "Color").replace("grey", "gray")
    if rng.random() < 0.03:
        text = rng.choice(phrases.POLITE) + text[0].lower() + text[1:]
    if rng.random() < 0.15:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.15:
        text = text.rstrip("?.!")
    return text


def _image_phrase(state: _State, scope: str | None) -> str:
    noun = state.noun if state.rng.random() < 0.7 else state.rng.choice(phrases.IMAGE_NOUNS)
    if scope is None:
        return f"{state.rng.choice(('the', 'the', 'this'))} {noun}"
    return scope.format(noun=noun)


def _scope(state: _State, index: int) -> str:
    """An expression for image `index`, with {noun} to fill in."""
    rng = state.rng
    ways = [f"the {phrases.ORDINALS[index]} {{noun}}"] * 4 + [f"{{noun}} {index + 1}"]
    if index == state.shown - 1:
        word = rng.choice(("latest", "last", "latest", "newest", "most recent", "current"))
        ways += [f"the {word} {{noun}}"] * 4
    return rng.choice(ways)


def word(state: _State, question: Question, scope: str | None = None) -> str:
    """Fill in the template; a scope that the template has no place for is put before or after."""
    image = _image_phrase(state, scope)
    noun = state.rng.choice(phrases.IMAGE_NOUNS)
    thing = state.rng.choice(phrases.THINGS)
    fields = {"thing": thing, "things": f"{thing}s", "noun": noun, "image": image} | question.fields
    text = question.template
    placed = scope is None or "{image}" in text
    text = text.format(**fields)
    # After a comparison "in the second image" comes too late: say it first, as people do.
    first = 0.8 if "{other}" in question.template or "{relation}" in question.template else 0.35
    if not placed and state.rng.random() < first:
        text = f"In {image}, {text[0].lower()}{text[1:]}"
    elif not placed:
        text = re.sub(r"([?.])$", lambda end: f" in {image}{end[1]}", text)
    text = text[0].upper() + text[1:]
    return re.sub(r"\b([Aa]) (orange|object|image)", r"\1n \2", text)


def _grammar(answer: str) -> str:
    return re.sub(r"\ba orange", "an orange", answer)


def _about_scene(state: _State, index: int, scope: str | None) -> Turn:
    """A fresh question about one image."""
    rng, scene = state.rng, state.scenes[index]
    while True:
        maker = rng.choices(list(state.shares), list(state.shares.values()))[0]
        if maker is questions.ask_sole and not (state.fresh or scope):
            continue  # "it" would mean the shape of the turn before
        question = maker(rng, scene)
        if question is not None:
            break
    state.last, state.last_image = question, index
    return Turn((), word(state, question, scope), question.answer, question.kind)


def _follow_up(state: _State) -> Turn | None:
    """ "Where is it?", about the shape that the last answer singled out."""
    if state.last is None or state.last.focus is None or state.fresh:
        return None
    rng, scene = state.rng, state.scenes[state.last_image]
    noun, shape = state.last.focus
    options: dict[str, Question | None] = {
        "where": questions.ask_where(rng, scene, (noun, shape)),
        "size": questions.ask_size(rng, scene, (noun, shape)),
    }
    if noun.split()[0] in KINDS:
        answer = f"The {noun} is {shape.color}."
        options["color"] = Question("color", "", {}, answer, (noun, shape))
    if noun.endswith("shape") and len(noun.split()) == 2:
        answer = f"The {noun} is a {shape.kind}."
        options["shape"] = Question("shape", "", {}, answer, (noun, shape))
    usable = [(k, q) for k, q in options.items() if q is not None and k != state.last.kind]
    if not usable:
        return None
    kind, question = rng.choice(usable)
    text = rng.choice(phrases.FOLLOW_UPS[kind]).format(image=_image_phrase(state, None))
    state.last = Question(kind, "", {}, question.answer, (noun, shape))
    return Turn((), text, question.answer, f"it {kind}")


def _ellipsis(state: _State) -> Turn | None:
    """ "And the square?", the last question again for another shape of the same image."""
    if state.last is None or state.fresh or state.last.kind not in ("color", "where", "size"):
        return None
    rng, scene = state.rng, state.scenes[state.last_image]
    question: Question | None
    if state.last.kind == "color":
        before = state.last.focus[0] if state.last.focus else state.last.fields.get("kind")
        kind = rng.choice([k for k in KINDS if k != before])
        question = questions.color_of(rng, scene, kind)
        ref = kind
    else:
        others = [s for s in scene.shapes if not state.last.focus or s is not state.last.focus[1]]
        named = [(n, s) for s in others for n in questions.references(scene, s)]
        if not named:
            return None
        pick = rng.choice(named)
        make = questions.ask_where if state.last.kind == "where" else questions.ask_size
        question, ref = make(rng, scene, pick), pick[0]
    if question is None:
        return None
    state.last = question
    text = rng.choice(phrases.ELLIPSES).format(ref=ref)
    return Turn((), text, question.answer, f"and {question.kind}")


def _other_image(state: _State) -> Turn | None:
    """ "And in the second image?", the last question again for another image."""
    if (
        state.last is None
        or state.shown < 2
        or state.last.kind not in ("color", "describe", "count")
    ):
        return None
    index = state.rng.choice([i for i in range(state.shown) if i != state.last_image])
    scene, last = state.scenes[index], state.last
    if last.kind == "color":
        kind = last.focus[0] if last.focus else last.fields.get("kind")
        if kind not in KINDS:
            return None
        question = questions.color_of(state.rng, scene, kind)
    elif last.kind == "describe":
        question = questions.ask_describe(state.rng, scene)
    else:
        question = _count_again(scene, last)
    state.last, state.last_image = question, index
    text = state.rng.choice(phrases.IMAGE_ELLIPSES)
    text = text.format(image=_image_phrase(state, _scope(state, index)))
    return Turn((), text[0].upper() + text[1:], question.answer, f"other image {question.kind}")


def _count_again(scene: Scene, last: Question) -> Question:
    """The same count in another scene, told from the last answer's noun."""
    words = last.answer.rstrip(".").split()[3:]  # after "I see two"
    words[-1] = words[-1].removesuffix("s")
    names = set(words) - {"shape"}
    count = sum(names <= {s.kind, s.color} for s in scene.shapes)
    return Question("count", "", last.fields, questions.count_answer(" ".join(words), count))


def _shown_in(state: _State, noun: str) -> list[str]:
    """Ordinals of the images that show it."""
    wanted = set(noun.split()) - {"shape"}
    return [
        phrases.ORDINALS[i]
        for i, scene in enumerate(state.scenes[: state.shown])
        if any(wanted <= {s.kind, s.color} for s in scene.shapes)
    ]


def _which_image(state: _State) -> Turn:
    """Which of the images shows a circle, a red circle, a red shape."""
    rng = state.rng
    shapes = [s for scene in state.scenes[: state.shown] for s in scene.shapes]
    shape = rng.choice(shapes) if shapes else Shape(rng.choice(KINDS), "red", 0, 0, 0)
    nouns = [shape.kind, f"{shape.color} {shape.kind}", f"{shape.color} shape"]
    rng.shuffle(nouns)
    if rng.random() < 0.08:
        nouns = [rng.choice(KINDS)]
    for noun in nouns:
        found = _shown_in(state, noun)
        if len(found) == 1 or rng.random() < 0.2:
            break
    if not found:
        answer = f"No image shows a {noun}."
    elif len(found) == 1:
        answer = f"The {found[0]} image shows a {noun}."
    else:
        listed = " and ".join([", ".join(f"the {o}" for o in found[:-1]), f"the {found[-1]}"])
        answer = f"T{listed[1:]} image show a {noun}."
    question = questions.pose(rng, "which image", answer, ref=questions.asked_noun(rng, noun))
    state.last = None
    return Turn((), word(state, question), answer, "which image")


def _shown(state: _State) -> str:
    noun = "image" if state.shown == 1 else "images"
    return f"You have shown {phrases.NUMBERS[state.shown]} {noun}."


def _how_many_images(state: _State) -> Turn:
    answer = _shown(state)
    question = questions.pose(state.rng, "how many images", answer)
    state.last = None
    return Turn((), word(state, question), answer, "how many images")


def _chat(state: _State) -> Turn:
    """Small talk, or a remark that has nothing to do with shapes."""
    rng = state.rng
    state.last = None
    if rng.random() < 0.5:
        text = off_topic(rng, state.held_out)
        return Turn((), text, phrases.OFF_TOPIC, "off-topic")
    kind = rng.choice(tuple(phrases.CHAT))
    asked, answer = phrases.CHAT[kind]
    return Turn((), rng.choice(asked), answer, kind)


def _without_image(state: _State) -> Turn:
    """A turn before any image has been shown."""
    rng = state.rng
    roll = rng.random()
    if roll < 0.5:
        return _chat(state)
    if roll < 0.56:
        return _how_many_images(state)
    # A question about an image that is not there: any scene serves to word it.
    turn = _about_scene(state, 0, None if rng.random() < 0.9 else "the first {noun}")
    state.last = None
    return Turn((), turn.question, phrases.NO_IMAGE, "no image")


def _turn(state: _State) -> Turn:
    rng = state.rng
    if state.shown == 0:
        return _without_image(state)
    roll = rng.random()
    if roll < 0.05:
        return _chat(state)
    if roll < 0.065:
        return _how_many_images(state)
    if roll < (0.19 if state.shown > 1 else 0.07):
        return _which_image(state)
    if roll < 0.33 and (turn := _follow_up(state) or _ellipsis(state)):
        return turn
    if roll < 0.39 and (turn := _ellipsis(state) or _other_image(state)):
        return turn
    latest = state.shown - 1
    if state.shown > 1 and roll < 0.78:
        index = rng.randrange(state.shown)
        return _about_scene(state, index, _scope(state, index))
    roll = rng.random()
    if roll < 0.02 and state.shown < len(phrases.ORDINALS):
        return _missing_image(state)
    if roll < 0.08:
        return _about_scene(state, latest, _scope(state, latest))
    return _about_scene(state, latest, None)


def _missing_image(state: _State) -> Turn:
    """A question about the second image when only one was shown."""
    scope = f"the {phrases.ORDINALS[state.shown]} {{noun}}"
    turn = _about_scene(state, state.shown - 1, scope)
    state.last = None
    return Turn((), turn.question, _shown(state), "missing image")


def _arrivals(rng: random.Random, images: int, turns: int) -> list[int]:
    """How many images come with each turn."""
    arrivals = [0] * turns
    for index in range(images):
        if index == 0:
            at = 0 if rng.random() < 0.85 else rng.randrange(turns)
        else:
            at = rng.randrange(turns) if rng.random() < 0.9 else 0
        arrivals[at] += 1
    return arrivals


def make_dialogue(
    rng: random.Random,
    scenes: list[Scene],
    turns: int,
    blind: bool = False,
    held_out: bool = False,
    shares: dict[Maker, float] = TRAINED,
) -> Dialogue:
    """A dialogue in which all scenes are shown in order, or, `blind`, none of them."""
    state = _State(rng, scenes, rng.random() < 0.5, held_out=held_out, shares=shares)
    state.noun = rng.choice(phrases.IMAGE_NOUNS)
    made: list[Turn] = []
    for count in _arrivals(rng, 0 if blind else len(scenes), turns):
        images = tuple(range(state.shown, state.shown + count))
        state.shown += count
        state.fresh = count > 0
        if state.fresh:
            state.last = None
        turn = _turn(state)
        made.append(Turn(images, _finish(state, turn.question), _grammar(turn.answer), turn.kind))
    system = rng.choice(SYSTEMS) if rng.random() < 0.05 else ""
    return Dialogue(system, tuple(made))
