"""The calls into the one backend that a worker has loaded.

Owns the plugin manager with exactly two plugins: the chosen backend and torchkit. Refuses to know
how a model works, and who asks. Invariant: every method returns what the hook's contract promises,
checked, or raises a ``TuichatError`` of one sentence that names the backend; nothing else that a
plugin raises comes through, and no failed call keeps its frames alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tuichat.api import (
    BackendError,
    BackendInfo,
    Control,
    Conversation,
    Delta,
    DtypeReport,
    GenerationError,
    GenerationParams,
    Loaded,
    LoadRequest,
    ModelFacts,
    Progress,
    ProgressCallback,
    Prompt,
)
from tuichat.pluginhost.failures import to_sentence
from tuichat.pluginhost.refs import BackendRef, find_backend
from tuichat.pluginhost.registry import Registered, a_thing, checked, register
from tuichat.pluginhost.stream import deltas


class Backend:
    """One backend, imported in this process. One call at a time, but for ``image_tokens``."""

    def __init__(self, registered: Registered) -> None:
        from tuichat.torchkit import hooks as torchkit_hooks

        self._ref = registered.ref
        self._info = registered.info
        manager = registered.manager
        # torchkit generates for the handles it knows (trylast, so the backend comes first).
        manager.register(torchkit_hooks, name="tuichat.torchkit")
        manager.check_pending()
        self._hook = manager.hook

    @classmethod
    def open(cls, name: str) -> Backend:
        """Import the backend ``name`` and check its API version and hooks.

        Raises:
            BackendError: unknown name, or a plugin that cannot be imported or does not fit.
        """
        return cls(register(find_backend(name)))

    @property
    def name(self) -> str:
        """What follows ``--backend``."""
        return self._ref.name

    @property
    def ref(self) -> BackendRef:
        """Where the backend comes from."""
        return self._ref

    @property
    def info(self) -> BackendInfo:
        """What the backend says of itself."""
        return self._info

    def load(self, request: LoadRequest, progress: ProgressCallback) -> Loaded:
        """Load the model.

        What ``progress`` itself raises (to cancel) is raised again as it is.

        Raises:
            ModelNotAvailable: the plugin says that the files are not there.
            BackendError: anything else went wrong.
        """
        cancelled: list[BaseException] = []

        def report(step: Progress) -> None:
            try:
                progress(step)
            except BaseException as error:
                cancelled.append(error)
                raise

        try:
            loaded = self._call(
                "load the model",
                lambda: self._hook.tuichat_load(request=request, progress=report),
            )
        except BackendError:
            if not cancelled:
                raise
        else:
            return self._loaded(loaded)
        raise cancelled[0]

    def align(self, loaded: Loaded) -> DtypeReport:
        """Make the dtypes of all boundaries agree; an empty report from a backend without the hook.

        Raises:
            BackendError: the plugin failed.
        """
        report = self._call(
            "align its dtypes", lambda: self._hook.tuichat_align_dtype(loaded=loaded)
        )
        if report is None:
            return DtypeReport()
        return checked(self._who, "tuichat_align_dtype", report, DtypeReport)

    def image_tokens(self, loaded: Loaded, width: int, height: int) -> int | None:
        """Tokens that an image of ``width`` × ``height`` pixels costs; None if nobody can say.

        Raises:
            BackendError: the plugin failed, or the answer is not a count.
        """
        tokens = self._call(
            f"count the tokens of an image of {width}x{height}",
            lambda: self._hook.tuichat_image_tokens(loaded=loaded, width=width, height=height),
        )
        if tokens is None:
            return None
        if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0:
            return tokens
        raise BackendError(
            f"{self._who} answers tuichat_image_tokens with {a_thing(tokens)}, not a number of "
            "tokens; tell its author"
        )

    def assemble(self, loaded: Loaded, conversation: Conversation) -> Any:
        """The prompt for the whole conversation: a ``Prompt``, or the backend's own type.

        A ``Prompt`` is checked: one span for each image, in their order, within the ids.

        Raises:
            PromptTooLong: the plugin says so.
            BackendError: the plugin failed, returned nothing, or lost or invented an image.
        """
        prompt = self._call(
            "assemble the prompt",
            lambda: self._hook.tuichat_assemble_prompt(loaded=loaded, conversation=conversation),
        )
        if prompt is None:
            raise BackendError(
                f"{self._who} assembled no prompt (its hook tuichat_assemble_prompt is missing or "
                "returns None); tell its author"
            )
        if isinstance(prompt, Prompt) and (fault := prompt_fault(prompt, conversation)):
            raise BackendError(f"{self._who} assembled a wrong prompt: {fault}; tell its author")
        return prompt

    def generate(
        self, loaded: Loaded, prompt: Any, params: GenerationParams, control: Control
    ) -> Iterator[Delta]:
        """Answer ``prompt``: deltas in order, exactly the last one with ``stop_reason``.

        What a plugin forgets at the end is added. Closing the iterator closes the plugin's.

        Raises:
            GenerationError: at the call, or while iterating: the plugin failed.
        """
        source = self._call(
            "answer",
            lambda: self._hook.tuichat_generate(
                loaded=loaded, prompt=prompt, params=params, control=control
            ),
            GenerationError,
        )
        if source is None:
            raise GenerationError(
                f"{self._who} cannot answer: it implements no tuichat_generate, and torchkit does "
                "not know what its tuichat_load returned; tell its author"
            )
        return deltas(self._who, source, prompt, control)

    def unload(self, loaded: Loaded) -> None:
        """Let the model go.

        Raises:
            BackendError: the plugin failed.
        """
        self._call("unload the model", lambda: self._hook.tuichat_unload(loaded=loaded))

    @property
    def _who(self) -> str:
        return self._ref.who

    def _call(
        self, doing: str, call: Callable[[], Any], kind: type[BackendError] = BackendError
    ) -> Any:
        try:
            return call()
        except BaseException as error:
            failure = to_sentence(error, f"{self._who} failed to {doing}", kind)
        # Outside the handler: inside, the plugin's exception would become its context.
        raise failure

    def _loaded(self, loaded: Any) -> Loaded:
        if not isinstance(loaded, Loaded):
            raise BackendError(
                f"{self._who} answers tuichat_load with {a_thing(loaded)}, not a Loaded; "
                "tell its author"
            )
        facts = checked(self._who, "tuichat_load", loaded.facts, ModelFacts)
        return replace(loaded, facts=facts)


def prompt_tokens(prompt: Any) -> int | None:
    """Length of an assembled prompt in tokens; None for a type that does not say.

    That is ``len(prompt.ids)``, or the integer ``tokens`` of a backend's own type.
    """
    if isinstance(prompt, Prompt):
        return len(prompt.ids)
    tokens = getattr(prompt, "tokens", None)
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None


def prompt_fault(prompt: Prompt, conversation: Conversation) -> str:
    """What is wrong with the spans of ``prompt``, in words; empty if they are right."""
    wanted = [image.digest for turn in conversation.turns for image in turn.images]
    found = [span.digest for span in prompt.spans]
    if len(found) != len(wanted):
        return f"{len(found)} images for a conversation with {len(wanted)}"
    if found != wanted:
        return "its images are not those of the conversation, in their order"
    end = 0
    for number, span in enumerate(prompt.spans, 1):
        if span.length < 1 or span.start < end or span.start + span.length > len(prompt.ids):
            return f"the span of image {number} is empty, overlaps another or leaves the prompt"
        end = span.start + span.length
    return ""
