"""What the program says about its keys and commands.

Owns the list of keys. Refuses to bind them: the widgets do, and a test compares. Invariant: every
key here works in tmux with default settings.
"""

from __future__ import annotations

from textual.content import Content

from tuichat.tui.commands import COMMANDS
from tuichat.tui.text import MUTED

KEYS: tuple[tuple[str, str], ...] = (
    ("Enter", "send"),
    ("Ctrl+J", "new line; also Shift+Enter, Alt+Enter where they arrive"),
    ("Esc", "stop the reply; what it has is kept"),
    ("Ctrl+C", "copy the selection, else stop; twice in a row: leave"),
    ("Up, Down", "earlier and later messages, on the first and last line"),
    ("PgUp, PgDn", "scroll; Ctrl+Up/Down by a line, Ctrl+Home/End to the ends"),
    ("Backspace", "in an empty message: remove the last image"),
    ("Ctrl+P", "command palette, themes among others"),
    ("F1", "this help"),
    ("Ctrl+Q", "leave; Ctrl+D too, in an empty message"),
)


def help_text() -> Content:
    """Every key and every command."""
    width = max(len(name) for name, _ in (*KEYS, *((c.usage, "") for c in COMMANDS)))
    rows = [_row(key, meaning, width) for key, meaning in KEYS]
    commands = [_row(command.usage, command.help, width) for command in COMMANDS]
    title = Content.styled("Keys", "bold $text-primary")
    subtitle = Content.styled("Commands", "bold $text-primary")
    return Content("\n").join([title, *rows, Content(), subtitle, *commands])


def hint_text() -> Content:
    """What an empty conversation shows."""
    return Content.assemble(
        ("tuichat", "bold $text-primary"),
        "\n\nAsk about an image: drop it here, paste its path,\nor type ",
        ("/attach PATH", "bold $foreground"),
        ".\n\nWhat you send while the model loads waits for it.",
    )


def _row(name: str, meaning: str, width: int) -> Content:
    return Content.assemble((name.ljust(width), "bold"), "  ", (meaning, MUTED))
