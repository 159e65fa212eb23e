"""``tuichat backends``: what is installed, and what one backend offers.

Owns how a description is shown. Refuses to know any backend, and imports none: descriptions come
from ``pluginhost.catalog``, which asks each in a process of its own. Invariant: a broken plugin is
a line of the list, never a reason not to show the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tuichat.cli.options import complete_backend

if TYPE_CHECKING:
    from tuichat.api import BackendInfo
    from tuichat.pluginhost.catalog import BackendEntry


@click.command("backends")
@click.argument("name", required=False, shell_complete=complete_backend)
@click.option("--json", "as_json", is_flag=True, help="For programs: JSON.")
def command(name: str | None, as_json: bool) -> None:
    """List the backends, or tell all about one: its models, limits and options.

    Any installed distribution can add backends; one that is broken is listed with its reason.
    """
    from tuichat.cli.log import start_logging
    from tuichat.pluginhost.catalog import describe, describe_all

    start_logging()
    entries = describe_all() if name is None else [describe(name)]
    if as_json:
        import json

        listed = [_as_dict(entry) for entry in entries]
        click.echo(json.dumps(listed if name is None else listed[0], indent=2))
    elif name is None:
        click.echo(_list(entries))
    else:
        click.echo("\n".join(_details(entries[0])))


def _state(entry: BackendEntry) -> str:
    if entry.problem is not None:
        return entry.problem
    if entry.missing:
        return f"not installed: {', '.join(entry.missing)}"
    return "ready"


def _list(entries: list[BackendEntry]) -> str:
    from tuichat.cli import table
    from tuichat.sanitize import sanitize_line

    if not entries:
        return "No backend is installed; `pip install tuichat` brings the bundled ones."
    rows = [
        (
            entry.ref.name,
            entry.info.title if entry.info else "",
            entry.ref.version,
            entry.ref.distribution,
            _state(entry),
        )
        for entry in entries
    ]
    width = table.output_width()
    listed = table.render(
        ("NAME", "TITLE", "VERSION", "FROM", "STATE"), rows, flexible=4, width=width
    )
    # A reason that was cut is of no use: say it in full below.
    cut = [row for row in rows if row[4] not in listed]
    return "\n".join([listed, *(sanitize_line(f"\n{row[0]}: {row[4]}") for row in cut)])


def _details(entry: BackendEntry) -> list[str]:
    from tuichat.sanitize import sanitize_line

    ref, info = entry.ref, entry.info
    title = f"{ref.name}: {info.title}" if info else ref.name
    lines = [title, f"  from     {ref.origin} ({ref.entry_point})", f"  state    {_state(entry)}"]
    if info is not None:
        lines += [*_models(info), *_limits(info), *_options(info)]
    return [sanitize_line(line) for line in lines]


def _models(info: BackendInfo) -> list[str]:
    from tuichat.tui.figures import size

    lines = ["", "Models (--model)"]
    for model in info.models:
        facts = [size(model.bytes)] if model.bytes else []
        facts += [
            f"{size(memory)} of memory in {name}" if name != "none" else f"{size(memory)} of memory"
            for name, memory in model.memory.items()
        ]
        if model.context_length:
            facts.append(f"context {model.context_length:,}")
        default = " [default]" if model.id == info.default_model else ""
        lines.append(f"  {model.id}{default}")
        if facts:
            lines.append(f"      {', '.join(facts)}")
    if info.demo_model is not None:
        lines += ["  demo", "      comes with the backend, runs on any CPU"]
    return lines


def _limits(info: BackendInfo) -> list[str]:
    limits = info.capabilities

    def count(number: int | None) -> str:
        return "any number" if number is None else str(number)

    lines = [
        "",
        "Capabilities",
        f"  images        {count(limits.max_images_per_turn)} in a message, "
        f"{count(limits.max_images)} in a conversation",
        f"  system prompt {'yes' if limits.system_prompt else 'no'}",
        f"  --quantize    {', '.join(limits.quantisations)}",
    ]
    if limits.attention:
        lines.append(f"  attention     {', '.join(limits.attention)}")
    if limits.thinking:
        lines.append("  thinking      yes")
    if limits.plain_text_markers:
        lines.append("  note          role markers are plain words: typed text can imitate a role")
    return lines


def _options(info: BackendInfo) -> list[str]:
    if not info.options:
        return ["", "Options (-o KEY=VALUE): none"]
    lines = ["", "Options (-o KEY=VALUE)"]
    for option in info.options:
        kind = "|".join(option.choices) if option.choices else option.type
        when = "when the model is loaded" if option.scope == "load" else "with every message"
        default = "" if option.default is None else f" [default: {option.default}]"
        lines += [f"  {option.name}={kind}{default}", f"      {option.help} (applies {when})"]
    return lines


def _as_dict(entry: BackendEntry) -> dict[str, Any]:
    import msgspec

    return {
        "name": entry.ref.name,
        "distribution": entry.ref.distribution,
        "version": entry.ref.version,
        "entry_point": entry.ref.entry_point,
        "ready": entry.ready,
        "problem": entry.problem,
        "missing": list(entry.missing),
        "info": msgspec.to_builtins(entry.info),
    }
