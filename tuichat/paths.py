"""Where tuichat keeps things.

Owns the five folders (data, config, cache, state, runtime) and their names. Refuses to know what
is in them. Invariant: with ``TUICHAT_HOME`` set, every path lies under that one folder, so a test
or a portable installation never touches another; the runtime folder is always private (0700).
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

_APP = "tuichat"


def _home(kind: str) -> Path | None:
    home = os.environ.get("TUICHAT_HOME")
    return Path(home).expanduser().absolute() / kind if home else None


def data_dir() -> Path:
    """Sessions and image blobs: what must never be lost."""
    if (home := _home("data")) is not None:
        return home
    from platformdirs import user_data_path

    return user_data_path(_APP)


def config_dir() -> Path:
    """``config.toml``."""
    if (home := _home("config")) is not None:
        return home
    from platformdirs import user_config_path

    return user_config_path(_APP)


def cache_dir() -> Path:
    """What can be made again: backend descriptions, thumbnails."""
    if (home := _home("cache")) is not None:
        return home
    from platformdirs import user_cache_path

    return user_cache_path(_APP)


def state_dir() -> Path:
    """Logs."""
    if (home := _home("state")) is not None:
        return home
    from platformdirs import user_state_path

    return user_state_path(_APP)


def runtime_dir() -> Path:
    """Sockets and locks of running workers; created, owned by this user and closed to others.

    Raises:
        PermissionError: the folder exists and belongs to somebody else, so a socket in it could
            be anybody's.
    """
    if (home := _home("run")) is not None:
        path = home
    elif xdg := os.environ.get("XDG_RUNTIME_DIR"):
        path = Path(xdg) / _APP
    else:
        # Without a login session (ssh into a container) there is no runtime folder: one per user
        # under the temporary folder, its owner checked below.
        path = Path(tempfile.gettempdir()) / f"{_APP}-{os.getuid()}"
    return _private(path)


def _private(path: Path) -> Path:
    """``path``, created if need be, ours and closed to others."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    info = path.lstat()
    if info.st_uid != os.getuid() or not stat.S_ISDIR(info.st_mode):
        raise PermissionError(
            f"{path} belongs to another user; set TUICHAT_HOME to a folder of yours"
        )
    if stat.S_IMODE(info.st_mode) != 0o700:
        path.chmod(0o700)
    return path


# The shortest limit on a socket's path among the platforms (macOS: 104 bytes with the final NUL).
_SOCKET_PATH_LIMIT = 103


def socket_path(name: str) -> Path:
    """The path of the Unix socket ``name``, in a private folder, within the platform's limit."""
    path = runtime_dir() / name
    if len(os.fsencode(path)) <= _SOCKET_PATH_LIMIT:
        return path
    # A deep TUICHAT_HOME: a folder of its own under the temporary folder, named after that home.
    short = hashlib.sha256(os.fsencode(path.parent)).hexdigest()[:12]
    return _private(Path(tempfile.gettempdir()) / f"{_APP}-{os.getuid()}-{short}") / name
