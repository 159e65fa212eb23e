"""Tables fit, and pass nothing on that a terminal would obey."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuichat.cli import table
from tuichat.cli.sessions import age


@pytest.mark.parametrize(
    ("text", "width"), [("abc", 3), ("漢字", 4), ("e\u0301", 1), ("한글", 4), ("", 0)]
)
def test_cell_width(text, width):
    assert table.cell_width(text) == width


def test_columns_line_up_and_the_flexible_one_gives_way():
    drawn = table.render(
        ("ID", "TITLE", "N"), [("1", "short", "10"), ("22", "t" * 50, "3")], flexible=1, width=30
    )
    assert drawn.splitlines() == [
        "ID  TITLE                   N",
        "1   short                   10",
        "22  " + "t" * 21 + "…  3",
    ]


def test_nothing_is_cut_without_a_width():
    assert "t" * 500 in table.render(("A", "B"), [("1", "t" * 500)], flexible=1, width=None)


@given(
    st.lists(st.tuples(st.text(max_size=40), st.text(max_size=80)), max_size=5),
    st.integers(min_value=1, max_value=120),
)
def test_every_line_fits_and_is_one_line(rows, width):
    drawn = table.render(("A", "B"), rows, flexible=1, width=width)
    lines = drawn.split("\n")
    assert len(lines) == len(rows) + 1
    for line in lines:
        assert table.cell_width(line) <= width
        assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in line)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "just now"),
        (59, "just now"),
        (720, "12 min ago"),
        (7200, "2 h ago"),
        (3 * 86400, "3 days ago"),
    ],
)
def test_ages(seconds, text):
    assert age(seconds) == text
