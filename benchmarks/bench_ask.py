"""What the host costs: tuichat's engine against a plain script that calls ``generate``.

Both load the same checkpoint with transformers in the same dtype, each in a process of its own with
one thread, and answer the same questions about the same image, greedily, turn by turn about, so
that both suffer the same load. The answers have to be the same, token for token.

    python benchmarks/bench_ask.py [--rounds N]

Two models: the demo model (its answers are short, so prompt and image weigh most), and a larger one
with random weights and no end token (decoding weighs most).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGE = ROOT / "examples" / "shapes.png"
QUESTIONS = (
    "What colour is the circle?",
    "How many shapes are there?",
    "Is there a square?",
    "What is in the image?",
    "Where is the circle?",
)
LONG = 96
"""Tokens of an answer of the larger model."""


# --------------------------------------------------------------------------- the plain script


def plain(model_folder: str, max_new_tokens: int) -> None:
    """Answer questions from stdin, one JSON object a line, as a short script would."""
    import torch
    from PIL import Image
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    processor = AutoProcessor.from_pretrained(model_folder)
    model = LlavaForConditionalGeneration.from_pretrained(model_folder, dtype=torch.float32).eval()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        image = Image.open(IMAGE).convert("RGB")
        content = [{"type": "image"}, {"type": "text", "text": json.loads(line)}]
        text = processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True
        )
        inputs = processor(images=image, text=text, return_tensors="pt")
        with torch.inference_mode():
            ids = model.generate(**inputs, do_sample=False, max_new_tokens=max_new_tokens)
        new = ids[0, inputs["input_ids"].shape[1] :]
        answer = processor.decode(new, skip_special_tokens=True)
        seconds = time.perf_counter() - begin
        print(json.dumps({"text": answer, "tokens": len(new), "seconds": seconds}), flush=True)


class Plain:
    """The plain script in its process."""

    def __init__(self, model_folder: Path, max_new_tokens: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--plain", str(model_folder), str(max_new_tokens)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._read()

    def _read(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the plain script failed; run it alone with --plain to see why")
        read: dict[str, object] = json.loads(line)
        return read

    def ask(self, question: str) -> tuple[str, int, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        return str(answer["text"]), int(str(answer["tokens"])), float(str(answer["seconds"]))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


# --------------------------------------------------------------------------- through tuichat


@dataclass
class Times:
    """The answers to one question, which are all alike."""

    tokens: int = 0
    seconds: list[float] = field(default_factory=list)
    """From asking to the end, as the asker sees it."""
    inside: list[float] = field(default_factory=list)
    """The worker's own count."""


@dataclass
class Tally:
    """Answers of both, by question."""

    ours: dict[str, Times] = field(default_factory=lambda: defaultdict(Times))
    theirs: dict[str, Times] = field(default_factory=lambda: defaultdict(Times))
    different: list[str] = field(default_factory=list)


async def compare(
    model_folder: Path, max_new_tokens: int, questions: Sequence[str], rounds: int
) -> Tally:
    """Ask every question of both, ``rounds`` times, turn by turn about."""
    from tuichat.engine import Engine, Settings

    settings = Settings(
        "llava", str(model_folder), dtype="float32", device="cpu", max_new_tokens=max_new_tokens
    )
    engine = await Engine.open(settings, keep=False)
    theirs = Plain(model_folder, max_new_tokens)
    tally = Tally()
    try:
        for round_number in range(rounds + 1):
            for question in questions:
                engine.new_session()
                text, tokens, wall, inside = await ask_engine(engine, question)
                plain_text, plain_tokens, plain_wall = theirs.ask(question)
                if round_number == 0:
                    continue  # both warm up
                ours, other = tally.ours[question], tally.theirs[question]
                ours.tokens, other.tokens = tokens, plain_tokens
                ours.seconds.append(wall)
                ours.inside.append(inside)
                other.seconds.append(plain_wall)
                if (text.strip(), tokens) != (plain_text.strip(), plain_tokens):
                    tally.different.append(f"{question} ours {text!r}, plain {plain_text!r}")
    finally:
        theirs.close()
        await engine.close()
    return tally


async def ask_engine(engine: object, question: str) -> tuple[str, int, float, float]:
    """Text, tokens, seconds from sending to the end, seconds inside the worker."""
    from tuichat.engine import Engine
    from tuichat.engine.events import ReplyEnded

    assert isinstance(engine, Engine)
    image = await engine.attach(IMAGE)
    begin = time.perf_counter()
    posted = await engine.send(question, [image])
    async for event in engine.events():
        if isinstance(event, ReplyEnded) and event.reply_id == posted.reply_id:
            break
    wall = time.perf_counter() - begin
    turn = engine.turn(posted.reply_id)
    if turn.state != "done" or turn.usage is None or turn.timing is None:
        raise SystemExit(f"tuichat did not answer: {turn.error}")
    return turn.text, turn.usage["new_tokens"], wall, turn.timing["total_s"]


# --------------------------------------------------------------------------- models and the table


def larger_model(folder: Path) -> None:
    """A LLaVA of the demo model's vocabulary with random weights: about 11 million parameters."""
    import shutil

    import torch
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig
    from transformers import LlavaForConditionalGeneration as Llava

    import tuichat_llava

    demo = Path(tuichat_llava.__file__).parent / "demo"
    shutil.copytree(demo, folder)
    small = json.loads((demo / "config.json").read_text())
    vision = CLIPVisionConfig(**small["vision_config"])
    text = LlamaConfig(
        **{
            **small["text_config"],
            "hidden_size": 384,
            "intermediate_size": 1024,
            "num_hidden_layers": 6,
            "num_attention_heads": 6,
            "num_key_value_heads": 6,
            "head_dim": 64,
            # Wide enough that the likeliest token leads clearly.
            "initializer_range": 0.1,
            "tie_word_embeddings": False,
        }
    )
    top = {"vision_feature_layer", "vision_feature_select_strategy", "projector_hidden_act"}
    ids = {"image_token_index", "image_token_id", "image_seq_length"}
    kept = {key: value for key, value in small.items() if key in top | ids}
    torch.manual_seed(7)
    config = LlavaConfig(vision_config=vision, text_config=text, tie_word_embeddings=False, **kept)
    model = Llava(config).eval()
    # Nothing ends an answer but its length, and no token is a byte or a control token: what half
    # of a character looks like would be compared instead of tokens.
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        model.lm_head.weight[:260] = 0
    model.save_pretrained(folder)


def show(name: str, tally: Tally) -> bool:
    """Print one row; True when it is good enough.

    The ratio is that of the best time of each question: on a machine that others use too, the mean
    measures them.
    """
    answers = [question.tokens for question in tally.ours.values()]
    ours = sum(min(question.seconds) for question in tally.ours.values())
    theirs = sum(min(question.seconds) for question in tally.theirs.values())
    inside = sum(min(question.inside) for question in tally.ours.values())
    tokens, rounds = sum(answers), len(next(iter(tally.ours.values())).seconds)
    ratio = theirs / ours
    same = len(answers) * rounds - len(tally.different)
    print(
        f"{name:<20}{len(answers):>10} x {rounds}{tokens:>8}{tokens / theirs:>9.1f}"
        f"{tokens / inside:>9.1f}{tokens / ours:>9.1f}{ratio:>8.2f}"
        f"{same:>8}/{len(answers) * rounds}"
    )
    for line in tally.different[:3]:
        print(f"    {line}")
    return ratio >= 0.9 and not tally.different


def main() -> int:
    """Print the table; 1 when an answer differs or a ratio is below 0.9."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plain", nargs=2, metavar=("MODEL", "N"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plain:
        plain(given.plain[0], int(given.plain[1]))
        return 0
    # With more threads than free cores OpenMP measures its own waiting. Both processes inherit it.
    os.environ["OMP_NUM_THREADS"] = "1"
    import tuichat_llava

    demo = Path(tuichat_llava.__file__).parent / "demo"
    print("tokens/s of the best round, image and prompt included; ratio: client / plain script\n")
    print(
        f"{'model':<20}{'answers':>14}{'tokens':>8}{'plain':>9}{'worker':>9}{'client':>9}"
        f"{'ratio':>8}{'same':>11}"
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "larger"
        larger_model(folder)
        good = [
            show("demo, 1.2 M", asyncio.run(compare(demo, 64, QUESTIONS, given.rounds))),
            show(
                f"random, {LONG} tokens",
                asyncio.run(compare(folder, LONG, QUESTIONS[:1], given.rounds)),
            ),
        ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
