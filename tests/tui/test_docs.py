"""Every key and command is in the help and in docs/keys.md, and what is there exists."""

from __future__ import annotations

import re
from pathlib import Path

from textual.binding import Binding

from tuichat.tui.commands import COMMANDS
from tuichat.tui.help import KEYS
from tuichat.tui.screens.chat import ChatScreen
from tuichat.tui.widgets.composer import Composer

PAGE = (Path(__file__).parents[2] / "docs" / "keys.md").read_text()
# Other names of keys that are in the lists: what a terminal may send for them.
ALIASES = {"shift+\\r": "shift+enter", "super+c": "ctrl+c"}
# Bindings that are no action: they keep the focus where it is.
SILENT = {"tab", "shift+tab"}


def _plain(key: str) -> str:
    return {"pageup": "pgup", "pagedown": "pgdn", "escape": "esc"}.get(key, key)


def _bound() -> set[str]:
    keys: set[str] = set()
    for owner in (Composer, ChatScreen):
        for binding in owner.__dict__["BINDINGS"]:
            assert isinstance(binding, Binding)
            keys.update(binding.key.split(","))
    return {_plain(ALIASES.get(key, key)) for key in keys} - SILENT


def _keys_in(text: str) -> set[str]:
    found = {key.lower() for key in re.findall(r"(?:Ctrl|Shift|Alt)\+\w+|\w+", text)}
    pairs = re.findall(r"(\w+)\+(\w+)/(\w+)", text)
    return found | {f"{mod}+{key}".lower() for mod, *both in pairs for key in both}


def test_every_binding_is_documented() -> None:
    assert _bound() - {key.lower() for key in re.findall(r"`([^`\n]+)`", PAGE)} == set()


def test_every_binding_is_in_the_help() -> None:
    assert _bound() - _keys_in(" ".join(f"{key} {meaning}" for key, meaning in KEYS)) == set()


def test_every_command_is_documented_and_the_other_way_round() -> None:
    documented = set(re.findall(r"`/([a-z]+)", PAGE))
    assert documented == {name for command in COMMANDS for name in (command.name, *command.aliases)}
