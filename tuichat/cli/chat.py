"""``tuichat``: the chat screen.

Owns what is checked before the screen opens, which is what costs nothing to check. Refuses to know
the screen. Invariant: without a terminal nothing but one line on stderr is written.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from tuichat import __version__
from tuichat.cli.commands import COMMANDS, HELP_NAMES
from tuichat.cli.failure import Refused
from tuichat.cli.options import make_settings, model_options, session_options


class _Chat(click.Command):
    """Its help is the program's help: it lists the commands too."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, text in COMMANDS.items() if name != "chat"])
        super().format_epilog(ctx, formatter)


@click.command(
    "chat",
    cls=_Chat,
    context_settings=HELP_NAMES,
    epilog="`tuichat COMMAND --help` tells about a command.",
)
@click.argument("images", metavar="[IMAGE]...", nargs=-1, type=click.Path())
@model_options
@session_options
@click.version_option(__version__, "--version", prog_name="tuichat")
def command(images: tuple[str, ...], session: str | None, no_store: bool, **given: Any) -> int:
    """Chat with a local vision-language model in the terminal.

    Opens the chat, with every IMAGE attached to the first message.
    """
    _refuse_without_terminal()
    if session is not None and no_store:
        raise click.UsageError("--session and --no-store exclude each other.")
    from tuichat.cli.log import start_logging

    start_logging()
    settings = make_settings(session, **given)
    from tuichat.tui.app import run_chat

    return run_chat(settings, images=list(images), session=session, keep=not no_store) or 0


def _refuse_without_terminal() -> None:
    if os.environ.get("TERM", "dumb") == "dumb":
        raise Refused(
            "the chat needs a terminal that can move its cursor (TERM is dumb or unset); "
            "`tuichat ask` works without"
        )
    for stream, name in ((sys.stdin, "stdin"), (sys.stdout, "stdout")):
        if not stream.isatty():
            raise Refused(f"the chat needs a terminal, and {name} is none; use `tuichat ask`")
