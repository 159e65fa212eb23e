"""The checks that every image passes before it belongs to a conversation.

Owns ``load_image`` and ``check_image``, their limits and their refusals. Refuses to know where the
bytes are kept. Invariant: what passes has been decoded completely once, so it cannot fail later,
when the conversation already holds it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tuichat.api import ImageRefused
from tuichat.images.decode import decode_image, open_image, register_heif
from tuichat.images.files import MAX_BYTES, read_file, shown, too_large
from tuichat.images.sniff import HEAD_BYTES, describe, image_format

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

log = logging.getLogger(__name__)

MAX_PIXELS = 100_000_000
"""Largest image that is decoded, in pixels."""


@dataclass(frozen=True, slots=True)
class LoadedImage:
    """An image that passed every check, as it goes into the store."""

    data: bytes = field(repr=False)
    """The file, byte for byte."""
    digest: str
    """sha256 of ``data``, in hex."""
    name: str
    """File name, raw: sanitise it before showing it."""
    format: str
    """``PNG``, ``JPEG``, ``WEBP``, ``GIF``, ``BMP``, ``TIFF``, ``AVIF`` or ``HEIC``."""
    width: int
    """Pixels, after the EXIF orientation was applied."""
    height: int
    notice: str | None = None
    """What the reader should know about what was taken, e.g. ``frame 1 of 3``."""


def load_image(path: str | os.PathLike[str]) -> LoadedImage:
    """Read and check the image at ``path``; takes the bytes, so the file may vanish afterwards.

    Raises:
        ImageRefused: one sentence with the file, the reason and the cure.
    """
    return check_image(read_file(path), Path(path).name or os.fspath(path))


def check_image(data: bytes, name: str) -> LoadedImage:
    """Check the bytes of an image file called ``name``: type, size, and a full decode.

    Raises:
        ImageRefused: one sentence with the file, the reason and the cure.
    """
    if not data:
        raise ImageRefused(f"{shown(name)} is empty (0 bytes): copy or download it again")
    if len(data) > MAX_BYTES:
        raise too_large(name, len(data))
    found = image_format(data[:HEAD_BYTES])
    if found is None:
        raise ImageRefused(
            f"{shown(name)} is not an image, it is {describe(data[:HEAD_BYTES])}: "
            "attach a PNG, JPEG, WebP, GIF, BMP, TIFF or AVIF file"
        )
    if found == "HEIC":
        _require_heif(name)
    notice = _check_header(data, name, found)
    try:
        image = decode_image(data)
    except MemoryError as error:
        raise ImageRefused(
            f"{shown(name)} does not fit this machine's memory: scale it down"
        ) from error
    except Exception as error:  # codecs raise anything at all
        raise _undecodable(name, found, error) from error
    return LoadedImage(
        data=data,
        digest=hashlib.sha256(data).hexdigest(),
        name=name,
        format=found,
        width=image.width,
        height=image.height,
        notice=notice,
    )


def _require_heif(name: str) -> None:
    try:
        register_heif()
    except ImportError as error:
        raise ImageRefused(
            f"{shown(name)} is a HEIC image and its codec is not installed: "
            "pip install pillow-heif, or convert it to JPEG"
        ) from error


def _check_header(data: bytes, name: str, found: str) -> str | None:
    """Refuse by the header alone what is too large; the notice about frames, if there is one."""
    from PIL import Image

    try:
        with open_image(data) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise _too_many_pixels(name, width * height, f" ({width}×{height})")
            return _frames(image, found)
    except ImageRefused:
        raise
    except Image.DecompressionBombError as error:
        # Pillow refuses on its own above twice its own limit, and then only its text has the size.
        pixels = re.search(r"\d+", str(error))
        raise _too_many_pixels(name, int(pixels[0]) if pixels else None, "") from error
    except Exception as error:  # codecs raise anything at all
        raise _undecodable(name, found, error) from error


def _frames(image: ImageFile, found: str) -> str | None:
    if found == "JPEG":
        # A JPEG with several pictures (MPO) is how phones store a gain map or a depth map.
        return None
    try:
        count = int(getattr(image, "n_frames", 1))
    except Exception as error:  # a damaged later frame does not concern the first
        log.info("counting frames: %r", error)
        return "first frame"
    if count <= 1:
        return None
    return f"page 1 of {count}" if found == "TIFF" else f"frame 1 of {count}"


def _too_many_pixels(name: str, pixels: int | None, size: str) -> ImageRefused:
    measured = f"{pixels / 1e6:.0f} megapixels{size}" if pixels else "too large"
    return ImageRefused(
        f"{shown(name)} is {measured} and at most {MAX_PIXELS / 1e6:.0f} megapixels are decoded: "
        "scale it down"
    )


def _undecodable(name: str, found: str, error: Exception) -> ImageRefused:
    log.info("decoding %s as %s: %r", shown(name), found, error)
    if "truncated" in str(error).lower() or isinstance(error, EOFError):
        return ImageRefused(
            f"{shown(name)} is cut short, its data end before the image does: "
            "copy or download it again"
        )
    return ImageRefused(
        f"{shown(name)} looks like {found} but its data are damaged or of a kind that cannot be "
        "decoded here: copy it again, or save it as PNG"
    )
