"""Scenes: what is in an image of coloured shapes, and how such scenes are drawn by lot.

Owns the facts (shapes, colours, positions, sizes, background) and the eight symmetries of the
square that carry the facts along. Refuses to know pixels (`render.py`), words of questions and
answers (`dialogues.py`) and any model.

Invariant: shapes never overlap, lie wholly inside the image and stand out from the background.
Coordinates are fractions of the image's width and height; `extent` is half of the longer side of
the bounding box as a fraction of the image's *short* side, so squashing an image to a square
changes none of the facts.
"""

from __future__ import annotations

import colorsys
import math
import random
from dataclasses import dataclass, replace

KINDS = ("circle", "square", "triangle")
COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "black", "white")

Rgb = tuple[int, int, int]
Point = tuple[float, float]

# What people write when they draw a "red" shape: web names and the common flat palettes.
_ANCHORS: dict[str, tuple[Rgb, ...]] = {
    "red": ((255, 0, 0), (220, 20, 60), (200, 30, 30), (231, 76, 60), (214, 39, 40), (178, 34, 34)),
    "orange": ((255, 165, 0), (255, 140, 0), (255, 128, 0), (255, 127, 14), (243, 156, 18)),
    "yellow": ((255, 255, 0), (255, 215, 0), (241, 196, 15), (250, 220, 40), (240, 230, 60)),
    "green": ((0, 128, 0), (0, 255, 0), (34, 139, 34), (46, 204, 113), (0, 160, 60), (44, 160, 44)),
    "blue": ((0, 0, 255), (30, 60, 220), (65, 105, 225), (31, 119, 180), (52, 152, 219)),
    "purple": ((128, 0, 128), (148, 0, 211), (155, 89, 182), (160, 32, 240), (148, 103, 189)),
    "black": ((0, 0, 0), (10, 10, 10), (20, 20, 25), (30, 30, 30)),
    "white": ((255, 255, 255), (250, 250, 250), (245, 245, 240), (240, 240, 245)),
}
# Hue in degrees, saturation and value from which a hue's other tones are drawn.
_HUES: dict[str, tuple[float, float]] = {
    "red": (-10, 8),
    "orange": (23, 38),
    "yellow": (49, 62),
    "green": (95, 150),
    "blue": (206, 244),
    "purple": (268, 300),
}
_MIN_CONTRAST = 105.0
_BAND = 0.05  # nearer than this to a third of the image a position is nobody's certainty
_SMALL, _BIG = 0.155, 0.19
_GAP = 0.025


@dataclass(frozen=True)
class Shape:
    """One shape: its facts, and the outline from which it is drawn (None for a circle)."""

    kind: str
    color: str
    x: float
    y: float
    extent: float
    rgb: Rgb = (0, 0, 0)
    half_width: float = 0.0
    half_height: float = 0.0
    outline: tuple[Point, ...] | None = None


@dataclass(frozen=True)
class Background:
    """The ground of a scene; `name` is None where people would not agree on one word."""

    name: str | None
    start: Rgb
    end: Rgb
    angle: float = 0.0


@dataclass(frozen=True)
class Scene:
    """All that is true of one image."""

    shapes: tuple[Shape, ...]
    background: Background
    aspect: float = 1.0


@dataclass(frozen=True)
class Symmetry:
    """One of the eight symmetries of the square: transpose first, then mirror."""

    transpose: bool = False
    flip_x: bool = False
    flip_y: bool = False

    def point(self, x: float, y: float) -> Point:
        """Where a point of the image goes."""
        if self.transpose:
            x, y = y, x
        return (1 - x if self.flip_x else x, 1 - y if self.flip_y else y)

    def apply(self, scene: Scene) -> Scene:
        """Move the description along; outlines are dropped, for the image is drawn already."""
        shapes = []
        for shape in scene.shapes:
            x, y = self.point(shape.x, shape.y)
            shapes.append(replace(shape, x=x, y=y, outline=None))
        return replace(scene, shapes=tuple(shapes))


SYMMETRIES = tuple(Symmetry(bool(code & 1), bool(code & 2), bool(code & 4)) for code in range(8))


def _third(value: float) -> int | None:
    if min(abs(value - 1 / 3), abs(value - 2 / 3)) < _BAND:
        return None
    return int(value * 3)


def column(shape: Shape) -> int | None:
    """0 left, 1 middle, 2 right; None where it could be called either."""
    return _third(shape.x)


def row(shape: Shape) -> int | None:
    """0 top, 1 middle, 2 bottom; None where it could be called either."""
    return _third(shape.y)


def size_name(shape: Shape) -> str | None:
    """ "small" or "big"; None between them."""
    return "small" if shape.extent < _SMALL else "big" if shape.extent > _BIG else None


def distance(a: Rgb, b: Rgb) -> float:
    """Euclidean distance of two colours, 0 to 441."""
    return math.dist(a, b)


def _jitter(rng: random.Random, rgb: Rgb, amount: int) -> Rgb:
    r, g, b = (max(0, min(255, c + rng.randint(-amount, amount))) for c in rgb)
    return (r, g, b)


def _from_hsv(hue: float, saturation: float, value: float) -> Rgb:
    r, g, b = colorsys.hsv_to_rgb((hue % 360) / 360, saturation, value)
    return (round(r * 255), round(g * 255), round(b * 255))


def sample_rgb(rng: random.Random, color: str) -> Rgb:
    """A tone of the colour: half of the time exactly what a stranger would type."""
    roll = rng.random()
    if roll < 0.3:
        return _ANCHORS[color][0] if rng.random() < 0.7 else rng.choice(_ANCHORS[color][:2])
    if roll < 0.7 or color not in _HUES:
        return _jitter(rng, rng.choice(_ANCHORS[color]), rng.choice((0, 6, 12)))
    low, high = _HUES[color]
    darkest = {"yellow": 0.85, "orange": 0.85, "red": 0.62}.get(color, 0.5)
    brightest = 0.92 if color == "purple" else 1.0  # beyond that people say magenta
    palest = 0.78 if color == "orange" else 0.66
    tone = rng.uniform(palest, 1), rng.uniform(darkest, brightest)
    return _from_hsv(rng.uniform(low, high), *tone)


def _sample_ground(rng: random.Random) -> tuple[str | None, Rgb]:
    """Name and tone of a background; pure white is what strangers choose most."""
    roll = rng.random()
    if roll < 0.24:
        return "white", (255, 255, 255)
    if roll < 0.32:
        level = rng.randint(228, 254)
        return ("white" if level >= 246 else None), _jitter(rng, (level, level, level), 3)
    if roll < 0.44:
        level = rng.choice((0, 0, 8, 16, 24, rng.randint(24, 45)))
        return ("black" if level <= 16 else None), (level, level, level)
    if roll < 0.60:
        level = rng.randint(45, 225)
        named = "grey" if 95 <= level <= 195 else None
        named = "light grey" if level > 205 else "dark grey" if level < 80 else named
        return named, _jitter(rng, (level, level, level), 4)
    if roll < 0.76:
        color = rng.choice(tuple(_HUES))
        return color, sample_rgb(rng, color)
    color = rng.choice(tuple(_HUES))
    low, high = _HUES[color]
    hue = rng.uniform(low, high)
    if roll < 0.90:
        named = f"light {color}" if color in ("blue", "green", "yellow") else None
        return named, _from_hsv(hue, rng.uniform(0.1, 0.4), rng.uniform(0.88, 1))
    named = f"dark {color}" if color in ("red", "green", "blue", "purple") else None
    return named, _from_hsv(hue, rng.uniform(0.5, 1), rng.uniform(0.16, 0.36))


def _sample_background(rng: random.Random) -> Background:
    name, start = _sample_ground(rng)
    if rng.random() < 0.84:
        return Background(name, start, start)
    amount = rng.choice((20, 45, 80))
    shift = rng.randint(-amount, amount)
    r, g, b = (max(0, min(255, c + shift + rng.randint(-8, 8))) for c in start)
    return Background(name if abs(shift) <= 20 else None, start, (r, g, b), rng.uniform(0, 360))


def _polygon(rng: random.Random, kind: str, radius: float) -> tuple[Point, ...]:
    """Corners about the origin, in units of the short side."""
    if kind == "square":
        half = radius * rng.choice((1.0, 1.0, 0.8, math.sqrt(0.5)))
        corners = [(-half, -half), (half, -half), (half, half), (-half, half)]
        turn = rng.choice((rng.uniform(-15, 15), rng.uniform(0, 90)))
        turn = 0.0 if rng.random() < 0.65 else turn
    else:
        roll = rng.random()
        if roll < 0.45:
            corners = [
                (radius * math.sin(k * math.tau / 3), -radius * math.cos(k * math.tau / 3))
                for k in range(3)
            ]
        elif roll < 0.94:
            base, height = radius * rng.uniform(0.75, 1), radius * rng.uniform(0.75, 1)
            base, height = (radius, radius) if rng.random() < 0.4 else (base, height)
            corners = [(0.0, -height), (base, height), (-base, height)]
        else:
            corners = [(-radius, -radius), (radius, radius), (-radius, radius)]
        turn = rng.choice((0.0, 0.0, 0.0, 180.0, rng.uniform(-20, 20), rng.uniform(0, 360)))
    cos, sin = math.cos(math.radians(turn)), math.sin(math.radians(turn))
    return tuple((x * cos - y * sin, x * sin + y * cos) for x, y in corners)


def _sample_radius(rng: random.Random, count: int) -> float:
    roll = rng.random()
    if roll < 0.45:
        return rng.uniform(0.1, 0.15)
    if roll < 0.65:
        return rng.uniform(0.15, 0.2)
    return rng.uniform(0.2, 0.3 if count < 3 else 0.27)


def _place(
    rng: random.Random, kind: str, radius: float, aspect: float, placed: list[tuple[float, ...]]
) -> tuple[Shape, tuple[float, ...]] | None:
    """Try to put one shape where it touches none of the placed boxes."""
    width, height = max(1.0, aspect), max(1.0, 1 / aspect)
    points = None if kind == "circle" else _polygon(rng, kind, radius)
    if points is None:
        half_w = half_h = reach = radius
    else:
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        mid_x, mid_y = (min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2
        points = tuple((x - mid_x, y - mid_y) for x, y in points)
        half_w, half_h = (max(xs) - min(xs)) / 2, (max(ys) - min(ys)) / 2
        reach = max(math.hypot(*p) for p in points)
    if 2 * half_w > width - 0.02 or 2 * half_h > height - 0.02:
        return None
    for _ in range(25):
        x = rng.uniform(half_w + 0.01, width - half_w - 0.01)
        y = rng.uniform(half_h + 0.01, height - half_h - 0.01)
        clear = all(
            abs(x - other[0]) > half_w + other[2] + _GAP
            or abs(y - other[1]) > half_h + other[3] + _GAP
            or math.hypot(x - other[0], y - other[1]) > reach + other[4] + _GAP
            for other in placed
        )
        if clear:
            outline = points and tuple(((x + px) / width, (y + py) / height) for px, py in points)
            shape = Shape(
                kind, "", x / width, y / height, max(half_w, half_h),
                half_width=half_w / width, half_height=half_h / height, outline=outline,
            )  # fmt: skip
            return shape, (x, y, half_w, half_h, reach)
    return None


def _sample_looks(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Kinds and colours; distinct ones more often than chance, as in scenes drawn by people."""
    if rng.random() < 0.45:
        kinds, colors = rng.sample(KINDS, count), rng.sample(COLORS, count)
    else:
        kinds = [rng.choice(KINDS) for _ in range(count)]
        colors = [rng.choice(COLORS) for _ in range(count)]
    if count > 1 and rng.random() < 0.06:
        kinds[1], colors[1] = kinds[0], colors[0]
    return list(zip(kinds, colors, strict=True))


def sample_aspect(rng: random.Random) -> float:
    """Width over height, 1:2 to 2:1, with the usual formats more often than chance."""
    if rng.random() < 0.5:
        aspect = rng.choice((1.0, 1.0, 4 / 3, 4 / 3, 3 / 2, 16 / 9, 2.0))
        return aspect if rng.random() < 0.7 else 1 / aspect
    return math.exp(rng.uniform(-math.log(2), math.log(2)))


def sample_scene(rng: random.Random) -> Scene:
    """Draw one scene by lot: none to three shapes, anywhere."""
    count = rng.choices((0, 1, 2, 3), (3, 27, 37, 33))[0]
    aspect = sample_aspect(rng)
    background = _sample_background(rng)
    shapes: list[Shape] = []
    placed: list[tuple[float, ...]] = []
    for kind, color in _sample_looks(rng, count):
        rgb = sample_rgb(rng, color)
        for _ in range(12):
            if min(distance(rgb, background.start), distance(rgb, background.end)) > _MIN_CONTRAST:
                break
            color = rng.choice(COLORS)
            rgb = sample_rgb(rng, color)
        else:
            continue
        radius = _sample_radius(rng, count)
        while (found := _place(rng, kind, radius, aspect, placed)) is None and radius > 0.11:
            radius = max(0.1, radius * 0.8)
        if found is not None:
            shapes.append(replace(found[0], color=color, rgb=rgb))
            placed.append(found[1])
    return Scene(tuple(shapes), background, aspect)
