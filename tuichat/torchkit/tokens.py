"""Text to ids, so that text can never become a control token.

Owns the tokenisation of a prompt. Refuses to know roles, turns and templates. Invariant: an id of
an added token, special or not, comes out only where the caller asked for that token; and for
ordinary text the ids are those of the checkpoint's own tokenizer, because its own normaliser,
pre-tokeniser and model do the work.

How: a second tokenizer is built from the same parts, without any of the added tokens. In it every
control token has another, unforgeable name: a *mark*, random for each process. The caller writes
marks where it wants control tokens and text everywhere else, and the whole prompt is encoded in
one call, so the pieces between control tokens are single runs with the same treatment (prefix
space, stripping) as in the official tokenizer. ``split_special_tokens=True`` is not enough: added
tokens that are not special (``<think>``) are still matched, and a vocabulary that lists its
specials as ordinary pieces (Unigram does) finds them by itself.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken, Tokenizer

from tuichat.api import BackendError


class PromptTokenizer:
    """Encodes prompts for one transformers tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        """Build the unforgeable twin of ``tokenizer``, a transformers tokenizer.

        Raises:
            BackendError: it is not backed by the ``tokenizers`` library.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise BackendError(
                f"the tokenizer of this checkpoint ({type(tokenizer).__name__}) has no fast "
                "version (tokenizer.json), which prompts need; save one into the model's folder"
            )
        self._nonce = secrets.token_hex(8)
        added: dict[int, AddedToken] = dict(backend.get_added_tokens_decoder())
        # White space that a tokenizer lists as added tokens is ordinary text in every template.
        self._controls = {token.content: id for id, token in added.items() if token.content.strip()}
        self._plain, unknown = _without_controls(backend, self._controls, self._nonce)
        # A model without byte fallback answers an unknown character with its unknown piece, which
        # is listed among the added tokens; it controls nothing.
        self._forbidden = frozenset(self._controls.values()) - {unknown}
        self._fill_holes()
        self._mark_of = {content: self._mark(f"c{id}") for content, id in self._controls.items()}
        self._id_of_mark: dict[int, int] = {}
        for id, token in added.items():
            if not token.content.strip():
                self._plain.add_tokens([token])
                self._id_of_mark[self._plain_id(token.content)] = id
        for id, token in added.items():
            if token.content in self._controls:
                self._add_mark(self._mark_of[token.content], id, token)
        longest_first = sorted(self._controls, key=len, reverse=True)
        self._control_re = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._leading = _leading_ids(tokenizer)
        self._bos: str | None = tokenizer.bos_token

    @property
    def control_tokens(self) -> frozenset[str]:
        """Added tokens that only a template may write."""
        return frozenset(self._controls)

    def control(self, content: str) -> str:
        """The mark that stands for the added token ``content`` in a marked string."""
        return self._mark_of[content]

    def mark_controls(self, template_text: str) -> str:
        """Turn every added token in text that a *template* wrote into its mark."""
        return self._control_re.sub(lambda match: self._mark_of[match.group()], template_text)

    def find_controls(self, template_text: str) -> list[str]:
        """The added tokens in text that a template wrote, in order."""
        return self._control_re.findall(template_text)

    def encode(self, marked: str) -> list[int]:
        """Ids of a whole prompt, its control tokens written as marks, with exactly one BOS.

        The beginning-of-sequence ids that the tokenizer adds by itself are put in front, unless
        the prompt begins with that token already.
        """
        ids = self._encode(marked)
        if self._bos is not None and marked.startswith(self._mark_of.get(self._bos, self._nonce)):
            return ids
        return [*self._leading, *ids]

    def encode_text(self, text: str) -> list[int]:
        """Ids of text alone: no control token, no BOS."""
        return self._encode(text)

    def _encode(self, marked: str) -> list[int]:
        ids = []
        for id in self._plain.encode(marked, add_special_tokens=False).ids:
            wanted = self._id_of_mark.get(id)
            if wanted is None and id in self._forbidden:
                # The invariant of this module, checked on every prompt: it costs nothing.
                raise BackendError(
                    f"the tokenizer made the control token {id} out of plain text, which would "
                    "forge a turn; this is a fault in tuichat, please report the model's name"
                )
            ids.append(id if wanted is None else wanted)
        return ids

    def _fill_holes(self) -> None:
        # New tokens are numbered from the vocabulary's size on: where its ids have holes, that is
        # below its highest id, and a mark would be mistaken for a piece.
        highest = max(self._plain.get_vocab().values(), default=0)
        for number in range(highest + 1 - self._plain.get_vocab_size()):
            self._plain.add_special_tokens([AddedToken(self._mark(f"h{number}"))])

    def _mark(self, kind: str) -> str:
        # Private-use characters on both sides, so that no normaliser joins it to its neighbours.
        return f"\ue000{self._nonce}{kind}\ue001"

    def _add_mark(self, mark: str, id: int, token: AddedToken) -> None:
        self._plain.add_special_tokens(
            [
                AddedToken(
                    mark,
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    normalized=False,
                    special=True,
                )
            ]
        )
        self._id_of_mark[self._plain_id(mark)] = id

    def _plain_id(self, content: str) -> int:
        id = self._plain.token_to_id(content)
        if id is None:
            raise BackendError(f"the tokenizer does not take {content!r} as an added token")
        return id


def _without_controls(
    backend: Tokenizer, controls: dict[str, int], nonce: str
) -> tuple[Tokenizer, int | None]:
    """A tokenizer of the same parts that knows none of ``controls``, and the model's unknown id."""
    plain = Tokenizer(backend.model)
    in_model = set(controls.values()).intersection(plain.get_vocab().values())
    if not in_model:
        _share(backend, plain)
        return plain, None
    # The model's own vocabulary lists control tokens: rename them there, or the model would find
    # them in plain text by itself.
    state = json.loads(backend.to_str())
    unknown = _unknown_id(state["model"])
    renamed = {content: f"\ue000{nonce}v{id}\ue001" for content, id in controls.items()}
    state["model"] = _rename(state["model"], renamed)
    state["added_tokens"] = []
    state["post_processor"] = None
    state["truncation"] = None
    state["padding"] = None
    return Tokenizer.from_str(json.dumps(state)), unknown


def _unknown_id(model: dict[str, Any]) -> int | None:
    unknown = (
        model.get("unk_id")
        if isinstance(model["vocab"], list)
        else model["vocab"].get(model.get("unk_token"))
    )
    return int(unknown) if unknown is not None else None


def _share(source: Tokenizer, target: Tokenizer) -> None:
    if source.normalizer is not None:
        target.normalizer = source.normalizer
    if source.pre_tokenizer is not None:
        target.pre_tokenizer = source.pre_tokenizer


def _rename(model: dict[str, Any], renamed: dict[str, str]) -> dict[str, Any]:
    """The ``model`` part of a tokenizer.json with some of its pieces under other names."""
    vocab = model["vocab"]
    if isinstance(vocab, list):  # Unigram: [piece, score], the id is the index
        model["vocab"] = [[renamed.get(piece, piece), score] for piece, score in vocab]
        return model
    model["vocab"] = {renamed.get(piece, piece): id for piece, id in vocab.items()}
    if model.get("unk_token") in renamed:
        model["unk_token"] = renamed[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not _makes(merge, renamed)]
    return model


def _makes(merge: str | list[str], pieces: Iterable[str]) -> bool:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in pieces or right in pieces or left + right in pieces


def _leading_ids(tokenizer: Any) -> list[int]:
    """The ids that the tokenizer puts before a text by itself (its BOS)."""
    bare = tokenizer.encode("x", add_special_tokens=False)
    full = tokenizer.encode("x", add_special_tokens=True)
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return list(full[:start])
    return []
