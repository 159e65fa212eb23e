"""Whatever goes wrong ends as one sentence on stderr; the traceback is in the log."""

from __future__ import annotations

import logging
import warnings

import click
import pytest

from tuichat.api import BackendError
from tuichat.cli import commands, main
from tuichat.cli.log import log_path


@pytest.fixture(autouse=True)
def _own_logging(home):
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)
            handler.close()
    root.setLevel(level)


def run_raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    @click.command()
    def command() -> None:
        raise error

    monkeypatch.setattr(commands, "load", lambda name: command)
    return main.run(["ask"])


def test_an_error_for_people_is_shown_as_it_is(monkeypatch, capsys):
    code = run_raising(BackendError("The model is not here: go online."), monkeypatch)
    assert code == 1
    assert capsys.readouterr() == ("", "tuichat: The model is not here: go online.\n")


def test_the_unforeseen_names_the_log_and_the_log_has_the_traceback(monkeypatch, capsys):
    code = run_raising(RuntimeError("boom\n\x1b[2Jbang"), monkeypatch)
    out, err = capsys.readouterr()
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert "RuntimeError: boom" in err
    assert str(log_path()) in err
    log = log_path().read_text()
    assert "Traceback" in log
    assert "raise error" in log
    assert "\x1b" not in log


def test_interrupted(monkeypatch, capsys):
    assert run_raising(KeyboardInterrupt(), monkeypatch) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_warnings_and_records_of_libraries_go_to_the_log(monkeypatch, capsys):
    @click.command()
    def command() -> None:
        from tuichat.cli.log import start_logging

        start_logging()
        start_logging()
        warnings.simplefilter("always")
        warnings.warn("deprecated thing", UserWarning, stacklevel=1)
        logging.getLogger("some.library").warning("loud library")

    monkeypatch.setattr(commands, "load", lambda name: command)
    with warnings.catch_warnings():
        assert main.run(["ask"]) == 0
    assert capsys.readouterr() == ("", "")
    log = log_path().read_text()
    assert "deprecated thing" in log
    assert log.count("loud library") == 1


def test_a_log_that_cannot_be_written_is_no_second_failure(monkeypatch, capsys, home):
    (home / "state").write_text("in the way")
    assert run_raising(RuntimeError("boom"), monkeypatch) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "boom" in err


def test_a_long_log_is_set_aside(monkeypatch, capsys):
    log_path().parent.mkdir(parents=True)
    log_path().write_bytes(b"old\n" * 1_200_000)
    run_raising(RuntimeError("boom"), monkeypatch)
    assert log_path().stat().st_size < 20_000
    assert log_path().with_suffix(".log.1").read_bytes().startswith(b"old\n")
