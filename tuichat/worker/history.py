"""From stored turns to the conversation that a backend gets.

Owns which turns and images a prompt is made of, and how a conversation that is too long becomes
shorter. Refuses to know tokens, templates and models: it counts what the backend assembled.
Invariant: roles alternate and the last turn is the user's; an image leaves together with its turn
or is named in a notice, never silently; a plugin never has to truncate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from tuichat.api import (
    Capabilities,
    Conversation,
    Image,
    Loaded,
    PromptTooLong,
    StoreError,
    Turn,
)
from tuichat.pluginhost.backend import prompt_tokens

if TYPE_CHECKING:
    from PIL import Image as PILImage

    from tuichat.store import ImageRecord, Store, TurnRecord


class Assembler(Protocol):
    """The part of a backend that is needed here."""

    def assemble(self, loaded: Loaded, conversation: Conversation) -> Any: ...


def _open(store: Store, digest: str) -> PILImage.Image:
    from tuichat.images import decode_image

    return decode_image(store.image_bytes(digest))


def _readable(
    store: Store, records: Sequence[ImageRecord], notices: list[str]
) -> tuple[Image, ...]:
    """The images whose bytes are still what they were; the others become notices."""
    images = []
    for record in records:
        try:
            store.image_bytes(record.digest)
        except StoreError as error:
            notices.append(f"{error} The conversation goes on without it.")
            continue
        images.append(
            Image(
                digest=record.digest,
                name=record.name,
                width=record.width,
                height=record.height,
                open=partial(_open, store, record.digest),
            )
        )
    return tuple(images)


def conversation_of(
    store: Store, history: Sequence[TurnRecord], system: str | None
) -> tuple[Conversation, list[str]]:
    """The conversation that ends with the last turn of ``history``, and what was left out.

    A question whose reply failed is left out: what broke that turn would break this one. A question
    whose reply was stopped or interrupted before its first word joins the next one, so that roles
    alternate and its images stay known.
    """
    notices: list[str] = []
    turns: list[Turn] = []
    failed = 0
    for position, record in enumerate(history):
        if record.role == "assistant":
            if record.state != "failed" and record.text and turns and turns[-1].role == "user":
                turns.append(Turn("assistant", record.text))
            continue
        reply = history[position + 1] if position + 1 < len(history) else None
        # One that no worker ever took failed for a reason of its own: the model was not there.
        if reply is not None and reply.state == "failed" and reply.owner is not None:
            failed += 1
            continue
        turn = Turn("user", record.text, _readable(store, record.images, notices))
        if turns and turns[-1].role == "user":
            before = turns.pop()
            joined = "\n\n".join(text for text in (before.text, turn.text) if text)
            turn = Turn("user", joined, before.images + turn.images)
        turns.append(turn)
    if failed:
        notices.append(
            f"Left out: {failed} earlier question{'s' * (failed > 1)} whose reply failed."
        )
    return Conversation(system or None, tuple(turns)), notices


def within_limits(
    conversation: Conversation, capabilities: Capabilities
) -> tuple[Conversation, list[str]]:
    """The conversation without what the model was declared not to take."""
    notices: list[str] = []
    turns = list(conversation.turns)
    system = conversation.system
    if system and not capabilities.system_prompt and turns:
        first = turns[0]
        turns[0] = replace(first, text="\n\n".join(t for t in (system, first.text) if t))
        system = None
        notices.append("This model takes no system prompt: it stands before the first message.")
    surplus = 0
    if capabilities.max_images is not None:
        surplus = sum(len(turn.images) for turn in turns) - capabilities.max_images
    if surplus > 0:
        notices.append(
            f"This model takes {capabilities.max_images} image(s) in a conversation: "
            f"the oldest {surplus} left it."
        )
        for position, turn in enumerate(turns):
            gone = min(surplus, len(turn.images))
            turns[position] = replace(turn, images=turn.images[gone:])
            surplus -= gone
    return Conversation(system, tuple(turns)), notices


def assemble_fitting(
    backend: Assembler,
    loaded: Loaded,
    conversation: Conversation,
    max_new_tokens: int,
) -> tuple[Any, list[str]]:
    """The prompt of as much of ``conversation`` as fits, whole oldest exchanges leaving first.

    Room for the answer is kept, ``max_new_tokens`` or a quarter of the context, whichever is less;
    the newest turn alone may use all but one token.

    Raises:
        PromptTooLong: the newest turn alone exceeds the context; with the numbers.
    """
    context = loaded.facts.context_length
    turns = conversation.turns
    gone = 0
    while True:
        prompt = backend.assemble(loaded, replace(conversation, turns=turns))
        length = prompt_tokens(prompt)
        alone = len(turns) <= 1
        if context is None or length is None:
            break
        room = 1 if alone else min(max_new_tokens, context // 4)
        if length + room <= context:
            break
        if alone:
            raise PromptTooLong(
                f"This message takes {length:,} tokens and the model's context is {context:,}: "
                "send a shorter text or fewer images."
            )
        step = 2 if turns[1].role == "assistant" else 1
        turns = turns[step:]
        gone += step
    if not gone:
        return prompt, []
    return prompt, [
        f"The conversation is longer than the model's context of {context:,} tokens: "
        f"the oldest {gone} turns are no longer known to it."
    ]
