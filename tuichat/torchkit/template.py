"""Prompts from the checkpoint's own chat template.

Owns how a conversation becomes a ``Prompt``: roles, order, images in the turn that owns them.
Refuses to know any model: what a turn looks like comes from the template alone, what an image
costs from the caller. Invariant: everything that a user, a file name or an old reply supplied is
text; control tokens and images come from the template only, so spans equal images, always.

How: the template is rendered with an unforgeable sentinel in place of every text. What surrounds
the sentinels is the template's own writing; only there do control tokens and image placeholders
count. The texts are then put back and the whole is encoded in one call (``tokens``).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuichat.api import BackendError, Conversation, Image, Prompt, Span, Turn
from tuichat.torchkit.tokens import PromptTokenizer

# A character that ``str.strip`` takes for white space and no template or text is written with: it
# stands on both sides of a sentinel, so that a template's ``| trim`` shows.
_SPACE = "\x1f"

VICUNA = (
    "{% for message in messages %}"
    "{% if message['role'] != 'system' %}{{ message['role'] | upper + ': ' }}{% endif %}"
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}"
    "{{ part['text'] + ' ' }}{% endfor %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""What LLaVA-1.5 was trained with; for its checkpoints without a chat template."""

LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}{% set turn = namespace(body='') %}"
    "{% for part in message['content'] if part['type'] == 'image' %}"
    "{% set turn.body = turn.body + '<image>\n' %}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}"
    "{% set turn.body = turn.body + part['text'] %}{% endfor %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ turn.body | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
"""Llama 3's turns with LLaVA's images."""


CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""What LLaVA-NeXT on Yi was trained with: turns stand next to each other."""

QWEN = CHATML.replace("'<|im_end|>'", "'<|im_end|>\n'")
"""What OneVision was trained with: every turn ends its line."""

MISTRAL = (
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ raise_exception('no system role') }}{% endif %}"
    "{{ '[INST] ' if message['role'] == 'user' else ' ' }}"
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "{{ ' [/INST]' if message['role'] == 'user' else eos_token }}{% endfor %}"
)
"""What LLaVA-NeXT on Mistral was trained with; a system prompt belongs to the first turn."""


def builtin_template(control_tokens: frozenset[str], language_model: str) -> tuple[str, str]:
    """A chat template for a LLaVA checkpoint that has none, and its name.

    Args:
        control_tokens: the tokenizer's added tokens: role markers are found among them.
        language_model: ``model_type`` of the language model's config.
    """
    if "<|start_header_id|>" in control_tokens:
        return LLAMA3, "Llama 3"
    if "<|im_start|>" in control_tokens:
        return (QWEN, "Qwen") if language_model.startswith("qwen") else (CHATML, "ChatML")
    if language_model == "mistral":
        return MISTRAL, "Mistral"
    return VICUNA, "Vicuna"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a rendered prompt: what the template wrote, or which text stands there."""

    template: str = ""
    text: str | None = None


class ChatTemplate:
    """One checkpoint's chat template, probed for what it supports."""

    def __init__(
        self,
        source: str,
        tokenizer: Any,
        prompt_tokenizer: PromptTokenizer,
        *,
        image_token: str,
        image_id: int,
    ) -> None:
        """Probe ``source`` with a turn that has an image, and with a system turn.

        Args:
            source: the Jinja template.
            tokenizer: the transformers tokenizer that renders it (its special tokens are the
                template's variables).
            prompt_tokenizer: encodes what was rendered.
            image_token: the placeholder of one image in the template, e.g. ``<image>``.
            image_id: its id.

        Raises:
            BackendError: the template cannot be rendered, or never shows an image or a text.
        """
        self._source = source
        self._tokenizer = tokenizer
        self._tokens = prompt_tokenizer
        self._image_token = image_token
        self._image_id = image_id
        self._nonce = secrets.token_hex(8)
        self._sentinel_re = re.compile(
            f"({_SPACE}?)\ue000{self._nonce}t(\\d+)\ue001({_SPACE}?)", re.DOTALL
        )
        self._image_sentinel = f"\ue000{self._nonce}i\ue001"
        self._parts = self._probe_parts()
        self.has_system_role = self._probe_system()
        self.plain_text_markers = self._probe_markers()

    # ------------------------------------------------------------------ probing

    def _probe_parts(self) -> bool:
        """Whether messages are lists of parts; otherwise they are strings."""
        reasons = []
        for parts in (True, False):
            self._parts = parts
            try:
                pieces = self._render(None, [("user", "a", 1)])
            except BackendError as error:
                reasons.append(str(error))
                continue
            if sum(piece.text is not None for piece in pieces) == 1 and self._images(pieces) == 1:
                return parts
            reasons.append("an image or a text is left out")
        raise BackendError(
            f"the chat template of this checkpoint cannot be used with images: {reasons[-1]}"
        )

    def _probe_system(self) -> bool:
        try:
            pieces = self._render("a", [("user", "b", 0)])
        except BackendError:
            return False
        return [piece.text for piece in pieces if piece.text is not None] == ["a", "b"]

    def _probe_markers(self) -> bool:
        """Whether a user turn begins with nothing but words, which typed text can imitate."""
        pieces = self._render(None, [("user", "a", 0), ("assistant", "b", 0), ("user", "c", 0)])
        last = max(i for i, piece in enumerate(pieces) if piece.text == "c")
        return not self._tokens.find_controls(pieces[last - 1].template if last else "")

    # ------------------------------------------------------------------ rendering

    def _render(self, system: str | None, turns: Sequence[tuple[str, str, int]]) -> list[_Piece]:
        texts: list[str] = []

        def sentinel(text: str) -> str:
            texts.append(text)
            return f"{_SPACE}\ue000{self._nonce}t{len(texts) - 1}\ue001{_SPACE}"

        messages = []
        if system is not None:
            messages.append(self._message("system", sentinel(system), 0))
        for role, text, images in turns:
            # A turn of images alone has no text part; a turn of nothing still has its empty text.
            shown = sentinel(self._separator(images) + text) if text or not images else None
            messages.append(self._message(role, shown, images))
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                messages, chat_template=self._source, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is code from outside: anything can come out of it
            raise BackendError(f"the chat template refuses this conversation: {error}") from error
        return self._split(rendered, texts)

    def _separator(self, images: int) -> str:
        """What stands between images and text where a message is one string.

        It goes with the text: a template that trims the message takes both if the text is blank.
        """
        return "\n" if images and not self._parts else ""

    def _message(self, role: str, text: str | None, images: int) -> dict[str, Any]:
        if not self._parts:
            return {
                "role": role,
                "content": "\n".join([self._image_sentinel] * images) + (text or ""),
            }
        parts: list[dict[str, str]] = [{"type": "image"}] * images
        if text is not None:
            parts = [*parts, {"type": "text", "text": text}]
        return {"role": role, "content": parts}

    def _split(self, rendered: str, texts: Sequence[str]) -> list[_Piece]:
        pieces: list[_Piece] = []
        end = 0
        for match in self._sentinel_re.finditer(rendered):
            if match.start() > end:
                pieces.append(_Piece(template=rendered[end : match.start()]))
            text = texts[int(match[2])]
            # The template trims what it is given: the sentinel's white space shows on which side.
            text = text if match[1] else text.lstrip()
            text = text if match[3] else text.rstrip()
            pieces.append(_Piece(text=text))
            end = match.end()
        if end < len(rendered):
            pieces.append(_Piece(template=rendered[end:]))
        return pieces

    def _images(self, pieces: Sequence[_Piece]) -> int:
        return sum(
            piece.template.count(self._image_sentinel) + piece.template.count(self._image_token)
            for piece in pieces
        )

    # ------------------------------------------------------------------ a prompt

    def encode(self, conversation: Conversation) -> list[int]:
        """Ids of the whole prompt, one image placeholder id for each image, in order.

        Raises:
            BackendError: the template cannot express this conversation.
        """
        system, turns = conversation.system or None, list(conversation.turns)
        if system is not None and not self.has_system_role:
            turns = _fold(system, turns)
            system = None
        pieces = self._render(system, [(turn.role, turn.text, len(turn.images)) for turn in turns])
        wanted = sum(len(turn.images) for turn in turns)
        texts = (system is not None) + sum(bool(turn.text or not turn.images) for turn in turns)
        if self._images(pieces) != wanted:
            raise BackendError(
                f"the chat template shows {self._images(pieces)} of {wanted} images; images can "
                "only stand in turns where the template has a place for them"
            )
        if sum(piece.text is not None for piece in pieces) != texts:
            raise BackendError("the chat template leaves out or repeats a turn's text")
        return self._tokens.encode("".join(map(self._marked, pieces)))

    def _marked(self, piece: _Piece) -> str:
        if piece.text is not None:
            return piece.text
        written = piece.template.replace(self._image_sentinel, self._image_token)
        return self._tokens.mark_controls(written)

    @property
    def image_id(self) -> int:
        """Id of the image placeholder."""
        return self._image_id


def _fold(system: str, turns: Sequence[Turn]) -> list[Turn]:
    """Put the system prompt before the first user turn's text, for templates without that role."""
    folded = list(turns)
    for index, turn in enumerate(folded):
        if turn.role == "user":
            text = f"{system}\n\n{turn.text}" if turn.text else system
            folded[index] = Turn(turn.role, text, turn.images)
            return folded
    return folded


ImageInputs = Callable[[Image], tuple[Mapping[str, Any], int]]
"""The image processor's output for one image, and how many tokens it takes."""


def assemble_from_template(
    template: ChatTemplate, conversation: Conversation, image_inputs: ImageInputs
) -> Prompt:
    """The prompt of a whole conversation, image placeholders expanded.

    Args:
        template: the checkpoint's chat template.
        conversation: every turn, images included.
        image_inputs: called once for every image, in order.

    Raises:
        BackendError: the template cannot express this conversation.
    """
    images = iter([image for turn in conversation.turns for image in turn.images])
    ids: list[int] = []
    spans: list[Span] = []
    for id in template.encode(conversation):
        if id != template.image_id:
            ids.append(id)
            continue
        image = next(images)
        inputs, length = image_inputs(image)
        spans.append(Span(start=len(ids), length=length, digest=image.digest, inputs=inputs))
        ids.extend([id] * length)
    return Prompt(ids=ids, spans=tuple(spans))
