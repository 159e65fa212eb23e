"""What a line or a paste may mean.

Owns the guess whether text means image files. Refuses to attach: it names files. Invariant: a
sentence is never taken for a path; only what stands alone, looks like a path and exists as an
image is attached, and everything else stays text.
"""

from __future__ import annotations

from pathlib import Path

SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".heif",
)  # fmt: skip
_LINE_LIMIT = 4096  # characters: no path is longer
_ROOTS = ("/", "~/", "./", "../", "file://")


def looks_like_path(line: str) -> bool:
    """Whether a line is worth looking up: it could be nothing but paths."""
    bare = line.strip().strip("'\"")
    if not bare or "\n" in bare or len(bare) > _LINE_LIMIT:
        return False
    return bare.startswith(_ROOTS) or bare.lower().endswith(SUFFIXES)


def is_lone_image_path(line: str) -> bool:
    """Whether a line can hardly be anything but the path of one image."""
    bare = line.strip().strip("'\"")
    if not looks_like_path(line) or not bare.lower().endswith(SUFFIXES):
        return False
    if bare.startswith(_ROOTS) or line.strip()[0] in "'\"":
        return True
    return " " not in bare.replace("\\ ", "")


def not_here(line: str) -> str:
    """The sentence for an image path without a file."""
    from tuichat.images import parse_paths

    path = Path((parse_paths(line) or [line])[0])
    return (
        f"{path} is not on this machine, so nothing was attached; bring it here first "
        f"(scp {path.name} to this host) or press Enter again to send the line as text."
    )


def find_images(text: str) -> list[Path]:
    """The image files that ``text`` consists of; empty if it is a text. Touches the disk."""
    from tuichat.images import resolve_pasted

    return resolve_pasted(text) or []


def named_paths(argument: str) -> list[Path]:
    """The paths of an ``/attach``: those that exist, or what was written, to be refused by name."""
    from tuichat.images import parse_paths

    if found := find_images(argument):
        return found
    whole = Path(argument).expanduser()
    if whole.exists():
        return [whole]
    return [Path(path) for path in parse_paths(argument)]
