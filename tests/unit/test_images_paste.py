"""Pasted and dropped paths, as the terminals of this world write them."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tuichat.images import parse_paths, resolve_pasted

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("", []),
        (" \r\n\t", []),
        ("/a/b.png", ["/a/b.png"]),
        ("/a/b.png ", ["/a/b.png"]),  # macOS Terminal leaves a blank behind a dropped path
        ("/a/b.png\n", ["/a/b.png"]),
        (r"/a/a\ b\ \(1\)\~.png", ["/a/a b (1)~.png"]),
        ("'/a/a b (1)~.png'", ["/a/a b (1)~.png"]),
        ('"/a/a b (1)~.png"', ["/a/a b (1)~.png"]),
        (r'"/a/\"x\" \$y \n.png"', [r'/a/"x" $y \n.png']),
        (r"'/a/it'\''s.png'", ["/a/it's.png"]),
        (r"/a/it\'s.png", ["/a/it's.png"]),
        ("/a/it's.png", ["/a/it's.png"]),
        ("/a/it's.png /b/it's.png", ["/a/it's.png", "/b/it's.png"]),
        ("/a/'b c'.png", ["/a/b c.png"]),
        ('/a/"open.png', ['/a/"open.png']),
        ("/a.png /b.png\t/c.png", ["/a.png", "/b.png", "/c.png"]),
        ("'/a b.png' '/c d.png'", ["/a b.png", "/c d.png"]),
        ("/a.png\n/b.png\r/c.png\r\n/d.png\r\n", ["/a.png", "/b.png", "/c.png", "/d.png"]),
        ("file:///a/b%20c%C3%A9.png", ["/a/b cé.png"]),
        ("file://localhost/a.png", ["/a.png"]),
        ("'file:///a/b.png'", ["/a/b.png"]),
        ("file:///a.png\r\nfile:///b.png\r\n", ["/a.png", "/b.png"]),
        ("file://elsewhere/a.png", ["file://elsewhere/a.png"]),
        ("file:///caf%E9.png", ["/caf\udce9.png"]),
        ("/a/Screenshot\u202fPM.png", ["/a/Screenshot\u202fPM.png"]),
        ("/a/x\u00a0y\u3000z.png", ["/a/x\u00a0y\u3000z.png"]),
        ("/a\\", ["/a\\"]),
        ("a%20b.png", ["a%20b.png"]),
    ],
)
def test_parse_paths(text: str, paths: list[str]) -> None:
    assert parse_paths(text) == paths


def test_tilde_is_expanded_unless_it_is_protected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert parse_paths(r"~/x.png ~/a\ b '~/x' \~/x '/a/~' nobody~") == [
        "/home/me/x.png",
        "/home/me/a b",
        "~/x",
        "~/x",
        "/a/~",
        "nobody~",
    ]


@given(
    st.lists(
        st.text(
            st.characters(exclude_characters="\0", exclude_categories=()), min_size=1, max_size=20
        ).filter(lambda path: not path.startswith("file://")),
        max_size=5,
    )
)
@example(["it's", 'a"b', "a\\b", "\n", " ", "~", "\udc80", "\u2028", "'", '"', "''"])
def test_what_a_shell_quotes_comes_back(paths: list[str]) -> None:
    assert parse_paths(shlex.join(paths)) == paths


@given(st.text(max_size=60))
def test_no_text_is_too_strange_to_parse(text: str) -> None:
    assert all(isinstance(path, str) for path in parse_paths(text))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a b (1)~.png", "it's.png", "plain.png", "3.04\u202fPM.png", "u\u0308.png"):
        (tmp_path / name).write_bytes(PNG)
    (tmp_path / "notes.txt").write_text("words")
    (tmp_path / "fake.png").write_text("words")
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    return tmp_path


def test_pasted_images_are_resolved(folder: Path) -> None:
    awkward = folder / "a b (1)~.png"
    plain = folder / "plain.png"
    for text in (
        str(awkward),  # as it is, blanks and all
        f"{awkward} \n",
        shlex.quote(str(awkward)),
        f'"{awkward}"',
        str(awkward).replace(" ", r"\ ").replace("(", r"\(").replace(")", r"\)"),
        awkward.as_uri(),
    ):
        assert resolve_pasted(text) == [awkward], text
    assert resolve_pasted(f"{plain}\r\n{awkward}\r\n") == [plain, awkward]
    assert resolve_pasted(shlex.join([str(plain), str(awkward)])) == [plain, awkward]
    assert resolve_pasted(str(folder / "it's.png")) == [folder / "it's.png"]
    assert resolve_pasted(str(folder / "3.04 PM.png")) == [folder / "3.04\u202fPM.png"]
    assert resolve_pasted(str(folder / "\u00fc.png")) == [folder / "u\u0308.png"]


def test_home_is_resolved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert resolve_pasted("~/plain.png") == [folder / "plain.png"]


def test_anything_else_is_a_text(folder: Path) -> None:
    plain = folder / "plain.png"
    for text in (
        "",
        "  \n",
        "What is in this image?",
        f"What is in {plain}",
        f"{plain} {folder / 'missing.png'}",
        f"{plain}\nand this",
        str(folder / "notes.txt"),
        str(folder / "fake.png"),
        str(folder / "folder.png"),
        str(folder / "pipe.png"),
        "x" * 100_000,
        "/" + "y" * 5000,
        "a\0b",
        "\ud800",
    ):
        assert resolve_pasted(text) is None, text[:50]


def test_a_long_paste_is_told_to_be_text_at_once(folder: Path) -> None:
    start = time.monotonic()
    assert resolve_pasted("some line of text, and it's long\n" * 6000) is None
    assert resolve_pasted(("word " * 12_000).strip()) is None
    assert time.monotonic() - start < 0.5
