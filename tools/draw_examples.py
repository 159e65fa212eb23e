"""Draw the images in `examples/`: three that the demo model can talk about, one that it cannot.

Owns their content. Refuses to be anything but deterministic: running it again changes no byte.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

FOLDER = Path(__file__).parents[1] / "examples"
_SMOOTH = 3


def _canvas(width: int, height: int, color: str) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (width * _SMOOTH, height * _SMOOTH), color)
    return image, ImageDraw.Draw(image)


def _circle(draw: ImageDraw.ImageDraw, x: float, y: float, radius: float, color: str) -> None:
    x, y, radius = x * _SMOOTH, y * _SMOOTH, radius * _SMOOTH
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)


def _square(draw: ImageDraw.ImageDraw, x: float, y: float, half: float, color: str) -> None:
    x, y, half = x * _SMOOTH, y * _SMOOTH, half * _SMOOTH
    draw.rectangle((x - half, y - half, x + half, y + half), fill=color)


def _triangle(draw: ImageDraw.ImageDraw, x: float, y: float, radius: float, color: str) -> None:
    corners = [
        (
            (x + radius * math.sin(k * math.tau / 3)) * _SMOOTH,
            (y - radius * math.cos(k * math.tau / 3)) * _SMOOTH,
        )
        for k in range(3)
    ]
    draw.polygon(corners, fill=color)


def _finish(image: Image.Image) -> Image.Image:
    size = (image.width // _SMOOTH, image.height // _SMOOTH)
    return image.resize(size, Image.Resampling.LANCZOS)


def shapes() -> Image.Image:
    """A red circle, a blue square and a green triangle on a light ground."""
    image, draw = _canvas(640, 480, "#f7f7f2")
    _circle(draw, 130, 130, 80, "#dc1e28")
    _square(draw, 480, 150, 72, "#1f4fd8")
    _triangle(draw, 330, 360, 95, "#1f9a3c")
    return _finish(image)


def two_shapes() -> Image.Image:
    """A small yellow square to the left of a big purple circle."""
    image, draw = _canvas(600, 400, "white")
    _square(draw, 120, 190, 46, "#ffd700")
    _circle(draw, 410, 210, 110, "#800080")
    return _finish(image)


def night() -> Image.Image:
    """A white circle and an orange triangle on a dark ground."""
    image, draw = _canvas(480, 640, "#10131f")
    _circle(draw, 350, 140, 75, "white")
    _triangle(draw, 150, 470, 105, "#ff8c00")
    return _finish(image)


def not_shapes() -> Image.Image:
    """Hills in mist under an evening sky: no circle, square or triangle anywhere."""
    width, height = 640, 420
    rng = np.random.default_rng(7)
    x = np.linspace(0, 1, width)
    level = np.linspace(0, 1, height)[:, None, None]
    sky = np.array([70, 90, 140]) * (1 - level) + np.array([245, 190, 150]) * level
    pixels = np.broadcast_to(sky, (height, width, 3)).copy()
    for depth in range(6):
        ridge = np.zeros(width)
        for octave in range(1, 7):
            phase, scale = rng.uniform(0, math.tau), rng.uniform(0.5, 1)
            ridge += scale * np.sin(math.tau * octave * x * 1.3 + phase) / octave**1.3
        top = height * (0.42 + 0.1 * depth) + ridge * 22
        below = np.arange(height)[:, None] > top[None, :]
        haze = depth / 5
        tone = np.array([150, 140, 165]) * (1 - haze) + np.array([28, 46, 38]) * haze
        pixels[below] = tone
    pixels += rng.normal(0, 5, pixels.shape)
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    return image.filter(ImageFilter.GaussianBlur(0.8))


def main() -> None:
    """Write all four."""
    shapes().save(FOLDER / "shapes.png", optimize=True)
    two_shapes().save(FOLDER / "two-shapes.jpg", quality=90)
    night().save(FOLDER / "night.png", optimize=True)
    not_shapes().save(FOLDER / "not-shapes.jpg", quality=85)


if __name__ == "__main__":
    main()
