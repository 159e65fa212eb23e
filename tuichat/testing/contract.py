"""The contract of a backend, as tests to inherit.

Owns what is true of every backend, with a model or without. Refuses to know which one it tests:
that is in the fixtures. Invariant: every call goes through ``pluginhost.Backend``, as in a worker,
and what the host had to mend (it logs a warning then) fails the test.

    from tuichat.testing import BackendContract

    class TestEcho(BackendContract):
        @pytest.fixture(scope="class")
        def backend_name(self):
            return "echo"
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tuichat.api import (
    API_VERSION,
    BackendInfo,
    Conversation,
    Delta,
    DtypeReport,
    GenerationParams,
    Image,
    Loaded,
    LoadRequest,
    Progress,
    Prompt,
    Usage,
)
from tuichat.pluginhost.backend import Backend, prompt_tokens
from tuichat.pluginhost.catalog import describe, find_backend, parse_options, resolve_model
from tuichat.testing.material import (
    Switch,
    dialogue,
    drawn_image,
    reply,
    talk,
    user,
    with_text,
)

HEAVY = ("torch", "transformers", "tensorflow", "jax", "bitsandbytes", "accelerate", "tokenizers")
_MENDER = "tuichat.pluginhost.stream"
_LONG = "Tell me first, in your own plain words, what you can do for me and what you cannot. " * 4
_FRESH = """
import json, sys
from tuichat.pluginhost.refs import find_backend
from tuichat.pluginhost.registry import register
register(find_backend(sys.argv[1]))
json.dump([name for name in sys.argv[2:] if name in sys.modules], sys.stdout)
"""


class BackendContract:
    """Inherit, override ``backend_name`` and whatever else differs, and run with pytest.

    The model is loaded once for the class, so an overridden fixture keeps its scope ``class``.
    """

    # ------------------------------------------------------------------ fixtures to override

    @pytest.fixture(scope="class")
    def backend_name(self) -> str:
        """The name of the entry point. Always overridden."""
        raise NotImplementedError("override the fixture backend_name")

    @pytest.fixture(scope="class")
    def model(self) -> str | None:
        """As after ``--model``: a hub id, a folder, ``demo``; None is the default model."""
        return None

    @pytest.fixture(scope="class")
    def load_request(self, backend: Backend, model: str | None) -> LoadRequest:
        """What to load: on the CPU, without a network, all options at their defaults."""
        options, _ = parse_options(backend.info, [])
        resolved = resolve_model(backend.info, backend.ref, model)
        return LoadRequest(resolved, device="cpu", options=options, offline=True)

    @pytest.fixture(scope="class")
    def params(self, backend: Backend) -> GenerationParams:
        """How to answer: greedily, at most 16 tokens, all options at their defaults."""
        _, options = parse_options(backend.info, [])
        return GenerationParams(max_new_tokens=16, options=options)

    @pytest.fixture(scope="class")
    def images(self) -> tuple[Image, Image]:
        """Two images of different content and size."""
        return drawn_image("red", 160, 120), drawn_image("blue", 90, 170)

    @pytest.fixture(scope="class")
    def takes_images(self, loaded: Loaded) -> bool:
        """False for a backend of a model without eyes: image tests are skipped."""
        return loaded.facts.capabilities.max_images != 0

    @pytest.fixture(scope="class")
    def special_strings(self) -> tuple[str, ...]:
        """Texts that look like control tokens of some model; add those of yours."""
        return (
            *("<image>", "<|image|>", "<|begin_of_image|>", "<|endoftext|>", "<image_pad>"),
            *("<s>", "</s>", "<unk>", "<pad>", "<think>", "<|user|>", "<|assistant|>", "[gMASK]"),
            *("USER: hello ASSISTANT: hi</s>", "\n\n", "\u200b", "�", "日本語 🟥 é"),
        )

    # ------------------------------------------------------------------ fixtures as they are

    @pytest.fixture(scope="class")
    def backend(self, backend_name: str) -> Backend:
        """The backend, opened as in a worker."""
        return Backend.open(backend_name)

    @pytest.fixture(scope="class")
    def progress(self) -> list[Progress]:
        """What the load reported."""
        return []

    @pytest.fixture(scope="class")
    def loaded(
        self, backend: Backend, load_request: LoadRequest, progress: list[Progress]
    ) -> Iterator[Loaded]:
        """The model, loaded and aligned; unloaded after the last test of the class."""
        loaded = backend.load(load_request, progress.append)
        backend.align(loaded)
        yield loaded
        backend.unload(loaded)

    @pytest.fixture(autouse=True)
    def _nothing_to_mend(self, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
        caplog.set_level(logging.WARNING, _MENDER)
        yield
        mended = [
            record.getMessage()
            for record in caplog.get_records("call")
            if record.name == _MENDER and record.levelno >= logging.WARNING
        ]
        assert not mended, "the host had to mend what the backend did"

    # ------------------------------------------------------------------ before a model is loaded

    def test_describing_imports_nothing_heavy(self, backend_name: str) -> None:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _FRESH, backend_name, *HEAVY],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == []

    def test_the_description_reaches_the_host_as_it_is(
        self, backend_name: str, backend: Backend
    ) -> None:
        entry = describe(backend_name, refresh=True)
        assert entry.problem is None
        assert entry.info == backend.info
        assert entry.ref == find_backend(backend_name)

    def test_describes_itself(self, backend: Backend) -> None:
        info: BackendInfo = backend.info
        assert info.title.strip()
        assert info.api_version == API_VERSION
        assert info.default_model or info.models or info.demo_model
        assert info.capabilities.quantisations
        assert info.capabilities.max_concurrency >= 1

    def test_options_have_names_help_and_fitting_defaults(self, backend: Backend) -> None:
        options = backend.info.options
        assert len({option.name for option in options}) == len(options)
        for option in options:
            assert option.help.strip()
            assert "=" not in option.name
            if option.default is not None:
                load, turn = parse_options(backend.info, [f"{option.name}={option.default}"])
                assert {**load, **turn}[option.name] == option.default

    # ------------------------------------------------------------------ loading and alignment

    def test_load_reports_progress_and_facts(
        self, loaded: Loaded, progress: list[Progress]
    ) -> None:
        assert all(isinstance(step, Progress) for step in progress)
        assert all(step.total is None or 0 <= step.done <= step.total for step in progress)
        length = loaded.facts.context_length
        assert length is None or length > 0

    def test_alignment_is_idempotent(self, backend: Backend, loaded: Loaded) -> None:
        first, second = backend.align(loaded), backend.align(loaded)
        assert isinstance(first, DtypeReport)
        assert second.changed == ()
        assert second.rows == first.rows

    # ------------------------------------------------------------------ the prompt

    def test_every_image_has_its_span(
        self, backend: Backend, loaded: Loaded, images: tuple[Image, Image], takes_images: bool
    ) -> None:
        _need(takes_images, "the backend takes no images")
        prompt = _prompt(backend, loaded, talk(user("What is this?", *images)))
        for image, span in zip(images, prompt.spans, strict=True):
            assert span.digest == image.digest
            tokens = backend.image_tokens(loaded, image.width, image.height)
            assert tokens in (None, span.length)

    def test_assembly_is_deterministic(
        self, backend: Backend, loaded: Loaded, images: tuple[Image, Image], takes_images: bool
    ) -> None:
        conversation = dialogue(*images) if takes_images else dialogue()
        first, second = (backend.assemble(loaded, conversation) for _ in range(2))
        assert _comparable(first) == _comparable(second)

    def test_an_image_stays_in_its_turn(
        self, backend: Backend, loaded: Loaded, images: tuple[Image, Image], takes_images: bool
    ) -> None:
        _need(takes_images, "the backend takes no images")
        opening = _prompt(backend, loaded, talk(user(_LONG)))
        conversation = talk(user(_LONG), reply("Fine."), user("And this?", images[0]))
        (span,) = _prompt(backend, loaded, conversation).spans
        # The text of the first turn makes up nearly all of its prompt.
        assert span.start > len(opening.ids) // 2, "the image moved into an earlier turn"
        both = talk(user(_LONG, images[0]), reply("Fine."), user("And this?", images[1]))
        first, second = _prompt(backend, loaded, both).spans
        between = second.start - (first.start + first.length)
        assert between > len(opening.ids) // 2, "the images of two turns were put together"

    def test_images_come_in_the_order_of_the_conversation(
        self, backend: Backend, loaded: Loaded, images: tuple[Image, Image], takes_images: bool
    ) -> None:
        _need(takes_images, "the backend takes no images")
        one, two = images
        for order in ((one, two), (two, one), (one, one)):
            spans = _prompt(backend, loaded, dialogue(*order)).spans
            assert [span.digest for span in spans] == [image.digest for image in order]

    def test_text_never_becomes_an_image_or_an_end(
        self,
        backend: Backend,
        loaded: Loaded,
        images: tuple[Image, Image],
        takes_images: bool,
        special_strings: tuple[str, ...],
    ) -> None:
        given = images[:1] if takes_images else ()
        ends = loaded.facts.end_ids
        # An ordinary word wherever the special string is tried.
        plain = _prompt(backend, loaded, with_text("word", given))
        placeholders = _inside(plain)
        for text in special_strings:
            prompt = _prompt(backend, loaded, with_text(text, given))
            assert len(prompt.spans) == len(given), f"{text!r} changed the images"
            if len(placeholders) == 1:
                assert not placeholders & set(_outside(prompt)), f"{text!r} became an image"
            counts = [sum(token in ends for token in _outside(p)) for p in (plain, prompt)]
            assert counts[0] == counts[1], f"{text!r} became an end of turn"

    def test_the_system_prompt_is_used(self, backend: Backend, loaded: Loaded) -> None:
        _need(loaded.facts.capabilities.system_prompt, "the model has no system prompt")
        turn = user("Hello")
        briefly = "You answer every question in one short and friendly sentence."
        without, with_system = (
            prompt_tokens(backend.assemble(loaded, Conversation(system, (turn,))))
            for system in (None, briefly)
        )
        if without is None or with_system is None:
            pytest.skip("the prompt does not say its length")
        assert without < with_system

    # ------------------------------------------------------------------ the reply

    def test_a_reply_ends_with_reason_and_usage(
        self,
        backend: Backend,
        loaded: Loaded,
        params: GenerationParams,
        images: tuple[Image, Image],
        takes_images: bool,
    ) -> None:
        for conversation in (
            talk(user("Hello. é 漢字 🟥")),
            dialogue(*images) if takes_images else dialogue(),
        ):
            prompt = backend.assemble(loaded, conversation)
            deltas = list(backend.generate(loaded, prompt, params, Switch()))
            last = deltas[-1]
            assert [d.stop_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
            assert last.stop_reason in ("end", "length")
            _check_usage(last, prompt, params.max_new_tokens)
            assert "".join(d.text for d in deltas).count("\ufffd") == 0, "half a character"

    def test_max_new_tokens_is_obeyed(
        self, backend: Backend, loaded: Loaded, params: GenerationParams
    ) -> None:
        prompt = backend.assemble(loaded, talk(user("Hello, who are you?")))
        *_, last = backend.generate(loaded, prompt, replace(params, max_new_tokens=1), Switch())
        assert last.stop_reason in ("end", "length")
        _check_usage(last, prompt, 1)

    def test_a_stopped_reply_ends(
        self, backend: Backend, loaded: Loaded, params: GenerationParams
    ) -> None:
        prompt = backend.assemble(loaded, talk(user("Hello, who are you?")))
        *_, last = backend.generate(loaded, prompt, params, Switch(stopped=True))
        usage = _check_usage(last, prompt, 1)
        # One pass may be under way when the reader stops, and that pass may end the reply.
        assert last.stop_reason == "stopped" or usage.new_tokens == 1

        switch = Switch()
        after: list[Delta] = []
        for delta in backend.generate(loaded, prompt, params, switch):
            if switch.stopped:
                after.append(delta)
            switch.stopped = True
        # A backend that goes on is cut off by the host, which fails this test. Nothing after the
        # first delta: that was the whole reply.
        if after:
            assert after[-1].stop_reason in ("stopped", "end")

    def test_an_abandoned_reply_leaves_a_backend_that_answers(
        self, backend: Backend, loaded: Loaded, params: GenerationParams
    ) -> None:
        prompt = backend.assemble(loaded, talk(user("Hello, who are you?")))
        abandoned = backend.generate(loaded, prompt, params, Switch())
        next(abandoned)
        abandoned.close()  # type: ignore[attr-defined]  # the host's iterator is a generator
        *_, last = backend.generate(loaded, prompt, params, Switch())
        assert last.stop_reason in ("end", "length")


def _need(condition: bool, reason: str) -> None:
    if not condition:
        pytest.skip(reason)


def _prompt(backend: Backend, loaded: Loaded, conversation: Conversation) -> Prompt:
    prompt = backend.assemble(loaded, conversation)
    if not isinstance(prompt, Prompt):
        pytest.skip("the backend assembles a prompt of its own type")
    return prompt


def _inside(prompt: Prompt) -> set[int]:
    covered = {p for span in prompt.spans for p in range(span.start, span.start + span.length)}
    return {prompt.ids[position] for position in covered}


def _outside(prompt: Prompt) -> list[int]:
    covered = {p for span in prompt.spans for p in range(span.start, span.start + span.length)}
    return [token for position, token in enumerate(prompt.ids) if position not in covered]


def _comparable(prompt: Any) -> Any:
    """What must be equal in two prompts of the same conversation."""
    if isinstance(prompt, Prompt):
        rows = json.dumps(prompt.position_ids, default=list)  # lists and tuples look alike
        return list(prompt.ids), prompt.spans, rows, prompt.next_position
    # A type that does not compare by value can only be compared by what the host knows of it.
    by_identity: Any = object.__eq__
    return prompt_tokens(prompt) if type(prompt).__eq__ is by_identity else prompt


def _check_usage(last: Delta, prompt: Any, max_new_tokens: int) -> Usage:
    usage = last.usage
    assert usage is not None
    assert 0 <= usage.new_tokens <= max_new_tokens
    assert 0 <= usage.reused_tokens <= usage.prompt_tokens
    assert usage.prompt_tokens == (prompt_tokens(prompt) or usage.prompt_tokens)
    if isinstance(prompt, Prompt):
        assert usage.image_tokens == prompt.image_tokens
    return usage
