"""``tuichat sessions``: the stored conversations.

Owns how the list is shown. Refuses to know how it is stored. Invariant: listing changes nothing,
and imports neither a backend nor an image codec.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tuichat.store import SessionRecord

_SHOWN = 50


class _ListByDefault(click.Group):
    """``sessions [OPTIONS]`` is ``sessions list [OPTIONS]``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        completing_first_word = not args and ctx.resilient_parsing
        named = {*self.commands, *ctx.help_option_names}
        if not completing_first_word and (not args or args[0] not in named):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group("sessions", cls=_ListByDefault)
def command() -> None:
    """The stored conversations; `tuichat --session ID` goes on with one."""


@command.command("list")
@click.option("--all", "every", is_flag=True, help=f"Not only the newest {_SHOWN}.")
@click.option("--json", "as_json", is_flag=True, help="For programs: JSON.")
def list_command(every: bool, as_json: bool) -> None:
    """List them, most recently used first. This is what `tuichat sessions` does."""
    rows = recent(limit=None if every or as_json else _SHOWN)
    if as_json:
        import json

        click.echo(json.dumps([_as_dict(row) for row in rows], indent=2))
        return
    if not rows:
        click.echo("No conversation is stored yet.")
        return
    from tuichat.cli import table

    now = time.time()
    cells = [
        (
            row.id,
            row.title,
            age(now - row.updated_at),
            str(row.turns),
            str(row.images),
            row.backend or "",
        )
        for row in rows
    ]
    header = ("ID", "TITLE", "UPDATED", "TURNS", "IMAGES", "BACKEND")
    click.echo(table.render(header, cells, flexible=1, width=table.output_width()))


def recent(limit: int | None) -> list[SessionRecord]:
    """Stored sessions, most recently used first; none, and nothing made, where no store is yet.

    Raises:
        StoreError: the store cannot be read.
    """
    from tuichat import paths

    if not paths.data_dir().exists():
        return []
    from tuichat.store import Store

    with Store.open() as store:
        return store.list_sessions(limit)


def age(seconds: float) -> str:
    """``just now``, ``12 min ago``, ``3 h ago``, ``5 days ago``."""
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min ago"
    return (
        f"{seconds / 3600:.0f} h ago" if seconds < 36 * 3600 else f"{seconds / 86400:.0f} days ago"
    )


def _as_dict(row: SessionRecord) -> dict[str, Any]:
    return {
        "id": row.id,
        "title": row.title,
        "created": _iso(row.created_at),
        "updated": _iso(row.updated_at),
        "turns": row.turns,
        "images": row.images,
        "backend": row.backend,
        "model": row.model or None,
    }


def _iso(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
