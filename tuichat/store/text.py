"""The escape for text that SQLite cannot hold.

Owns one reversible encoding: a lone surrogate (half a character, as in undecodable file names) is
no UTF-8, and SQLite's functions stop at a NUL. Both become U+001A and four hexadecimal digits, and
so does U+001A itself, which makes it unambiguous. Invariant: ``unescape(escape(text)) == text`` for
every ``str``, and ordinary text is unchanged.
"""

from __future__ import annotations

import re

_MARK = "\x1a"
_UNSTORABLE = re.compile("[\x00\x1a\ud800-\udfff]")
_ESCAPED = re.compile("\x1a([0-9a-f]{4})")


def escape(text: str) -> str:
    """``text`` as it is stored: valid Unicode without NUL."""
    return _UNSTORABLE.sub(lambda found: f"{_MARK}{ord(found[0]):04x}", text)


def unescape(text: str) -> str:
    """The text that ``escape`` was given."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def from_bytes(stored: bytes) -> str:
    """A stored text. Bytes that another program damaged become lone surrogates, not an error."""
    text = stored.decode("utf-8", "surrogateescape")
    # Called for every text of every row, so the common case goes without another call.
    return unescape(text) if _MARK in text else text
