"""The tokenizer and the chat template of the demo models.

Owns the vocabulary's order, how text falls to letters and bytes, and the template. Refuses to
know models and dialogues; words come from `phrases.vocabulary`.

Invariant: every word of a question about shapes is one token; any UTF-8 text survives encoding
and decoding, save a space that directly follows a newline; images come first in their turn and are
numbered through the conversation, so a question about the second image can find it.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

import jinja2
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from .dialogues import Dialogue
from .phrases import vocabulary
from .scenes import COLORS, KINDS

PAD, BOS, EOS, IMAGE = 0, 1, 2, 3
SPECIALS = ("<unk>", "<s>", "</s>", "<image>")
IMAGE_TOKEN = SPECIALS[IMAGE]
_PIECES = "▁\n.,?!':-\"()" + string.digits + string.ascii_lowercase + string.ascii_uppercase

# Whitespace control everywhere: what the template emits is only what stands in {{ }}.
CHAT_TEMPLATE = """\
{#- Role, then images, then text. Images are numbered through the conversation. -#}
{%- macro text(content) -%}
{%- if content is string -%}{{- content -}}
{%- else -%}
{%- for part in content -%}
{%- if part['type'] == 'text' -%}{{- part['text'] -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- set seen = namespace(images=0) -%}
{%- for message in messages -%}
{%- if message['role'] == 'user' -%}
{{- 'USER: ' -}}
{%- if message['content'] is not string -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}
{%- set seen.images = seen.images + 1 -%}
{{- 'Image ' ~ seen.images ~ ':<image>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- text(message['content']) ~ ' ' -}}
{%- elif message['role'] == 'assistant' -%}
{{- 'ASSISTANT: ' ~ text(message['content']) ~ eos_token -}}
{%- else -%}
{{- text(message['content']) ~ ' ' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}
"""


def build_tokenizer() -> Tokenizer:
    """A Unigram model of whole words, letters and bytes."""
    pieces: list[tuple[str, float]] = [(special, 0.0) for special in SPECIALS]
    pieces += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    pieces += [(piece, -9.0) for piece in _PIECES]
    # A digit may be both a letter of a longer number and a word of its own: one piece each.
    pieces += [(f"▁{word}", -1.0 - 0.001 * i) for i, word in enumerate(vocabulary(KINDS, COLORS))]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=PAD, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Replace("\n", "\n "), normalizers.Prepend("▁"), normalizers.Replace(" ", "▁"),
    ])  # fmt: skip
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Replace("\n ", "\n"), decoders.Strip(" ", 1, 0),
    ])  # fmt: skip
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", BOS)]
    )
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    return tokenizer


@dataclass(frozen=True)
class Encoded:
    """Ids with every image expanded; `trained` marks answers and the end of each."""

    ids: list[int]
    trained: list[bool]


class ChatEncoder:
    """Dialogues to ids, through the very template and tokenizer that are shipped."""

    def __init__(self, image_tokens: int) -> None:
        self.tokenizer = build_tokenizer()
        self._image_tokens = image_tokens
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(CHAT_TEMPLATE)
        words = self.tokenizer.get_vocab()
        self.words: dict[str, int] = words
        self._assistant, self._colon = words["▁ASSISTANT"], words[":"]

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def messages(self, dialogue: Dialogue) -> list[dict]:
        """The dialogue as the messages of a chat template."""
        messages: list[dict] = []
        if dialogue.system:
            messages.append({"role": "system", "content": dialogue.system})
        for turn in dialogue.turns:
            content = [{"type": "image"}] * len(turn.images)
            content.append({"type": "text", "text": turn.question})
            messages.append({"role": "user", "content": content})
            messages.append({"role": "assistant", "content": turn.answer})
        return messages

    def encode(self, dialogue: Dialogue) -> Encoded:
        """Ids of the whole dialogue, images expanded."""
        text = self._template.render(messages=self.messages(dialogue), eos_token=SPECIALS[EOS])
        ids: list[int] = []
        trained: list[bool] = []
        answering = False
        raw = self.tokenizer.encode(text).ids
        for position, token in enumerate(raw):
            if token == IMAGE:
                ids += [IMAGE] * self._image_tokens
                trained += [False] * self._image_tokens
                continue
            ids.append(token)
            trained.append(answering)
            if token == EOS:
                answering = False
            elif token == self._colon and raw[position - 1] == self._assistant:
                answering = True
        return Encoded(ids, trained)
