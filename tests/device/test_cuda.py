"""On a CUDA device: every dtype, the conversation of ten turns, and memory; small models only.

    python -m pytest tests/device -s

takes less than eight minutes and prints what it measured. Without such a device everything here is
skipped.
"""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conversations import SCENES, SHAPES, ask, scene
from dtype_grid import (
    DTYPES,
    aligned,
    bound,
    cast_components,
    distance,
    last_logits,
    twin,
    unhook,
    unpacked,
)
from small_models import (
    ARCHITECTURES,
    Recipe,
    answer,
    build_model,
    demo_folder,
    load_llava,
    prompt_of,
    text_of,
    without_end,
)
from transformers import AutoConfig

from tuichat import torchkit
from tuichat.api import Conversation, GenerationError, Loaded, Turn
from tuichat.torchkit.checkpoint import stored_tensors
from tuichat.torchkit.fit import footprint, free_bytes
from tuichat.torchkit.reuse import state_of
from tuichat_llava import plugin

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
    pytest.mark.timeout(300),
]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One checkpoint of every architecture, with weights of an ordinary size."""
    text = {"hidden_size": 64, "intermediate_size": 128}
    return {
        name: build_model(
            tmp_path_factory.mktemp(name), Recipe(architecture=name, scale=0.05, text=text)
        )
        for name in ARCHITECTURES
    }


def on_cuda(folder: Path, **request: Any) -> Loaded:
    return load_llava(folder, device="cuda", **request)


# --------------------------------------------------------------------------- every dtype


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_all_81_combinations_agree_with_float32(name: str, folders: dict[str, Path]) -> None:
    loaded = on_cuda(folders[name], dtype="float32")
    prompt = prompt_of(loaded, ask("What is it?", SHAPES[7]))
    reference = last_logits(loaded.handle, prompt, torch.float32)
    worst = dict.fromkeys(DTYPES, 0.0)
    for vision, projector, language in itertools.product(DTYPES, repeat=3):
        handle = twin(loaded)
        cast_components(handle, vision=vision, projector=projector, language=language)
        with aligned(handle):
            for pixels in DTYPES:
                chain = (vision, projector, language, pixels)
                error = distance(last_logits(handle, prompt, pixels), reference)
                # TF32 and other orders of summation: as fine as float16, not as float32.
                assert error <= max(bound(*chain), 1e-3), (chain, error)
                worst[language] = max(worst[language], error)
    print(f"\n{name}: worst ‖a−b‖/‖b‖ by language model", {str(k): v for k, v in worst.items()})


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("quantise", ["4bit", "8bit"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_quantised_language_model_agrees_with_its_own_weights(
    name: str, quantise: str, dtype: str, folders: dict[str, Path]
) -> None:
    loaded = on_cuda(folders[name], quantize=quantise, dtype=dtype)
    prompt = prompt_of(loaded, ask("What is it?", SCENES[0]))
    unhook(loaded.handle.plan)
    reference = last_logits(unpacked(loaded.handle), prompt, torch.float32)
    torchkit.align(loaded.handle, loaded.handle.plan)
    assert distance(last_logits(loaded.handle, prompt, torch.float32), reference) <= 2e-2


def test_auto_takes_half_precision_and_the_demo_model_sees() -> None:
    loaded = on_cuda(demo_folder())
    report = plugin.tuichat_align_dtype(loaded)
    assert {row.compute for row in report.rows} == {"float16"}
    assert {row.device for row in report.rows} == {"cuda:0"}
    for colour in ("red", "blue"):
        assert colour in text_of(answer(loaded, ask("What colour is the circle?", scene(colour))))


def test_a_tower_whose_float16_overflows_is_widened(folders: dict[str, Path]) -> None:
    loaded = on_cuda(folders["llava"])
    tower = loaded.handle.components()["vision tower"]
    block = tower.encoder.layers[0]
    for weight, factor in (
        (block.layer_norm2.weight, 100.0),
        (block.mlp.fc1.weight, 2e4),
        (block.mlp.fc2.weight, 1e-4),
    ):
        weight.data.mul_(factor)
    assert text_of(answer(without_end(loaded), ask("Hello"))) is not None
    assert text_of(answer(loaded, ask("Hello", SCENES[0]))) is not None
    assert torchkit.boundary_dtype(tower) is not torch.float16
    assert "vision tower" in plugin.tuichat_align_dtype(loaded).changed


# --------------------------------------------------------------------------- the benchmark


def test_the_conversation_of_ten_turns() -> None:
    """Against plain transformers. Its factor is a CPU's: small models are all launches here."""
    script = ROOT / "benchmarks" / "bench_turns.py"
    done = subprocess.run(
        [sys.executable, str(script), "--device", "cuda", "--rounds", "3"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    print(f"\n{done.stdout}\n{done.stderr[-2000:]}")
    assert done.returncode in (0, 1)
    total = next(line.split() for line in done.stdout.splitlines() if line.startswith("all "))
    computed = [int(cell.strip("()")) for cell in total[2::2]]
    assert computed[0] * 4 <= computed[1]
    assert float(total[1]) < float(total[3])


# --------------------------------------------------------------------------- memory


@pytest.mark.parametrize("quantise", ["none", "8bit", "4bit"])
def test_a_load_takes_what_was_counted(quantise: Any, tmp_path: Path) -> None:
    text = {"hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8}
    folder = build_model(tmp_path, Recipe(layers=8, text=text))
    config = AutoConfig.from_pretrained(folder)
    counted = sum(
        footprint(stored_tensors(folder), config, torch.float16, quantise).weights.values()
    )
    on_cuda(demo_folder(), quantize=quantise)  # the libraries' own buffers
    gc.collect()
    before = torch.cuda.memory_allocated()
    loaded = on_cuda(folder, dtype="float16", quantize=quantise)
    gc.collect()
    taken = torch.cuda.memory_allocated() - before
    print(f"\n{quantise}: counted {counted / 1e6:.2f} MB, taken {taken / 1e6:.2f} MB")
    # The allocator rounds every tensor up to 512 bytes; there are some hundred.
    assert counted * 0.98 <= taken <= counted * 1.05 + 512 * 400
    assert loaded.handle.device.type == "cuda"


def test_memory_is_flat_over_fifty_turns(folders: dict[str, Path]) -> None:
    loaded = without_end(on_cuda(folders["llava"], dtype="float16"))
    turns: tuple[Turn, ...] = (Turn("user", "x", (SCENES[0],)),)
    beside = []
    for _ in range(50):
        reply = text_of(answer(loaded, Conversation(None, turns), max_new_tokens=4))
        turns = (*turns, Turn("assistant", reply), Turn("user", "y"))
        gc.collect()
        layers = state_of(loaded.handle).cache.layers
        kept = sum(
            t.untyped_storage().nbytes() for layer in layers for t in (layer.keys, layer.values)
        )
        beside.append(torch.cuda.memory_allocated() - kept)
    print(f"\nbeside the cache of the text: {min(beside)} to {max(beside[5:])} bytes")
    assert max(beside[5:]) - min(beside[5:]) <= 1 << 20


def test_out_of_memory_leaves_a_model_that_answers(tmp_path: Path) -> None:
    text = {"hidden_size": 1024, "intermediate_size": 2816, "max_position_embeddings": 65_536}
    loaded = without_end(on_cuda(build_model(tmp_path, Recipe(text=text)), dtype="float16"))
    small, large = ask("Hello", SCENES[0]), ask("word " * 8000)
    before = text_of(answer(loaded, small, max_new_tokens=4))
    torchkit.forget(loaded.handle)
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    limit = torch.cuda.memory_reserved() + (32 << 20)
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        with pytest.raises(GenerationError, match="ran out of memory on a prompt of"):
            answer(loaded, large, max_new_tokens=4)
        assert text_of(answer(loaded, small, max_new_tokens=4)) == before
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_free_memory_is_the_devices() -> None:
    free = free_bytes(torch.device("cuda", 0))
    assert free is not None
    assert 0 < free <= torch.cuda.get_device_properties(0).total_memory
