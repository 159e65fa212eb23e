"""``tuichat ask`` as a script meets it.

With the echo backend, which answers with what it was given.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import echo_env
import pytest

from tuichat.store import Store


@pytest.fixture(scope="session")
def echo_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("echo")
    echo_env.install_echo(folder)
    return folder


@pytest.fixture(autouse=True)
def _echo_is_installed(echo_site, home, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(echo_site))
    monkeypatch.setenv("TUICHAT_BACKEND", "echo")


def start_ask(*args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tuichat", "ask", *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def read_until(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    """What stdout said, up to and including ``text``."""
    said = b""
    while not said.endswith(text):
        data = os.read(process.stdout.fileno(), 1)
        assert data, (said, process.stderr.read())
        said += data
    return said


def last_path():
    with Store.open() as store:
        return store.path(store.resolve_session("last").id)


def wait_for_end(turns=last_path, timeout: float = 30):
    """The newest session's turns, once its reply is over."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        path = turns()
        if path[-1].state not in ("queued", "running"):
            return path
        time.sleep(0.05)
    raise AssertionError(f"still {path[-1].state}")


def test_the_answer_and_nothing_else_on_stdout(run_tuichat):
    ran = run_tuichat("ask", "Hello\nthere ☃")
    assert ran.code == 0
    assert ran.out == "user: Hello\nthere ☃\n"


def test_an_image_stays_in_the_conversation(run_tuichat, scene):
    first = run_tuichat("ask", str(scene), "What is it?")
    assert first.out.endswith("300x300] What is it?\n")
    second = run_tuichat("ask", "--session", "last", "And its colour?")
    assert second.out == f"{first.out}assistant: {first.out}user: And its colour?\n"
    path = last_path()
    assert [turn.role for turn in path] == ["user", "assistant"] * 2
    assert [turn.state for turn in path] == ["done"] * 4
    assert path[0].images[0].name == "scene.png"
    third = run_tuichat("ask", "--session", path[0].session_id[:6], "Again?")
    assert third.out.startswith(second.out)


def test_every_ask_is_a_session_of_its_own(run_tuichat):
    for text in ("one", "two"):
        assert run_tuichat("ask", text).out == f"user: {text}\n"
    rows = json.loads(run_tuichat("sessions", "--json").out)
    assert [row["title"] for row in rows] == ["two", "one"]
    assert [row["turns"] for row in rows] == [2, 2]
    assert rows[0]["backend"] == "echo"
    listed = run_tuichat("sessions").out
    assert rows[0]["id"] in listed
    assert "two" in listed


def test_a_session_goes_on_with_its_own_backend(run_tuichat):
    run_tuichat("ask", "hi")
    ran = run_tuichat("ask", "--session", "last", "again", env={"TUICHAT_BACKEND": "llava"})
    assert ran.out.endswith("user: again\n")


def test_json_has_exactly_these_keys(run_tuichat, scene):
    ran = run_tuichat("ask", "--json", str(scene), "What \x1b is it?")
    assert ran.code == 0
    assert ran.out.count("\n") == 1
    assert "\x1b" not in ran.out
    answer = json.loads(ran.out)
    assert list(answer) == [
        "session",
        "turn",
        "text",
        "stop_reason",
        "usage",
        "timing",
        "dtype",
        "backend",
        "model",
    ]
    assert set(answer["usage"]) == {
        "prompt_tokens",
        "image_tokens",
        "reused_tokens",
        "new_tokens",
    }
    assert set(answer["timing"]) == {"load_s", "first_token_s", "total_s", "tokens_per_s"}
    assert answer["text"].endswith("What \x1b is it?")
    assert answer["stop_reason"] == "end"
    assert answer["usage"]["image_tokens"] == 1
    assert (answer["backend"], answer["model"]) == ("echo", "echo")
    path = last_path()
    assert (answer["session"], answer["turn"]) == (path[1].session_id, path[1].id)
    assert path[1].text == answer["text"]


def test_the_question_from_stdin(run_tuichat):
    assert run_tuichat("ask", "-", stdin="früh\nspät\n".encode()).out == "user: früh\nspät\n"
    assert run_tuichat("ask", "-", stdin=b"bad \xff byte").out == "user: bad \ufffd byte\n"


def test_stdin_is_left_alone_otherwise():
    # A pipe that nobody writes to and nobody closes: reading it would never end.
    never, writer = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tuichat", "ask", "hi"],
            stdin=never,
            capture_output=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(never)
        os.close(writer)
    assert done.stdout == b"user: hi\n"


def test_no_store_leaves_nothing(run_tuichat, home):
    ran = run_tuichat("ask", "--no-store", "--json", "secret words")
    assert ran.code == 0
    answer = json.loads(ran.out)
    assert answer["text"] == "user: secret words"
    assert answer["session"] is None
    assert answer["turn"] is None
    assert run_tuichat("sessions", "--json").out == "[]\n"
    for path in home.rglob("*"):
        assert not path.is_file() or b"secret" not in path.read_bytes(), path


def test_quiet(run_tuichat):
    assert run_tuichat("ask", "-q", "hi").err == ""


def test_options_reach_the_backend_and_wrong_ones_are_refused(run_tuichat):
    assert run_tuichat("ask", "-o", "shout=yes", "hi").out == "USER: HI\n"
    for pair, named in (("shuot=yes", "shout"), ("delay=soon", "delay")):
        ran = run_tuichat("ask", "-q", "-o", pair, "hi")
        assert (ran.code, ran.out) == (1, "")
        assert named in ran.err
        assert ran.err.count("\n") == 1
    assert [row["title"] for row in json.loads(run_tuichat("sessions", "--json").out)] == ["hi"]


def test_length(run_tuichat):
    answer = json.loads(run_tuichat("ask", "--json", "--max-new-tokens", "2", "a b c").out)
    assert answer["stop_reason"] == "length"
    assert answer["text"].strip() == "user: a"


def test_a_terminal_sees_no_escape_of_the_model_and_a_pipe_sees_all(terminal, run_tuichat):
    attack = "\x1b]52;c;ZXZpbA==\x07 and \x9b2J"
    assert run_tuichat("ask", attack).out == f"user: {attack}\n"
    screen = terminal("ask", "-q", attack)
    assert screen.wait_until_gone() == 0
    screen.wait_for("user: ␛")
    assert b"\x1b]52" not in screen.raw
    assert "\x9b".encode() not in screen.raw


# --------------------------------------------------------------------------- broken off


def test_ctrl_c_keeps_what_was_said():
    process = start_ask("-o", "delay=0.3", "one two three four five six seven")
    said = read_until(process, b"two ")
    process.send_signal(signal.SIGINT)
    rest, complaint = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in complaint
    reply = last_path()[-1]
    assert reply.state == "stopped"
    assert reply.text.strip() == (said + rest).decode().strip()
    assert reply.text.startswith("user: one two")
    assert "seven" not in reply.text


def test_the_second_ctrl_c_leaves_at_once():
    # A backend that does not look whether it is to stop: the second Ctrl+C does not wait for it.
    process = start_ask("-o", "delay=5", "hi")
    process.stderr.readline()  # the model is loaded
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=2)
    assert process.returncode == 130


def test_a_reader_that_leaves_is_no_error():
    process = start_ask("-q", "-o", "delay=0.1", " ".join(map(str, range(200))))
    read_until(process, b"user: ")
    process.stdout.close()
    with process:
        assert process.stderr.read() == b""
    assert process.returncode == 1
    assert wait_for_end()[-1].state == "stopped"


def test_a_killed_worker_costs_one_answer(run_tuichat, home):
    process = start_ask("-q", "-o", "delay=0.3", "one two three four five six seven")
    read_until(process, b"two ")
    (record,) = (home / "run").glob("*.json")
    os.kill(json.loads(record.read_bytes())["pid"], signal.SIGKILL)
    _, complaint = process.communicate(timeout=30)
    assert process.returncode == 1
    assert complaint.count(b"\n") == 1
    assert b"worker" in complaint
    reply = last_path()[-1]
    assert reply.state == "interrupted"
    assert reply.text.startswith("user: one two")
    after = run_tuichat("ask", "--session", "last", "still there?")
    assert after.code == 0
    assert after.out.startswith("user: one two three four")
    assert after.out.endswith("user: still there?\n")


def test_stop_ends_the_worker_and_keeps_the_answer_so_far(run_tuichat):
    process = start_ask("-q", "-o", "delay=0.3", "one two three four five six seven")
    read_until(process, b"two ")
    stopped = run_tuichat("stop")
    assert stopped.code == 0
    assert "Ended worker" in stopped.out
    _, complaint = process.communicate(timeout=30)
    assert process.returncode == 1
    assert complaint.count(b"\n") == 1
    assert last_path()[-1].text.startswith("user: one two")
    assert run_tuichat("stop").out == "No worker is running.\n"


def test_killing_ask_lets_the_answer_be_finished():
    process = start_ask("-q", "-o", "delay=0.1", "one two three four five")
    read_until(process, b"two ")
    process.kill()
    process.communicate(timeout=30)
    reply = wait_for_end()[-1]
    assert (reply.state, reply.text) == ("done", "user: one two three four five")


def test_two_at_once_in_one_session(run_tuichat):
    run_tuichat("ask", "first")
    asked = [start_ask("-q", "--session", "last", "-o", "delay=0.02", name) for name in "ab"]
    answers = [process.communicate(timeout=60)[0].decode() for process in asked]
    assert [process.returncode for process in asked] == [0, 0]
    path = last_path()
    assert [turn.text for turn in path[::2]] in (["first", "a", "b"], ["first", "b", "a"])
    assert {turn.state for turn in path} == {"done"}
    # The later one had the earlier one's answer in front of it.
    assert path[-1].text.rstrip() in {answer.rstrip() for answer in answers}
    assert f"user: {path[2].text}\nassistant:" in path[-1].text


# --------------------------------------------------------------------------- bad input


def _directory(path: Path) -> None:
    path.mkdir()


def _text(path: Path) -> None:
    path.write_text("<html>not found</html>")


def _empty(path: Path) -> None:
    path.touch()


def _truncated(path: Path) -> None:
    from PIL import Image

    whole = path.with_suffix(".whole.jpg")
    Image.effect_noise((200, 200), 80).save(whole, "JPEG")
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])


@pytest.mark.parametrize(
    "make", [lambda path: None, _directory, _text, _empty, _truncated, os.mkfifo]
)
def test_what_is_no_image_is_one_line_before_any_model(run_tuichat, home, tmp_path, make):
    path = tmp_path / "not an image.png"
    make(path)
    began = time.monotonic()
    ran = run_tuichat("ask", str(path), "What is it?", timeout=30)
    assert time.monotonic() - began < 10
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert "not an image.png" in ran.err
    assert run_tuichat("sessions", "--json").out == "[]\n"
    assert not list((home / "run").glob("*.json")), "a worker was started"


def test_one_bad_image_among_good_ones(run_tuichat, scene, tmp_path):
    ran = run_tuichat("ask", str(scene), str(tmp_path / "missing.png"), "What?")
    assert ran.code == 1
    assert "missing.png" in ran.err


def test_a_file_name_cannot_steer_the_terminal(run_tuichat, tmp_path):
    ran = run_tuichat("ask", str(tmp_path / "a\x1b[2J\nb.png"), "What?")
    assert ran.code == 1
    assert "\x1b" not in ran.err
    assert ran.err.count("\n") == 1


def test_broken_plugins_hurt_nobody(run_tuichat, echo_site, tmp_path, monkeypatch):
    keys = ("import_error", "system_exit", "syntax_error", "stale", "malformed_file", "os_exit")
    broken = tmp_path / "broken"
    echo_env.install_broken(broken, *keys)
    monkeypatch.setenv("PYTHONPATH", f"{broken}{os.pathsep}{echo_site}")
    assert run_tuichat("ask", "hi").out == "user: hi\n"
    assert run_tuichat("--help").code == 0
    listed = run_tuichat("backends")
    assert listed.code == 0
    assert listed.err == ""
    told = json.loads(run_tuichat("backends", "--json").out)
    entries = {entry["distribution"]: entry for entry in told}
    assert entries["tuichat-echo"]["ready"]
    for key in keys:
        entry = entries[f"broken-{key.replace('_', '-')}"]
        assert not entry["ready"]
        assert entry["problem"] in listed.out
    ran = run_tuichat("ask", "-q", "-b", "import-error", "hi")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert "import-error" in ran.err


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tuichat-test", disk],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_is_said_and_loses_nothing(run_tuichat, small_disk, tmp_path):
    # Sockets and logs elsewhere: only the store's disk is full.
    home = tmp_path / "home"
    (home / "data").symlink_to(small_disk)
    assert run_tuichat("ask", "-q", "before").code == 0
    with contextlib.suppress(OSError), (small_disk / "filler").open("wb") as filler:
        while True:
            filler.write(b"x" * 4096)
            filler.flush()
    ran = run_tuichat("ask", "--session", "last", "-", stdin=b"x" * 400_000)
    assert ran.code == 1
    assert ran.out == ""
    assert "full" in ran.err.splitlines()[-1]
    assert "Traceback" not in ran.err
    (small_disk / "filler").unlink()
    ran = run_tuichat("ask", "-q", "--session", "last", "after")
    assert ran.out == "user: before\nassistant: user: before\nuser: after\n"


def test_a_store_that_cannot_be_made_is_said_and_the_question_answered(run_tuichat, home):
    (home / "data").write_text("in the way")
    ran = run_tuichat("ask", "hi")
    assert (ran.code, ran.out) == (0, "user: hi\n")
    assert "not being saved" in ran.err
    assert run_tuichat("ask", "--session", "last", "hi").code == 1
