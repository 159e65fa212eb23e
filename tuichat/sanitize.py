"""The one boundary between text from outside and a terminal.

Owns which code points may reach a terminal. Refuses to know where the text came from: model
output, file names, errors, plugin messages and pasted text are all alike. Invariant: the result of
``sanitize`` holds no control character but ``\\t`` and ``\\n``, so no escape sequence, of any
terminal, can be in it; it works per code point, so a text may be cut anywhere and sanitised in
pieces. The store keeps the raw text.
"""

from __future__ import annotations

import re

# What each dangerous code point becomes. Controls turn into something visible, so that a reader
# sees the attack; format characters that reorder or hide text vanish, except the joiners
# (U+200C, U+200D) that emoji sequences and Persian need.
_TABLE: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)},
    0x7F: "\u2421",
    **{code: "\ufffd" for code in range(0x80, 0xA0)},
    **{code: "\ufffd" for code in range(0xD800, 0xE000)},
    **{code: "" for code in range(0x202A, 0x202F)},
    **{code: "" for code in range(0x2066, 0x206A)},
    **{code: "" for code in (0x061C, 0x200B, 0x200E, 0x200F, 0x2060, 0xFEFF)},
    **{code: "" for code in range(0xFFF9, 0xFFFC)},
    **{code: "" for code in range(0xE0000, 0xE0080)},
    0x2028: "\n",
    0x2029: "\n",
}

_DANGEROUS = re.compile(
    "\r\n|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def _replace(match: re.Match[str]) -> str:
    found = match.group()
    return "\n" if found == "\r\n" else _TABLE[ord(found)]


def sanitize(text: str) -> str:
    """``text`` with everything that a terminal could obey made visible or removed."""
    return _DANGEROUS.sub(_replace, text)


def sanitize_line(text: str) -> str:
    """``sanitize`` for one line of a screen: line breaks and tabs become spaces."""
    return " ".join(sanitize(text).split("\n")).replace("\t", " ")
