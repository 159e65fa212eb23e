"""Folders are where they are said to be, and private where they must be."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from tuichat import paths

FOLDERS = (
    paths.data_dir,
    paths.config_dir,
    paths.cache_dir,
    paths.state_dir,
    paths.runtime_dir,
)


def test_one_home_holds_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUICHAT_HOME", str(tmp_path / "home"))
    found = [folder() for folder in FOLDERS]
    assert len(set(found)) == len(found)
    assert all(path.is_relative_to(tmp_path / "home") for path in found)


def test_the_runtime_folder_is_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUICHAT_HOME", str(tmp_path))
    (tmp_path / "run").mkdir(mode=0o755)
    assert stat.S_IMODE(paths.runtime_dir().stat().st_mode) == 0o700


def test_without_a_login_session_each_user_has_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TUICHAT_HOME", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert paths.runtime_dir() == tmp_path / f"tuichat-{os.getuid()}"


def test_a_runtime_folder_that_is_a_link_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("TUICHAT_HOME", str(tmp_path))
    with pytest.raises(PermissionError, match="another user"):
        paths.runtime_dir()


def test_a_deep_home_still_gives_a_socket_that_can_be_bound(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TUICHAT_HOME", str(tmp_path / ("deep" * 40)))
    path = paths.socket_path("0123456789abcdef.sock")
    assert len(os.fsencode(path)) <= 103
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path == paths.socket_path("0123456789abcdef.sock")
    path.parent.rmdir()
