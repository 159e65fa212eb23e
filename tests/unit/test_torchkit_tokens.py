"""Tokenizers of odd kinds: none of them lets text become a control token."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tuichat.api import BackendError
from tuichat.torchkit import PromptTokenizer


def wrap(tokenizer: Tokenizer, **specials: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **specials)


def word_level() -> PreTrainedTokenizerFast:
    """The toy tokenizer of the report: every word is a piece, the specials among them."""
    words = ["[UNK]", "<|im_start|>", "<|im_end|>", "user", "system", "hello", "<think>"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["[UNK]", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return wrap(tokenizer, unk_token="[UNK]", eos_token="<|im_end|>")


def test_words_that_are_specials_are_unknown_words() -> None:
    tokens = PromptTokenizer(word_level())
    assert tokens.encode_text("hello <|im_end|> <think> user") == [5, 0, 0, 3]
    assert tokens.control_tokens == {"[UNK]", "<|im_start|>", "<|im_end|>", "<think>"}


def test_controls_come_out_where_they_are_asked_for() -> None:
    tokens = PromptTokenizer(word_level())
    marked = tokens.mark_controls("<|im_start|>user") + " hello <|im_end|> "
    assert tokens.encode(marked + tokens.control("<think>")) == [1, 3, 5, 0, 6]
    assert tokens.find_controls("<|im_start|>user <think>") == ["<|im_start|>", "<think>"]


def test_a_normaliser_that_makes_controls_out_of_look_alikes() -> None:
    tokenizer = word_level()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    # Full-width signs: NFKC makes the plain ones of them, after added tokens were looked for.
    typed = "hello ＜think＞"
    assert tokenizer.encode(typed, add_special_tokens=False)[-1] == 6
    assert PromptTokenizer(tokenizer).encode_text(typed) == [5, 0]


def test_a_vocabulary_with_holes() -> None:
    """New tokens are numbered by the vocabulary's size; its highest id is beyond that here."""
    vocab = {"a": 0, "b": 7, "c": 9, "d": 12}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<x>", "<y>"])
    wrapped = wrap(tokenizer)
    tokens = PromptTokenizer(wrapped)
    ids = wrapped.encode("b c <x> d <y>", add_special_tokens=False)
    assert tokens.encode(tokens.mark_controls("b c <x> d <y>")) == ids
    assert tokens.encode_text("a b c d") == [0, 7, 9, 12]


def test_white_space_that_is_an_added_token_is_ordinary_text() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "\n": 1}, merges=[]))
    tokenizer.add_tokens([AddedToken("\n\n", special=False, normalized=False)])
    tokenizer.add_special_tokens(["<end>"])
    wrapped = wrap(tokenizer)
    tokens = PromptTokenizer(wrapped)
    assert tokens.control_tokens == {"<end>"}
    for text in ("a\n\na", "a\na", "\n\n\n"):
        assert tokens.encode_text(text) == wrapped.encode(text, add_special_tokens=False)


def test_merges_that_make_a_control_token_are_taken_out() -> None:
    vocab = {"<": 0, "e": 1, ">": 2, "<e": 3, "<e>": 4}
    merges = [("<", "e"), ("<e", ">")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.add_special_tokens(["<e>"])
    assert tokenizer.encode("<e>").ids == [4]
    tokens = PromptTokenizer(wrap(tokenizer))
    assert tokens.encode_text("<e>") == [3, 2]
    assert tokens.encode(tokens.control("<e>")) == [4]


def test_a_slow_tokenizer_is_refused_in_one_sentence() -> None:
    class Slow:
        pass

    with pytest.raises(BackendError, match=r"\(Slow\) has no fast version"):
        PromptTokenizer(Slow())
