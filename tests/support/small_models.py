"""Models for the tests of torchkit and of the bundled backends: small, and of the real classes.

Nothing is mocked: the demo checkpoint is the shipped one, and every other model is built with the
classes of transformers, saved with ``save_pretrained`` and loaded through the plugin's own hooks.
The fixtures over these functions are in ``tests/plugins/conftest.py``.
"""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image as PILImage
from PIL import ImageDraw
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors as post_processors
from tokenizers.trainers import BpeTrainer
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)
from tuichat_llava import plugin

from tuichat.api import (
    Conversation,
    Delta,
    GenerationParams,
    Image,
    Loaded,
    LoadRequest,
    Prompt,
    Turn,
)
from tuichat.torchkit import hooks

TEXTS = (
    "What colour is the circle?",
    "  Describe it, please.  ",
    "Two\n\nparagraphs\n",
    "这张图片里有什么？三个形状",
    "한글과 日本語 mixed with English",
    "a family 👩‍👩‍👧‍👦, a flag 🇨🇭 and a 🎉",
    "```python\ndef f(x):\n    return x < 3 and x > -1\n```",
    "$x^2 \\le \\frac{1}{2}$\t<b>not a token</b>",
    "",
    "no",
)

LLAVA_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}"
    "{{ message['role'].upper() + ': '}}{% endif %}"
    "{# Render all images first #}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ content['text'] + ' '}}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)

LLAMA3_TEMPLATE = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    "+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)

ORDINAL_TEMPLATE = (
    "{% set count = namespace(n=0) %}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' }}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "{% set count.n = count.n + 1 %}{{ 'Image ' ~ count.n ~ ': <image>\n' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_CORPUS = [*TEXTS, "USER: ASSISTANT: system user assistant Image 1: 2: the a of shape"] * 3


class Stop:
    """A control that stops after it was looked at ``after`` times; never by default."""

    def __init__(self, after: int | None = None) -> None:
        self.after = after
        self.looks = 0

    @property
    def stopped(self) -> bool:
        self.looks += 1
        return self.after is not None and self.looks > self.after


# --------------------------------------------------------------------------- tokenizers


def llama2_tokenizer() -> PreTrainedTokenizerFast:
    """SentencePiece-like BPE with byte fallback; its specials stand in the vocabulary too."""
    specials = ["<unk>", "<s>", "</s>"]
    alphabet = specials + [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trained.normalizer = _legacy_normalizer()
    trained.train_from_iterator(_CORPUS, BpeTrainer(vocab_size=420, special_tokens=alphabet))
    # The trainer lists the bytes as added tokens: rebuild with only the real ones.
    tokenizer = Tokenizer(trained.model)
    tokenizer.normalizer = _legacy_normalizer()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in specials])
    _add_image_token(tokenizer)
    tokenizer.post_processor = post_processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def _legacy_normalizer() -> Any:
    return normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def llama3_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE whose specials stand outside of the vocabulary, one of them not special."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(_CORPUS, trainer)
    headers = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in headers])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False, special=False)])
    _add_image_token(tokenizer)
    bos = "<|begin_of_text|>"
    tokenizer.post_processor = post_processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, eos_token="<|eot_id|>"
    )


def metaspace_tokenizer() -> PreTrainedTokenizerFast:
    """Metaspace that prefixes only the first piece; an end token that eats the space behind it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = BpeTrainer(vocab_size=420, special_tokens=["<unk>"])
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_special_tokens(
        [
            AddedToken("</s>", normalized=False, rstrip=True),
            AddedToken("<|user|>", normalized=False),
            AddedToken("<|assistant|>", normalized=False, rstrip=True),
            AddedToken("<|system|>", normalized=False),
        ]
    )
    _add_image_token(tokenizer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>", pad_token="<unk>"
    )


def _add_image_token(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens([AddedToken("<image>", normalized=False)])


STYLES: dict[str, tuple[Callable[[], PreTrainedTokenizerFast], str | None]] = {
    "vicuna": (llama2_tokenizer, LLAVA_TEMPLATE),
    "llama3": (llama3_tokenizer, LLAMA3_TEMPLATE),
    "ordinal": (metaspace_tokenizer, ORDINAL_TEMPLATE),
}


# --------------------------------------------------------------------------- models


@dataclass
class Recipe:
    """How a small LLaVA is built; every change is an attribute here."""

    style: str = "vicuna"
    template: bool = True
    seed: int = 0
    layers: int = 2
    image_size: int = 28
    text: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    processor: dict[str, Any] = field(default_factory=dict)
    vision: Any = None
    scale: float = 0.2
    """Standard deviation of random weights: large enough that answers differ."""


def build_llava(folder: Path, recipe: Recipe) -> Path:
    """Build a random LLaVA with the real classes and save it as a checkpoint."""
    make_tokenizer, template = STYLES[recipe.style]
    tokenizer = make_tokenizer()
    vision = recipe.vision or CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=recipe.image_size,
        patch_size=14,
        projection_dim=32,
    )
    text = LlamaConfig(
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=recipe.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(tokenizer),
        max_position_embeddings=2048,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
        **{"tie_word_embeddings": False, **recipe.text},
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        **{
            "image_token_id": tokenizer.convert_tokens_to_ids("<image>"),
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
            "tie_word_embeddings": text.tie_word_embeddings,
            **recipe.config,
        },
    )
    torch.manual_seed(recipe.seed)
    model = LlavaForConditionalGeneration(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=recipe.scale)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(folder)
    image_processor = CLIPImageProcessorPil(
        size={"shortest_edge": recipe.image_size},
        crop_size={"height": recipe.image_size, "width": recipe.image_size},
    )
    LlavaProcessor(
        image_processor,
        tokenizer,
        chat_template=template if recipe.template else None,
        **{
            "patch_size": 14,
            "num_additional_image_tokens": 1,
            "vision_feature_select_strategy": "default",
            **recipe.processor,
        },
    ).save_pretrained(folder)
    return folder


def demo_folder() -> Path:
    """The shipped demo checkpoint."""
    return Path(str(plugin.tuichat_backend().demo_model))


def load_llava(folder: str | Path, **request: Any) -> Loaded:
    """Load through the plugin's own hook, on the CPU."""
    request = {"device": "cpu", "options": {"attn": "sdpa"}, **request}
    return plugin.tuichat_load(LoadRequest(str(folder), **request), lambda _: None)


# --------------------------------------------------------------------------- conversations


def image_of(picture: PILImage.Image, name: str = "image.png") -> Image:
    """An ``Image`` of the plugin API from pixels."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    return Image(digest, name, picture.width, picture.height, lambda: picture)


def scene(colour: str = "red", shape: str = "circle", size: int = 200) -> Image:
    """One shape on white, of the kind that the demo model knows."""
    picture = PILImage.new("RGB", (size, size), "white")
    box = [0.35 * size, 0.35 * size, 0.65 * size, 0.65 * size]
    draw = ImageDraw.Draw(picture)
    if shape == "circle":
        draw.ellipse(box, fill=colour)
    else:
        draw.rectangle(box, fill=colour)
    return image_of(picture, f"{colour}-{shape}.png")


SCENES = [scene(colour, shape) for colour in ("red", "blue", "green") for shape in ("circle", "sq")]


def random_conversation(rng: random.Random, system: bool = True) -> Conversation:
    """One to six turns, the last one the user's, up to three images, texts of every kind."""
    turns = []
    images_left = 3
    for index in range(rng.choice((1, 3, 5))):
        role = "assistant" if index % 2 else "user"
        images: tuple[Image, ...] = ()
        if role == "user":
            count = rng.randint(0, min(2, images_left))
            images = tuple(rng.choices(SCENES, k=count))
            images_left -= count
        text = " ".join(rng.choices(TEXTS, k=rng.randint(1, 3)))
        turns.append(Turn(role, text, images))
    prompt = rng.choice((None, "You are brief.", "  Answer in one word.\n"))
    return Conversation(prompt if system else None, tuple(turns))


def answer(
    loaded: Loaded,
    conversation: Conversation | Prompt,
    control: Any = None,
    **params: Any,
) -> list[Delta]:
    """Every delta of an answer, through the hooks that the worker calls."""
    prompt = conversation
    if isinstance(conversation, Conversation):
        prompt = plugin.tuichat_assemble_prompt(loaded, conversation)
    params = {"max_new_tokens": 24, **params}
    deltas = hooks.tuichat_generate(loaded, prompt, GenerationParams(**params), control or Stop())
    assert deltas is not None
    return list(deltas)


def text_of(deltas: Sequence[Delta]) -> str:
    """The text of an answer."""
    return "".join(delta.text for delta in deltas)


def ask(text: str, *images: Image, system: str | None = None) -> Conversation:
    """A conversation of one question."""
    return Conversation(system, (Turn("user", text, images),))
