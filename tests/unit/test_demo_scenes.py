"""The scenes on which the demo models are trained: the facts must be true of the pixels.

A bug here costs hours of training before anybody sees it.
"""

from __future__ import annotations

import io
import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from demo import render, scenes


def draw(seed: int, count: int) -> list[scenes.Scene]:
    rng = random.Random(seed)
    return [scenes.sample_scene(rng) for _ in range(count)]


def test_shapes_lie_inside_and_apart() -> None:
    for scene in draw(1, 400):
        for shape in scene.shapes:
            assert shape.half_width <= shape.x <= 1 - shape.half_width
            assert shape.half_height <= shape.y <= 1 - shape.half_height
        masks = []
        for shape in scene.shapes:
            mask = Image.new("1", (200, 200))
            render._draw(render.ImageDraw.Draw(mask), shape, mask.size, 1)
            masks.append(np.asarray(mask))
        assert not masks or np.sum(masks, axis=0).max() <= 1


def test_shapes_stand_out_from_the_background() -> None:
    for scene in draw(2, 400):
        for shape in scene.shapes:
            assert scenes.distance(shape.rgb, scene.background.start) > 100
            assert scenes.distance(shape.rgb, scene.background.end) > 100


def test_a_shape_has_its_colour_at_its_centre() -> None:
    rng = random.Random(3)
    for scene in draw(3, 60):
        image = render.render(scene, rng)
        for shape in scene.shapes:
            # A triangle's box has its centre inside the triangle only if it points along an axis.
            if shape.kind == "triangle":
                continue
            at = (int(shape.x * image.width), int(shape.y * image.height))
            red, green, blue = image.getpixel(at)  # type: ignore[misc]
            assert scenes.distance((red, green, blue), shape.rgb) < 90


def test_every_kind_colour_count_and_half_of_the_image_occurs() -> None:
    drawn = draw(4, 2000)
    shapes = [shape for scene in drawn for shape in scene.shapes]
    for kind in scenes.KINDS:
        assert sum(s.kind == kind for s in shapes) / len(shapes) > 0.28
    for color in scenes.COLORS:
        assert sum(s.color == color for s in shapes) / len(shapes) > 0.05
    assert {len(scene.shapes) for scene in drawn} == {0, 1, 2, 3}
    assert abs(sum(s.x > 0.5 for s in shapes) / len(shapes) - 0.5) < 0.05
    assert sum(scene.background.start == (255, 255, 255) for scene in drawn) / 2000 > 0.15
    sizes = [scenes.size_name(s) for s in shapes]
    assert min(sizes.count("small"), sizes.count("big")) / len(shapes) > 0.3
    assert min(scene.aspect for scene in drawn) >= 0.5
    assert max(scene.aspect for scene in drawn) <= 2


@pytest.mark.parametrize("symmetry", scenes.SYMMETRIES, ids=str)
def test_a_symmetry_moves_pixels_and_facts_alike(symmetry: scenes.Symmetry) -> None:
    dataset = pytest.importorskip("demo.dataset")
    shape = scenes.Shape("circle", "red", 0.2, 0.7, 0.05, (255, 0, 0), 0.05, 0.05)
    white = scenes.Background("white", (255, 255, 255), (255, 255, 255))
    scene = scenes.Scene((shape,), white)
    image = Image.new("RGB", (100, 100), "white")
    render._draw(render.ImageDraw.Draw(image), shape, image.size, shape.rgb)
    moved = dataset._transform(np.asarray(image), symmetry)
    (fact,) = symmetry.apply(scene).shapes
    assert tuple(moved[int(fact.y * 100), int(fact.x * 100)]) == (255, 0, 0)


def test_the_patch_of_a_centre_belongs_to_the_shape() -> None:
    for scene in draw(5, 200):
        owners = render.patch_owners(scene)
        for index, shape in enumerate(scene.shapes):
            assert (owners == index).any()
            if shape.kind != "triangle" and shape.half_width > 0.15 and shape.half_height > 0.15:
                at = int(shape.y * render.GRID) * render.GRID + int(shape.x * render.GRID)
                assert owners[at] == index


def test_facts_survive_the_file() -> None:
    for scene in draw(6, 50):
        back = render.scene_from_json(render.scene_to_json(scene))
        assert back.background == scene.background
        for shape, other in zip(scene.shapes, back.shapes, strict=True):
            assert scenes.replace(shape, outline=None) == other


def test_sizes_and_aspects_of_images() -> None:
    rng = random.Random(7)
    for scene in draw(7, 300):
        width, height = render.sample_size(rng, scene.aspect)
        assert min(width, height) >= 60
        assert max(width, height) <= 2000
        assert math.isclose(width / height, scene.aspect, rel_tol=0.05)


def test_encoded_images_are_png_or_jpeg() -> None:
    rng = random.Random(8)
    image = render.render(draw(8, 1)[0], rng)
    formats = {Image.open(io.BytesIO(render.encode(image, rng))).format for _ in range(20)}
    assert formats == {"PNG", "JPEG"}


def test_the_same_seed_draws_the_same_images() -> None:
    first, second = (render.render(draw(9, 1)[0], random.Random(1)) for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_a_finished_shard_is_kept(tmp_path: Path) -> None:
    render.write_shard(tmp_path, "train0", 1, 3)
    before = (tmp_path / "train0.npz").read_bytes()
    render.write_shard(tmp_path, "train0", 2, 3)
    assert (tmp_path / "train0.npz").read_bytes() == before
