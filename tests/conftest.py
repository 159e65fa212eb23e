"""What every test of tuichat stands on.

Nothing here or below touches the person's own sessions, opens a connection, or depends on the
terminal that pytest runs in.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# Before anything imports huggingface_hub, which reads them once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
for _name in ("TUICHAT_BACKEND", "NO_COLOR", "COLORTERM", "TMUX", "COLUMNS", "LINES"):
    os.environ.pop(_name, None)

# A shell that starts the tests in the background has them ignore Ctrl+C, and so would every program
# that they start, tuichat included.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _session_home() -> Iterator[Path]:
    """One folder for whatever a test writes without asking for a folder of its own."""
    home = Path(tempfile.mkdtemp(prefix="tuichat-tests-"))
    os.environ["TUICHAT_HOME"] = str(home)
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty TUICHAT_HOME of this test's own."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("TUICHAT_HOME", str(home))
    return home


@dataclass(frozen=True)
class Ran:
    """What a finished program left behind."""

    code: int
    out: str
    err: str


RunTuichat = Callable[..., Ran]


@pytest.fixture
def run_tuichat() -> RunTuichat:
    """Run ``tuichat ARGS…`` in a process of its own, without a terminal."""

    def run(
        *args: str, stdin: bytes = b"", env: dict[str, str] | None = None, timeout: float = 120
    ) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "tuichat", *args],
            input=stdin,
            capture_output=True,
            timeout=timeout,
            env={**os.environ, **(env or {})},
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
