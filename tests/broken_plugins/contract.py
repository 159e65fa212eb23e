"""A backend with a ``Prompt`` and no model, that breaks the contract in the way ``model`` names.

As model ``fine`` it keeps the contract: the kit must pass it, and must fail it as any other. A
word is a token; 1 is the placeholder of images, 2 the end of a turn.
"""

import itertools
import zlib

from tuichat.api import (
    BackendInfo,
    Delta,
    DtypeReport,
    DtypeRow,
    Loaded,
    ModelFacts,
    Prompt,
    Span,
    Usage,
    hookimpl,
)

FAULTS = (
    "hoists images",
    "counts wrong",
    "is random",
    "sees images in text",
    "sees ends in text",
    "ignores the system prompt",
    "moves at every alignment",
    "forgets usage",
    "forgets the end",
    "miscounts usage",
    "ignores the limit",
    "does not stop",
    "halves characters",
    "answers once",
)
_CONTROL = {"sees images in text": ("<image>", 1), "sees ends in text": ("</s>", 2)}
_running = set()
_random = itertools.count(1000)


@hookimpl
def tuichat_backend():
    return BackendInfo(title="Contract", api_version=1, default_model="fine")


@hookimpl
def tuichat_load(request, progress):
    return Loaded(request.model, ModelFacts(end_ids=frozenset({2})))


@hookimpl
def tuichat_align_dtype(loaded):
    changed = loaded.handle == "moves at every alignment"
    row = DtypeRow("pixels", "float32", "float32", "float32", "cpu", changed=changed)
    return DtypeReport((row,))


@hookimpl
def tuichat_image_tokens(loaded, width, height):
    return width * height // 1000 + 2 + (loaded.handle == "counts wrong")


@hookimpl
def tuichat_assemble_prompt(loaded, conversation):
    ids, spans = [], []
    hoisted = loaded.handle == "hoists images"
    every = [image for turn in conversation.turns for image in turn.images]
    if conversation.system and loaded.handle != "ignores the system prompt":
        ids += _words(loaded, conversation.system)
    for number, turn in enumerate(conversation.turns):
        ids.append({"user": 3, "assistant": 4}[turn.role])
        for image in every * (number == 0) if hoisted else turn.images:
            length = image.width * image.height // 1000 + 2
            spans.append(Span(len(ids), length, image.digest))
            ids += [1] * length
        ids += _words(loaded, turn.text)
        if turn.role == "assistant":
            ids.append(2)
    if loaded.handle == "is random":
        ids.append(next(_random))
    return Prompt(ids, tuple(spans))


@hookimpl
def tuichat_generate(loaded, prompt, params, control):
    return _deltas(loaded.handle, prompt, params, control)


def _words(loaded, text):
    word, control = _CONTROL.get(loaded.handle, ("", 0))
    return [control if w == word else 10 + zlib.crc32(w.encode()) % 10000 for w in text.split()]


def _deltas(fault, prompt, params, control):
    if fault == "answers once" and _running:
        raise RuntimeError("still answering")
    _running.add(1)
    words = ["I ", "see ", "�" if fault == "halves characters" else "é ", "nothing."]
    limit = 99 if fault == "ignores the limit" else params.max_new_tokens
    deaf = fault == "does not stop"
    given = 0
    for word in words * (3 if deaf else 1):
        if given >= limit or (control.stopped and not deaf):
            break
        given += 1
        yield Delta(word)
    reason = "stopped" if control.stopped else "end" if given >= len(words) else "length"
    off = fault == "miscounts usage"
    usage = Usage(len(prompt.ids) + off, prompt.image_tokens, 0, given)
    if fault != "answers once":
        _running.clear()
    if fault != "forgets the end":
        yield Delta(stop_reason=reason, usage=None if fault == "forgets usage" else usage)
