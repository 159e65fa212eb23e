"""From checked bytes to the RGB image that everybody sees.

Owns orientation, transparency, bit depth and colour conversion. Refuses to know files, limits and
refusals: ``loader`` turns what is raised here into sentences. Invariant: the result is RGB with 8
bits, upright, opaque on white, and depends on nothing but the bytes.
"""

from __future__ import annotations

import importlib
import math
import warnings
from io import BytesIO
from typing import TYPE_CHECKING

from tuichat.images.sniff import HEAD_BYTES, image_format

if TYPE_CHECKING:
    from PIL import Image as PILImage
    from PIL.ImageFile import ImageFile

_EXIF_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that exchange width and height
_HIGH = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")
_WHITE = (255, 255, 255)


def decode_image(data: bytes) -> PILImage.Image:
    """The image in ``data``: RGB, 8 bits, EXIF orientation applied, flattened on white.

    16-bit, integer and float images are scaled to 0…255, not clipped; of an animation the first
    frame is taken.

    Raises:
        Exception: whatever Pillow raises for data that are not an image. Bytes that
            ``check_image`` let through raise nothing.
    """
    with open_image(data) as image:
        return _finish(image)


def thumbnail(data: bytes, max_width: int, max_height: int) -> PILImage.Image:
    """``decode_image`` scaled down to fit (max_width, max_height) pixels; never scaled up.

    A JPEG is decoded at a fraction of its size where that is enough, so a 24-megapixel photograph
    takes tens of milliseconds and not a second.
    """
    from PIL import Image

    width, height = max(1, max_width), max(1, max_height)
    with open_image(data) as image:
        sideways = orientation(image) in _SIDEWAYS
        # Twice the size wanted leaves the final filter enough to work with.
        image.draft(None, (2 * height, 2 * width) if sideways else (2 * width, 2 * height))
        small = _finish(image)
    small.thumbnail((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
    return small


def open_image(data: bytes) -> ImageFile:
    """``data`` opened by the codec of its format, only the header read; Pillow kept quiet."""
    from PIL import Image, UnidentifiedImageError

    silence_pillow()
    found = image_format(data[:HEAD_BYTES])
    if found is None:
        raise UnidentifiedImageError("no accepted image format")
    if found == "HEIC":
        register_heif()
        found = "HEIF"
    return Image.open(BytesIO(data), formats=[found])


def register_heif() -> None:
    """Teach Pillow HEIC.

    Raises:
        ImportError: pillow-heif is not installed.
    """
    importlib.import_module("pillow_heif").register_heif_opener()


def silence_pillow() -> None:
    """Ignore Pillow's warnings for good: they would land on the chat screen.

    A filter for its modules and not ``catch_warnings``, which restores a process-wide list and so
    lets threads undo each other's.
    """
    warnings.filterwarnings("ignore", module=r"PIL(\.|$)")


def orientation(image: PILImage.Image) -> int:
    """EXIF orientation 1…8; 1 when there is none or it cannot be read."""
    try:
        value = image.getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # damaged metadata: the pixels are fine, so the image is
        return 1
    return value if value in range(1, 9) else 1


def _finish(image: PILImage.Image) -> PILImage.Image:
    from PIL import Image, ImageOps

    image.load()
    upright: PILImage.Image = image
    if orientation(image) != 1:  # TIFF is turned by Pillow while loading, and then says 1
        upright = ImageOps.exif_transpose(image)
    if upright.mode in _HIGH:
        return _flatten_scaled(upright)
    if upright.has_transparency_data or upright.mode in ("RGBa", "La"):
        layer = upright.convert("LA").convert("RGBA") if upright.mode == "La" else upright
        layer = layer.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, _WHITE), layer).convert("RGB")
    if upright.mode == "LAB":
        return _from_lab(upright)
    # Always a plain image of its own: the file behind ``image`` is about to be closed.
    return upright.convert("RGB") if upright.mode != "RGB" else upright.copy()


def _from_lab(image: PILImage.Image) -> PILImage.Image:
    from PIL import ImageCms

    transform = ImageCms.buildTransform(
        ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), "LAB", "RGB"
    )
    converted = ImageCms.applyTransform(image, transform)
    assert converted is not None  # only None for an in-place transform
    return converted


def _flatten_scaled(image: PILImage.Image) -> PILImage.Image:
    """A grey image of more than 8 bits as RGB, its transparent grey (PNG) on white."""
    from PIL import Image, ImageChops

    grey = _scaled(image)
    key = image.info.get("transparency")
    if isinstance(key, int) and image.mode != "F":
        # Clipped at 0, both differences are 0 only where the pixel is the transparent grey.
        values = image.convert("I").convert("F")
        above = values.point(lambda value: value * 1.0 - key).convert("L")
        below = values.point(lambda value: value * -1.0 + key).convert("L")
        distance = ImageChops.lighter(above, below)
        grey.paste(255, mask=distance.point(lambda value: 255 if value == 0 else 0))
    return Image.merge("RGB", (grey, grey, grey))


def _scaled(image: PILImage.Image) -> PILImage.Image:
    """An image of more than 8 bits as ``L``.

    16-bit values are taken at full range. For wider integers and floats the file does not say what
    white is: 0…1 (float), 0…255 and 0…65535 are recognised by their extremes, anything else is
    stretched from its smallest to its largest value.
    """
    sixteen = image.mode.startswith("I;16")
    values = _finite(image) if image.mode == "F" else image.convert("I").convert("F")
    low, high = values.getextrema()
    assert isinstance(low, float)
    assert isinstance(high, float)
    black, white = 0.0, 65535.0
    if not sixteen and not (image.mode == "I" and 255 < high <= 65535 and low >= 0):
        if image.mode == "F" and low >= 0 and high <= 1:
            white = 1.0
        elif low >= 0 and high <= 255:
            white = 255.0
        else:
            black, white = low, high
    factor = 255.0 / (white - black) if white > black else 0.0
    offset = 0.5 - black * factor  # converting to L cuts the fraction off: half a step rounds
    return values.point(lambda value: value * factor + offset).convert("L")


def _finite(image: PILImage.Image) -> PILImage.Image:
    """A float image with NaN and infinities as 0, which would spoil its extremes."""
    low, high = image.getextrema()
    total = sum(value for value in (low, high) if isinstance(value, float))
    if math.isfinite(total) and math.isfinite(_checksum(image)):
        return image
    from PIL import Image, ImageMath

    good = ImageMath.lambda_eval(
        lambda args: args["convert"]((args["a"] > -3.4e38) * (args["a"] < 3.4e38) * 255, "L"),
        a=image,
    )
    return Image.composite(image, Image.new("F", image.size, 0.0), good)


def _checksum(image: PILImage.Image) -> float:
    """NaN or infinite when any pixel is: reducing to one pixel averages them all."""
    value = image.resize((1, 1), resample=4).getpixel((0, 0))  # 4 is BOX
    assert isinstance(value, float)
    return value
