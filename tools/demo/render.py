"""Rendering: from a scene to pixels, and the data set of rendered scenes.

Owns everything between a `Scene` and the uint8 array that the image processor would hand to a
vision tower: drawing, noise, JPEG, resizing, and the per-patch ownership from which the vision
stage learns. Refuses to know questions or models.

Invariant: `downsample` is the very operation of the shipped image processor (PIL, bicubic, the
whole image squashed to a square), so training and inference see the same pixels.
"""

from __future__ import annotations

import io
import json
import math
import random
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from .scenes import Background, Scene, Shape, sample_scene

IMAGE_SIZE = 64
PATCH_SIZE = 8
GRID = IMAGE_SIZE // PATCH_SIZE
NO_OWNER = 255
_COVERED = 0.12


def _ground(background: Background, width: int, height: int) -> Image.Image:
    if background.start == background.end:
        return Image.new("RGB", (width, height), background.start)
    angle = math.radians(background.angle)
    x = np.linspace(-0.5, 0.5, width, dtype=np.float32)[None, :] * math.cos(angle)
    y = np.linspace(-0.5, 0.5, height, dtype=np.float32)[:, None] * math.sin(angle)
    t = ((x + y) / (abs(math.cos(angle)) + abs(math.sin(angle))) + 0.5)[..., None]
    pixels = np.array(background.start) * (1 - t) + np.array(background.end) * t
    return Image.fromarray(pixels.round().astype(np.uint8))


def _draw(draw: ImageDraw.ImageDraw, shape: Shape, size: tuple[int, int], fill: object) -> None:
    width, height = size
    if shape.outline is None:
        box = (
            (shape.x - shape.half_width) * width, (shape.y - shape.half_height) * height,
            (shape.x + shape.half_width) * width, (shape.y + shape.half_height) * height,
        )  # fmt: skip
        draw.ellipse(box, fill=fill)
    else:
        draw.polygon([(x * width, y * height) for x, y in shape.outline], fill=fill)


def _stroke(
    draw: ImageDraw.ImageDraw, shape: Shape, size: tuple[int, int], ink: tuple[int, int, int]
) -> None:
    """A thin contour over the shape's edge."""
    width, height = size
    thick = max(1, round(0.06 * shape.extent * min(size)))
    if shape.outline is None:
        box = (
            (shape.x - shape.half_width) * width, (shape.y - shape.half_height) * height,
            (shape.x + shape.half_width) * width, (shape.y + shape.half_height) * height,
        )  # fmt: skip
        draw.ellipse(box, outline=ink, width=thick)
    else:
        points = [(x * width, y * height) for x, y in shape.outline]
        draw.line([*points, points[0], points[1]], fill=ink, width=thick, joint="curve")


def sample_size(rng: random.Random, aspect: float) -> tuple[int, int]:
    """Width and height in pixels: 60 to 2,000, mostly small because they render faster."""
    # Above some 500 pixels an image differs from a smaller one only in being cleaner.
    top = 500 if rng.random() < 0.95 else 2000
    longest = math.exp(rng.uniform(math.log(max(60 * max(aspect, 1 / aspect), 90)), math.log(top)))
    width, height = (longest, longest / aspect) if aspect > 1 else (longest * aspect, longest)
    return max(60, round(width)), max(60, round(height))


def render(scene: Scene, rng: random.Random) -> Image.Image:
    """Draw the scene as a stranger might: plain or smooth, outlined or not, noisy or blurred."""
    width, height = sample_size(rng, scene.aspect)
    scale = 2 if rng.random() < 0.45 and max(width, height) < 600 else 1
    size = (width * scale, height * scale)
    image = _ground(scene.background, *size)
    draw = ImageDraw.Draw(image)
    ink = rng.choice(((0, 0, 0), (0, 0, 0), (255, 255, 255), (90, 90, 90)))
    outlined = rng.random() < 0.18
    for shape in scene.shapes:
        _draw(draw, shape, size, shape.rgb)
        if outlined:
            _stroke(draw, shape, size, ink)
    if scale > 1:
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    if rng.random() < 0.1:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.2, 0.008 * min(width, height))))
    if rng.random() < 0.25:
        noise = np.random.default_rng(rng.getrandbits(32)).standard_normal(
            (height, width, 3), dtype=np.float32
        )
        pixels = np.asarray(image, dtype=np.float32) + noise * rng.uniform(2, 16)
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    return image


def encode(image: Image.Image, rng: random.Random) -> bytes:
    """The image as PNG or JPEG bytes."""
    buffer = io.BytesIO()
    if rng.random() < 0.5:
        image.save(buffer, "PNG", compress_level=1)
    else:
        image.save(buffer, "JPEG", quality=rng.randint(30, 95))
    return buffer.getvalue()


def downsample(image: Image.Image) -> np.ndarray:
    """What the image processor does before it rescales and normalises."""
    resized = image.convert("RGB").resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC)
    return np.asarray(resized)


def patch_owners(scene: Scene) -> np.ndarray:
    """For each patch the index of the shape that covers most of it, or `NO_OWNER`."""
    cover = np.zeros((len(scene.shapes) + 1, GRID, GRID), dtype=np.float32)
    for index, shape in enumerate(scene.shapes):
        mask = Image.new("L", (IMAGE_SIZE * 2, IMAGE_SIZE * 2))
        _draw(ImageDraw.Draw(mask), shape, mask.size, 1)
        blocks = np.asarray(mask).reshape(GRID, PATCH_SIZE * 2, GRID, PATCH_SIZE * 2)
        cover[index] = blocks.mean(axis=(1, 3))
    cover[-1] = _COVERED
    owners = cover.argmax(axis=0).astype(np.uint8)
    owners[owners == len(scene.shapes)] = NO_OWNER
    return owners.reshape(-1)


def scene_to_json(scene: Scene) -> str:
    """One line of facts; what only drawing needs is left out."""
    record = asdict(scene)
    for shape in record["shapes"]:
        del shape["outline"]
    return json.dumps(record, separators=(",", ":"))


def scene_from_json(line: str) -> Scene:
    """The inverse of `scene_to_json`."""
    record = json.loads(line)
    ground = record["background"]
    background = Background(
        ground["name"], tuple(ground["start"]), tuple(ground["end"]), ground["angle"]
    )
    shapes = tuple(Shape(**{**s, "rgb": tuple(s["rgb"])}) for s in record["shapes"])
    return Scene(shapes, background, record["aspect"])


def write_shard(folder: Path, name: str, seed: int, count: int) -> None:
    """Render `count` scenes into `name.npz` and `name.jsonl`; a finished shard is kept."""
    if (folder / f"{name}.npz").exists():
        return
    rng = random.Random(seed)
    pixels = np.empty((count, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    owners = np.empty((count, GRID * GRID), dtype=np.uint8)
    lines = []
    for index in range(count):
        scene = sample_scene(rng)
        image = render(scene, rng)
        # Half of the images go through JPEG; the others would come back from PNG as they are.
        if rng.random() < 0.5:
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=rng.randint(30, 95))
            image = Image.open(buffer)
        pixels[index] = downsample(image)
        owners[index] = patch_owners(scene)
        lines.append(scene_to_json(scene))
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial = folder / f"{name}.part.npz"
    np.savez(partial, pixels=pixels, owners=owners)
    partial.rename(folder / f"{name}.npz")
