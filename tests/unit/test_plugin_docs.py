"""What plugin authors read is complete and true: hooks, types, and a tutorial that runs."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tuichat import api
from tuichat.api import hookspecs, types

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "plugins"
ECHO = ROOT / "examples" / "tuichat-echo"
HOOKS = {
    name: function
    for name, function in vars(hookspecs).items()
    if hasattr(function, f"{hookspecs.PROJECT}_spec")
}
CLASSES = [
    node
    for node in ast.parse(Path(types.__file__).read_text()).body
    if isinstance(node, ast.ClassDef)
]


def text(page: str) -> str:
    return (DOCS / page).read_text()


def section(page: str, heading: str) -> str:
    """What stands under ``### heading``, up to the next heading; empty if there is none."""
    found = re.search(rf"^### {heading}$(.*?)(?=^#|\Z)", text(page), re.M | re.S)
    return found[1] if found else ""


def signature(function: Callable[..., object]) -> str:
    parsed = inspect.signature(function)
    arguments = ", ".join(f"{p.name}: {p.annotation}" for p in parsed.parameters.values())
    return f"{function.__name__}({arguments}) -> {parsed.return_annotation}"


def test_there_are_hooks_to_look_for() -> None:
    assert {"tuichat_backend", "tuichat_load", "tuichat_generate"} <= set(HOOKS)


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_every_hook_is_documented_with_its_signature(name: str) -> None:
    assert inspect.getdoc(HOOKS[name]), f"{name} has no docstring"
    assert f"```python\n{signature(HOOKS[name])}\n```" in section("hooks.md", name)
    assert "**When**" in section("hooks.md", name)


def test_no_hook_is_documented_that_there_is_not() -> None:
    pages = "".join(text(page.name) for page in DOCS.glob("*.md"))
    assert set(re.findall(r"\btuichat_[a-z_]+\b", pages)) - set(HOOKS) <= {
        *("tuichat_echo", "tuichat_llava"),
    }


@pytest.mark.parametrize("node", CLASSES, ids=lambda node: node.name)
def test_every_field_of_every_type_is_documented(node: ast.ClassDef) -> None:
    assert ast.get_docstring(node)
    documented = section("hooks.md", node.name)
    assert documented, f"{node.name} is missing from hooks.md"
    for item in node.body:
        if isinstance(item, ast.AnnAssign):
            declared = f"{ast.unparse(item.target)}: {ast.unparse(item.annotation)}"
        elif isinstance(item, ast.FunctionDef):
            declared = f"{item.name} -> {ast.unparse(item.returns)}"
        else:
            continue
        line = re.search(rf"^- `{re.escape(declared)}( = [^`]+)?`.*?: \S", documented, re.M)
        assert line, f"{node.name} has `{declared}`, and hooks.md does not say what it is"


def test_every_public_name_is_documented() -> None:
    page = text("hooks.md")
    assert not [name for name in api.__all__ if not re.search(rf"\b{name}\b", page)]
    assert f"version {api.API_VERSION} of the API" in page


def blocks(page: str, *languages: str) -> list[str]:
    return [
        body
        for language, body in re.findall(r"^```(\w*)\n(.*?)^```$", text(page), re.M | re.S)
        if language in languages
    ]


def test_the_tutorial_is_made_of_files_that_the_tests_run() -> None:
    files = [ECHO / "tuichat_echo.py", ECHO / "pyproject.toml", ECHO / "tests/test_contract.py"]
    sources = [file.read_text() for file in files]
    found = blocks("tutorial.md", "python", "toml")
    assert len(found) >= 10
    for block in found:
        assert any(block in source for source in sources), block


def test_the_tutorial_leaves_no_line_of_the_backend_out() -> None:
    shown = {line for block in blocks("tutorial.md", "python") for line in block.splitlines()}
    module = (ECHO / "tuichat_echo.py").read_text()
    docstring, _, code = module.partition("\n\n")
    assert docstring.startswith('"""')
    assert [line for line in code.splitlines() if line not in shown] == []


def test_the_contract_page_names_the_fixtures_that_there_are() -> None:
    from tuichat.testing import BackendContract

    named = re.findall(r"^\| `(\w+)` \|", text("contract.md"), re.M)
    assert {"backend_name", "model", "takes_images"} <= set(named)
    assert not [name for name in named if not hasattr(BackendContract, name)]
    (example,) = blocks("contract.md", "python")
    compile(example, "contract.md", "exec")


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} → {target}"
