"""Shell completion: commands, files, backends and sessions, out of metadata and the store alone."""

from __future__ import annotations

import pytest

from tuichat.store import Store


@pytest.fixture
def complete(run_tuichat):
    """The words that bash is offered after ``words``; ``<file>`` stands for its own files."""

    def run(*words: str) -> list[str]:
        ran = run_tuichat(
            env={
                "_TUICHAT_COMPLETE": "bash_complete",
                "COMP_WORDS": " ".join(["tuichat", *words]),
                "COMP_CWORD": str(len(words)),
            }
        )
        assert (ran.code, ran.err) == (0, "")
        kinds = [line.split(",", 1) for line in ran.out.splitlines()]
        return ["<file>" if kind == "file" else value for kind, value in kinds]

    return run


def test_the_first_word_is_a_command_or_an_image(complete):
    assert complete("") == ["chat", "ask", "backends", "sessions", "stop", "<file>"]
    assert complete("as") == ["ask", "<file>"]


def test_options(complete):
    assert complete("--ses") == ["--session"]
    assert complete("ask", "--js") == ["--json"]
    assert complete("a.png", "--quantize", "") == ["none", "4bit", "8bit"]


def test_images(complete):
    assert complete("a.png", "b") == ["<file>"]
    assert complete("ask", "b") == ["<file>"]


def test_backends_come_from_metadata(complete):
    assert "llava" in complete("--backend", "")
    assert complete("ask", "-b", "ll") == ["llava"]
    assert complete("backends", "ll") == ["llava"]


def test_sessions(complete, home):
    assert complete("--session", "") == ["last"]
    assert not (home / "data").exists(), "completion made a store"
    with Store.open() as store:
        session = store.create_session(backend="llava", model="demo")
        poster = store.register_owner()
        store.post(session, "hi", [], poster=poster.token, backend="llava", model="demo")
        poster.release()
    assert complete("--session", "") == ["last", session]
    assert complete("ask", "--session", session[:5]) == [session]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script(run_tuichat, shell):
    ran = run_tuichat(env={"_TUICHAT_COMPLETE": f"{shell}_source"})
    assert ran.code == 0
    assert "_TUICHAT_COMPLETE" in ran.out
