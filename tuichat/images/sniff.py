"""What a file is, by its first bytes.

Owns the signatures of the accepted formats, and of what people attach by mistake. Refuses to know
names and extensions. Invariant: pure, and ``HEAD_BYTES`` bytes are enough for every answer.
"""

from __future__ import annotations

HEAD_BYTES = 512
"""How much of a file ``image_format`` and ``describe`` want to see."""

ACCEPTED = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIC")
"""Pillow's names of the formats that can be attached; HEIC only where its codec is installed."""

_AVIF_BRANDS = {b"avif", b"avis"}
_HEIC_BRANDS = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"}

# What people attach by mistake, in words that continue "it is …".
_OTHERS: tuple[tuple[bytes, str], ...] = (
    (b"%PDF", "a PDF document"),
    (b"8BPS", "a Photoshop document"),
    (b"PK\x03\x04", "a ZIP archive or office document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x00\x00\x01\x00", "a Windows icon"),
    (b"\x00\x00\x00\x0cJXL ", "a JPEG XL image"),
    (b"\xff\x0a", "a JPEG XL image"),
    (b"\x00\x00\x00\x0cjP  ", "a JPEG 2000 image"),
    (b"\x1aE\xdf\xa3", "a Matroska or WebM video"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
)


def image_format(head: bytes) -> str | None:
    """The accepted format that data beginning with ``head`` are in, or None."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if head.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if head.startswith((b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")):
        return "TIFF"
    # "BM" alone also begins an English sentence: the two reserved words and the size of the second
    # header settle it.
    if head.startswith(b"BM") and head[6:10] == b"\0\0\0\0" and head[15:18] == b"\0\0\0":
        return "BMP"
    if head[4:8] == b"ftyp":
        brands = _brands(head)
        if brands & _AVIF_BRANDS:
            return "AVIF"
        if brands & _HEIC_BRANDS:
            return "HEIC"
    return None


def describe(head: bytes) -> str:
    """What data that are no accepted image seem to be, in words that continue "it is …"."""
    for signature, words in _OTHERS:
        if head.startswith(signature):
            return words
    if head[4:8] == b"ftyp":
        return "a video"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if b"<svg" in text:
        return "an SVG drawing"
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "a web page (HTML), perhaps an error page saved under this name"
    if text.startswith(b"<?xml"):
        return "an XML document, perhaps an error page saved under this name"
    if _is_text(head):
        return "a text file"
    return "in no format that is known here"


def _brands(head: bytes) -> set[bytes]:
    """Major and compatible brands of an ISO base media file."""
    size = min(int.from_bytes(head[:4], "big"), len(head))
    return {head[8:12]} | {head[at : at + 4] for at in range(16, size - 3, 4)}


def _is_text(head: bytes) -> bool:
    if b"\0" in head or not head:
        return False
    try:
        # The cut may have split a character: only a fault before the last three bytes counts.
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3
    return True
