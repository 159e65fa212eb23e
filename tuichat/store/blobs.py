"""The bytes of images, under their sha256.

Owns ``blobs/`` and the ``image`` table. Refuses to decode. Invariant: a file under its final name
is whole, since it was written beside it, flushed, and renamed; and no byte leaves here unchecked.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tuichat.api import StoreError
from tuichat.sanitize import sanitize_line
from tuichat.store.database import Database
from tuichat.store.problems import translated
from tuichat.store.records import ImageRecord

if TYPE_CHECKING:
    from tuichat.images import LoadedImage


class Blobs:
    """The image bytes of one store."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self._folder = folder

    def put(self, image: LoadedImage) -> ImageRecord:
        """Keep the bytes of ``image``, once however often it is put.

        Raises:
            StoreError: they could not be written.
        """
        with translated(self._database.root):
            self._write(image.digest, image.data)
        with self._database.write() as tx:
            tx.run(
                "INSERT INTO image(digest, format, width, height, size, notice, created_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                *(image.digest, image.format, image.width, image.height),
                *(len(image.data), image.notice, time.time()),
            )
        return ImageRecord(
            digest=image.digest,
            name=image.name,
            format=image.format,
            width=image.width,
            height=image.height,
            size=len(image.data),
            notice=image.notice,
        )

    def read(self, digest: str) -> bytes:
        """The bytes whose sha256 is ``digest``.

        Raises:
            StoreError: they are missing, or not what was stored.
        """
        with translated(self._database.root):
            try:
                data = self._path(digest).read_bytes()
            except FileNotFoundError as error:
                raise StoreError(
                    f"The image {self._called(digest)} is missing from the store: attach it again"
                ) from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise StoreError(
                f"The image {self._called(digest)} was changed or damaged in the store: "
                "attach it again"
            )
        return data

    def _write(self, digest: str, data: bytes) -> None:
        path = self._path(digest)
        if path.is_file() and path.read_bytes() == data:
            return  # compared, not trusted: putting an image again mends a damaged blob
        path.parent.mkdir(mode=0o700, exist_ok=True)
        unfinished = path.with_name(f".{digest[:16]}-{secrets.token_hex(6)}.part")
        try:
            descriptor = os.open(
                unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            os.replace(unfinished, path)  # noqa: PTH105 - atomic, and says so
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)

    def _path(self, digest: str) -> Path:
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise StoreError(f"“{sanitize_line(digest[:80])}” is no image digest: attach it again")
        return self._folder / digest[:2] / digest

    def _called(self, digest: str) -> str:
        """The name that a person knows the image by."""
        with self._database.read() as tx:
            row = tx.one("SELECT name FROM turn_image WHERE digest = ? LIMIT 1", digest)
        return sanitize_line(row["name"]) if row else f"{digest[:12]}…"


def image_record(row: sqlite3.Row) -> ImageRecord:
    """An attachment from a row of ``turn_image`` joined with ``image``."""
    return ImageRecord(
        digest=row["digest"],
        name=row["name"],
        format=row["format"],
        width=row["width"],
        height=row["height"],
        size=row["size"],
        notice=row["notice"],
    )


def _sync_folder(folder: Path) -> None:
    """Make the renaming itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
