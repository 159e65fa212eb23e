"""The echo backend keeps the contract of every backend, and mirrors a conversation."""

import pytest

from tuichat.api import Conversation, GenerationParams, Turn
from tuichat.testing import BackendContract, Switch, drawn_image


class TestEcho(BackendContract):
    @pytest.fixture(scope="class")
    def backend_name(self):
        return "echo"

    def test_answers_with_what_it_was_given(self, backend, loaded):
        red, blue = drawn_image("red", 160, 120), drawn_image("blue", 90, 170)
        turns = (Turn("user", "What is it?", (red,)), Turn("assistant", "A circle."))
        talk = Conversation("Be brief.", (*turns, Turn("user", "And these?", (blue, red))))
        assert answer(backend, loaded, talk) == "\n".join(
            (
                "system: Be brief.",
                f"user: [{red.digest[:8]} 160x120] What is it?",
                "assistant: A circle.",
                f"user: [{blue.digest[:8]} 90x170] [{red.digest[:8]} 160x120] And these?",
            )
        )

    def test_shouts(self, backend, loaded):
        talk = Conversation(None, (Turn("user", "hello"),))
        assert answer(backend, loaded, talk, shout=True) == "USER: HELLO"


def answer(backend, loaded, talk, **options):
    params = GenerationParams(options={"delay": 0.0, "shout": False, **options})
    prompt = backend.assemble(loaded, talk)
    return "".join(d.text for d in backend.generate(loaded, prompt, params, Switch()))
