"""Scratch environments with backends in them, for tests of every layer.

``install_echo`` installs the example distribution as a stranger would, with pip and without a
network; ``install_broken`` lays down distributions that are broken in one way each. Both return
the environment variables with which a new interpreter sees them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).resolve().parents[2]
_PLUGINS = _ROOT / "tests" / "broken_plugins"


class Broken(NamedTuple):
    """How a broken backend is registered; its code is ``tests/broken_plugins/<key>.py``."""

    name: str
    """The name of its entry point."""
    entry_point: str
    code: str | None
    """File name in ``tests/broken_plugins``; None: the module is missing."""


def _plain(key: str) -> Broken:
    return Broken(key.replace("_", "-"), f"broken_{key}", f"{key}.py")


BROKEN: dict[str, Broken] = {
    **{
        key: _plain(key)
        for key in (
            "import_error",
            "advice",
            "system_exit",
            "keyboard_interrupt",
            "hangs",
            "prints",
            "future_version",
            "past_version",
            "unknown_hook",
            "unknown_argument",
            "generator_hook",
            "no_hook",
            "wrong_type",
            "wrong_field",
            "os_exit",
            "crashes",
            "slow_import",
            "leaves_process",
            "needs_module",
            "misbehaves",
        )
    },
    # Not .py there: no tool that reads the repository should trip over it.
    "syntax_error": Broken("syntax-error", "broken_syntax_error", "syntax_error.py.txt"),
    "stale": Broken("stale", "broken_stale.plugin", None),
    "malformed_value": Broken("malformed-value", "not a module!", None),
    "malformed_file": Broken("malformed-file", "", None),
    "duplicate": Broken("echo", "broken_duplicate", "duplicate.py"),
    "same_module": Broken("echo-again", "tuichat_echo", None),
}


KIT: dict[str, Broken] = {"contract": _plain("contract"), "imports_torch": _plain("imports_torch")}
"""Backends for the tests of the conformance kit, sound as far as a list can see."""


def environment(target: Path) -> dict[str, str]:
    """``os.environ`` with ``target`` in front of ``PYTHONPATH``."""
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(target), inherited] if inherited else [str(target)])
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def install_echo(target: Path) -> dict[str, str]:
    """Install ``examples/tuichat-echo`` under ``target``: its environment variables."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--no-compile"]
    source = _ROOT / "examples" / "tuichat-echo"
    done = subprocess.run(
        [*pip, *offline, "--target", str(target), str(source)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return environment(target)


def install_broken(target: Path, *keys: str) -> dict[str, str]:
    """Lay down ``keys`` of ``BROKEN`` or ``KIT`` under ``target``, each as version 1.0."""
    target.mkdir(parents=True, exist_ok=True)
    for key in keys:
        broken = {**BROKEN, **KIT}[key]
        distribution = f"broken-{key.replace('_', '-')}"
        metadata = target / f"broken_{key}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        line = f"{broken.name} = {broken.entry_point}" if broken.entry_point else "no equals sign"
        (metadata / "entry_points.txt").write_text(f"[tuichat.backends]\n{line}\n")
        if broken.code is not None:
            shutil.copyfile(_PLUGINS / broken.code, target / f"broken_{key}.py")
    return environment(target)
