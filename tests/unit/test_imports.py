"""The import rules, held twice: by import-linter, and by a fresh interpreter's ``sys.modules``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HEAVY = {"torch", "transformers", "tokenizers", "accelerate", "bitsandbytes", "numpy"}
PLUGINS = {"tuichat_llava"}
CODECS = {"PIL", "textual_image"}
SCREEN = {"textual", "rich"}


def modules_after(code: str, home: Path) -> set[str]:
    """Top-level names in ``sys.modules`` of an interpreter that ran ``code``."""
    program = f"import sys, json\n{code}\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "TUICHAT_HOME": str(home)},
        timeout=60,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def running(*args: str) -> str:
    return f"from tuichat.cli.main import run\nassert run({list(args)!r}) == 0"


@pytest.mark.parametrize(
    "code",
    [
        "import tuichat.cli.main",
        "import tuichat.engine",
        "from tuichat.engine import Engine",
        "import tuichat.api",
        "import tuichat.store",
        "import tuichat.worker.protocol",
        "import tuichat.images",
        "import tuichat.pluginhost.catalog",
        running("--help"),
        running("ask", "--help"),
        running("sessions"),
        running("sessions", "--json"),
        running("backends"),
        running("stop", "--all"),
    ],
)
def test_no_model_no_plugin_no_codec_no_screen(code, tmp_path):
    loaded = packages(modules_after(code, tmp_path))
    assert not loaded & (HEAVY | PLUGINS | CODECS | SCREEN)


def test_the_screen_brings_no_model_no_plugin_and_no_codec(tmp_path):
    loaded = packages(modules_after("import tuichat.tui.app", tmp_path))
    assert "textual" in loaded
    assert not loaded & (HEAVY | PLUGINS | CODECS)


def test_help_costs_click_and_little_else(tmp_path):
    loaded = modules_after(running("--help"), tmp_path)
    assert not packages(loaded) & {"pluggy", "msgspec", "sqlite3", "asyncio", "platformdirs"}
    assert "importlib.metadata" not in loaded
    assert "tuichat.api" not in loaded


def test_a_worker_has_neither_screen_nor_engine(tmp_path):
    loaded = modules_after("import tuichat.worker.server", tmp_path)
    assert not packages(loaded) & (SCREEN | PLUGINS | {"torch", "transformers"})
    assert not any(name.startswith(("tuichat.engine", "tuichat.tui")) for name in loaded)


def test_import_linter_keeps_its_contracts():
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
