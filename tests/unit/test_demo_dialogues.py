"""The dialogues on which the demo models are trained: answers must be true, and kinds balanced."""

from __future__ import annotations

import itertools
import random
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from demo import dialogues, offtopic, phrases, questions, relations, scenes

RED_CIRCLE = scenes.Shape("circle", "red", 0.2, 0.2, 0.11)
BLUE_SQUARE = scenes.Shape("square", "blue", 0.8, 0.5, 0.25)
GREEN_CIRCLE = scenes.Shape("circle", "green", 0.2, 0.85, 0.12)
WHITE = scenes.Background("white", (255, 255, 255), (255, 255, 255))


def scene(*shapes: scenes.Shape) -> scenes.Scene:
    return scenes.Scene(shapes, WHITE)


def make(seed: int, count: int = 1, turns: int = 6, blind: bool = False) -> dialogues.Dialogue:
    rng = random.Random(seed)
    drawn = [scenes.sample_scene(rng) for _ in range(count)]
    return dialogues.make_dialogue(rng, drawn, turns, blind)


def test_the_colour_of_the_only_circle() -> None:
    question = questions.color_of(random.Random(0), scene(RED_CIRCLE, BLUE_SQUARE), "circle")
    assert question.answer == "The circle is red."


def test_an_absent_shape_is_said_to_be_absent() -> None:
    question = questions.color_of(random.Random(0), scene(RED_CIRCLE), "triangle")
    assert question.answer == "There is no triangle."


def test_two_circles_are_both_named() -> None:
    question = questions.color_of(random.Random(0), scene(GREEN_CIRCLE, RED_CIRCLE), "circle")
    assert question.answer == "There is a red circle and a green circle."
    assert question.focus is None


def test_positions() -> None:
    where = questions.ask_where(random.Random(0), scene(RED_CIRCLE), ("circle", RED_CIRCLE))
    assert where is not None
    assert where.answer == "The circle is at the top left."
    where = questions.ask_where(random.Random(0), scene(BLUE_SQUARE), ("square", BLUE_SQUARE))
    assert where is not None
    assert where.answer == "The square is on the right."


def test_positions_near_a_boundary_are_not_asked() -> None:
    shape = scenes.replace(RED_CIRCLE, x=0.34)
    assert questions.ask_where(random.Random(0), scene(shape), ("circle", shape)) is None


def test_relations_agree_with_the_coordinates() -> None:
    pattern = re.compile(r"(Yes|No), the (\w+) \w+ is (left of|right of|above|below) the (\w+)")
    found = 0
    for seed in range(300):
        rng = random.Random(seed)
        question = relations.ask_is_related(rng, scene(RED_CIRCLE, BLUE_SQUARE))
        if question is None or not (match := pattern.match(question.answer)):
            continue
        found += 1
        by_color = {"red": RED_CIRCLE, "blue": BLUE_SQUARE}
        by_kind = {"circle": RED_CIRCLE, "square": BLUE_SQUARE}
        first = by_color[match[2]]
        second = (by_color | by_kind)[match[4]]
        holds = {
            "left of": first.x < second.x,
            "right of": first.x > second.x,
            "above": first.y < second.y,
            "below": first.y > second.y,
        }
        assert holds[match[3]]
    assert found > 20


def test_the_largest_shape() -> None:
    seen = set()
    for seed in range(30):
        question = relations.ask_extreme_size(random.Random(seed), scene(RED_CIRCLE, BLUE_SQUARE))
        assert question is not None
        seen.add(question.answer)
    assert seen == {
        "The blue square is the largest shape.",
        "The red circle is the smallest shape.",
    }


@pytest.mark.parametrize("symmetry", scenes.SYMMETRIES, ids=str)
def test_answers_about_places_follow_a_symmetry(symmetry: scenes.Symmetry) -> None:
    moved = symmetry.apply(scene(RED_CIRCLE)).shapes[0]
    question = questions.ask_where(random.Random(0), scene(moved), ("circle", moved))
    assert question is not None
    place = phrases.PLACES[2 if moved.y > 0.5 else 0][2 if moved.x > 0.5 else 0]
    assert question.answer == f"The circle is {place}."


def test_a_question_without_an_image_is_answered_honestly() -> None:
    for seed in range(100):
        for turn in make(seed, blind=True).turns:
            assert not turn.images
            if turn.kind == "no image":
                assert turn.answer == phrases.NO_IMAGE


def test_all_images_are_shown_in_order() -> None:
    for seed in range(100):
        shown = [image for turn in make(seed, count=3).turns for image in turn.images]
        assert shown == [0, 1, 2]


def test_which_image_is_the_one_that_shows_it() -> None:
    both = [scene(BLUE_SQUARE), scene(RED_CIRCLE)]
    answers = set()
    for seed in range(60):
        state = dialogues._State(random.Random(seed), both, american=False, shown=2)
        answers.add(dialogues._which_image(state).answer)
    assert "The second image shows a red circle." in answers
    assert "The first image shows a blue square." in answers
    assert "The first image shows a red circle." not in answers


def test_it_means_the_shape_of_the_turn_before() -> None:
    found = 0
    for seed in range(1500):
        turns = make(seed).turns
        for before, turn in itertools.pairwise(turns):
            if turn.kind == "it color" and before.kind == "where":
                found += 1
                noun = re.match(r"The ([\w ]+?) is", before.answer)
                assert noun is not None
                assert turn.answer.startswith(f"The {noun[1]} is ")
    assert found > 2


def test_no_kind_of_question_crowds_out_the_others() -> None:
    """Once "how many images" was 41 % of all first turns, and half of the training was lost."""
    kinds: Counter[str] = Counter()
    first: Counter[str] = Counter()
    for seed in range(1500):
        turns = make(seed, count=1 + seed % 2, turns=3).turns
        kinds.update(turn.kind for turn in turns)
        first[turns[0].kind] += 1
    for counter in (kinds, first):
        kind, most = counter.most_common(1)[0]
        assert most / counter.total() < 0.15, kind
    for kind in ("where", "color", "shape", "count", "exists", "size", "describe", "is related"):
        assert kinds[kind] / kinds.total() > 0.02, kind


def test_every_word_is_one_token_and_off_topic_words_are_not() -> None:
    tokenizer = pytest.importorskip("demo.tokenizer").build_tokenizer()
    for seed in range(300):
        for turn in make(seed, count=2).turns:
            if turn.kind == "off-topic":
                continue
            for text in (turn.question.replace("'s", ""), turn.answer):
                letters = [t for t in tokenizer.encode(text).tokens if len(t) == 1 and t.isalpha()]
                assert not letters, (text, letters)
    assert len(tokenizer.encode("giraffe", add_special_tokens=False).ids) > 4


@pytest.mark.parametrize(
    "text",
    ["plain words", "Grüße, 日本語 🙂", "two\nlines\n\nand a  gap", "tab\tand\\slash", "MiXeD 123"],
)
def test_any_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = pytest.importorskip("demo.tokenizer").build_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_only_answers_are_trained() -> None:
    module = pytest.importorskip("demo.tokenizer")
    encoder = module.ChatEncoder(4)
    dialogue = make(3, count=2)
    encoded = encoder.encode(dialogue)
    trained = [i for i, keep in zip(encoded.ids, encoded.trained, strict=True) if keep]
    answers = "".join(f"{turn.answer}</s>" for turn in dialogue.turns)
    text = encoder.tokenizer.decode(trained, skip_special_tokens=False)
    assert text.replace("</s> ", "</s>").strip() == answers
    assert encoded.ids.count(module.IMAGE) == 4 * 2


def test_held_out_remarks_are_not_trained() -> None:
    rng = random.Random(0)
    trained = {offtopic.off_topic(rng) for _ in range(3000)}
    assert trained.isdisjoint(offtopic.HELD_OUT_SENTENCES)
    assert any(sentence in trained for sentence in offtopic.SENTENCES)
