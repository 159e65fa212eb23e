"""``tuichat stop``: end worker processes.

Owns the choice of which ones. Refuses to know how a worker is ended (``engine.workers``).
Invariant: a reply that was running is kept, as far as it came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tuichat.cli.failure import Refused

if TYPE_CHECKING:
    from tuichat.engine.workers import WorkerHandle


@click.command("stop")
@click.argument("worker", metavar="[WORKER]", required=False)
@click.option("--all", "every", is_flag=True, help="Every worker.")
def command(worker: str | None, every: bool) -> int:
    """End the process that holds a loaded model, and free its memory.

    What it was answering is kept as far as it came. With several of them running, name one by the
    beginning of its id, or take --all.
    """
    import asyncio

    from tuichat.cli.log import start_logging
    from tuichat.engine.workers import list_workers, stop_worker
    from tuichat.sanitize import sanitize_line

    start_logging()
    running = list_workers()
    if worker is not None:
        chosen = [handle for handle in running if handle.identity.startswith(worker)]
        if not chosen:
            raise Refused(f"no worker has an id that begins with {worker!r}")
    else:
        chosen = running
    if len(chosen) > 1 and not every:
        listed = "; ".join(map(_named, chosen))
        raise Refused(f"{len(chosen)} workers are running: name one, or --all: {listed}")
    if not chosen:
        click.echo("No worker is running.")
    for handle in chosen:
        asyncio.run(stop_worker(handle))
        click.echo(f"Ended {sanitize_line(_named(handle))}.")
    return 0


def _named(handle: WorkerHandle) -> str:
    return f"worker {handle.identity} ({handle.backend}, {handle.model})"
