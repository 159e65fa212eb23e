"""Options that more than one command takes, and the settings they make.

Owns names, types and ranges of the options, and shell completion of their values. Refuses to know
what a backend makes of them. Invariant: there is no option here that only one backend understands
(those go through ``-o``), and completing a value imports no plugin.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from tuichat.engine import Settings

BACKEND_VARIABLE = "TUICHAT_BACKEND"
DEFAULT_BACKEND = "llava"

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class _Pair(click.ParamType[str]):
    """``KEY=VALUE``; what keys there are and what values they take only the backend knows."""

    name = "KEY=VALUE"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        key, equals, _ = value.partition("=")
        if not equals or not key.strip():
            self.fail(f"{value!r} is not of the form KEY=VALUE", param, ctx)
        return value


class _Number(click.FloatRange):
    """A range that NaN is not in: it compares false with both ends."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


def complete_backend(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from tuichat.pluginhost.catalog import backend_refs

    names = dict.fromkeys(ref.name for ref in backend_refs())
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_session(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from tuichat.cli.sessions import recent
    from tuichat.sanitize import sanitize_line

    items = [CompletionItem("last", help="the newest one")]
    items += [CompletionItem(row.id, help=sanitize_line(row.title)) for row in recent(limit=50)]
    return [item for item in items if item.value.startswith(incomplete)]


_MODEL_OPTIONS: tuple[Decorator, ...] = (
    click.option(
        "-b",
        "--backend",
        metavar="NAME",
        shell_complete=complete_backend,
        help="Backend, as `tuichat backends` lists them. "
        f"[default: the session's, ${BACKEND_VARIABLE}, or {DEFAULT_BACKEND}]",
    ),
    click.option(
        "-m",
        "--model",
        metavar="MODEL",
        help="Hub id, local folder, or `demo`. [default: the backend's]",
    ),
    click.option("--revision", metavar="REV", help="Branch, tag or commit of a hub model."),
    click.option("--system", metavar="TEXT", help="System prompt."),
    click.option(
        "--device",
        metavar="DEVICE",
        default="auto",
        show_default=True,
        help="auto, cpu, cuda, cuda:1, mps.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "float16", "bfloat16"]),
        default="auto",
        show_default=True,
        help="What the weights are loaded in.",
    ),
    click.option(
        "--quantize",
        type=click.Choice(["none", "4bit", "8bit"]),
        help="Pack the language model's weights. [default: the backend's]",
    ),
    click.option(
        "--max-new-tokens",
        type=click.IntRange(min=1),
        default=1024,
        show_default=True,
        metavar="N",
        help="Longest answer.",
    ),
    click.option(
        "--temperature",
        type=_Number(min=0.0, max=10.0),
        default=0.0,
        show_default=True,
        metavar="T",
        help="0 takes the likeliest token always.",
    ),
    click.option(
        "--top-p",
        type=_Number(min=0.0, max=1.0, min_open=True),
        default=1.0,
        show_default=True,
        metavar="P",
        help="Sample among the likeliest tokens of this total probability.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0, max=2**63 - 1),
        metavar="N",
        help="Make sampling repeatable.",
    ),
    click.option(
        "--offline", is_flag=True, help="Open no connection: use what is on this machine."
    ),
    click.option(
        "-o",
        "--option",
        "options",
        type=_Pair(),
        multiple=True,
        metavar="KEY=VALUE",
        help="Option of the backend's own; `tuichat backends NAME` lists them.",
    ),
)


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: everything that decides which model answers, and how."""
    for option in reversed(_MODEL_OPTIONS):
        command = option(command)
    return command


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: which stored conversation goes on, or none."""
    command = click.option(
        "--no-store", is_flag=True, help="Keep nothing of this conversation afterwards."
    )(command)
    return click.option(
        "--session",
        metavar="ID|last",
        shell_complete=complete_session,
        help="Go on with a stored conversation.",
    )(command)


def check_backend(name: str) -> None:
    """Refuse a name that no installed distribution registers; metadata alone are read.

    Raises:
        Refused: with the nearest name, and all of them.
    """
    from tuichat.api import BackendError
    from tuichat.cli.failure import Refused
    from tuichat.pluginhost.catalog import find_backend

    try:
        find_backend(name)
    except BackendError as error:
        raise Refused(str(error)) from None


def make_settings(session: str | None, **given: Any) -> Settings:
    """Settings for the engine, out of what ``model_options`` collected.

    A session that goes on keeps the backend that answered in it last, unless ``--backend`` names
    one, and with the same backend its model, unless ``--model`` names one.

    Raises:
        Refused: unknown backend.
        SessionNotFound: no such session.
    """
    from tuichat.engine import Settings

    backend: str | None = given.pop("backend")
    options: Sequence[str] = given.pop("options")
    if session is not None:
        last_backend, last_model = _last_used(session)
        backend = backend or last_backend
        if backend == last_backend and given["model"] is None:
            given["model"] = last_model
    backend = backend or os.environ.get(BACKEND_VARIABLE) or DEFAULT_BACKEND
    check_backend(backend)
    return Settings(backend=backend, options=tuple(options), **given)


def _last_used(session: str) -> tuple[str | None, str | None]:
    """Backend and model of the session's newest turn."""
    from tuichat.store import Store

    with Store.open() as store:
        record = store.resolve_session(session)
    return record.backend, record.model or None
