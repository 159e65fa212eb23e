"""Discovery and description of a healthy backend, and the cache."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import echo_env
import pytest

from tuichat.api import BackendError
from tuichat.pluginhost import catalog
from tuichat.pluginhost.refs import find_module

Site = Path


@pytest.fixture
def site(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A folder that this process and its children import from, and a home of its own."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(folder)
    return folder


def register(site: Site, name: str, code: str, distribution: str = "tuichat-sample") -> Path:
    """A one-module distribution of version 1.0; the module's file."""
    metadata = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
    )
    module = f"sample_{name}"
    (metadata / "entry_points.txt").write_text(f"[tuichat.backends]\n{name} = {module}\n")
    file = site / f"{module}.py"
    file.write_text(code)
    return file


SAMPLE = """
from tuichat.api import BackendInfo, hookimpl
@hookimpl
def tuichat_backend():
    return BackendInfo(title="Sample one", api_version=1)
"""


def test_echo_is_found_and_described(site: Site) -> None:
    echo_env.install_echo(site)
    entry = catalog.describe("echo")
    assert entry.ready
    assert (entry.ref.name, entry.ref.origin) == ("echo", "tuichat-echo 0.1.0")
    assert entry.ref.entry_point == "tuichat_echo"
    assert entry.info is not None
    assert entry.info.title == "Echo"
    assert [option.name for option in entry.info.options] == ["delay", "shout"]
    assert [type(option.default) for option in entry.info.options] == [float, bool]
    assert "echo" in [ref.name for ref in catalog.backend_refs()]
    assert "tuichat_echo" not in sys.modules


def test_an_unknown_name_gets_the_nearest_and_all(site: Site) -> None:
    register(site, "sample", SAMPLE)
    with pytest.raises(BackendError) as caught:
        catalog.find_backend("Sampel\x1b[2J")
    message = str(caught.value)
    assert "'Sampel␛[2J', did you mean 'sample'?" in message
    assert "llava" in message.partition("installed: ")[2]


def test_the_bundled_backend_keeps_its_name(site: Site) -> None:
    register(site, "llava", SAMPLE, "aaa-llava")
    first, second = (ref for ref in catalog.backend_refs() if ref.name == "llava")
    assert first.distribution == "tuichat"
    assert first.problem is None
    assert second.problem is not None
    assert "Backend 'llava' (aaa-llava 1.0) cannot be chosen" in second.problem
    assert catalog.find_backend("llava") == first


def test_names_cost_no_heavy_import_and_no_plugin(site: Site) -> None:
    echo_env.install_echo(site)
    code = (
        "import sys; from tuichat.pluginhost.catalog import backend_refs; backend_refs();"
        "import json; print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    heavy = {"torch", "transformers", "PIL", "textual", "msgspec", "tuichat_echo", "tuichat_llava"}
    assert not loaded & heavy


def test_finding_a_module_imports_nothing(site: Site) -> None:
    package = site / "package_that_raises"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit")
    (package / "inner.py").write_text("")
    assert find_module("package_that_raises.inner") is not None
    assert find_module("package_that_raises.absent") is None
    assert find_module("json.decoder.below_a_module") is None
    assert "package_that_raises" not in sys.modules


# --------------------------------------------------------------------------- the cache


def test_a_description_is_asked_for_once(site: Site) -> None:
    count = site / "count"
    register(site, "sample", f"open({str(count)!r}, 'a').write('x')\n{SAMPLE}")
    for _ in range(3):
        assert catalog.describe("sample").ready
    assert count.read_text() == "x"
    assert catalog.describe("sample", refresh=True).ready
    assert count.read_text() == "xx"


def test_a_cached_description_equals_a_fresh_one(site: Site) -> None:
    echo_env.install_echo(site)
    fresh = catalog.describe("echo")
    assert catalog.describe("echo") == fresh


def test_an_edit_is_seen(site: Site) -> None:
    file = register(site, "sample", SAMPLE)
    assert catalog.describe("sample").info.title == "Sample one"
    # As long as before: size alone does not tell.
    file.write_text(SAMPLE.replace("one", "two"))
    assert catalog.describe("sample").info.title == "Sample two"


def test_an_edit_beside_the_module_of_a_package_is_seen(site: Site) -> None:
    file = register(site, "sample", "")
    file.unlink()
    package = site / "sample_sample"
    package.mkdir()
    (package / "__init__.py").write_text(
        SAMPLE.replace('"Sample one"', "TITLE") + "from sample_sample.title import TITLE\n"
    )
    (package / "title.py").write_text("TITLE = 'first'\n")
    assert catalog.describe("sample").info.title == "first"
    (package / "title.py").write_text("TITLE = 'other'\n")
    assert catalog.describe("sample").info.title == "other"


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'{"key": 1}', b"null"])
def test_a_damaged_cache_is_asked_anew(site: Site, home: Path, damage: bytes) -> None:
    register(site, "sample", SAMPLE)
    fresh = catalog.describe("sample")
    (file,) = (home / "cache" / "backends").iterdir()
    good = file.read_bytes()
    file.write_bytes(damage)
    assert catalog.describe("sample") == fresh
    assert file.read_bytes() == good


def test_a_cache_that_cannot_be_written_costs_nothing_else(site: Site, home: Path) -> None:
    register(site, "sample", SAMPLE)
    (home / "cache").mkdir()
    (home / "cache" / "backends").write_text("a file where the folder should be")
    assert catalog.describe("sample").ready


def test_a_failure_is_not_remembered(site: Site) -> None:
    register(site, "sample", "import a_module_that_comes_later\n" + SAMPLE)
    assert "a_module_that_comes_later" in (catalog.describe("sample").problem or "")
    (site / "a_module_that_comes_later.py").write_text("")
    assert catalog.describe("sample").ready


# --------------------------------------------------------------------------- the subprocess


def test_the_working_folder_is_not_imported_from(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(site, "sample", SAMPLE)
    here = tmp_path / "here"
    here.mkdir()
    (here / "pluggy.py").write_text("raise SystemExit('imported from the working folder')")
    monkeypatch.chdir(here)
    assert catalog.describe("sample").problem is None


def test_ctrl_c_ends_the_questions_at_once(site: Site) -> None:
    pid_file = site / "pid"
    code = f"import os, pathlib, time; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))"
    register(site, "sample", f"{code}\ntime.sleep(3600)\n")
    asks = "from tuichat.pluginhost.catalog import describe_all; describe_all()"
    with subprocess.Popen([sys.executable, "-c", asks], stderr=subprocess.PIPE) as asking:
        wait_until(lambda: pid_file.exists() and pid_file.read_text())
        asking.send_signal(signal.SIGINT)
        _, errors = asking.communicate(timeout=15)
    assert b"KeyboardInterrupt" in errors
    wait_until(lambda: not alive(int(pid_file.read_text())))


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
