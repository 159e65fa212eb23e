"""Slash commands.

Owns their names, arguments and help, and the reading of a line. Refuses to know what they do.
Invariant: only a single line whose first word looks like ``/name`` can be a command, so a path such
as ``/home/me/cat.png`` never is one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command."""

    name: str
    argument: str
    help: str
    aliases: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        """``/attach PATH``."""
        return f"/{self.name} {self.argument}".rstrip()


COMMANDS: tuple[Command, ...] = (
    Command("attach", "PATH", "attach an image, as dropping or pasting its path does", ("image",)),
    Command("detach", "N", "remove image N from the message", ("remove",)),
    Command("stop", "", "stop the reply; what it has is kept"),
    Command("new", "", "start a new session; this one stays in the store"),
    Command("help", "", "show keys and commands", ("keys",)),
    Command("quit", "", "leave", ("exit", "q")),
)

_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
_LINE = re.compile(r"/([A-Za-z][A-Za-z-]*)(?:[ \t]+(.*))?")


@dataclass(frozen=True, slots=True)
class Called:
    """A line that is a command; ``command`` is None when no command has that name."""

    name: str
    command: Command | None
    argument: str


def read_command(line: str) -> Called | None:
    """The command that ``line`` calls, or None if it is a message."""
    if (match := _LINE.fullmatch(line.strip())) is None:
        return None
    name = match[1].lower()
    return Called(name, _BY_NAME.get(name), (match[2] or "").strip())


def nearest(name: str) -> str | None:
    """The command that ``name`` may have meant."""
    import difflib

    close = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.5)
    return _BY_NAME[close[0]].name if close else None
