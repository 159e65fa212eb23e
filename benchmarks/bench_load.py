"""Loading a checkpoint: tuichat's backend against ``from_pretrained`` alone, in time and memory.

Two random LLaVAs, alike but for the number of layers, are made in a temporary folder and loaded by
turns, each time in a process of its own: by the hook of the backend and by ``from_pretrained`` of
the model's class. The hook also reads tokenizer, image processor and chat template, checks whether
the model fits, aligns dtypes and runs the vision tower once, which takes as long for a small
checkpoint as for a large one: two sizes tell what is constant. Before the clock starts each process
has loaded the demo model the same way, so no import is counted. Every weight is read once before it
stops: what ``from_pretrained`` leaves is a map of the file. Seconds are those of the processor, on
one thread, because a machine that others use too makes the other ones worth little.

Memory is the highest resident set of the process, less what it was before the load: a second copy
of the weights at any time would show as twice the checkpoint.

    python benchmarks/bench_load.py [--rounds N]

The exit status is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

SLOWER, LARGER = 1.1, 1.15
"""The targets: times the seconds of ``from_pretrained``; times the bytes of the checkpoint."""

LAYERS = (1, 4)
"""Of the language models of the two checkpoints; a layer takes 206 MB."""


def build(folder: Path, layers: int) -> int:
    """A random LLaVA; the bytes of its weights on disk."""
    from small_models import Recipe, build_model

    text = {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
    }
    vision = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 12}
    build_model(folder, Recipe(layers=layers, image_size=336, scale=0.02, text=text, vision=vision))
    return (folder / "model.safetensors").stat().st_size


def load(way: str, folder: str) -> Any:
    """Load a checkpoint in one of the two ways."""
    if way == "tuichat":
        from small_models import load_llava

        return load_llava(folder, dtype="float32")
    import torch
    from transformers import LlavaForConditionalGeneration

    return LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)


def child(way: str, folder: str) -> None:
    """Load once and print seconds and bytes."""
    import psutil
    import torch
    from small_models import demo_folder
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    load(way, str(demo_folder()))
    torch.set_num_threads(1)
    before = psutil.Process().memory_info().rss
    begin = time.process_time()
    loaded = load(way, folder)
    model = loaded.handle.model if way == "tuichat" else loaded
    for weight in model.parameters():
        weight.data.sum()
    seconds = time.process_time() - begin
    print(json.dumps({"seconds": seconds, "bytes": highest_resident() - before}))


def highest_resident() -> int:
    """Bytes of this process's highest resident set.

    Not ``ru_maxrss``, which a child inherits from the process that started it.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def run(way: str, folder: Path) -> tuple[float, int]:
    """Seconds and bytes of one load in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", way, str(folder)],
        capture_output=True,
        check=True,
        text=True,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    return said["seconds"], said["bytes"]


def main() -> int:
    """Print the table; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(*given.child)
        return 0
    ways = ("from_pretrained", "tuichat")
    found: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / str(layers) for layers in LAYERS]
        sizes = [build(folder, layers) for folder, layers in zip(folders, LAYERS, strict=True)]
        run(ways[0], folders[1])  # the file is in the system's cache from here on
        for _ in range(given.rounds):
            for which, folder in enumerate(folders):
                for way in ways:
                    found[way, which].append(run(way, folder))
    seconds = {key: median(second for second, _ in loads) for key, loads in found.items()}
    highest = {key: median(taken for _, taken in loads) for key, loads in found.items()}
    print(f"medians of {given.rounds} loads, float32\n")
    print(f"{'':<18}{'MB':>6}{'seconds':>9}{'MB at most':>13}{'/ checkpoint':>14}")
    for (way, which), second in seconds.items():
        taken = highest[way, which]
        row = f"{way:<18}{sizes[which] / 1e6:>6.0f}{second:>9.2f}{taken / 1e6:>13.0f}"
        print(f"{row}{taken / sizes[which]:>14.2f}")
    slower = seconds["tuichat", 1] / seconds["from_pretrained", 1]
    larger = highest["tuichat", 1] / sizes[1]
    print(f"\nthe larger one: {slower:.2f} times the seconds (at most {SLOWER})")
    print(f"{larger:.2f} times the checkpoint in memory (at most {LARGER})")
    return 0 if slower <= SLOWER and larger <= LARGER else 1


if __name__ == "__main__":
    sys.exit(main())
