"""The calls into one backend, and whatever it does wrong.

``tests/broken_plugins/misbehaves.py`` is opened as in a worker; the model, the text or the option
``do`` picks what it does.
"""

from __future__ import annotations

import gc
import importlib
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import echo_env
import pytest

from tuichat.api import (
    BackendError,
    Conversation,
    Delta,
    DtypeReport,
    GenerationError,
    GenerationParams,
    ImageRefused,
    Loaded,
    LoadRequest,
    ModelNotAvailable,
    Progress,
    Turn,
    Usage,
    WorkerError,
)
from tuichat.pluginhost.backend import Backend, prompt_tokens
from tuichat.testing import Switch, drawn_image

WHO = "Backend 'misbehaves' (broken-misbehaves 1.0)"
RED, BLUE = drawn_image("red"), drawn_image("blue")


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    site = tmp_path_factory.mktemp("site")
    echo_env.install_broken(site, "misbehaves")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield Backend.open("misbehaves")
        sys.modules.pop("broken_misbehaves")


def talk(text: str) -> Conversation:
    return Conversation(None, (Turn("user", text, (RED, BLUE)),))


def load(backend: Backend, model: str) -> Loaded:
    return backend.load(LoadRequest(model), lambda step: None)


def ballast_left() -> int:
    """Objects that stand for tensors and are still alive, without the help of the collector."""
    kind = importlib.import_module("broken_misbehaves").Ballast
    return sum(type(thing) is kind for thing in gc.get_objects())


def test_opening_an_unknown_backend_names_it() -> None:
    with pytest.raises(BackendError, match="There is no backend 'missbehaves'"):
        Backend.open("missbehaves")


def test_a_fine_backend_gives_what_its_hooks_promise(backend: Backend) -> None:
    steps: list[Progress] = []
    loaded = backend.load(LoadRequest("fine"), steps.append)
    assert steps == [Progress("weights")]
    assert backend.name == "misbehaves"
    assert backend.info.title == "Misbehaves"
    assert backend.align(loaded) == DtypeReport()
    assert backend.image_tokens(loaded, 7, 3) == 21
    prompt = backend.assemble(loaded, talk("fine"))
    assert [span.digest for span in prompt.spans] == [RED.digest, BLUE.digest]
    assert prompt_tokens(prompt) == 100


# --------------------------------------------------------------------------- loading


def test_what_a_load_raises_becomes_one_bounded_line(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BackendError) as caught:
        load(backend, "raises")
    message = str(caught.value)
    assert message == (
        f"{WHO} failed to load the model: ValueError: bad ␛[31mweights; the traceback is in the log"
    )
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "in tuichat_load" in record.getMessage()
    assert "second line xxx" in record.getMessage()
    assert "\x1b" not in record.getMessage()
    assert record.exc_info is None


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("exits", "failed to load the model: SystemExit: 4"),
        ("nothing", "answers tuichat_load with nothing, not a Loaded"),
        ("dict", "answers tuichat_load with a value of type 'dict', not a Loaded"),
        ("facts", "a wrong ModelFacts: Expected `int | null`, got `str` - at `$.context_length`"),
    ],
)
def test_a_load_that_goes_wrong_is_said(backend: Backend, model: str, said: str) -> None:
    with pytest.raises(BackendError) as caught:
        load(backend, model)
    assert f"{WHO} {said}" in str(caught.value) or said in str(caught.value)


def test_an_error_made_for_people_passes_as_it_is(backend: Backend) -> None:
    with pytest.raises(ModelNotAvailable) as caught:
        load(backend, "absent")
    assert str(caught.value) == "weights.bin of absent is not here; use --model demo"


@pytest.mark.parametrize("error", [WorkerError("cancelled"), KeyError("cancelled")])
def test_what_the_host_raises_to_cancel_comes_back(backend: Backend, error: Exception) -> None:
    def cancel(step: Progress) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        backend.load(LoadRequest("fine"), cancel)
    assert caught.value is error


# --------------------------------------------------------------------------- before a reply


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("dict of rows", "answers tuichat_align_dtype with a value of type 'dict'"),
        ("dtype object", "a wrong DtypeReport: Encoding objects of type object is unsupported"),
    ],
)
def test_a_wrong_report_is_said(backend: Backend, model: str, said: str) -> None:
    with pytest.raises(BackendError) as caught:
        backend.align(load(backend, model))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("model", "said"), [("many", "'str'"), ("negative", "'int'"), ("true", "'bool'")]
)
def test_a_count_of_tokens_is_a_count(backend: Backend, model: str, said: str) -> None:
    with pytest.raises(BackendError, match=f"{said}, not a number of tokens"):
        backend.image_tokens(load(backend, model), 10, 10)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "assembled no prompt"),
        ("lost", "a wrong prompt: 1 images for a conversation with 2"),
        ("swapped", "its images are not those of the conversation, in their order"),
        ("overlapping", "the span of image 2 is empty, overlaps another or leaves the prompt"),
        ("short", "the span of image 1 is empty, overlaps another or leaves the prompt"),
    ],
)
def test_a_prompt_that_lost_an_image_is_refused(backend: Backend, text: str, said: str) -> None:
    with pytest.raises(BackendError) as caught:
        backend.assemble(load(backend, "fine"), talk(text))
    assert str(caught.value).startswith(WHO)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("tokens", "length"), [(12, 12), (None, None), (True, None), ("12", None), (1.5, None)]
)
def test_the_length_of_a_type_of_its_own(tokens: object, length: int | None) -> None:
    class Own:
        pass

    prompt = Own()
    if tokens is not None:
        prompt.tokens = tokens
    assert prompt_tokens(prompt) == length


# --------------------------------------------------------------------------- the reply


def answer(backend: Backend, do: str, control: Switch | None = None) -> Iterator[Delta]:
    loaded = load(backend, "fine")
    prompt = backend.assemble(loaded, talk("fine"))
    params = GenerationParams(options={"do": do})
    return backend.generate(loaded, prompt, params, control or Switch())


@pytest.fixture
def mended(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Reads the warnings so far: ``mended()``."""
    return lambda: [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_a_fine_reply_passes_unchanged(backend: Backend, mended: Callable[[], list[str]]) -> None:
    assert list(answer(backend, "fine")) == [
        Delta("one ", usage=Usage(100, 4, 0, 1)),
        Delta("two", usage=Usage(100, 4, 0, 2), stop_reason="end"),
    ]
    assert mended() == []


def test_nothing_comes_after_the_end(backend: Backend) -> None:
    assert [delta.text for delta in answer(backend, "chatters on")] == ["one ", "two"]


def test_a_forgotten_end_is_added(backend: Backend, mended: Callable[[], list[str]]) -> None:
    *_, last = answer(backend, "forgets the end")
    assert last == Delta(stop_reason="end", usage=Usage(100, 4, 0, 1))
    assert mended() == [f"{WHO} ends a reply without stop_reason"]


def test_a_forgotten_end_of_a_stopped_reply_is_a_stop(backend: Backend) -> None:
    *_, last = answer(backend, "forgets the end", Switch(stopped=True))
    assert last.stop_reason == "stopped"


def test_forgotten_usage_is_the_last_that_was_seen(
    backend: Backend, mended: Callable[[], list[str]]
) -> None:
    *_, last = answer(backend, "forgets usage")
    assert (last.text, last.stop_reason, last.usage) == ("two", "length", Usage(100, 4, 0, 1))
    assert mended() == [f"{WHO} ends a reply without usage"]


def test_a_backend_that_does_not_stop_is_cut_off(
    backend: Backend, mended: Callable[[], list[str]]
) -> None:
    switch, seen = Switch(), []
    for delta in answer(backend, "never stops", switch):
        seen.append(delta)
        switch.stopped = len(seen) >= 5
    assert len(seen) == 7
    assert seen[-1] == Delta(stop_reason="stopped", usage=Usage(100, 4, 0, 1))
    assert mended() == [f"{WHO} goes on after it was told to stop"]


def test_half_a_character_does_not_cost_the_reply(
    backend: Backend, mended: Callable[[], list[str]]
) -> None:
    assert [delta.text for delta in answer(backend, "half a character")] == ["one ", "�", ""]
    assert mended()[0] == f"{WHO} yields half a character"


@pytest.mark.parametrize(
    ("do", "said"),
    [
        ("raises", "failed while it answered: ValueError: ␛[31mlayer 3 has <broken_m"),
        ("exits", "failed while it answered: SystemExit: 3"),
        ("interrupts", "failed while it answered: KeyboardInterrupt"),
        ("yields str", "yields a value of type 'str' where a Delta is due"),
        ("yields nothing", "yields nothing where a Delta is due"),
        ("text is bytes", "yields a Delta whose text is not a str"),
        ("odd reason", "it may be end, length, stopped, error"),
    ],
)
def test_a_fault_in_mid_stream_keeps_what_came_before(backend: Backend, do: str, said: str) -> None:
    reply = answer(backend, do)
    assert next(reply).text == "one "
    with pytest.raises(GenerationError) as caught:
        next(reply)
    assert str(caught.value).startswith(WHO)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()
    assert list(reply) == []


@pytest.mark.parametrize(
    ("do", "said"),
    [
        ("raises at once", "failed to answer: RuntimeError: no"),
        ("not iterable", "answers tuichat_generate with a value of type 'int', not an iterator"),
        ("none", "cannot answer: it implements no tuichat_generate"),
    ],
)
def test_a_reply_that_cannot_begin_is_refused_at_the_call(
    backend: Backend, do: str, said: str
) -> None:
    with pytest.raises(GenerationError) as caught:
        answer(backend, do)
    assert f"{WHO} {said}" in str(caught.value)


def test_an_error_made_for_people_passes_through_a_reply(backend: Backend) -> None:
    reply = answer(backend, "refuses")
    next(reply)
    with pytest.raises(ImageRefused, match=r"^circle.png is too wide; crop it$"):
        next(reply)


def test_a_failure_keeps_no_tensor_alive(backend: Backend) -> None:
    gc.collect()
    gc.disable()
    try:
        before = ballast_left()
        with pytest.raises(BackendError) as loading:
            load(backend, "raises")
        reply = answer(backend, "raises")
        next(reply)
        with pytest.raises(GenerationError) as answering:
            next(reply)
        assert ballast_left() == before
        for caught in (loading, answering):
            assert caught.value.__cause__ is None
            assert caught.value.__context__ is None
    finally:
        gc.enable()


def test_closing_a_reply_closes_the_plugins(backend: Backend) -> None:
    gc.collect()
    before = ballast_left()
    reply = answer(backend, "never stops")
    next(reply)
    assert ballast_left() == before + 1
    reply.close()
    assert ballast_left() == before


def test_a_plugin_that_fails_to_close_is_logged_and_no_more(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    reply = answer(backend, "fails to close")
    assert [next(reply).text, next(reply).text] == ["one ", "two"]
    reply.close()
    assert "failed to end a reply: ValueError: cannot close" in caplog.text


def test_unloading_that_fails_is_said(backend: Backend) -> None:
    with pytest.raises(BackendError, match="failed to unload the model: OSError: cannot let go"):
        backend.unload(load(backend, "fine"))


def test_one_backend_is_registered_and_it_imports_no_torch(tmp_path: Path) -> None:
    env = echo_env.install_echo(tmp_path / "site")
    echo_env.install_broken(tmp_path / "site", "same_module", "misbehaves")
    code = (
        "import sys; from tuichat.pluginhost.backend import Backend; b = Backend.open('echo');"
        "print([i.plugin_name for i in b._hook.tuichat_load.get_hookimpls()],"
        " 'torch' in sys.modules, 'broken_misbehaves' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "['echo'] False False\n"
