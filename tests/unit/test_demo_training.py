"""The machinery of training the demo models, at random weights: no training here."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from demo import batches, dialogues, evaluate, export, joint_stage, muon, render, scenes, schedule
from demo.tokenizer import PAD, ChatEncoder


@pytest.fixture(scope="module")
def encoder() -> ChatEncoder:
    return ChatEncoder(render.GRID**2)


@pytest.fixture(scope="module")
def parts(encoder: ChatEncoder) -> joint_stage.Parts:
    torch.manual_seed(0)
    return joint_stage.Parts(len(encoder))


@pytest.fixture(scope="module")
def folder(parts: joint_stage.Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    state = tmp_path_factory.mktemp("state")
    schedule.save_stage(state / "joint.pt", {"parts": parts}, None, None)
    export.export(state, state / "demo")
    return state / "demo"


def test_orthogonalised_updates_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((3, 8, 8), (2, 6, 12), (2, 12, 6)):
        values = torch.linalg.svdvals(muon.orthogonalize(torch.randn(shape), steps=8))
        assert values.min() > 0.6
        assert values.max() < 1.3


def test_a_budget_ends_by_steps_or_by_time() -> None:
    budget = schedule.Budget(steps=10, seconds=100, step=2, spent=50)
    assert budget.progress() == 0.5
    budget.advance()
    assert budget.step == 3
    assert schedule.Budget(steps=10, step=10).progress() == 1


def test_rates_fall_to_their_floor() -> None:
    assert schedule.cosine(0, 0.01) == pytest.approx(1)
    assert schedule.cosine(1, 0.01) == pytest.approx(0.01)
    assert schedule.flat_then_linear(0.5, 0.4, 0.03) == 1
    assert schedule.flat_then_linear(1, 0.4, 0.03) == 0.03


def test_a_stage_goes_on_where_it_stopped(tmp_path: Path) -> None:
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    optimizers = [muon.Optimizer([module], 0.01, 0.01) for module in (first, second)]
    first(torch.ones(2, 4)).square().sum().backward()
    optimizers[0].step(1.0)
    budget = schedule.Budget(10, step=4, spent=2.0)
    schedule.save_stage(tmp_path / "s.pt", {"m": first}, optimizers[0], budget)
    resumed = schedule.Budget(10)
    assert schedule.load_stage(tmp_path / "s.pt", {"m": second}, optimizers[1], resumed)
    assert (resumed.step, resumed.spent) == (4, 2.0)
    for module, optimizer in zip((first, second), optimizers, strict=True):
        module(torch.ones(2, 4)).square().sum().backward()
        optimizer.step(1.0)
    assert torch.equal(first.weight, second.weight)
    assert not schedule.stage_done(tmp_path / "s.pt")


def test_padding_on_the_right_changes_no_answer(
    parts: joint_stage.Parts, encoder: ChatEncoder
) -> None:
    ids = torch.randint(300, 700, (1, 12))
    padded = torch.cat([ids, torch.full((1, 20), PAD)], dim=1)
    results = []
    for tokens in (ids, padded):
        keep = torch.zeros_like(tokens, dtype=torch.bool)
        keep[0, :12] = True
        with torch.no_grad():
            results.append(parts.language.logits(parts.language.embed(tokens, None), keep))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


def test_a_batch_lines_up_answers_with_turns(encoder: ChatEncoder) -> None:
    rng = random.Random(1)
    drawn = []
    for _ in range(4):
        scene = scenes.sample_scene(rng)
        dialogue = dialogues.make_dialogue(rng, [scene], 4)
        examples = [(0, scenes.SYMMETRIES[0], scene)]
        drawn.append((encoder.encode(dialogue), dialogue, examples))
    batch = batches._collate(drawn)
    perfect = torch.nn.functional.one_hot(batch.targets, len(encoder)).float()
    score = batches.Score()
    score.add(batch, perfect)
    assert score.total == 1
    perfect[0] = 0
    score.add(batch, perfect)
    assert score.total == 31 / 32


def test_the_checkpoint_computes_what_was_trained(
    folder: Path, parts: joint_stage.Parts, encoder: ChatEncoder
) -> None:
    rng = random.Random(2)
    drawn = [scenes.sample_scene(rng) for _ in range(2)]
    images = [render.render(scene, rng) for scene in drawn]
    dialogue = dialogues.make_dialogue(rng, drawn, 3)
    client = evaluate.Client(folder)
    text = client.processor.apply_chat_template(encoder.messages(dialogue), tokenize=False)
    inputs = client.processor(text=text, images=images, return_tensors="pt")
    ids = encoder.encode(dialogue).ids
    assert inputs["input_ids"][0].tolist() == ids
    with torch.no_grad():
        theirs = client.model(**inputs).logits[0]
        features = parts.projector(parts.vision.features(inputs["pixel_values"])).flatten(0, 1)
        tokens = torch.tensor([ids])
        embeds = parts.language.embed(tokens, features)
        ours = parts.language.logits(embeds, torch.ones_like(tokens, dtype=torch.bool))
    torch.testing.assert_close(theirs, ours, atol=0.02, rtol=0.01)


def test_the_checkpoint_is_small_and_names_no_machine(folder: Path) -> None:
    assert (folder / "model.safetensors").stat().st_size <= export.MAX_BYTES
    for path in folder.iterdir():
        if path.suffix == ".json":
            assert str(Path.home()) not in path.read_text(encoding="utf-8")


def test_the_template_numbers_images_and_puts_them_first(folder: Path) -> None:
    client = evaluate.Client(folder)
    image = {"type": "image"}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]},
        {"role": "assistant", "content": "I see a red circle."},
        {"role": "user", "content": [image, image, {"type": "text", "text": "And now?"}]},
    ]
    text = client.processor.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "Be brief. USER: Image 1:<image>\nWhat is this? ASSISTANT: I see a red circle.</s>"
        "USER: Image 2:<image>\nImage 3:<image>\nAnd now? ASSISTANT:"
    )
