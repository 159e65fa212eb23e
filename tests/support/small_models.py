"""Models for the tests of torchkit and of the bundled backends: small, and of the real classes.

Nothing is mocked: the demo checkpoint is the shipped one, and every other model is built with the
classes of transformers, saved with ``save_pretrained`` and loaded through the plugin's own hooks.
The fixtures over these functions are in ``tests/plugins/conftest.py``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from small_tokenizers import STYLES
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessorPil,
    LlavaNextProcessor,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessorPil,
    LlavaProcessor,
    MistralConfig,
    Qwen2Config,
    SiglipVisionConfig,
)

from tuichat.api import Conversation, Delta, GenerationParams, Loaded, LoadRequest, Prompt
from tuichat.torchkit import hooks
from tuichat_llava import plugin

ARCHITECTURES = ("llava", "llava_next", "llava_onevision")

USUAL_STYLE = {"llava": "vicuna", "llava_next": "mistral", "llava_onevision": "qwen"}
"""The prompt style of each architecture's first checkpoint."""

PATCH = 14


class Stop:
    """A control that stops after it was looked at ``after`` times; never by default."""

    def __init__(self, after: int | None = None) -> None:
        self.after = after
        self.looks = 0

    @property
    def stopped(self) -> bool:
        self.looks += 1
        return self.after is not None and self.looks > self.after


@dataclass
class Recipe:
    """How a small model is built; every change is an attribute here."""

    architecture: str = "llava"
    style: str | None = None
    """Tokenizer and chat template; None is the architecture's usual one."""
    template: bool = True
    seed: int = 0
    layers: int = 2
    image_size: int = 28
    tower: str | None = None
    """``clip`` or ``siglip``; None is the architecture's usual one."""
    text: dict[str, Any] = field(default_factory=dict)
    vision: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    processor: dict[str, Any] = field(default_factory=dict)
    scale: float = 0.2
    """Standard deviation of random weights: large enough that answers differ."""


def build_model(folder: Path, recipe: Recipe) -> Path:
    """Build a random model with the real classes and save it as a checkpoint."""
    torch.manual_seed(recipe.seed)
    make_tokenizer, template = STYLES[recipe.style or USUAL_STYLE[recipe.architecture]]
    tokenizer = make_tokenizer()
    text = _text_config(recipe, tokenizer)
    common = {
        "vision_config": _vision_config(recipe),
        "text_config": text,
        "image_token_index": tokenizer.convert_tokens_to_ids("<image>"),
        "tie_word_embeddings": text.tie_word_embeddings,
        **_grid(recipe),
        **recipe.config,
    }
    model: Any
    if recipe.architecture == "llava":
        model = LlavaForConditionalGeneration(LlavaConfig(**_clip_features(common)))
    elif recipe.architecture == "llava_next":
        model = LlavaNextForConditionalGeneration(LlavaNextConfig(**_clip_features(common)))
    else:
        video = tokenizer.convert_tokens_to_ids("<video>")
        config = LlavaOnevisionConfig(video_token_index=video, **common)
        model = LlavaOnevisionForConditionalGeneration(config)
    torch.manual_seed(recipe.seed)
    for parameter in model.parameters():
        if parameter.ndim > 1 or parameter is getattr(model.model, "image_newline", None):
            torch.nn.init.normal_(parameter, std=recipe.scale)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(folder)
    _save_processor(folder, recipe, tokenizer, template if recipe.template else None)
    return folder


def _clip_features(config: dict[str, Any]) -> dict[str, Any]:
    return {"vision_feature_layer": -2, "vision_feature_select_strategy": "default", **config}


def _grid(recipe: Recipe) -> dict[str, Any]:
    """Resolutions in the arrangements that the real checkpoints have."""
    side = recipe.image_size
    if recipe.architecture == "llava":
        return {}
    grid = [(1, 2), (2, 1), (2, 2), (3, 1), (1, 3)]
    if recipe.architecture == "llava_onevision":
        grid = [(rows, columns) for rows in range(1, 7) for columns in range(1, 7)]
    return {"image_grid_pinpoints": [[rows * side, columns * side] for rows, columns in grid]}


def _vision_config(recipe: Recipe) -> Any:
    usual = "siglip" if recipe.architecture == "llava_onevision" else "clip"
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": recipe.image_size,
        "patch_size": PATCH,
        **recipe.vision,
    }
    if (recipe.tower or usual) == "siglip":
        head = recipe.architecture != "llava_onevision"
        return SiglipVisionConfig(vision_use_head=head, **shape)
    return CLIPVisionConfig(projection_dim=32, **shape)


def _text_config(recipe: Recipe, tokenizer: Any) -> Any:
    kinds = {"llava": LlamaConfig, "llava_next": MistralConfig, "llava_onevision": Qwen2Config}
    usual: dict[str, Any] = {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 8192,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": None,
        "tie_word_embeddings": recipe.architecture == "llava_onevision",
    }
    if recipe.architecture == "llava_next":
        usual["sliding_window"] = None
    return kinds[recipe.architecture](**{**usual, **recipe.text})


def _save_processor(folder: Path, recipe: Recipe, tokenizer: Any, template: str | None) -> None:
    side, grid = recipe.image_size, _grid(recipe)
    square = {"height": side, "width": side}
    settings: dict[str, Any] = {
        "patch_size": PATCH,
        "num_additional_image_tokens": 1,
        "vision_feature_select_strategy": "default",
        **recipe.processor,
    }
    if recipe.architecture == "llava":
        image_processor = CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size=square)
        processor = LlavaProcessor(image_processor, tokenizer, chat_template=template, **settings)
        processor.save_pretrained(folder)
    elif recipe.architecture == "llava_next":
        image_processor = LlavaNextImageProcessorPil(
            size={"shortest_edge": side}, crop_size=square, **grid
        )
        processor = LlavaNextProcessor(
            image_processor, tokenizer, chat_template=template, **settings
        )
        processor.save_pretrained(folder)
    else:
        # Its processor cannot be built without torchvision: the files as they lie on the hub.
        LlavaOnevisionImageProcessorPil(size=square, **grid).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if template is not None:
            (folder / "chat_template.jinja").write_text(template)
        settings = {
            "processor_class": "LlavaOnevisionProcessor",
            "image_token": "<image>",
            "video_token": "<video>",
            "num_image_tokens": (side // PATCH) ** 2,
            "vision_feature_select_strategy": "full",
            "vision_aspect_ratio": "anyres_max_9",
            **recipe.processor,
        }
        (folder / "processor_config.json").write_text(json.dumps(settings))


def demo_folder() -> Path:
    """The shipped demo checkpoint."""
    return Path(str(plugin.tuichat_backend().demo_model))


def load_llava(folder: str | Path, **request: Any) -> Loaded:
    """Load through the plugin's own hook, on the CPU."""
    request = {"device": "cpu", "options": {"attn": "sdpa"}, **request}
    return plugin.tuichat_load(LoadRequest(str(folder), **request), lambda _: None)


def prompt_of(loaded: Loaded, conversation: Conversation) -> Prompt:
    """The prompt that the plugin assembles."""
    return plugin.tuichat_assemble_prompt(loaded, conversation)


def answer(
    loaded: Loaded,
    conversation: Conversation | Prompt,
    control: Any = None,
    **params: Any,
) -> list[Delta]:
    """Every delta of an answer, through the hooks that the worker calls."""
    prompt = conversation
    if isinstance(conversation, Conversation):
        prompt = prompt_of(loaded, conversation)
    params = {"max_new_tokens": 24, **params}
    deltas = hooks.tuichat_generate(loaded, prompt, GenerationParams(**params), control or Stop())
    assert deltas is not None
    return list(deltas)


def text_of(deltas: Sequence[Delta]) -> str:
    """The text of an answer."""
    return "".join(delta.text for delta in deltas)


def without_end(loaded: Loaded) -> Loaded:
    """The same model behind a handle of its own, which never ends by itself."""
    handle = copy.copy(loaded.handle)
    handle._facts = replace(loaded.facts, end_ids=frozenset())
    return Loaded(handle, handle.facts)


def ids_of(loaded: Loaded, prompt: Prompt, count: int) -> list[int]:
    """Ids of a greedy answer, end ids among them, on a handle that nothing is kept for."""

    class Recorder:
        """Every id passes the tokenizer's decoder on its way to the reader."""

        def decode(self, ids: list[int], **_: Any) -> str:
            return "".join(f" {id}" for id in ids)

    endless = without_end(loaded)
    endless.handle._tokenizer = Recorder()
    deltas = answer(endless, prompt, max_new_tokens=count)
    return [int(id) for id in text_of(deltas).split()]
