"""Settings that a checkpoint lacks or gets wrong: mended from the model's config, and said."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conversations import SCENES, SHAPES, ask, random_conversation
from small_models import ARCHITECTURES, answer, load_llava, prompt_of, text_of

from tuichat import torchkit
from tuichat.api import Conversation, Loaded, ModelNotAvailable, Turn
from tuichat_llava import plugin

MakeLlava = Callable[..., Path]
TILED = ("llava_next", "llava_onevision")


@pytest.fixture
def copy_of(architecture_folders: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A checkpoint of an architecture that a test may break."""

    def copy(architecture: str) -> Path:
        return Path(shutil.copytree(architecture_folders[architecture], tmp_path / architecture))

    return copy


def edit_json(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text())
    value.update(changes)
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not ...}))


def notices(loaded: Loaded) -> str:
    return "\n".join(loaded.facts.notices)


def same_answers(one: Loaded, other: Loaded) -> bool:
    question = ask("What is it?", SHAPES[3])
    torchkit.forget(one.handle)
    torchkit.forget(other.handle)
    return text_of(answer(one, question)) == text_of(answer(other, question))


# --------------------------------------------------------------------------- chat templates


@pytest.mark.parametrize(
    ("architecture", "style", "family"),
    [
        ("llava", "vicuna", "Vicuna"),
        ("llava", "llama3", "Llama 3"),
        ("llava_next", "vicuna", "Mistral"),
        ("llava_next", "qwen", "ChatML"),
        ("llava_onevision", "qwen", "Qwen"),
    ],
)
def test_a_checkpoint_without_chat_template_gets_its_familys(
    architecture: str, style: str, family: str, make_llava: MakeLlava
) -> None:
    recipe = {"architecture": architecture, "style": style}
    bare = load_llava(make_llava(**recipe, template=False))
    assert notices(bare) == f"The checkpoint has no chat template: {family}'s is used."
    if family in ("Mistral", "ChatML"):
        return  # the templates on the hub differ from these in a space
    original = load_llava(make_llava(**recipe))
    rng = random.Random(1)
    for _ in range(20):
        conversation = random_conversation(rng)
        ours, theirs = prompt_of(bare, conversation), prompt_of(original, conversation)
        assert (ours.ids, ours.spans) == (theirs.ids, theirs.spans)


@pytest.mark.parametrize(
    ("style", "rendered"),
    [
        # It has no system role: the system prompt leads the first turn's text, behind its image.
        # A space behind a control token is this kind of tokenizer's own.
        ("vicuna", "<s> [INST] <image>* \nS\n\nQ [/INST] A</s> [INST] R [/INST]"),
        (
            "qwen",
            "<|im_start|>system\nS<|im_end|><|im_start|>user\n<image>*\nQ<|im_end|>"
            "<|im_start|>assistant\nA<|im_end|><|im_start|>user\nR<|im_end|>"
            "<|im_start|>assistant\n",
        ),
    ],
)
def test_what_next_was_trained_with(style: str, rendered: str, make_llava: MakeLlava) -> None:
    loaded = load_llava(make_llava(architecture="llava_next", style=style, template=False))
    turns = (Turn("user", "Q", (SCENES[0],)), Turn("assistant", "A"), Turn("user", "R"))
    prompt = prompt_of(loaded, Conversation("S", turns))
    text = loaded.handle.tokenizer.decode(list(prompt.ids), skip_special_tokens=False)
    collapsed = text.replace("<image>" * prompt.spans[0].length, "<image>*")
    assert collapsed == rendered


# --------------------------------------------------------------------------- processor settings


@pytest.mark.parametrize(
    ("architecture", "processor", "said"),
    [
        ("llava", {"patch_size": ...}, "has no patch_size: the model makes 4 tokens of an image"),
        ("llava", {"vision_feature_select_strategy": ...}, "no vision_feature_select_strategy"),
        ("llava", {"num_additional_image_tokens": 0}, "amount to 3 image tokens: the model"),
        ("llava", {"vision_feature_select_strategy": "full"}, "amount to 5 image tokens"),
        ("llava_next", {"patch_size": ...}, "has no patch_size: the model makes 4 tokens of a ti"),
        ("llava_next", {"vision_feature_select_strategy": ...}, "no vision_feature_select"),
        (
            "llava_next",
            {"patch_size": ..., "vision_feature_select_strategy": ...},
            "has no patch_size and no vision_feature_select_strategy",
        ),
        ("llava_next", {"num_additional_image_tokens": 0}, "amount to 3 image tokens"),
        ("llava_next", {"num_additional_image_tokens": ...}, "amount to 3 image tokens"),
        ("llava_onevision", {"num_image_tokens": ...}, "has no num_image_tokens"),
        ("llava_onevision", {"vision_feature_select_strategy": ...}, "no vision_feature_select"),
        ("llava_onevision", {"num_image_tokens": 5}, "amount to 5 image tokens"),
        ("llava_onevision", {"vision_feature_select_strategy": "default"}, "amount to 3 image"),
    ],
)
def test_processor_settings_that_are_missing_or_wrong_change_no_prompt(
    architecture: str,
    processor: dict[str, Any],
    said: str,
    copy_of: Callable[[str], Path],
    architecture_folders: dict[str, Path],
) -> None:
    folder = copy_of(architecture)
    edit_json(folder / "processor_config.json", **processor)
    loaded, right = load_llava(folder), load_llava(architecture_folders[architecture])
    assert said in notices(loaded)
    assert right.facts.notices == ()
    question = ask("x", SHAPES[3])
    assert prompt_of(loaded, question).ids == prompt_of(right, question).ids
    assert same_answers(loaded, right)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_image_token_id_that_differs_is_taken_from_the_tokenizer(
    architecture: str, copy_of: Callable[[str], Path], architecture_folders: dict[str, Path]
) -> None:
    folder = copy_of(architecture)
    config = json.loads((folder / "config.json").read_text())
    key = "image_token_id" if "image_token_id" in config else "image_token_index"
    edit_json(folder / "config.json", **{key: config[key] - 3})
    loaded = load_llava(folder)
    assert f"the image placeholder the id {config[key] - 3}" in notices(loaded)
    assert f"the id {config[key]}, which is used" in notices(loaded)
    assert same_answers(loaded, load_llava(architecture_folders[architecture]))


# --------------------------------------------------------------------------- feature selection


@pytest.mark.parametrize("architecture", TILED)
@pytest.mark.parametrize(("tower", "fitting"), [("clip", "default"), ("siglip", "full")])
def test_tiles_take_the_selection_that_fits_the_tower(
    architecture: str, tower: str, fitting: str, make_llava: MakeLlava
) -> None:
    """With the other one the model of transformers cannot put its tiles together."""
    wrong = {"default": "full", "full": "default"}[fitting]
    recipe: dict[str, Any] = {"architecture": architecture, "tower": tower}
    loaded = load_llava(make_llava(**recipe, config={"vision_feature_select_strategy": wrong}))
    assert (
        f"has {'a' if tower == 'clip' else 'no'} class token, which "
        f"vision_feature_select_strategy {wrong} in config.json does not fit: {fitting} is used"
    ) in notices(loaded)
    right = load_llava(make_llava(**recipe, config={"vision_feature_select_strategy": fitting}))
    assert "class token" not in notices(right)
    assert same_answers(loaded, right)
    usage = answer(loaded, ask("x", SHAPES[3]))[-1].usage
    assert usage is not None
    assert usage.image_tokens == plugin.tuichat_image_tokens(
        loaded, SHAPES[3].width, SHAPES[3].height
    )


@pytest.mark.parametrize(("strategy", "tokens"), [("full", 4), ("default", 3)])
def test_a_square_of_a_siglip_tower_is_counted_as_the_model_selects_it(
    strategy: str, tokens: int, make_llava: MakeLlava
) -> None:
    folder = make_llava(tower="siglip", config={"vision_feature_select_strategy": strategy})
    loaded = load_llava(folder)
    assert plugin.tuichat_image_tokens(loaded, 10, 10) == tokens
    assert ("first feature of each image dropped" in notices(loaded)) is (strategy == "default")
    usage = answer(loaded, ask("x", SCENES[0]))[-1].usage
    assert usage is not None
    assert usage.image_tokens == tokens


@pytest.mark.parametrize("architecture", TILED)
def test_an_image_processor_with_other_tiles_takes_the_models(
    architecture: str, copy_of: Callable[[str], Path], architecture_folders: dict[str, Path]
) -> None:
    folder = copy_of(architecture)
    path = folder / "processor_config.json"
    settings = json.loads(path.read_text())
    if "image_processor" in settings:
        settings["image_processor"]["image_grid_pinpoints"] = [[28, 28], [56, 56]]
        path.write_text(json.dumps(settings))
    else:
        edit_json(folder / "preprocessor_config.json", image_grid_pinpoints=[[28, 28], [56, 56]])
    loaded = load_llava(folder)
    assert "image_grid_pinpoints are not those of config.json" in notices(loaded)
    assert same_answers(loaded, load_llava(architecture_folders[architecture]))


def test_an_aspect_ratio_that_is_not_any_resolution_is_refused(
    copy_of: Callable[[str], Path],
) -> None:
    folder = copy_of("llava_onevision")
    edit_json(folder / "config.json", vision_aspect_ratio="pad")
    with pytest.raises(ModelNotAvailable, match="vision_aspect_ratio is pad"):
        load_llava(folder)


# --------------------------------------------------------------------------- image_newline


@pytest.mark.parametrize("architecture", TILED)
def test_the_newline_of_tiles_is_a_component_that_is_watched(
    architecture: str, architecture_folders: dict[str, Path]
) -> None:
    loaded = load_llava(architecture_folders[architecture], dtype="float16")
    handle, base = loaded.handle, loaded.handle.model.base_model
    rows = [row.component for row in plugin.tuichat_align_dtype(loaded).rows]
    assert rows == [
        "pixels",
        "vision tower",
        "projector",
        "image newline",
        "language model",
        "lm_head",
    ]
    base.image_newline.data = base.image_newline.data.float()
    report = plugin.tuichat_align_dtype(loaded)
    assert report.changed == ("image newline",)
    assert base.image_newline.dtype is torch.float16
    base.image_newline = torch.nn.Parameter(base.image_newline.detach().bfloat16())
    assert plugin.tuichat_align_dtype(loaded).changed == ("image newline",)
    assert base.image_newline.dtype is torch.float16
    assert plugin.tuichat_align_dtype(loaded).changed == ()
    assert handle.components()["image newline"] is handle.components()["image newline"]


@pytest.mark.parametrize("architecture", TILED)
@pytest.mark.parametrize("component", ["vision tower", "projector", "image newline"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_component_of_the_image_side_is_watched(
    architecture: str,
    component: str,
    dtype: torch.dtype,
    architecture_folders: dict[str, Path],
) -> None:
    loaded = load_llava(architecture_folders[architecture], dtype="float16")
    loaded.handle.components()[component].to(dtype)
    assert plugin.tuichat_align_dtype(loaded).changed == (component,)
    kinds = {torchkit.boundary_dtype(part) for part in loaded.handle.components().values()}
    assert kinds == {torch.float16}
    assert answer(loaded, ask("x", SHAPES[3]))[-1].stop_reason in ("end", "length")
