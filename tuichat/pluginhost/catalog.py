"""What every process may know of the backends: names, descriptions, choices.

Owns the short-lived subprocess that reads a ``BackendInfo``. Imports no plugin, ever. Invariant: a
plugin that raises, prints, hangs, exits or crashes costs its own entry, at most ``timeout``
seconds, and nothing else.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuichat.api.types import BackendInfo
from tuichat.pluginhost.choices import parse_options, resolve_model
from tuichat.pluginhost.refs import BackendRef, backend_refs, find_backend, find_module

if TYPE_CHECKING:
    from subprocess import Popen

__all__ = [
    "BackendEntry",
    "BackendRef",
    "backend_refs",
    "describe",
    "describe_all",
    "find_backend",
    "parse_options",
    "resolve_model",
]

_AT_ONCE = 4
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """A backend as a list shows it."""

    ref: BackendRef
    info: BackendInfo | None
    """What it says of itself; None when it could not be asked."""
    problem: str | None = None
    """Why it cannot be used, in one sentence; None if nothing is wrong with it."""
    missing: tuple[str, ...] = ()
    """Modules of ``info.requires`` that are not installed."""

    @property
    def ready(self) -> bool:
        """It can be chosen now."""
        return self.problem is None and not self.missing


def describe(name: str, *, timeout: float = 20.0, refresh: bool = False) -> BackendEntry:
    """What the backend ``name`` says of itself, from the cache or from a subprocess.

    Args:
        timeout: seconds that the plugin may take to be imported and to answer.
        refresh: ask again, whatever the cache says.

    Raises:
        BackendError: there is no such backend. All that is wrong with one that exists is in the
            entry's ``problem``.
    """
    return _describe(find_backend(name), timeout, refresh, lambda _: None)


def describe_all(*, timeout: float = 20.0) -> list[BackendEntry]:
    """Every backend, in the order of ``backend_refs``; those not cached are asked a few at once."""
    from concurrent.futures import ThreadPoolExecutor

    started: list[Popen[bytes]] = []
    with ThreadPoolExecutor(_AT_ONCE, "describe") as pool:
        waiting = [
            pool.submit(_describe, ref, timeout, False, started.append) for ref in backend_refs()
        ]
        try:
            return [future.result() for future in waiting]
        except BaseException:
            # Ctrl+C: the pool waits for its threads, they for their processes.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in started:
                _kill(process)
            raise


def _describe(
    ref: BackendRef, timeout: float, refresh: bool, started: Callable[[Popen[bytes]], None]
) -> BackendEntry:
    if ref.problem is not None:
        return BackendEntry(ref, None, ref.problem)
    from tuichat.pluginhost import cache

    info = None if refresh else cache.read(ref)
    if info is None:
        info, problem = _ask(ref, timeout, started)
        if info is None:
            # Not cached: what is wrong is often mended outside the plugin.
            return BackendEntry(ref, None, problem)
        cache.write(ref, info)
    return BackendEntry(ref, info, None, tuple(m for m in info.requires if not find_module(m)))


def _ask(
    ref: BackendRef, timeout: float, started: Callable[[Popen[bytes]], None]
) -> tuple[BackendInfo | None, str | None]:
    """Run the subprocess: the description, or a sentence why there is none."""
    import subprocess

    import msgspec

    from tuichat.pluginhost.describe_main import Answer

    program = "tuichat.pluginhost.describe_main"
    late = False
    # -P: the working folder is no place to import from. -B: bytecode would hide an edit of the same
    # size within a second from the next description. A session of its own: no terminal to
    # write to, no Ctrl+C, and its children can be ended with it.
    process = subprocess.Popen(
        [sys.executable, "-P", "-B", "-m", program, ref.name, str(int(timeout) + 5)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    started(process)
    with process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            late = True
            _kill(process)
            output = _rest(process)
        finally:
            _kill(process)
    try:
        answer = msgspec.json.decode(output, type=Answer)
    except msgspec.DecodeError:
        return None, _no_answer(ref, process.returncode, timeout if late else None)
    if answer.trace:
        _log.error("%s", answer.trace)
    return answer.info, answer.problem


def _rest(process: Popen[bytes]) -> bytes:
    """What a killed process had written; not waiting for a descendant that escaped its session."""
    import subprocess

    try:
        return process.communicate(timeout=1)[0]
    except subprocess.TimeoutExpired as error:
        return error.output or b""


def _no_answer(ref: BackendRef, code: int, timeout: float | None) -> str:
    look = f'python -c "import {ref.module}" shows more'
    if timeout is not None:
        return f"{ref.who} did not answer within {timeout:g} seconds of being imported; {look}"
    if code < 0:
        return f"{ref.who} was killed by {signal.Signals(-code).name} while being imported; {look}"
    return f"{ref.who} ended its process with status {code} while being imported; {look}"


def _kill(process: Popen[bytes]) -> None:
    """End the process, and whatever it started, if it is still there."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
