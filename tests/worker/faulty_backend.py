"""A backend for the tests of engine and worker that fails on demand, by ``-o fault=…``."""

import os
import time
from dataclasses import dataclass
from typing import Any

from tuichat.api import (
    BackendError,
    BackendInfo,
    Delta,
    Loaded,
    Option,
    Usage,
    hookimpl,
)


@dataclass
class FaultyPrompt:
    text: str
    tokens: int = 3
    image_tokens: Any = 0


@hookimpl
def tuichat_backend():
    return BackendInfo(
        title="Faulty",
        api_version=1,
        default_model="faulty",
        options=(
            Option("fault", "str", "", "what goes wrong", scope="load"),
            Option("delay", "float", 0.0, "seconds before each word"),
        ),
    )


@hookimpl
def tuichat_load(request, progress):
    fault = request.options["fault"]
    if fault.startswith("load fails after "):
        time.sleep(float(fault.rsplit(" ", 1)[1]))
        raise BackendError("the load says no")
    if fault == "load fails with a surrogate":
        raise BackendError("no such file caf\udce9")
    if fault == "load exits":
        os._exit(0)
    if fault == "load prints":
        print("x" * 5_000_000, flush=True)
    return Loaded(handle=(fault, os.path.realpath(request.model)))


@hookimpl
def tuichat_image_tokens(loaded, width, height):
    if loaded.handle[0] == "image_tokens hangs":
        time.sleep(3600)
    return 1


@hookimpl
def tuichat_assemble_prompt(loaded, conversation):
    fault, model = loaded.handle
    text = "\n".join(f"{turn.role} {len(turn.images)}: {turn.text}" for turn in conversation.turns)
    if fault == "says its model":
        text = model
    return FaultyPrompt(text, image_tokens=None if fault == "odd image tokens" else 0)


@hookimpl
def tuichat_generate(loaded, prompt, params, control):
    return generate(loaded.handle[0], prompt, params, control)


def generate(fault, prompt, params, control):
    if fault == "a long word":
        yield Delta("x" * 5_000_000)
    if fault == "a surrogate":
        yield Delta("caf\udce9 ")
    for word in prompt.text.split(" "):
        if control.stopped:
            yield Delta(stop_reason="stopped", usage=Usage(1))
            return
        time.sleep(params.options["delay"])
        yield Delta(word + " ")
    yield Delta(stop_reason="end", usage=Usage(1))


@hookimpl
def tuichat_unload(loaded):
    if loaded.handle[0] == "unload hangs":
        time.sleep(3600)
