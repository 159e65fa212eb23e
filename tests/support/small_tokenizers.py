"""Tokenizers and chat templates of the kinds that LLaVA checkpoints have, trained in a moment.

Each is of the real library and of another construction: where its control tokens stand, what it
does with spaces, which of its added tokens are special.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors as post_processors
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

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

MISTRAL_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ '<<SYS>>\n' + message['content'][0]['text'] + '\n<</SYS>>\n\n' }}"
    "{% elif message['role'] == 'user' %}{{ '[INST] ' }}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ content['text'] }}{% endfor %}{{ ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'][0]['text'] + '</s> ' }}{% endif %}{% endfor %}"
)

QWEN_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'video') %}"
    "{{ '<video>\n' }}{% endfor %}{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ content['text'] }}{% endfor %}{% else %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ content['text'] }}{% endgeneration %}{% endfor %}{% endif %}"
    "{{ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_CORPUS = [
    *TEXTS,
    "USER: ASSISTANT: system user assistant Image 1: [INST] [/INST] <<SYS>> the a of shape",
] * 3


def llama2_tokenizer() -> PreTrainedTokenizerFast:
    """SentencePiece-like BPE with byte fallback; its specials stand in the vocabulary too."""
    specials = ["<unk>", "<s>", "</s>"]
    alphabet = specials + [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trained.normalizer = _legacy_normalizer()
    trained.train_from_iterator(
        _CORPUS, BpeTrainer(vocab_size=420, show_progress=False, special_tokens=alphabet)
    )
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
    trainer = BpeTrainer(
        vocab_size=420, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
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
    trainer = BpeTrainer(vocab_size=420, show_progress=False, special_tokens=["<unk>"])
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


def qwen_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE behind NFC, without a BOS, with a placeholder for videos too."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=420, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in specials])
    _add_image_token(tokenizer)
    tokenizer.add_special_tokens([AddedToken("<video>", normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )


def _add_image_token(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens([AddedToken("<image>", normalized=False)])


STYLES: dict[str, tuple[Callable[[], PreTrainedTokenizerFast], str | None]] = {
    "vicuna": (llama2_tokenizer, LLAVA_TEMPLATE),
    "llama3": (llama3_tokenizer, LLAMA3_TEMPLATE),
    "ordinal": (metaspace_tokenizer, ORDINAL_TEMPLATE),
    "mistral": (llama2_tokenizer, MISTRAL_TEMPLATE),
    "qwen": (qwen_tokenizer, QWEN_TEMPLATE),
}
