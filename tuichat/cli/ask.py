"""``tuichat ask``: one question, its answer on stdout.

Owns the arguments, and what stands on stdout. Refuses to know how the answer comes about (that is
``cli.question``, over ``engine``). Invariant: stdout holds the answer, or one JSON object, and
nothing else; all other words go to stderr.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from tuichat.cli.options import make_settings, model_options, session_options


@click.command("ask")
@click.argument("images", metavar="[IMAGE]...", nargs=-1, type=click.Path())
@click.argument("prompt", metavar="PROMPT")
@model_options
@session_options
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object at the end, instead of the text."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress and no notices on stderr.")
def command(
    images: tuple[str, ...],
    prompt: str,
    session: str | None,
    no_store: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> int:
    """Ask PROMPT about every IMAGE, and stream the answer to stdout.

    A PROMPT of - is read from stdin. Each question is a session of its own, unless --session goes
    on with one: its images are still seen. Exit status: 0 answered, 1 failed, 2 wrong usage, 130
    interrupted (what had been answered is kept).
    """
    if session is not None and no_store:
        raise click.UsageError("--session and --no-store exclude each other.")
    _refuse_missing_question(prompt)
    from tuichat.cli.log import start_logging

    start_logging()
    settings = make_settings(session, **given)
    text = _question(prompt)

    import asyncio

    from tuichat.cli.progress import Progress
    from tuichat.cli.question import Answer, Question

    question = Question(
        settings,
        text,
        images,
        session=session,
        keep=not no_store,
        answer=Answer(sys.stdout, as_json=as_json),
        progress=Progress(sys.stderr, quiet=quiet),
    )
    return asyncio.run(question.run())


def _refuse_missing_question(prompt: str) -> None:
    """The last argument is the question; an image there means that it was left out or not last."""
    from mimetypes import guess_type

    kind, _ = guess_type(prompt)
    is_image = kind is not None and kind.startswith("image/")
    if is_image and os.path.isfile(prompt):  # noqa: PTH113  # Path's raises on a long question
        raise click.UsageError(
            f"the question is missing: PROMPT comes last, and {prompt!r} is an image."
        )


def _question(prompt: str) -> str:
    if prompt == "-":
        text = sys.stdin.buffer.read().decode("utf-8", "replace").removesuffix("\n")
    else:
        # Bytes of an argument that are no UTF-8 arrive as lone surrogates, which no store takes.
        text = prompt.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if not text.strip():
        raise click.UsageError("the question is empty.")
    return text
