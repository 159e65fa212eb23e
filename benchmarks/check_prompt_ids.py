"""Prompts against the official processors: the long check of what the tests run fifty times.

For each architecture small real checkpoints are built, one for each prompt style that it has on the
hub, and random ordinary conversations are assembled both ways: one to eight questions, up to four
images of any size in any turn, a system prompt or none, several scripts, emoji and code. Every id
has to be the same, and every image has to stand in its place.

    python benchmarks/check_prompt_ids.py [--conversations N] [--seed N]

The exit status is 1 if anything differs. ``transformers`` needs no torchvision for it.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

STYLES = {
    "llava": ("vicuna", "llama3", "ordinal"),
    "llava_next": ("mistral", "vicuna", "qwen"),
    "llava_onevision": ("qwen",),
}


def check(architecture: str, style: str, conversations: int, seed: int) -> tuple[int, int, int]:
    """How many of ``conversations`` differ, how many images they had, and how many ids."""
    from conversations import official_ids, official_processor, random_conversation
    from small_models import Recipe, build_model, load_llava, prompt_of

    rng = random.Random(f"{architecture} {style} {seed}")
    different = images = ids = 0
    with tempfile.TemporaryDirectory() as folder:
        build_model(Path(folder), Recipe(architecture=architecture, style=style))
        loaded, processor = load_llava(folder), official_processor(Path(folder))
        system = loaded.handle.template.has_system_role
        for _ in range(conversations):
            conversation = random_conversation(rng, system=system)
            prompt = prompt_of(loaded, conversation)
            digests = [image.digest for turn in conversation.turns for image in turn.images]
            official = official_ids(processor, conversation, parts=style != "llama3")
            same = list(prompt.ids) == official
            same = same and [span.digest for span in prompt.spans] == digests
            if not same and different == 0:
                print(f"{architecture} {style}: the first that differs is {conversation}")
            different += not same
            images += len(digests)
            ids += len(official)
    return different, images, ids


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conversations", type=int, default=1000, help="for each architecture")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    print(f"{'architecture':16} {'style':8} {'different':>9} {'of':>6} {'images':>7} {'ids':>9}  s")
    failed = 0
    for architecture, styles in STYLES.items():
        for style in styles:
            count = -(-options.conversations // len(styles))
            start = time.perf_counter()
            different, images, ids = check(architecture, style, count, options.seed)
            took = time.perf_counter() - start
            row = f"{architecture:16} {style:8} {different:9} {count:6} {images:7} {ids:9}"
            print(f"{row}  {took:.0f}", flush=True)
            failed += different
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
