"""The demo model is right through the whole of tuichat, and would not be if an image got lost.

`benchmarks/bench_demo.py` measures more of the same; here its functions run with few questions.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark as a module."""
    path = Path(__file__).parents[2] / "benchmarks" / "bench_demo.py"
    spec = importlib.util.spec_from_file_location("bench_demo", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Where dataclasses look up the names in their annotations.
    monkeypatch.setitem(sys.modules, "bench_demo", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
async def test_fresh_questions_are_answered_and_lost_images_are_missed(bench: ModuleType) -> None:
    forgetting = next(m for m in bench.MISTAKES if m.fault == "forget-images")
    with bench.scratch() as folder:
        pools = bench.draw_pools(folder / "images", seed=7, single=60, dialogues=5)
        single, later = pools["single"], pools["later"]
        single.asked = await bench.ask_all(single.chats, bench.SETTINGS)
        later.asked = await bench.ask_all(later.chats, bench.SETTINGS)
        asked = single.all() + later.all()
        assert len(asked) == 90
        wrong = [f"{one.question} {one.answer}" for one in asked if not one.correct]
        assert bench.share(asked) >= 90, wrong
        count, before, after = await bench.cost(forgetting, later, 15)
    assert count >= 15
    assert before - after >= bench.COST
