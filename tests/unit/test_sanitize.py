"""Nothing that a terminal could obey passes ``sanitize``."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuichat.sanitize import sanitize, sanitize_line


@given(st.text(st.characters(exclude_categories=())))
def test_no_control_character_is_left(text: str) -> None:
    result = sanitize(text)
    left = {c for c in result if unicodedata.category(c) in ("Cc", "Cs")}
    assert left <= {"\t", "\n"}


@given(st.text(st.characters(exclude_categories=())))
def test_sanitising_twice_changes_nothing(text: str) -> None:
    assert sanitize(sanitize(text)) == sanitize(text)


@given(st.lists(st.text(st.characters(exclude_categories=(), exclude_characters="\r\n"))))
def test_a_text_may_be_cut_anywhere(pieces: list[str]) -> None:
    assert "".join(map(sanitize, pieces)) == sanitize("".join(pieces))


@given(st.text(st.characters(exclude_categories=())))
def test_one_line_is_one_line(text: str) -> None:
    assert not set(sanitize_line(text)) & set("\n\r\t\u2028\u2029")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b]52;c;cHduZWQ=\x07", "␛]52;c;cHduZWQ=␇"),
        ("\x1b[2J", "␛[2J"),
        ("\x9b31m", "\ufffd31m"),
        ("\x9d0;title\x9c", "\ufffd0;title\ufffd"),
        ("a\r\nb\rc", "a\nb␍c"),
        ("\x7f", "␡"),
        ("safe\u202egnp.exe", "safegnp.exe"),
        ("zero\u200bwidth", "zerowidth"),
        ("\U000e0041tag", "tag"),
        ("\ud800", "\ufffd"),
        ("👨‍👩‍👧", "👨‍👩‍👧"),
        ("می‌خواهم", "می‌خواهم"),
        ("tab\tand\nline", "tab\tand\nline"),
    ],
)
def test_payloads(raw: str, shown: str) -> None:
    assert sanitize(raw) == shown
