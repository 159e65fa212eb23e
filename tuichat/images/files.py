"""Opening what a person named: regular files only, and never for longer than a moment.

Owns the walk from a typed path to bytes, and the sentences when there is nothing to read. Refuses
to know image formats. Invariant: nothing here blocks on a pipe, a socket or a device, and no more
than ``MAX_BYTES`` are ever read.
"""

from __future__ import annotations

import difflib
import errno
import itertools
import os
import stat
import unicodedata
from pathlib import Path

from tuichat.api import ImageRefused
from tuichat.sanitize import sanitize_line

MAX_BYTES = 64_000_000
"""Largest file that is read, in bytes."""

_SCAN_LIMIT = 5_000  # entries of a folder that are looked at for near names
_SHOWN = 100  # characters of a name that a sentence shows

_KINDS: tuple[tuple[int, str], ...] = (
    (stat.S_IFDIR, "is a folder: name an image inside it"),
    (stat.S_IFIFO, "is a named pipe: save its data to a file and attach that"),
    (stat.S_IFSOCK, "is a socket: save its data to a file and attach that"),
    (stat.S_IFCHR, "is a device: only regular files can be attached"),
    (stat.S_IFBLK, "is a device: only regular files can be attached"),
)


def shown(name: str) -> str:
    """``name`` for a sentence: one line, no escape sequences, not endless."""
    line = sanitize_line(name)
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN // 2]}…{line[1 - _SHOWN // 2 :]}"


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file of at most ``MAX_BYTES``.

    Raises:
        ImageRefused: there is no such file, it is not a regular one, it may not be read, or it is
            too large; in one sentence.
    """
    given = os.fspath(path)
    if not given:
        raise ImageRefused("No file was named: give the path of an image")
    try:
        descriptor = _open_regular(str(find_file(given) or given), given)
    except (OSError, ValueError) as error:
        raise ImageRefused(_why(given, error)) from error
    try:
        return _read_all(descriptor, given)
    except OSError as error:
        raise ImageRefused(
            f"{shown(given)} could not be read ({error.strerror}): copy it and attach the copy"
        ) from error
    finally:
        os.close(descriptor)


def find_file(path: str) -> Path | None:
    """The path of what a person meant by ``path``, or None if nothing is there.

    macOS writes names decomposed and puts U+202F into the names of screenshots; a terminal or a
    chat on the way may have composed them or put a plain space. If the exact name does not exist,
    one that differs in nothing else is taken, provided there is only one.
    """
    exact = Path(path)
    try:
        exact.lstat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError):
        return None  # the sentence comes from the attempt to open it
    else:
        return exact
    if exact.name in ("", "..") or exact.parent == exact:
        return None
    folder = find_file(str(exact.parent))
    if folder is None:
        return None
    wanted = _folded(exact.name)
    same = [name for name in _names(folder) if _folded(name) == wanted]
    return folder / same[0] if len(same) == 1 else None


def _folded(name: str) -> str:
    """``name`` without the differences that a path loses on its way through a clipboard."""
    composed = unicodedata.normalize("NFC", name)
    return "".join(" " if unicodedata.category(char) == "Zs" else char for char in composed)


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in itertools.islice(entries, _SCAN_LIMIT)]
    except OSError:
        return []


def _open_regular(path: str, given: str) -> int:
    """A descriptor of a regular file; anything else is refused without waiting for it."""
    # Asked before opening too: opening a device can already have an effect.
    _require_regular(Path(path).stat(), given)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _require_regular(os.fstat(descriptor), given)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(info: os.stat_result, given: str) -> None:
    kind = stat.S_IFMT(info.st_mode)
    for candidate, sentence in _KINDS:
        if kind == candidate:
            raise ImageRefused(f"{shown(given)} {sentence}")
    if kind != stat.S_IFREG:
        raise ImageRefused(f"{shown(given)} is not a regular file: save it as one and attach that")
    if info.st_size > MAX_BYTES:
        raise too_large(given, info.st_size)


def too_large(name: str, size: int) -> ImageRefused:
    """The refusal of a file of ``size`` bytes."""
    return ImageRefused(
        f"{shown(name)} is {size / 1e6:.0f} MB and at most {MAX_BYTES / 1e6:.0f} MB are read: "
        "scale it down or save it as JPEG"
    )


def _read_all(descriptor: int, given: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:  # it grows while it is read, or lies about its size, as in /proc
            raise too_large(given, size)
    return b"".join(parts)


def _why(given: str, error: OSError | ValueError) -> str:
    """The sentence for a path that could not be opened."""
    name = shown(given)
    if isinstance(error, ValueError):
        return f"{name} is not a possible file name: it contains a NUL character"
    if error.errno == errno.ENOENT:
        return _missing(given)
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{name} may not be read by you: change its permissions (chmod u+r) or copy it"
    if error.errno == errno.ELOOP:
        return f"{name} is a symbolic link that leads back to itself: name the image itself"
    if error.errno == errno.ENAMETOOLONG:
        return f"{name} is too long to be a file name: name one image"
    if error.errno == errno.ENOTDIR:
        return f"{name} leads through something that is not a folder: check the path"
    if error.errno == errno.ENXIO:
        return f"{name} is a socket or a device without a reader: attach a regular file"
    return f"{name} could not be opened ({error.strerror}): check the path"


def _missing(given: str) -> str:
    path = Path(given)
    if path.is_symlink():
        target = shown(str(path.readlink()))
        return (
            f"{shown(given)} is a symbolic link to {target}, which does not exist: name the image"
        )
    if not path.parent.is_dir():
        return (
            f"{shown(given)} is not on this machine: there is no folder {shown(str(path.parent))}"
        )
    near = _near_names(path)
    if near:
        offer = " or ".join(shown(name) for name in near)
        return f"{shown(given)} is not on this machine: did you mean {offer}?"
    return f"{shown(given)} is not on this machine: check the path, or copy the image here first"


def _near_names(path: Path) -> list[str]:
    """Up to three names of the folder that resemble the one that was asked for."""
    by_folded = {_folded(name).casefold(): name for name in _names(path.parent)}
    near = difflib.get_close_matches(_folded(path.name).casefold(), by_folded, n=3, cutoff=0.6)
    return [by_folded[name] for name in near]
