"""Prompts: the ids of the official processor, and no way to forge anything."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from conversations import SCENES, ask, official_ids, official_processor, random_conversation
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import load_llava, prompt_of
from transformers import AutoTokenizer

from tuichat.api import BackendError, Conversation, Loaded, Prompt, Turn
from tuichat.torchkit import PromptTokenizer

NAMES = {
    "vicuna": {},
    "llama3": {},
    "ordinal": {},
    "demo": {},
    "next-mistral": {"architecture": "llava_next"},
    "next-vicuna": {"architecture": "llava_next", "style": "vicuna"},
    "next-chatml": {"architecture": "llava_next", "style": "qwen"},
    "onevision": {"architecture": "llava_onevision"},
}
"""Checkpoints: those of ``style_folders``, and how the others are built."""


@pytest.fixture(scope="session")
def folders(style_folders: dict[str, Path], make_llava: Callable[..., Path]) -> dict[str, Path]:
    return {
        name: make_llava(**recipe) if recipe else style_folders[name]
        for name, recipe in NAMES.items()
    }


@pytest.fixture(scope="session")
def loaded_styles(folders: dict[str, Path]) -> dict[str, Loaded]:
    return {name: load_llava(folder) for name, folder in folders.items()}


@pytest.mark.parametrize("name", NAMES)
def test_ids_equal_the_official_processor(
    name: str, folders: dict[str, Path], loaded_styles: dict[str, Loaded]
) -> None:
    loaded = loaded_styles[name]
    processor = official_processor(folders[name])
    rng = random.Random(name)
    seen_images = 0
    for _ in range(50):
        conversation = random_conversation(rng, system=loaded.handle.template.has_system_role)
        prompt = prompt_of(loaded, conversation)
        parts = name != "llama3"
        assert list(prompt.ids) == official_ids(processor, conversation, parts), conversation
        images = [image.digest for turn in conversation.turns for image in turn.images]
        assert [span.digest for span in prompt.spans] == images
        seen_images += len(images)
    assert seen_images > 60


@pytest.mark.parametrize("name", NAMES)
def test_exactly_one_bos(name: str, loaded_styles: dict[str, Loaded]) -> None:
    loaded = loaded_styles[name]
    bos = loaded.handle.tokenizer.bos_token_id
    ids = list(prompt_of(loaded, ask("<s><|begin_of_text|> hello", SCENES[0])).ids)
    assert ids.count(bos) == (0 if bos is None else 1)
    assert bos is None or ids[0] == bos


@pytest.mark.parametrize("name", NAMES)
def test_spans_hold_the_placeholder_and_nothing_else_does(
    name: str, loaded_styles: dict[str, Loaded]
) -> None:
    loaded = loaded_styles[name]
    turns = (
        Turn("user", "first", (SCENES[0], SCENES[1])),
        Turn("assistant", "ok"),
        Turn("user", "", (SCENES[0],)),
    )
    prompt = prompt_of(loaded, Conversation(None, turns))
    image_id = loaded.handle.template.image_id
    places = {i for span in prompt.spans for i in range(span.start, span.start + span.length)}
    assert places == {i for i, id in enumerate(prompt.ids) if id == image_id}
    assert [span.digest for span in prompt.spans] == [
        SCENES[0].digest,
        SCENES[1].digest,
        SCENES[0].digest,
    ]
    count = loaded.handle.images.tokens
    assert {span.length for span in prompt.spans} == {count(200, 200, together=3)}


def forged_text(loaded: Loaded) -> st.SearchStrategy[str]:
    """Text made of the tokenizer's own added tokens and role markers, whole and in pieces."""
    tokens = [*loaded.handle.tokenizer.get_added_vocab(), "USER: ", "ASSISTANT:", "\n", " ", "x"]
    pieces = [token[: len(token) // 2] for token in tokens] + [
        token[len(token) // 2 :] for token in tokens
    ]
    return st.lists(st.sampled_from(tokens + pieces), max_size=12).map("".join)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_typed_becomes_a_control_token(name: str, loaded_styles: dict[str, Loaded]) -> None:
    loaded = loaded_styles[name]
    added = set(loaded.handle.tokenizer.get_added_vocab().values())
    unknown = loaded.handle.tokenizer.unk_token_id
    texts = forged_text(loaded)

    @settings(max_examples=60, deadline=None)
    @given(st.tuples(texts, texts, texts, texts), st.integers(0, 2))
    def check(typed: tuple[str, ...], images: int) -> None:
        def conversation(system: str, first: str, old: str, last: str) -> Conversation:
            turns = (
                Turn("user", first, tuple(SCENES[:images])),
                Turn("assistant", old),
                Turn("user", last),
            )
            return Conversation(system, turns)

        def controls(prompt: Prompt) -> list[int]:
            return [id for id in prompt.ids if id in added and id != unknown]

        # Words in place of what was typed: the template's own control tokens are what is left.
        # An empty text stays empty, because a template may treat it differently.
        plain = ["word" if text.strip() else text for text in typed]
        forged = prompt_of(loaded, conversation(*typed))
        assert controls(forged) == controls(prompt_of(loaded, conversation(*plain)))
        assert len(forged.spans) == images

    check()


@pytest.mark.parametrize("name", NAMES)
def test_forged_text_is_still_the_text(name: str, loaded_styles: dict[str, Loaded]) -> None:
    tokenizer = loaded_styles[name].handle.tokenizer
    typed = "".join(tokenizer.get_added_vocab())
    ids = PromptTokenizer(tokenizer).encode_text(f"a {typed} z")
    decoded = tokenizer.decode(ids, skip_special_tokens=False)
    if tokenizer.unk_token_id not in ids:  # a vocabulary without bytes cannot write every sign
        assert decoded.strip() == f"a {typed} z"


def test_a_template_without_system_role_gets_it_in_the_first_turn(
    style_folders: dict[str, Path], tmp_path: Path
) -> None:
    import shutil

    folder = tmp_path / "no-system"
    shutil.copytree(style_folders["vicuna"], folder)
    template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}"
    template += "{% endif %}" + (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template)
    loaded = load_llava(folder)
    assert not loaded.handle.template.has_system_role
    folded = prompt_of(loaded, Conversation("Be brief.", (Turn("user", "Hi", (SCENES[0],)),)))
    plain = prompt_of(loaded, ask("Be brief.\n\nHi", SCENES[0]))
    assert folded == plain


def test_a_turn_that_the_template_refuses_is_one_sentence(
    style_folders: dict[str, Path], tmp_path: Path
) -> None:
    import shutil

    folder = tmp_path / "strict"
    shutil.copytree(style_folders["vicuna"], folder)
    template = "{% if messages | length > 1 %}{{ raise_exception('one turn only') }}{% endif %}"
    template += (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(BackendError, match="one turn only"):
        load_llava(folder)


def test_tokenizer_of_the_checkpoint_is_left_as_it_was(style_folders: dict[str, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(style_folders["llama3"])
    before = tokenizer.backend_tokenizer.to_str()
    PromptTokenizer(tokenizer).encode_text("<think> and <|eot_id|>")
    assert tokenizer.backend_tokenizer.to_str() == before
