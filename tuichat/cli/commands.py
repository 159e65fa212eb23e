"""The table of commands, and the group that looks in it.

Owns the names of the commands and the rule that says which one is meant. Refuses to know what they
do. Invariant: a command's module is imported only when that command runs, asks for its own help,
or is completed, so a new command costs nothing to the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

COMMANDS: Mapping[str, str] = {
    "chat": "A chat on the whole terminal; what runs when no command is named.",
    "ask": "One question, its answer on stdout: for scripts.",
    "backends": "The backends: where from, ready or what is missing.",
    "sessions": "The stored conversations.",
    "stop": "End the processes that hold loaded models.",
}
"""Name → one line of help. Each lives in the module of its name, as ``command``."""

HELP_NAMES = {"help_option_names": ["-h", "--help"]}
"""Context settings of the program; commands inherit them."""


def load(name: str) -> click.Command:
    """The command of that name, imported now."""
    command: click.Command = import_module(f"tuichat.cli.{name}").command
    return command


class Tuichat(click.Group):
    """``tuichat COMMAND …``, and ``tuichat [OPTIONS] [IMAGE]...`` for the chat.

    The first argument names a command only if it is exactly one of ``COMMANDS``; everything else
    belongs to the chat, so an image called ``ask`` is given as ``./ask``.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load(cmd_name) if cmd_name in COMMANDS else None

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        completing_first_word = not args and extra.get("resilient_parsing", False)
        if completing_first_word or (args and args[0] in COMMANDS):
            return super().make_context(info_name, args, parent, **extra)
        return load("chat").make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The first word: a command, an option of the chat, or a file."""
        chat = load("chat").shell_complete(ctx, incomplete)
        commands = [
            CompletionItem(name, help=text)
            for name, text in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        files = [] if incomplete.startswith("-") else [CompletionItem(incomplete, type="file")]
        return [*commands, *chat, *files]
