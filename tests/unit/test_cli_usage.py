"""Arguments, exit codes and the one line on stderr, of the program as it is started."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuichat import __version__


def test_help_is_that_of_the_chat_and_lists_the_commands(run_tuichat):
    ran = run_tuichat("--help")
    assert ran.code == 0
    assert ran.err == ""
    assert ran.out.startswith("Usage: tuichat [OPTIONS] [IMAGE]...\n")
    for name in ("ask", "backends", "sessions", "stop"):
        assert re.search(rf"^  {name} ", ran.out, re.M)
    for option in ("-b, --backend", "-m, --model", "--session", "--quantize", "-o, --option"):
        assert option in ran.out


@pytest.mark.parametrize("args", [["-h"], ["--help"], ["ask", "-h"], ["stop", "-h"]])
def test_both_names_of_help(run_tuichat, args):
    ran = run_tuichat(*args)
    assert ran.code == 0
    assert ran.out.startswith("Usage: tuichat ")


def test_version(run_tuichat):
    assert run_tuichat("--version").out == f"tuichat, version {__version__}\n"


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--no-such-option"], "--no-such-option"),
        (["ask"], "PROMPT"),
        (["ask", "--top-p", "1.5", "hi"], "--top-p"),
        (["ask", "--top-p", "0", "hi"], "--top-p"),
        (["ask", "--temperature", "-1", "hi"], "--temperature"),
        (["ask", "--temperature", "nan", "hi"], "--temperature"),
        (["ask", "--max-new-tokens", "0", "hi"], "--max-new-tokens"),
        (["ask", "--seed", "-1", "hi"], "--seed"),
        (["ask", "--quantize", "3bit", "hi"], "--quantize"),
        (["ask", "--dtype", "int8", "hi"], "--dtype"),
        (["ask", "-o", "novalue", "hi"], "KEY=VALUE"),
        (["ask", "-o", "=1", "hi"], "KEY=VALUE"),
        (["ask", ""], "empty"),
        (["ask", " \n"], "empty"),
        (["ask", "-"], "empty"),
        (["ask", "--session", "last", "--no-store", "hi"], "--no-store"),
        (["backends", "--no-such-option"], "--no-such-option"),
    ],
)
def test_wrong_usage_is_status_2_and_says_what_is_wrong(run_tuichat, args, named):
    ran = run_tuichat(*args)
    assert ran.code == 2
    assert ran.out == ""
    assert named in ran.err
    assert "Traceback" not in ran.err


def test_an_image_where_the_question_belongs(run_tuichat, tmp_path: Path):
    image = tmp_path / "a.png"
    image.write_bytes(b"not looked into")
    for args in ([str(image)], ["What colour is it?", str(image)]):
        ran = run_tuichat("ask", *args)
        assert ran.code == 2
        assert "the question is missing" in ran.err
        assert "a.png" in ran.err


def test_a_long_question_that_ends_like_a_file_is_a_question(run_tuichat):
    ran = run_tuichat("ask", "-b", "nonsense", "why " * 2000 + "x.png")
    assert ran.code == 2
    assert "no backend" in ran.err


@pytest.mark.parametrize("command", [["ask"], ["ask", "--quiet"]])
def test_unknown_backend_is_one_line_with_the_nearest_name(run_tuichat, command):
    ran = run_tuichat(*command, "--backend", "lava", "hello")
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    assert "'lava'" in ran.err
    assert "'llava'" in ran.err


@pytest.mark.parametrize("term", ["xterm-256color", "dumb", ""])
def test_the_chat_refuses_without_a_terminal(run_tuichat, term):
    ran = run_tuichat("--backend", "llava", env={"TERM": term})
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    assert "needs a terminal" in ran.err
    assert "tuichat ask" in ran.err
    assert "\x1b" not in ran.err


def test_escapes_in_arguments_do_not_reach_stderr(run_tuichat):
    for args in (["ask", "--backend", "\x1b[2Jx", "hi"], ["--\x1b]52;c;eA==\x07"]):
        ran = run_tuichat(*args)
        assert ran.code == 2
        assert "\x1b" not in ran.err
        assert "\x07" not in ran.err


def test_no_session_yet(run_tuichat, home):
    assert run_tuichat("sessions").out == "No conversation is stored yet.\n"
    assert run_tuichat("sessions", "--json").out == "[]\n"
    assert run_tuichat("sessions", "list").code == 0


def test_a_session_that_does_not_exist(run_tuichat, home):
    for name in ("last", "0000000000"):
        ran = run_tuichat("ask", "--session", name, "hi")
        assert ran.code == 1
        assert ran.out == ""
        assert ran.err.count("\n") == 1


def test_no_worker_to_stop(run_tuichat, home):
    ran = run_tuichat("stop")
    assert (ran.code, ran.out) == (0, "No worker is running.\n")
    assert run_tuichat("stop", "--all").code == 0
    assert run_tuichat("stop", "abcd").code == 2


def test_stdout_that_is_closed_is_no_error_message(tmp_path: Path):
    import subprocess
    import sys

    # `head -c 1` leaves while the help, larger than nothing, is still to be written.
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m tuichat --help | (exec <&-; sleep 0.5)"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == b""
