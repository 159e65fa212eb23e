"""Paths as terminals paste and drop them.

Owns the reading of shell-escaped, quoted and ``file://`` paths, and the question whether pasted
text means images. Refuses to know what becomes of them. Invariant: only ASCII blanks and line
breaks separate paths (U+202F in a macOS screenshot's name does not), and
``parse_paths(shlex.join(paths))`` gives ``paths`` back.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote_to_bytes

from tuichat.images.files import find_file
from tuichat.images.sniff import HEAD_BYTES, image_format

_BLANK = " \t\r\n"
_MAX_PASTE = 65_536  # characters; more than that is a text and not a list of files
_FILE_URI = "file://"


def parse_paths(text: str) -> list[str]:
    """The paths in pasted or dropped ``text``, unescaped, ``~`` and ``file://`` expanded.

    Paths are separated by blanks or line breaks. Backslashes, single and double quotes protect a
    blank as they do in a shell; a quote inside a word, and one without its partner, is an
    apostrophe. Never touches the disk.
    """
    paths: list[str] = []
    at = 0
    while at < len(text):
        if text[at] in _BLANK:
            at += 1
            continue
        token, at, protected = _token(text, at)
        paths.append(_expand(token, protected))
    return paths


def resolve_pasted(text: str) -> list[Path] | None:
    """The files that pasted ``text`` names, if every part of it is an existing image file.

    A line that is as it stands the name of an image is taken whole, blanks and all. None as soon
    as anything is not an image: then it is a text.
    """
    if not text.strip(_BLANK) or len(text) > _MAX_PASTE:
        return None
    files: list[Path] = []
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        bare = line.strip(_BLANK)
        if not bare:
            continue
        if (whole := _image_file(_expand(bare, protected=False))) is not None:
            files.append(whole)
            continue
        for candidate in parse_paths(bare):
            if (found := _image_file(candidate)) is None:
                return None
            files.append(found)
    return files


def _token(text: str, at: int) -> tuple[str, int, bool]:
    """The word that begins at ``at``, where it ends, and whether its first character is quoted."""
    parts: list[str] = []
    protected = text[at] in "'\"\\"
    may_quote = True
    while at < len(text) and text[at] not in _BLANK:
        char = text[at]
        if char in "'\"" and may_quote and (end := _closing(text, at)) is not None:
            parts.append(_quoted(text[at + 1 : end], char))
            at = end + 1
            continue  # a quoted part may follow at once: 'it'"'"'s'
        if char == "\\" and at + 1 < len(text):
            parts.append(text[at + 1])
            at += 2
        else:
            parts.append(char)
            at += 1
        may_quote = char in "/\\"
    return "".join(parts), at, protected


def _closing(text: str, at: int) -> int | None:
    """Where the quotation that opens at ``at`` ends, or None if it does not."""
    quote = text[at]
    end = at + 1
    while end < len(text):
        if text[end] == quote:
            return end
        end += 2 if quote == '"' and text[end] == "\\" else 1
    return None


def _quoted(inner: str, quote: str) -> str:
    if quote == "'":
        return inner
    parts: list[str] = []
    at = 0
    while at < len(inner):
        if inner[at] == "\\" and inner[at + 1 : at + 2] in ("\\", '"', "$", "`"):
            at += 1
        parts.append(inner[at])
        at += 1
    return "".join(parts)


def _expand(token: str, protected: bool) -> str:
    if token.startswith(_FILE_URI):
        host, slash, rest = token[len(_FILE_URI) :].partition("/")
        if slash and host in ("", "localhost"):
            return os.fsdecode(unquote_to_bytes("/" + rest))
        return token
    if token.startswith("~") and not protected:
        return os.path.expanduser(token)  # noqa: PTH111 - a Path would drop a final slash
    return token


def _image_file(path: str) -> Path | None:
    """``path`` as it is on the disk, if it is a regular file that begins like an image."""
    found = find_file(path)
    if found is None:
        return None
    try:
        if not stat.S_ISREG(found.stat().st_mode):
            return None
        descriptor = os.open(found, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    try:
        head = os.read(descriptor, HEAD_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return found if image_format(head) is not None else None
