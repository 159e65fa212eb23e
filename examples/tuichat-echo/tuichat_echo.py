"""A backend for tuichat that answers with what it was given: roles, images, texts, in order."""

import time
from dataclasses import dataclass

from tuichat.api import BackendInfo, Delta, KnownModel, Loaded, Option, Usage, hookimpl


@dataclass
class EchoPrompt:
    words: list[str]
    image_tokens: int

    @property
    def tokens(self):
        return len(self.words) + self.image_tokens


@hookimpl
def tuichat_backend():
    return BackendInfo(
        title="Echo",
        api_version=1,
        models=(KnownModel("echo"),),
        default_model="echo",
        options=(
            Option("delay", "float", 0.0, "seconds to wait before each word"),
            Option("shout", "bool", False, "answer in capitals"),
        ),
    )


@hookimpl
def tuichat_load(request, progress):
    return Loaded(handle=request.model)


@hookimpl
def tuichat_image_tokens(loaded, width, height):
    return 1


@hookimpl
def tuichat_assemble_prompt(loaded, conversation):
    lines = [f"system: {conversation.system}"] if conversation.system else []
    for turn in conversation.turns:
        images = [f"[{i.digest[:8]} {i.width}x{i.height}]" for i in turn.images]
        lines.append(" ".join([f"{turn.role}:", *images, turn.text]))
    words = "\n".join(lines).split(" ")
    return EchoPrompt(words, sum(len(turn.images) for turn in conversation.turns))


@hookimpl
def tuichat_generate(loaded, prompt, params, control):
    return echo(prompt, params, control)


def echo(prompt, params, control):
    def end(reason, new):
        return Delta(stop_reason=reason, usage=Usage(prompt.tokens, prompt.image_tokens, 0, new))

    for number, word in enumerate(prompt.words):
        if control.stopped:
            yield end("stopped", number)
            return
        if number == params.max_new_tokens:
            yield end("length", number)
            return
        time.sleep(params.options["delay"])
        word = word if number == 0 else " " + word
        yield Delta(word.upper() if params.options["shout"] else word)
    yield end("end", len(prompt.words))
