"""No string that is not ours is ever read as markup: checked in the source of every module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tuichat.tui

FILES = sorted(Path(tuichat.tui.__path__[0]).rglob("*.py"))
# Calls whose first argument Textual would read as markup, and attributes that it would.
SINKS = {
    "Static",
    "Label",
    "Button",
    "Option",
    "ListItem",
    "Collapsible",
    "Tab",
    "update",
    "notify",
}
TITLES = {"border_title", "border_subtitle", "tooltip", "title", "sub_title"}
# What makes a Content: these take text as it is. Everything else has to be a literal.
MAKERS = {"plain", "plain_line", "joined", "help_text", "hint_text", "_ending"}
METHODS = {"Content", "Content.assemble", "Content.styled"}


def _name(node: ast.expr) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def _is_safe(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.IfExp):
        return _is_safe(node.body) and _is_safe(node.orelse)
    if isinstance(node, ast.Name):  # a constant of the module, by our naming
        return node.id.isupper()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("join", "stylize"):  # of a Content, not of a str
            return isinstance(node.func.value, ast.Call) and _is_safe(node.func.value)
        return node.func.attr in MAKERS or _name(node) in METHODS
    return _name(node) in MAKERS | METHODS


def _wrong(tree: ast.AST) -> list[str]:
    """Every place where a string that is not ours could be read as markup."""
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = _name(node).rpartition(".")[2]
            of_markdown = _name(node) == "markdown.update"  # a document, without markup
            off = any(
                word.arg == "markup" and ast.unparse(word.value) == "False"
                for word in node.keywords
            )
            if called in SINKS and node.args and not (of_markdown or off):
                wrong += [] if _is_safe(node.args[0]) else [ast.unparse(node)]
            elif called in ("from_markup", "from_text"):
                wrong.append(ast.unparse(node))
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Attribute) and target.attr in TITLES:
                wrong += [] if _is_safe(node.value) else [ast.unparse(node)]
    return wrong


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_sinks_get_literals_or_content(path: Path) -> None:
    assert _wrong(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "line",
    ["Static(name)", "Static(f'{x}')", "self.notify(str(error))", "w.border_title = name",
     "Static(', '.join(names))", "s.update(Content.from_markup(x))", "Label(x, markup=True)"],
)  # fmt: skip
def test_the_check_bites(line: str) -> None:
    assert _wrong(ast.parse(line)) != []


@pytest.mark.parametrize(
    "line",
    ["Static('x')", "Static(plain(name))", "self.notify(name, markup=False)",
     "Static(Content('\\n').join(parts))", "w.border_title = KEYS if busy else 'x'"],
)  # fmt: skip
def test_the_check_lets_through_what_is_safe(line: str) -> None:
    assert _wrong(ast.parse(line)) == []
