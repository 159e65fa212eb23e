"""The pure parts: numbers, commands, paths, half blocks, the status line's narrowing."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tuichat.api import DtypeRow
from tuichat.engine.events import LoadProgressed
from tuichat.tui import dropped, figures
from tuichat.tui.commands import COMMANDS, nearest, read_command
from tuichat.tui.text import plain, plain_line
from tuichat.tui.widgets.status import describe_progress
from tuichat.tui.widgets.thumbnail import fit, half_blocks


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (21_300, "21 kB"), (6_200_000, "6.2 MB"),
     (26_000_000, "26 MB"), (14_100_000_000, "14 GB"), (2_000_000_000_000, "2000 GB")],
)  # fmt: skip
def test_bytes(count: int, text: str) -> None:
    assert figures.size(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.004, "4 ms"), (0.31, "0.31 s"), (1.24, "1.2 s"), (12.4, "12 s"), (180, "3 min")],
)
def test_durations(value: float, text: str) -> None:
    assert figures.seconds(value) == text


def test_figures_of_a_reply_leave_out_what_is_unknown() -> None:
    usage = {"prompt_tokens": 1613, "image_tokens": 576, "reused_tokens": 1600, "new_tokens": 12}
    timing = {"first_token_s": 0.31, "total_s": 1.0, "tokens_per_s": 41.2}
    assert figures.reply_figures(usage, timing) == [
        "first token 0.31 s", "41 tok/s", "12 tokens", "prompt 1,613, 1,600 reused",
    ]  # fmt: skip
    assert figures.reply_figures(None, None) == []
    assert figures.reply_figures({"new_tokens": 1}, {"first_token_s": None}) == ["1 token"]


def test_dtypes_are_grouped() -> None:
    def row(component: str, compute: str, quantised: str | None = None) -> DtypeRow:
        return DtypeRow(component, compute, compute, compute, "cpu", quantised)

    same = [row(name, "float32") for name in ("pixels", "vision tower", "language model")]
    assert figures.dtypes(same) == "all fp32"
    mixed = [
        row("pixels", "float16"),
        row("vision tower", "float16"),
        row("projector", "float16"),
        row("language model", "float16", "nf4"),
        row("lm_head", "float16"),
    ]
    assert figures.dtypes(mixed) == "vision, projector fp16 · language nf4/fp16"


@pytest.mark.parametrize("name", ["llava-hf/llava-1.5-7b-hf", "/models/llava-1.5-7b-hf/"])
def test_the_name_of_a_model_is_the_last_part_of_its_path(name: str) -> None:
    assert figures.model_name(name) == "llava-1.5-7b-hf"


def test_commands_are_read() -> None:
    called = read_command("  /Attach  a b.png ")
    assert called is not None
    assert called.command is not None
    assert (called.command.name, called.argument) == ("attach", "a b.png")
    for command in COMMANDS:
        for name in (command.name, *command.aliases):
            found = read_command(f"/{name}")
            assert found is not None
            assert found.command is command


@pytest.mark.parametrize(
    "line", ["/home/me/cat.png", "/cat.png", "what is /attach", "/attach\nx", "/", "// x", "hello"]
)
def test_what_is_no_command(line: str) -> None:
    assert read_command(line) is None


def test_the_nearest_command() -> None:
    assert nearest("atach") == "attach"
    assert nearest("imge") == "attach"
    assert nearest("zzzz") is None


@pytest.mark.parametrize(
    ("line", "may", "lone"),
    [
        ("/home/me/my cat.png", True, True),
        ("cat.png", True, True),
        ("'a b.PNG'", True, True),
        ("a\\ b.png", True, True),
        ("~/x.jpeg", True, True),
        ("/usr/bin/env", True, False),
        ("what is in cat.png", True, False),
        ("look at cat.png please", False, False),
        ("hello", False, False),
        ("a.png\nb.png", False, False),
        ("", False, False),
    ],
)
def test_what_looks_like_a_path(line: str, may: bool, lone: bool) -> None:
    assert dropped.looks_like_path(line) is may
    assert dropped.is_lone_image_path(line) is lone


def test_attach_takes_one_path_with_blanks_several_paths_and_what_is_missing(
    tmp_path: Path, image_file: Path
) -> None:
    spaced = tmp_path / "a b.png"
    spaced.write_bytes(image_file.read_bytes())
    assert dropped.named_paths(str(spaced)) == [spaced]
    assert dropped.named_paths(f"'{spaced}' {image_file}") == [spaced, image_file]
    (tmp_path / "a dir").mkdir()
    assert dropped.named_paths(f"{tmp_path}/a dir") == [tmp_path / "a dir"]
    assert dropped.named_paths("nowhere\\ at\\ all.png") == [Path("nowhere at all.png")]


@pytest.mark.parametrize(
    ("size", "cells"),
    [((640, 480), (16, 6)), ((480, 640), (9, 6)), ((10000, 10), (20, 1)), ((10, 10000), (1, 6)),
     ((1, 1), (1, 1)), ((8, 8), (8, 4))],
)  # fmt: skip
def test_previews_keep_the_aspect_and_are_never_nothing(
    size: tuple[int, int], cells: tuple[int, int]
) -> None:
    assert tuple(fit(*size, 20, 6)) == cells


def test_half_blocks_hold_two_pixels_each() -> None:
    image = Image.new("RGB", (2, 3), (1, 2, 3))
    image.putpixel((1, 1), (250, 0, 0))
    first, last = half_blocks(image)
    assert first.text == last.text == "▀▀"
    upper, lower = first._segments[1].style.color, first._segments[1].style.bgcolor
    assert (tuple(upper.triplet), tuple(lower.triplet)) == ((1, 2, 3), (250, 0, 0))
    assert last._segments[0].style.bgcolor is None


def test_progress_in_words() -> None:
    event = LoadProgressed("download", 12e6, 26e6, "bytes", "model.safetensors", 4e6, 3.5)
    assert describe_progress(event) == "downloading 12 MB of 26 MB · 4.0 MB/s · 3.5 s left"
    event = LoadProgressed("weights", 3, 16, "layers", "", None, None)
    assert describe_progress(event) == "loading the weights, layers 3 of 16"
    event = LoadProgressed("import", 0, None, "", "", None, None)
    assert describe_progress(event) == "loading the libraries"


def test_text_from_outside_has_no_spans_of_its_own() -> None:
    assert plain("[red]x[/red] [@click=app.quit]y[/]").spans == []
    assert plain("[/nope]\x1b[2J").plain == "[/nope]␛[2J"
    assert plain_line("a\nb\tc").plain == "a b c"
