"""What a broken backend costs: its own line.

Every way of ``tests/broken_plugins`` is laid down beside the healthy echo backend, in one
environment, and asked in one go.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import echo_env
import pytest

TIMEOUT = 8
_LIST = f"""
import json, logging, sys, time
from tuichat.pluginhost.catalog import describe_all
logging.basicConfig(filename=sys.argv[1], level=logging.INFO)
began = time.monotonic()
entries = describe_all(timeout={TIMEOUT})
json.dump({{"seconds": time.monotonic() - began, "modules": sorted(sys.modules), "entries": [
    {{"name": e.ref.name, "from": e.ref.distribution, "ready": e.ready, "problem": e.problem,
      "missing": e.missing, "title": e.info and e.info.title}} for e in entries]}}, sys.stdout)
"""
_OPEN = """
import sys
from tuichat.api import BackendError
from tuichat.pluginhost.backend import Backend
try:
    Backend.open(sys.argv[1])
except BackendError as error:
    sys.__stdout__.write(f"refused: {error}")
else:
    sys.__stdout__.write("opened")
"""

REASONS = {
    "import-error": "cannot be imported: ModuleNotFoundError: No module named "
    "'unrelated_package_that_is_missing'",
    "advice": "No module named 'unrelated_package_that_is_missing'",
    "system-exit": "cannot be imported: SystemExit: no GPU, good bye",
    "keyboard-interrupt": "cannot be imported: KeyboardInterrupt",
    "syntax-error": "SyntaxError: invalid syntax (broken_syntax_error.py, line 3)",
    "future-version": "is written for version 99 of the plugin API and this tuichat has version 1; "
    "upgrade tuichat",
    "past-version": "is written for version 0 of the plugin API and this tuichat has version 1; "
    "upgrade broken-past-version",
    "unknown-hook": "version 1 of the plugin API, which it names: there is no hook "
    "'tuichat_asemble_prompt', did you mean 'tuichat_assemble_prompt'?",
    "unknown-argument": "version 1 of the plugin API, which it names: hookimpl definition: "
    "tuichat_load(request, progress, gpu_count); Argument(s) {'gpu_count'}",
    "generator-hook": "its hook tuichat_generate is a generator or async function, and must return",
    "no-hook": "has no hook tuichat_backend marked with @hookimpl",
    "wrong-type": "answers tuichat_backend with a value of type 'dict', not a BackendInfo",
    "wrong-field": "a wrong BackendInfo: Expected `str`, got `int` - at `$.models[0].id`",
    "stale": "its entry point is stale, there is no module 'broken_stale.plugin'; run pip "
    "uninstall broken-stale",
    "malformed-value": "its entry point 'not a module!' is malformed",
}
"""What is said by the list, and by opening alike."""

ENDS = {
    "hangs": f"did not answer within {TIMEOUT} seconds",
    "os-exit": "ended its process with status 3 while being imported",
    "crashes": "was killed by SIGSEGV while being imported",
}
"""What only the list can survive to say: a worker that opens one of these is gone."""


@dataclass
class Listed:
    """The answer of ``describe_all`` in a process of its own."""

    seconds: float
    modules: list[str]
    entries: list[dict]
    output: str
    log: str
    home: Path
    env: dict[str, str]

    def entry(self, name: str) -> dict:
        (entry,) = [e for e in self.entries if e["name"] == name]
        return entry


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Listed:
    root = tmp_path_factory.mktemp("broken")
    site, home, log = root / "site", root / "home", root / "log"
    home.mkdir()
    echo_env.install_echo(site)
    # "duplicate" is another distribution with the name echo, and comes before it by name.
    env = echo_env.install_broken(site, *echo_env.BROKEN)
    env["TUICHAT_HOME"] = str(home)
    done = subprocess.run(
        [sys.executable, "-c", _LIST, str(log)], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return Listed(
        output=done.stdout + done.stderr, log=log.read_text(), home=home, env=env, **answer
    )


@pytest.mark.parametrize(("name", "reason"), sorted({**REASONS, **ENDS}.items()))
def test_a_broken_backend_is_a_line_with_its_reason(listed: Listed, name: str, reason: str) -> None:
    entry = listed.entry(name)
    assert not entry["ready"]
    assert entry["title"] is None
    problem = entry["problem"]
    assert problem.startswith(f"Backend '{name}' (broken-{name} 1.0) ")
    assert reason in problem
    assert problem.isprintable()
    assert len(problem) < 500
    assert "Traceback" not in problem


@pytest.mark.parametrize("name", sorted(REASONS))
def test_a_worker_says_the_same(listed: Listed, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", _OPEN, name],
        env=listed.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"refused: {listed.entry(name)['problem']}"


def test_nothing_hides_the_healthy(listed: Listed) -> None:
    healthy = {"prints", "slow-import", "leaves-process", "misbehaves", "echo", "echo-again"}
    assert healthy <= {e["name"] for e in listed.entries if e["ready"]}
    assert "llava" in {e["name"] for e in listed.entries}


def test_one_that_hangs_does_not_hold_up_the_others(listed: Listed) -> None:
    # About twenty questions of 0.2 s, one of 1.5 s and one that takes all its time, side by side.
    assert TIMEOUT <= listed.seconds < 4 * TIMEOUT


def test_no_plugin_reaches_the_output_or_the_process(listed: Listed) -> None:
    assert "LOUD" not in listed.output
    assert "\x1b" not in listed.output + listed.log
    assert not [name for name in listed.modules if name.startswith(("broken_", "tuichat_"))]


def test_tracebacks_are_in_the_log(listed: Listed) -> None:
    assert "Traceback" in listed.log
    assert re.search(r'File ".*broken_import_error.py", line 3', listed.log)


def test_a_missing_requirement_is_named_without_importing_it(listed: Listed) -> None:
    entry = listed.entry("needs-module")
    assert entry["problem"] is None
    assert entry["missing"] == ["a_module.that_is_not_installed"]
    assert not entry["ready"]


def test_of_two_with_one_name_the_second_is_reported_and_the_third_still_loads(
    listed: Listed,
) -> None:
    first, second = [e for e in listed.entries if e["name"] == "echo"]
    assert (first["from"], first["ready"]) == ("broken-duplicate", True)
    assert "broken-duplicate 1.0 has that name already" in second["problem"]
    # One module under two names: each name works, and a worker registers it once.
    assert listed.entry("echo-again")["title"] == "Echo"


def test_a_malformed_file_is_reported_by_distribution(listed: Listed) -> None:
    problem = listed.entry("broken-malformed-file")["problem"]
    assert "its entry_points.txt is malformed; install broken-malformed-file again" in problem


def test_what_a_plugin_starts_ends_with_the_question(listed: Listed) -> None:
    group = int((listed.home / "left-behind").read_text())
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.05)
    raise AssertionError("a process of the plugin is still there")
