"""Is described and opened without trouble; every hook then does what ``model`` names.

The conversation's text, or the request's model, picks the misbehaviour.
"""

from tuichat.api import (
    BackendInfo,
    Delta,
    DtypeReport,
    DtypeRow,
    ImageRefused,
    Loaded,
    ModelFacts,
    ModelNotAvailable,
    Progress,
    Prompt,
    Span,
    Usage,
    hookimpl,
)


class Ballast:
    """Stands for a tensor."""


@hookimpl
def tuichat_backend():
    return BackendInfo(title="Misbehaves", api_version=1, default_model="fine")


@hookimpl
def tuichat_load(request, progress):
    ballast = Ballast()
    progress(Progress("weights"))
    if request.model == "raises":
        raise ValueError("bad \x1b[31mweights\nsecond line " + "x" * 1000)
    if request.model == "exits":
        raise SystemExit(4)
    if request.model == "absent":
        raise ModelNotAvailable("weights.bin of absent is not here; use --model demo")
    if request.model == "facts":
        return Loaded(ballast, ModelFacts(context_length="many"))
    if request.model in ("nothing", "dict"):
        return {"nothing": None, "dict": {}}[request.model]
    return Loaded(request.model)


@hookimpl
def tuichat_align_dtype(loaded):
    if loaded.handle == "dtype object":
        row = DtypeRow("pixels", object(), "float32", "float32", "cpu")
        return DtypeReport((row,))
    return None if loaded.handle == "fine" else {}


@hookimpl
def tuichat_image_tokens(loaded, width, height):
    return {"fine": width * height, "negative": -1, "true": True}.get(loaded.handle, "many")


@hookimpl
def tuichat_assemble_prompt(loaded, conversation):
    text = conversation.turns[-1].text
    digests = [image.digest for turn in conversation.turns for image in turn.images]
    if text == "nothing":
        return None
    if text == "lost":
        digests = digests[1:]
    if text == "swapped":
        digests.reverse()
    step = 1 if text == "overlapping" else 2
    spans = tuple(Span(1 + step * n, 2, digest) for n, digest in enumerate(digests))
    return Prompt([0] * (2 if text == "short" else 100), spans)


@hookimpl
def tuichat_generate(loaded, prompt, params, control):
    behaviour = params.options["do"]
    if behaviour == "raises at once":
        raise RuntimeError("no")
    if behaviour == "not iterable":
        return 7
    if behaviour == "none":
        return None
    return _deltas(behaviour, control)


@hookimpl
def tuichat_unload(loaded):
    raise OSError("cannot let go")


def _deltas(behaviour, control):
    ballast = Ballast()
    yield Delta("one ", usage=Usage(100, 4, 0, 1))
    match behaviour:
        case "fine":
            yield Delta("two", usage=Usage(100, 4, 0, 2), stop_reason="end")
        case "chatters on":
            yield Delta("two", usage=Usage(100, 4, 0, 2), stop_reason="end")
            yield Delta("three")
        case "forgets the end":
            yield Delta("two")
        case "forgets usage":
            yield Delta("two", stop_reason="length")
        case "raises":
            raise ValueError(f"\x1b[31mlayer 3 has {ballast!r:.9}")
        case "exits":
            raise SystemExit(3)
        case "interrupts":
            raise KeyboardInterrupt
        case "refuses":
            raise ImageRefused("circle.png is too wide; crop it")
        case "yields str":
            yield "two"
        case "yields nothing":
            yield None
        case "text is bytes":
            yield Delta(b"two")
        case "odd reason":
            yield Delta(stop_reason="tired")
        case "half a character":
            yield Delta("\ud83d")
        case "never stops":
            while True:
                yield Delta("more ")
        case "fails to close":
            try:
                yield Delta("two")
            finally:
                raise ValueError("cannot close")
