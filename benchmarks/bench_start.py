"""How long until the help, and until the first frame of the chat, as ratios in one run.

``tuichat --help`` against ``python -c "import click"``, and the first frame of ``tuichat`` on a
pseudo terminal against ``python -c "import textual.app"`` on one, round-robin, so that a busy
machine is equally unkind to all. The target is in the last column; the exit code says whether it
was met. The resident memory of the chat with the demo model loaded in its worker is measured too.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

_COMPOSER = b"Ask about an image"
_READY = b"ready"
_MEMORY_LIMIT_MB = 120

Run = tuple[float, float]
"""Seconds of wall clock and of CPU."""


def until_exit(argv: list[str], env: dict[str, str]) -> Run:
    """Run a program to its end."""
    began = time.perf_counter()
    before = os.times()
    subprocess.run(argv, env=env, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    cpu = after.children_user + after.children_system
    return time.perf_counter() - began, cpu - before.children_user - before.children_system


def on_terminal(argv: list[str], env: dict[str, str], marker: bytes | None) -> tuple[Run, int, int]:
    """Start a program on a pseudo terminal of 120×40 and wait for ``marker``, or for its end.

    Returns:
        The times, the process id and the terminal's descriptor; the program may still run.
    """
    began = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(argv[0], argv, env)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    written = b""
    while marker is None or marker not in written:
        if not select.select([terminal], [], [], 60)[0]:
            raise SystemExit(f"{argv}: nothing for 60 s")
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        written += data
    wall = time.perf_counter() - began
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return (wall, cpu), pid, terminal


def finish(pid: int, terminal: int) -> None:
    """End what ``on_terminal`` started."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(terminal)


def memory_mb(env: dict[str, str]) -> float:
    """Resident megabytes of the chat's process once the demo model is ready."""
    argv = [sys.executable, "-m", "tuichat", "--backend", "llava", "--model", "demo"]
    _, pid, terminal = on_terminal(argv, env, _COMPOSER)
    try:
        written = b""
        while _READY not in written:
            if not select.select([terminal], [], [], 120)[0]:
                raise SystemExit("the demo model was not ready within 120 s")
            written += os.read(terminal, 65536)
        time.sleep(1)
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024
    finally:
        finish(pid, terminal)


def main() -> int:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=9)
    options.add_argument("--no-memory", action="store_true", help="do not load the demo model")
    given = options.parse_args()
    python = sys.executable
    with tempfile.TemporaryDirectory(prefix="tb-", dir="/tmp") as home:
        env = {**os.environ, "TUICHAT_HOME": home, "TERM": "xterm-256color"}

        def frame(argv: list[str], marker: bytes | None) -> Run:
            times, pid, terminal = on_terminal(argv, env, marker)
            finish(pid, terminal)
            return times

        chat = [python, "-m", "tuichat", "--backend", "llava", "--model", "demo"]
        programs = {
            "import click": lambda: until_exit([python, "-c", "import click"], env),
            "tuichat --help": lambda: until_exit([python, "-m", "tuichat", "--help"], env),
            "import textual.app": lambda: frame([python, "-c", "import textual.app"], None),
            "first frame": lambda: frame(chat, _COMPOSER),
        }
        times: dict[str, list[Run]] = {name: [] for name in programs}
        for number in range(given.runs + 1):
            for name, measure in programs.items():
                if number:  # the first round only warms the caches
                    times[name].append(measure())
                else:
                    measure()
        wall = {name: statistics.median(run[0] for run in runs) for name, runs in times.items()}
        cpu = {name: statistics.median(run[1] for run in runs) for name, runs in times.items()}
        rows = [
            ("tuichat --help", "import click", 2.0),
            ("first frame", "import textual.app", 1.8),
        ]
        good = True
        print(f"{'what':<16}{'against':<22}{'wall':>7}{'CPU':>7}{'target':>8}")
        for name, base, target in rows:
            ratio = wall[name] / wall[base]
            good &= ratio <= target
            cpus = f"{cpu[name] / cpu[base]:.2f}" if cpu[base] > 0.05 else "–"
            print(f"{name:<16}{base:<22}{ratio:>7.2f}{cpus:>7}{target:>8.1f}")
        if not given.no_memory:
            memory = memory_mb(env)
            good &= memory <= _MEMORY_LIMIT_MB
            print(f"{'resident MB':<16}{'demo model loaded':<22}{memory:>7.0f}{'':>7}{120:>8}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
