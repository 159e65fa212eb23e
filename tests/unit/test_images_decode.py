"""The one loader's pixels: orientation, transparency, bit depth, colour, animation, thumbnails."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from tuichat.images import check_image, decode_image, thumbnail

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def corners() -> Image.Image:
    """40 × 20: red above left, green above right, blue below left, white below right."""
    image = Image.new("RGB", (40, 20), WHITE)
    image.paste(RED, (0, 0, 20, 10))
    image.paste(GREEN, (20, 0, 40, 10))
    image.paste(BLUE, (0, 10, 20, 20))
    return image


def near(pixel: object, wanted: tuple[int, int, int], tolerance: int = 24) -> bool:
    assert isinstance(pixel, tuple)
    return all(abs(got - want) <= tolerance for got, want in zip(pixel, wanted, strict=True))


# What the camera stored, so that turning it as EXIF says gives ``corners()`` back.
_UNDO = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_exactly_once(orientation: int, format: str) -> None:
    turn = _UNDO[orientation]
    stored = corners() if turn is None else corners().transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95} if format in ("JPEG", "WEBP", "AVIF") else {}
    data = encoded(stored, format, exif=exif, **options)

    loaded = check_image(data, "photo")
    assert (loaded.width, loaded.height) == (40, 20)
    for image in (decode_image(data), thumbnail(data, 40, 20)):
        assert image.size == (40, 20)
        for place, colour in (((5, 3), RED), ((34, 3), GREEN), ((5, 16), BLUE), ((34, 16), WHITE)):
            assert near(image.getpixel(place), colour), (place, image.getpixel(place))


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_impossible_orientation_is_ignored(value: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = value
    data = encoded(corners(), "JPEG", exif=exif, quality=95)
    assert near(decode_image(data).getpixel((5, 3)), RED)


def test_damaged_exif_does_not_cost_the_image() -> None:
    data = encoded(corners(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xffgarbage", quality=95)
    assert check_image(data, "photo.jpg").width == 40
    assert near(decode_image(data).getpixel((5, 3)), RED)


def test_alpha_is_flattened_on_white() -> None:
    image = Image.new("RGBA", (3, 1), (0, 0, 0, 0))  # black lies beneath the transparent part
    image.putpixel((0, 0), (0, 0, 0, 255))
    image.putpixel((1, 0), (255, 0, 0, 128))
    flat = decode_image(encoded(image, "PNG"))
    assert flat.mode == "RGB"
    assert flat.getpixel((0, 0)) == (0, 0, 0)
    assert near(flat.getpixel((1, 0)), (255, 127, 127), 1)
    assert flat.getpixel((2, 0)) == WHITE


def test_grey_with_alpha_is_flattened_on_white() -> None:
    image = Image.new("LA", (2, 1), (0, 0))
    image.putpixel((0, 0), (10, 255))
    flat = decode_image(encoded(image, "PNG"))
    assert [flat.getpixel((x, 0)) for x in (0, 1)] == [(10, 10, 10), WHITE]


def test_palette_with_a_transparent_entry_is_flattened_on_white() -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 0, 255])
    image.putdata([0, 1, 2])
    for options in ({"transparency": 0}, {"transparency": b"\x00\xff\xff"}):
        flat = decode_image(encoded(image, "PNG", **options))
        assert [flat.getpixel((x, 0)) for x in range(3)] == [WHITE, RED, BLUE]
    gif = decode_image(encoded(image, "GIF", transparency=0))
    assert [gif.getpixel((x, 0)) for x in range(3)] == [WHITE, RED, BLUE]


@pytest.mark.parametrize(("mode", "key"), [("RGB", (1, 2, 3)), ("L", 7), ("1", 0)])
def test_transparent_colour_is_flattened_on_white(mode: str, key: object) -> None:
    image = Image.new(mode, (2, 1), 255 if mode != "RGB" else RED)
    image.putpixel((1, 0), key)
    flat = decode_image(encoded(image, "PNG", transparency=key))
    assert flat.getpixel((1, 0)) == WHITE
    assert flat.getpixel((0, 0)) == (RED if mode == "RGB" else WHITE)


def test_palette_with_alpha_is_flattened_on_white() -> None:
    image = Image.new("PA", (2, 1))
    image.putpalette([200, 100, 50])
    image.putdata([(0, 255), (0, 0)])
    flat = decode_image(encoded(image, "TIFF"))
    assert [flat.getpixel((x, 0)) for x in (0, 1)] == [(200, 100, 50), WHITE]


def png16(rows: list[list[int]], transparent: int | None = None) -> bytes:
    """A 16-bit grey PNG, written by hand: what Pillow saves must not be what proves it."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + checksum

    raw = b"".join(b"\0" + struct.pack(f">{len(row)}H", *row) for row in rows)
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 16, 0, 0, 0, 0)
    key = b"" if transparent is None else chunk(b"tRNS", struct.pack(">H", transparent))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + key
        + chunk(b"IDAT", zlib.compress(raw))
        + chunk(b"IEND", b"")
    )


def greys(image: Image.Image) -> list[int]:
    assert image.mode == "RGB"
    red, green, blue = image.split()
    assert red.tobytes() == green.tobytes() == blue.tobytes()
    return list(red.tobytes())


def test_16_bit_grey_is_scaled_not_clipped() -> None:
    data = png16([[0, 257, 32896, 65278, 65535]])
    assert greys(decode_image(data)) == [0, 1, 128, 254, 255]


def test_16_bit_grey_with_a_transparent_value_is_flattened_on_white() -> None:
    assert greys(decode_image(png16([[0, 256, 300, 20000]], transparent=300))) == [0, 1, 255, 78]


def test_16_bit_colour_is_scaled() -> None:
    raw = struct.pack(">B3H3H", 0, 65535, 0, 32896, 257 * 10, 257 * 20, 257 * 30)
    body = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    data = png16([[0]])
    parts = [b"\x89PNG\r\n\x1a\n"]
    for kind, content in ((b"IHDR", body), (b"IDAT", zlib.compress(raw)), (b"IEND", b"")):
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        parts.append(struct.pack(">I", len(content)) + kind + content + checksum)
    data = b"".join(parts)
    image = decode_image(data)
    assert [image.getpixel((x, 0)) for x in (0, 1)] == [(255, 0, 128), (10, 20, 30)]


@pytest.mark.parametrize(
    ("mode", "values", "wanted"),
    [
        ("F", [0.0, 0.5, 1.0], [0, 128, 255]),
        ("F", [0.0, 100.0, 255.0], [0, 100, 255]),
        ("F", [-1000.0, 0.0, 1000.0], [0, 128, 255]),
        ("F", [float("nan"), 0.0, 1.0], [0, 0, 255]),
        ("F", [0.0, float("inf"), 1.0], [0, 0, 255]),
        ("F", [3.0, 3.0, 3.0], [3, 3, 3]),
        ("I", [0, 100, 255], [0, 100, 255]),
        ("I", [0, 32896, 65535], [0, 128, 255]),
        ("I", [-100_000, 0, 100_000], [0, 128, 255]),
        ("F", [700.0, 700.0, 700.0], [0, 0, 0]),
        ("I;16", [0, 257, 65535], [0, 1, 255]),
    ],
)
def test_float_and_integer_images_are_scaled(
    mode: str, values: list[float], wanted: list[int]
) -> None:
    image = Image.new(mode, (len(values), 1))
    image.putdata(values)
    assert greys(decode_image(encoded(image, "TIFF"))) == wanted


def test_cmyk_is_converted() -> None:
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    for format in ("JPEG", "TIFF"):
        assert near(decode_image(encoded(image, format)).getpixel((8, 8)), RED, 40)


@pytest.mark.parametrize("mode", ["1", "L", "P", "YCbCr", "LAB"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    image = Image.new("RGB", (16, 16), WHITE).convert(mode if mode != "LAB" else "RGB")
    if mode == "LAB":
        image = Image.new("LAB", (16, 16), (255, 128, 128))  # L 100, a 0, b 0
    data = encoded(image, "JPEG" if mode == "YCbCr" else "TIFF")
    decoded = decode_image(data)
    assert decoded.mode == "RGB"
    assert near(decoded.getpixel((8, 8)), WHITE, 6)


@pytest.mark.parametrize(
    ("format", "notice"),
    [("GIF", "frame 1 of 3"), ("WEBP", "frame 1 of 3"), ("PNG", "frame 1 of 3"),
     ("AVIF", "frame 1 of 3"), ("TIFF", "page 1 of 3")],
)  # fmt: skip
def test_first_frame_is_taken_and_said(format: str, notice: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, GREEN, BLUE)]
    data = encoded(frames[0], format, save_all=True, append_images=frames[1:])
    loaded = check_image(data, "moving")
    assert loaded.notice == notice
    assert near(decode_image(data).getpixel((8, 8)), RED)


def test_phone_jpeg_with_a_second_picture_inside_is_a_plain_jpeg() -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, GREEN)]
    loaded = check_image(
        encoded(frames[0], "MPO", save_all=True, append_images=frames[1:]), "p.jpg"
    )
    assert (loaded.format, loaded.notice) == ("JPEG", None)


@pytest.mark.parametrize("size", [(1, 1), (4000, 3), (3, 4000)])
def test_tiny_and_extreme_images_are_images(size: tuple[int, int]) -> None:
    data = encoded(Image.new("RGB", size, BLUE), "PNG")
    assert (check_image(data, "x.png").width, check_image(data, "x.png").height) == size
    assert decode_image(data).size == size
    small = thumbnail(data, 40, 20)
    assert 1 <= small.width <= 40
    assert 1 <= small.height <= 20
    assert small.getpixel((0, 0)) == BLUE


def test_thumbnail_keeps_the_aspect_and_never_enlarges() -> None:
    big = encoded(Image.new("RGB", (3000, 1000), RED), "JPEG")
    assert thumbnail(big, 300, 300).size == (300, 100)
    assert thumbnail(encoded(corners(), "PNG"), 300, 300).size == (40, 20)
    assert thumbnail(big, 0, 0).size == (1, 1)


def test_decoded_image_outlives_its_bytes(tmp_path: Path) -> None:
    image = decode_image(encoded(corners(), "PNG"))
    image.save(tmp_path / "again.png")  # touches every pixel
    assert near(Image.open(tmp_path / "again.png").getpixel((5, 3)), RED)
