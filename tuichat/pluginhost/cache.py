"""Descriptions of backends that were read before.

Owns the files under ``cache_dir()/backends``. Refuses to know how a description is obtained.
Invariant: an entry is given out only for the very code it was read from (distribution, version,
entry point, API version, and size and time of the plugin's files, so that a developer's edit is
seen); anything doubtful is as good as absent, and a cache that cannot be written costs time only.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import msgspec

from tuichat import paths
from tuichat.api import API_VERSION, BackendInfo
from tuichat.pluginhost.refs import BackendRef, find_module

_log = logging.getLogger(__name__)


class _Entry(msgspec.Struct, frozen=True):
    key: str
    info: BackendInfo


def read(ref: BackendRef) -> BackendInfo | None:
    """What was stored for this very code, or None."""
    try:
        entry = msgspec.json.decode(_file(ref).read_bytes(), type=_Entry)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return entry.info if entry.key == _key(ref) else None


def write(ref: BackendRef, info: BackendInfo) -> None:
    """Store ``info``, replacing what was there in one step; silent if that is not possible."""
    import tempfile

    target = _file(ref)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".part", delete=False) as part:
            try:
                part.write(msgspec.json.encode(_Entry(_key(ref), info)))
                part.close()
                Path(part.name).replace(target)
            except OSError:
                Path(part.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        _log.info("the description of %s is not cached: %s", ref.name, error)


def _file(ref: BackendRef) -> Path:
    # One file per plugin and place, overwritten: an edit leaves no litter.
    spec = find_module(ref.module)
    identity = (ref.name, ref.distribution, ref.entry_point, spec and spec.origin)
    return paths.cache_dir() / "backends" / f"{_digest(identity)}.json"


def _key(ref: BackendRef) -> str:
    identity = (ref.name, ref.distribution, ref.version, ref.entry_point, API_VERSION)
    return _digest((*identity, *_stamps(ref)))


def _stamps(ref: BackendRef) -> list[tuple[str, int, int, int]]:
    """Name, size, time and inode of the plugin's module, and of its neighbours in a package."""
    spec = find_module(ref.module)
    if spec is None or not spec.origin:
        return []
    module = Path(spec.origin)
    in_package = "." in ref.module or spec.submodule_search_locations is not None
    stamps = []
    for file in sorted(module.parent.glob("*.py")) if in_package else [module]:
        try:
            stat = file.stat()
        except OSError:  # inside a zip, or gone this moment
            continue
        stamps.append((file.name, stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return stamps


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()
