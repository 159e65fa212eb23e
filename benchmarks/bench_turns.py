"""A conversation of ten turns with four images: what is computed again, and what that costs.

One model of random weights with LLaVA-1.5's geometry (336-pixel images of 576 tokens) answers the
same ten prompts three ways, turn by turn about:

    tuichat   the backend's own hooks, which keep the KV cache and the features of images
    plain     ``generate`` of transformers on the whole prompt each turn, as LLaVA's own client does
    features  the same, with the features of images kept

The images come with turns 1, 3, 5 and 7; every question and every reply in the history is the same
text. The replies are written here and not generated, so tuichat computes each of them as well,
which it would not have to in a real conversation. Whatever can be prepared before a turn (decoding
and scaling images; for the other two also the prompt's ids) is not counted. All three have to
choose the same tokens.

    python benchmarks/bench_turns.py [--rounds N] [--device cuda]

The exit status is 1 if a target is missed or a token differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

TURNS = 10
WITH_IMAGE = (1, 3, 5, 7)
QUESTION = "What else do you see there, and where is it?"
REPLY = "There is a shape near the middle of it, and it is of one colour."
NEW_TOKENS = 8
LONG = 64
"""Tokens of the answer in the conversation of one turn."""

FLAT, FASTER, RATE = 1.3, 4.0, 0.95
"""The targets."""


@dataclass
class Answer:
    """One answer, with when each of its ids came."""

    ids: list[int] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    """Seconds after the question."""
    computed: int = 0
    """Positions that went through the language model, those of the answer included."""

    def rate(self) -> float:
        """Tokens a second of the whole answer, its prompt included."""
        return len(self.ids) / self.at[-1]

    def decoding_rate(self) -> float:
        """Tokens a second after the first one."""
        return (len(self.ids) - 1) / (self.at[-1] - self.at[0])


Way = Callable[[Any, int], Answer]
"""Conversation, tokens of the answer → answer."""


def build(folder: Path) -> None:
    """A random LLaVA of eight layers.

    Its heads are narrow for its width, so that attention's share of the work is about that of a
    model of 7 B: a sixth of the linear layers' at 3,000 tokens. In a model that is small all over
    it would be more than theirs.
    """
    from small_models import Recipe, build_model

    text = {
        "hidden_size": 512,
        "intermediate_size": 2752,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "max_position_embeddings": 4096,
    }
    vision = {
        "hidden_size": 192,
        "intermediate_size": 768,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
    }
    build_model(folder, Recipe(layers=8, image_size=336, scale=0.03, text=text, vision=vision))


# --------------------------------------------------------------------------- the three ways


class Tuichat:
    """Through the hooks that the worker calls."""

    def __init__(self, folder: Path, device: str) -> None:
        from small_models import load_llava, without_end

        self.loaded = without_end(load_llava(folder, device=device, dtype="float32"))
        self.loaded.handle._tokenizer = _Ids()

    def __call__(self, conversation: Any, count: int) -> Answer:
        from small_models import Stop, prompt_of

        from tuichat.api import GenerationParams
        from tuichat.torchkit import hooks

        answer, begin = Answer(), time.perf_counter()
        prompt = prompt_of(self.loaded, conversation)
        params = GenerationParams(max_new_tokens=count)
        deltas = hooks.tuichat_generate(self.loaded, prompt, params, Stop())
        assert deltas is not None
        for delta in deltas:
            for id in delta.text.split():
                answer.ids.append(int(id))
                answer.at.append(time.perf_counter() - begin)
            if delta.usage is not None:
                usage = delta.usage
                answer.computed = usage.prompt_tokens - usage.reused_tokens + count - 1
        return answer

    def forget(self) -> None:
        """As if the model had just been loaded."""
        from tuichat import torchkit

        torchkit.forget(self.loaded.handle)

    def prepare(self, conversation: Any) -> tuple[list[int], list[tuple[str, Any]]]:
        """A prompt's ids, and digest and pixels of its images."""
        from small_models import prompt_of

        prompt = prompt_of(self.loaded, conversation)
        spans = [(span.digest, span.inputs["pixel_values"]) for span in prompt.spans]
        return list(prompt.ids), spans


class _Ids:
    """In place of a tokenizer: every id is shown as soon as it is chosen."""

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(f" {id}" for id in ids)


class Plain:
    """``generate`` of transformers, over the whole prompt."""

    def __init__(self, folder: Path, device: str, tuichat: Tuichat, keep_features: bool) -> None:
        import torch
        from transformers import LlavaForConditionalGeneration

        model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        self.model: Any = model.to(device)
        self.model.generation_config.eos_token_id = None
        self.prepare = tuichat.prepare
        self.features: dict[str, Any] | None = {} if keep_features else None

    def __call__(self, conversation: Any, count: int) -> Answer:
        import torch

        ids, images = self.prepare(conversation)
        streamer = _Times()
        inputs = torch.tensor([ids], device=self.model.device)
        pixels = [(digest, pixels.to(inputs.device)) for digest, pixels in images]
        options: dict[str, Any] = {"input_ids": inputs}
        streamer.begin = time.perf_counter()
        with torch.inference_mode():
            if self.features is None:
                options["pixel_values"] = torch.cat([value for _, value in pixels])
            else:
                options = {"inputs_embeds": self._embeds(inputs, pixels)}
            self.model.generate(
                **options,
                attention_mask=torch.ones_like(inputs),
                do_sample=False,
                max_new_tokens=count,
                pad_token_id=0,
                streamer=streamer,
            )
        answer = Answer(streamer.ids[-count:], streamer.at[-count:], len(ids) + count - 1)
        assert len(answer.ids) == count
        return answer

    def _embeds(self, ids: Any, images: Sequence[tuple[str, Any]]) -> Any:
        import torch

        assert self.features is not None
        for digest, pixels in images:
            if digest not in self.features:
                features = self.model.get_image_features(pixel_values=pixels, return_dict=True)
                self.features[digest] = torch.cat(list(features.pooler_output))
        embeds = self.model.get_input_embeddings()(ids)
        places = ids == self.model.config.image_token_id
        embeds[places] = torch.cat([self.features[digest] for digest, _ in images])
        return embeds

    def forget(self) -> None:
        """As if the model had just been loaded."""
        if self.features is not None:
            self.features.clear()


class _Times:
    """A streamer of transformers that notes when ids come."""

    def __init__(self) -> None:
        self.begin = 0.0
        self.ids: list[int] = []
        self.at: list[float] = []

    def put(self, value: Any) -> None:
        """Take ids: at first the prompt's, then one at a time."""
        if value.numel() == 1:
            self.ids.append(int(value))
            self.at.append(time.perf_counter() - self.begin)

    def end(self) -> None:
        """Part of a streamer's interface."""


# --------------------------------------------------------------------------- the conversation


def conversations() -> list[Any]:
    """The conversation as it is at each of its turns."""
    from conversations import SCENES

    from tuichat.api import Conversation, Turn

    found, turns = [], []
    for number in range(1, TURNS + 1):
        images = (SCENES[WITH_IMAGE.index(number)],) if number in WITH_IMAGE else ()
        turns.append(Turn("user", QUESTION, images))
        found.append(Conversation(None, tuple(turns)))
        turns.append(Turn("assistant", REPLY))
    return found


def measure(
    ways: dict[str, Any], asked: Sequence[Any], count: int, rounds: int
) -> tuple[dict[str, list[list[Answer]]], int]:
    """Answers by way, turn and round; and how many of them differ from plain's."""
    found: dict[str, list[list[Answer]]] = {name: [[] for _ in asked] for name in ways}
    for _ in range(rounds):
        for way in ways.values():
            way.forget()
        for turn, conversation in enumerate(asked):
            for name, way in ways.items():
                found[name][turn].append(way(conversation, count))
    plain = found["plain"]
    different = sum(
        answer.ids != right.ids
        for turns in found.values()
        for turn, answers in enumerate(turns)
        for answer, right in zip(answers, plain[turn], strict=True)
    )
    return found, different


def show_turns(found: dict[str, list[list[Answer]]]) -> dict[str, list[float]]:
    """Print time to first token and tokens computed for each turn; the times in seconds."""
    names = list(found)
    first = {
        name: [median(answer.at[0] for answer in answers) for answers in turns]
        for name, turns in found.items()
    }
    computed = {name: [answers[0].computed for answers in found[name]] for name in names}
    print("milliseconds to the first token (tokens computed, those of the answer included)\n")
    print(f"{'turn':<6}" + "".join(f"{name:>20}" for name in names))
    for turn in range(TURNS):
        cells = [f"{first[name][turn] * 1e3:.0f} ({computed[name][turn]})" for name in names]
        mark = "+" if turn + 1 in WITH_IMAGE else ""
        print(f"{turn + 1}{mark:<5}".ljust(6) + "".join(f"{cell:>20}" for cell in cells))
    cells = [f"{sum(first[name]) * 1e3:.0f} ({sum(computed[name])})" for name in names]
    print(f"{'all':<6}" + "".join(f"{cell:>20}" for cell in cells))
    print("(+: with one more image)\n")
    return first


def show_rates(found: dict[str, list[list[Answer]]]) -> list[float]:
    """Print tokens/s in a conversation of one turn; tuichat's against plain's."""
    ratios = []
    for title, rate in (("answer", Answer.rate), ("decoding", Answer.decoding_rate)):
        rates = {name: median(map(rate, turns[0])) for name, turns in found.items()}
        cells = "".join(f"{rates[name]:>12.1f}" for name in rates)
        print(f"{title:<16}{cells}")
        ratios.append(rates["tuichat"] / rates["plain"])
    return ratios


def verdict(name: str, value: float, target: float, *, at_most: bool) -> bool:
    """Print one target; whether it is met."""
    met = value <= target if at_most else value >= target
    sign = "≤" if at_most else "≥"
    print(f"{name:<60}{value:>7.2f}   {sign} {target:<5}{'' if met else 'MISSED'}")
    return met


def main() -> int:
    """Print the tables; 1 when a target is missed or a token differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    import torch
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        build(folder)
        tuichat = Tuichat(folder, given.device)
        ways = {
            "tuichat": tuichat,
            "plain": Plain(folder, given.device, tuichat, keep_features=False),
            "features": Plain(folder, given.device, tuichat, keep_features=True),
        }
    # On a machine that others use too, two threads measure their waiting for each other.
    torch.set_num_threads(1)
    asked = conversations()
    for way in ways.values():
        way(asked[-1], 2)
    found, different = measure(ways, asked, NEW_TOKENS, given.rounds)
    first = show_turns(found)
    alone, more = measure(ways, asked[:1], LONG, given.rounds + 2)
    print(f"{'tokens/s, 1 turn':<16}" + "".join(f"{name:>12}" for name in ways))
    rates = show_rates(alone)
    print()
    ours, plain = first["tuichat"], first["plain"]
    met = [
        verdict("first token of turn 10 / of turn 2", ours[9] / ours[1], FLAT, at_most=True),
        verdict("first tokens, plain / tuichat", sum(plain) / sum(ours), FASTER, at_most=False),
        verdict("tokens/s of an answer, tuichat / plain", rates[0], RATE, at_most=False),
        verdict("tokens/s of decoding, tuichat / plain", rates[1], RATE, at_most=False),
        verdict("answers that differ from plain's", different + more, 0, at_most=True),
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
