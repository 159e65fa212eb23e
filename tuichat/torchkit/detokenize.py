"""Ids to text, one at a time.

Owns the stream of text that grows out of generated ids. Refuses to know why an id was chosen.
Invariant: half of a character is never given out, and all that was given out is the beginning of
what the tokenizer makes of all ids at once.
"""

from __future__ import annotations

from typing import Any

_HALF = "\ufffd"


class TextStream:
    """Decodes a reply as its ids arrive."""

    def __init__(self, tokenizer: Any) -> None:
        """``tokenizer`` is a transformers tokenizer; its fast backend is used when it has one."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._decode = (backend or tokenizer).decode
        self._ids: list[int] = []
        # Text before ``_read`` was given out; decoding starts at ``_from``, a few ids earlier, so
        # that spaces and stripping come out as they do in the whole.
        self._from = 0
        self._read = 0

    def push(self, id: int) -> str:
        """Add an id; the text that is certain now, possibly none."""
        self._ids.append(id)
        return self._advance(final=False)

    def finish(self, *, complete: bool) -> str:
        """What was held back.

        Args:
            complete: the model ended by itself. Otherwise it was cut, and the beginning of a
                character that never came is dropped.
        """
        rest = self._advance(final=True)
        return rest if complete else rest.rstrip(_HALF)

    def _advance(self, *, final: bool) -> str:
        before = self._text(self._from, self._read)
        after = self._text(self._from, len(self._ids))
        if len(after) <= len(before) or (after.endswith(_HALF) and not final):
            return ""
        self._from, self._read = self._read, len(self._ids)
        return after[len(before) :]

    def _text(self, start: int, end: int) -> str:
        text: str = self._decode(self._ids[start:end], skip_special_tokens=True)
        return text
