"""Train the bundled demo model from nothing, on two cores, in stages that can be resumed.

    python tools/train_demo_models.py --state DIR            all stages, then export
    python tools/train_demo_models.py --state DIR --stage S  one stage

Owns the order of the stages and their processes. Refuses to know what a stage does (`tools/demo/`).

Invariant: everything that a run leaves is in the state folder, until the last stage writes the
checkpoint; running again goes on where it stopped.

Stages: `scenes` renders the images; `vision` and `language` train the two halves side by side, one
process each; `join` fits the projector; `joint` trains everything on two processes; `export`
writes the checkpoint and, with `--card`, measures it and writes its model card.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

# One thread a process: two OpenMP threads on a shared machine are slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

STAGES = ("scenes", "vision", "language", "join", "joint", "export")
TARGET = Path(__file__).parents[1] / "plugins" / "tuichat_llava" / "demo"
# Most steps of a stage, and most minutes; whichever ends first. The learning rate follows both.
LIMITS = {"vision": (7500, 25.0), "language": (900, 25.0), "joint": (5500, 85.0)}
SHARDS = (("train0", 32_000), ("train1", 32_000), ("valid", 3_000))


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _run_stage(args: argparse.Namespace) -> None:
    """Run one stage in this process; heavy imports wait until here."""
    import torch
    from demo.schedule import Budget

    torch.set_num_threads(1)
    if args.rank is not None and hasattr(os, "sched_setaffinity"):
        # The two wait for each other at every step: on one core they would take turns.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[args.rank % len(cores)]})
    scenes = args.state / "scenes"
    scenes.mkdir(parents=True, exist_ok=True)
    steps, minutes = LIMITS.get(args.stage, (1, 0.0))
    budget = Budget(args.steps or steps, 60 * (args.minutes or minutes) or 1.0)
    if args.stage == "scenes":
        from demo.render import write_shard

        # Held-out scenes have seeds of their own.
        for index, (name, count) in enumerate(SHARDS):
            if args.rank is None or index % 2 == args.rank:
                write_shard(scenes, name, 1000 * args.seed + index, count)
    elif args.stage == "vision":
        from demo.vision_stage import train_vision

        train_vision(args.state, scenes, args.seed, budget, _log)
    elif args.stage == "language":
        from demo.language_stage import train_language

        train_language(args.state, scenes, args.seed, budget, _log)
    elif args.stage == "join":
        from demo.joint_stage import join

        join(args.state, scenes, args.seed, _log)
    elif args.stage == "joint":
        import torch.distributed as dist
        from demo.joint_stage import train_joint

        if args.rank is not None:
            meeting = f"file://{(args.state / 'meeting').resolve()}"
            dist.init_process_group("gloo", init_method=meeting, rank=args.rank, world_size=2)
        train_joint(args.state, scenes, args.seed, budget, _log)
    else:
        _export(args)


def _export(args: argparse.Namespace) -> None:
    from demo.export import export

    export(args.state, args.target)
    if args.card:
        from demo.card import write_card

        write_card(args.target, _log)


def _spawn(args: argparse.Namespace, stages: list[tuple[str, int | None]]) -> None:
    """Run stages side by side, one process each; the first failure ends all."""
    base = [sys.executable, __file__, "--state", str(args.state), "--seed", str(args.seed)]
    base += ["--target", str(args.target), *(["--card"] if args.card else [])]
    for name in ("steps", "minutes"):
        if (value := getattr(args, name)) is not None:
            base += [f"--{name}", str(value)]
    children = []
    for stage, rank in stages:
        place = [] if rank is None else ["--rank", str(rank)]
        children.append(subprocess.Popen([*base, "--stage", stage, *place]))
    try:
        while children:
            for child in list(children):
                if child.poll() is not None:
                    children.remove(child)
                    if child.returncode:
                        raise SystemExit(f"a stage failed with exit status {child.returncode}")
            time.sleep(0.5)
    finally:
        for child in children:
            child.terminate()


def _done(args: argparse.Namespace, stage: str) -> bool:
    from demo.schedule import stage_done

    files = {"vision": "vision", "language": "language", "join": "joined", "joint": "joint"}
    return stage in files and stage_done(args.state / f"{files[stage]}.pt")


def _run_all(args: argparse.Namespace) -> None:
    plan: list[list[tuple[str, int | None]]] = [
        [("scenes", 0), ("scenes", 1)],
        [("vision", None), ("language", None)],
        [("join", None)],
        [("joint", 0), ("joint", 1)],
        [("export", None)],
    ]
    for group in plan:
        left = [(stage, rank) for stage, rank in group if not _done(args, stage)]
        if left:
            began = time.monotonic()
            (args.state / "meeting").unlink(missing_ok=True)
            _spawn(args, left)
            _log(f"{left[0][0]} took {time.monotonic() - began:.0f} s")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--state", type=Path, required=True, help="folder for checkpoints and data")
    parser.add_argument("--stage", choices=STAGES, help="only this one")
    parser.add_argument("--target", type=Path, default=TARGET, help="where the checkpoint goes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, help="most steps of each stage")
    parser.add_argument("--minutes", type=float, help="most minutes of each stage")
    parser.add_argument("--card", action="store_true", help="measure and write the model card")
    parser.add_argument("--rank", type=int, choices=(0, 1), help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.state.mkdir(parents=True, exist_ok=True)
    if args.stage is None:
        _run_all(args)
    elif args.stage in ("scenes", "joint") and args.rank is None:
        (args.state / "meeting").unlink(missing_ok=True)
        _spawn(args, [(args.stage, 0), (args.stage, 1)])
    else:
        _run_stage(args)


if __name__ == "__main__":
    main()
