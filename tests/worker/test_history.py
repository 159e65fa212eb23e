"""What a prompt is made of, from a real store."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PILImage

from tuichat.api import (
    Capabilities,
    Conversation,
    Image,
    Loaded,
    ModelFacts,
    Prompt,
    PromptTooLong,
    Turn,
)
from tuichat.images import check_image
from tuichat.store import ImageRecord, Owner, Store
from tuichat.worker import history


class Chat:
    """A session that is written turn by turn, as engine and worker write it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.owner: Owner = store.register_owner()
        self.session = store.create_session(system="Be brief.", backend="llava", model="demo")

    def image(self, colour: str) -> ImageRecord:
        data = io.BytesIO()
        PILImage.new("RGB", (8, 6), colour).save(data, "PNG")
        return self.store.put_image(check_image(data.getvalue(), f"{colour}.png"))

    def ask(self, text: str, *images: ImageRecord) -> int:
        posted = self.store.post(
            self.session, text, images, poster=self.owner.token, backend="llava", model="demo"
        )
        return posted.reply_id

    def answer(self, reply_id: int, text: str, state: str = "done") -> None:
        assert self.store.claim(reply_id, self.owner.token)
        if text:
            self.store.append(reply_id, 1, text, owner=self.owner.token)
        self.store.finish(reply_id, owner=self.owner.token, state=state)

    def conversation(self, reply_id: int) -> tuple[Conversation, list[str]]:
        turns = self.store.history(reply_id)
        return history.conversation_of(self.store, turns, "Be brief.")


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    store = Store.open(tmp_path)
    chat = Chat(store)
    yield chat
    chat.owner.release()
    store.close()


def roles(conversation: Conversation) -> list[tuple[str, str, int]]:
    return [(turn.role, turn.text, len(turn.images)) for turn in conversation.turns]


def test_images_stay_in_the_turn_that_owns_them(chat: Chat) -> None:
    chat.answer(chat.ask("What is this?", chat.image("red")), "A red image.")
    chat.answer(chat.ask("Sure?"), "Yes.")
    conversation, notices = chat.conversation(chat.ask("And this?", chat.image("blue")))
    assert roles(conversation) == [
        ("user", "What is this?", 1),
        ("assistant", "A red image.", 0),
        ("user", "Sure?", 0),
        ("assistant", "Yes.", 0),
        ("user", "And this?", 1),
    ]
    assert conversation.system == "Be brief."
    assert notices == []
    first, last = conversation.turns[0].images[0], conversation.turns[-1].images[0]
    assert first.open().getpixel((0, 0)) == (255, 0, 0)
    assert last.open().getpixel((0, 0)) == (0, 0, 255)


def test_a_question_without_an_answer_joins_the_next(chat: Chat) -> None:
    chat.answer(chat.ask("Look.", chat.image("red")), "", state="stopped")
    conversation, _ = chat.conversation(chat.ask("What colour?"))
    assert roles(conversation) == [("user", "Look.\n\nWhat colour?", 1)]


@pytest.mark.parametrize("state", ["stopped", "interrupted"])
def test_a_partial_answer_stays(chat: Chat, state: str) -> None:
    chat.answer(chat.ask("Count."), "one, two", state=state)
    conversation, _ = chat.conversation(chat.ask("Go on."))
    assert roles(conversation)[1] == ("assistant", "one, two", 0)


def test_a_failed_turn_does_not_poison_the_next(chat: Chat) -> None:
    chat.answer(chat.ask("Look.", chat.image("red")), "Half an ans", state="failed")
    conversation, notices = chat.conversation(chat.ask("Hello?"))
    assert roles(conversation) == [("user", "Hello?", 0)]
    assert notices == ["Left out: 1 earlier question whose reply failed."]


def test_an_image_that_is_gone_is_named_and_left_out(chat: Chat) -> None:
    image = chat.image("red")
    chat.answer(chat.ask("Look.", image), "Red.")
    for blob in (chat.store.root / "blobs").rglob(f"*{image.digest[4:]}*"):
        blob.unlink()
    conversation, notices = chat.conversation(chat.ask("Still?"))
    assert roles(conversation)[0] == ("user", "Look.", 0)
    assert len(notices) == 1
    assert "red.png" in notices[0] or image.digest[:8] in notices[0]


class Words:
    """Assembles to one token a word and ten an image, so that lengths can be read off."""

    def __init__(self) -> None:
        self.tried: list[int] = []

    def assemble(self, loaded: Loaded, conversation: Conversation) -> Any:
        self.tried.append(len(conversation.turns))
        count = sum(len(t.text.split()) + 10 * len(t.images) for t in conversation.turns)
        return Prompt(ids=list(range(count)))


def image(digest: str) -> Image:
    return Image(digest, "x.png", 1, 1, lambda: PILImage.new("RGB", (1, 1)))


def talk(*lengths: int, images: int = 0) -> Conversation:
    turns = [
        Turn("assistant" if n % 2 else "user", " ".join(["w"] * length))
        for n, length in enumerate(lengths)
    ]
    turns[0] = Turn("user", turns[0].text, tuple(image(str(n)) for n in range(images)))
    return Conversation(None, tuple(turns))


def fitted(conversation: Conversation, context: int | None, new: int = 8) -> tuple[int, list[str]]:
    loaded = Loaded(None, ModelFacts(context_length=context))
    prompt, notices = history.assemble_fitting(Words(), loaded, conversation, new)
    return len(prompt.ids), notices


def test_what_fits_is_left_alone() -> None:
    assert fitted(talk(5, 5, 5), 40) == (15, [])
    assert fitted(talk(500, 500, 500), None) == (1500, [])


def test_the_oldest_exchange_leaves_whole_with_its_image() -> None:
    length, notices = fitted(talk(5, 5, 5, 5, 5, images=2), 40)
    assert length == 15
    assert len(notices) == 1
    assert "oldest 2 turns" in notices[0]
    assert "40" in notices[0]


def test_the_newest_turn_alone_is_refused_with_the_numbers() -> None:
    with pytest.raises(PromptTooLong, match=r"takes 1,200 tokens .* context is 1,000"):
        fitted(talk(3, 3, 1200), 1000)


def test_the_newest_turn_alone_may_use_all_but_one_token() -> None:
    assert fitted(talk(39), 40)[0] == 39
    with pytest.raises(PromptTooLong):
        fitted(talk(40), 40)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(40, 120))
def test_a_fitted_conversation_begins_with_the_user_and_keeps_the_newest_turn(
    lengths: list[int], context: int
) -> None:
    lengths = lengths if len(lengths) % 2 else lengths[:-1] or [1]
    words = Words()
    loaded = Loaded(None, ModelFacts(context_length=context))
    prompt, _ = history.assemble_fitting(words, loaded, talk(*lengths), 8)
    assert len(prompt.ids) < context
    assert all(tried % 2 for tried in words.tried)


def test_images_beyond_the_limit_leave_oldest_first_and_it_is_said() -> None:
    turns = (
        Turn("user", "a", (image("1"), image("2"))),
        Turn("assistant", "b"),
        Turn("user", "c", (image("3"),)),
    )
    limited, notices = history.within_limits(Conversation(None, turns), Capabilities(max_images=1))
    assert [i.digest for t in limited.turns for i in t.images] == ["3"]
    assert "oldest 2" in notices[0]


def test_a_system_prompt_that_is_not_taken_stands_before_the_first_message() -> None:
    limited, notices = history.within_limits(
        Conversation("Be brief.", (Turn("user", "Hi"),)), Capabilities(system_prompt=False)
    )
    assert limited.system is None
    assert limited.turns[0].text == "Be brief.\n\nHi"
    assert len(notices) == 1
