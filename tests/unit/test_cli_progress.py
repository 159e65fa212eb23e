"""Progress on stderr: one redrawn line on a terminal, sparse lines elsewhere."""

from __future__ import annotations

import io

from tuichat.cli.progress import Progress


class _Stream(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _download(progress: Progress, done: float) -> None:
    progress.load("download", done, 14e9, "bytes", "model-1.safetensors", 25e6, 300.0)


def test_a_terminal_gets_one_line_that_is_wiped_before_a_notice(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    stream, clock = _Stream(terminal=True), _Clock()
    progress = Progress(stream, quiet=False, clock=clock)
    _download(progress, 1e9)
    assert stream.getvalue() == (
        "\r\x1b[Ktuichat: downloading, 1.0 GB of 14 GB, 25 MB/s, 5 min left, model-1.safetensors"
    )
    progress.note("the cache is full")
    assert stream.getvalue().endswith("\r\x1b[Ktuichat: the cache is full\n")
    before = stream.getvalue()
    progress.wipe()
    assert stream.getvalue() == before


def test_a_terminal_is_not_redrawn_at_every_reading():
    stream, clock = _Stream(terminal=True), _Clock()
    progress = Progress(stream, quiet=False, clock=clock)
    for step in range(100):
        clock.now = step * 0.01
        _download(progress, step * 1e6)
    assert 9 <= stream.getvalue().count("\r") <= 11


def test_the_line_is_no_wider_than_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    stream = _Stream(terminal=True)
    _download(Progress(stream, quiet=False), 5)
    assert len(stream.getvalue().removeprefix("\r\x1b[K")) == 19


def test_a_file_gets_sparse_whole_lines_and_no_control_character():
    stream, clock = _Stream(terminal=False), _Clock()
    progress = Progress(stream, quiet=False, clock=clock)
    for step in range(250):
        clock.now = step * 0.1
        _download(progress, step * 1e6)
    progress.load("weights", 3, 32, "layers", "language\x1b[2Jmodel")
    progress.wipe()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[-1] == "tuichat: loading, 3 of 32 layers, language␛[2Jmodel"
    assert "\r" not in stream.getvalue()


def test_quiet():
    stream = _Stream(terminal=True)
    progress = Progress(stream, quiet=True)
    _download(progress, 1)
    progress.note("something")
    progress.wipe()
    assert stream.getvalue() == ""


def test_a_stderr_that_is_gone_does_not_end_the_answer():
    class Gone(_Stream):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    progress = Progress(Gone(terminal=False), quiet=False)
    progress.note("one")
    _download(progress, 1)
