"""Dtype alignment: every combination runs, and what changed since the load is found and mended."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conversations import SCENES, ask, scene
from small_models import answer, demo_folder, load_llava, text_of

from tuichat.api import Loaded
from tuichat.torchkit import boundary_dtype
from tuichat_llava import plugin


@pytest.fixture
def half(style_folders: dict[str, Path]) -> Loaded:
    return load_llava(style_folders["demo"], dtype="float16")


def test_the_reported_case_a_projector_that_became_float32(half: Loaded) -> None:
    assert plugin.tuichat_align_dtype(half).changed == ()
    question = ask("What colour is the circle?", scene("red"))
    before = text_of(answer(half, question))
    assert "red" in before
    half.handle.components()["projector"].float()
    report = plugin.tuichat_align_dtype(half)
    assert report.changed == ("projector",)
    row = next(row for row in report.rows if row.component == "projector")
    assert (row.weights, row.compute, row.input) == ("float16",) * 3
    assert "4 weights found in float32, cast to float16" in row.reason
    assert text_of(answer(half, question)) == before
    assert plugin.tuichat_align_dtype(half).changed == ()


COMPONENTS = ("vision tower", "projector", "language model", "lm_head")


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_component_is_watched(
    component: str, dtype: torch.dtype, style_folders: dict[str, Path]
) -> None:
    loaded = load_llava(style_folders["vicuna"], dtype="float16")
    question = ask("x", SCENES[0])
    loaded.handle.components()[component].to(dtype)
    report = plugin.tuichat_align_dtype(loaded)
    assert report.changed == (component,)
    assert {boundary_dtype(m) for m in loaded.handle.components().values()} == {torch.float16}
    assert answer(loaded, question)[-1].stop_reason in ("end", "length")


def test_weights_tied_to_the_head_stay_tied(half: Loaded) -> None:
    """The demo's head is its embedding table: repaired once, still one tensor."""
    model = half.handle.model
    half.handle.components()["lm_head"].float()
    plugin.tuichat_align_dtype(half)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert model.lm_head.weight.dtype is torch.float16


def test_what_lost_digits_says_so_and_rotary_tables_get_them_back(demo: Loaded) -> None:
    decoder = demo.handle.model.get_decoder()
    frequencies = decoder.rotary_emb.inv_freq.clone()
    saved = {key: value.clone() for key, value in decoder.state_dict().items()}
    try:
        decoder.half()
        report = plugin.tuichat_align_dtype(demo)
        assert "language model" in report.changed
        row = next(row for row in report.rows if row.component == "language model")
        assert "does not bring back the digits" in row.reason
        assert decoder.rotary_emb.inv_freq.dtype is torch.float32
        assert torch.equal(decoder.rotary_emb.inv_freq, frequencies)
    finally:
        decoder.load_state_dict(saved)


def test_a_weight_out_of_range_is_not_cast(half: Loaded) -> None:
    projector = half.handle.components()["projector"].float()
    projector.linear_1.weight.data[0, 0] = 1e6
    report = plugin.tuichat_align_dtype(half)
    row = next(row for row in report.rows if row.component == "projector")
    assert "does not fit float16" in row.reason
    assert "its input is cast instead" in row.reason
    assert bool(projector.linear_1.weight.isfinite().all())
    assert row.input == "float32"
    assert {parameter.dtype for parameter in projector.parameters()} == {torch.float32}
    assert plugin.tuichat_align_dtype(half).changed == ()
    prompt = plugin.tuichat_assemble_prompt(half, ask("x", SCENES[0]))
    with torch.inference_mode():
        assert half.handle.image_features(prompt.spans[0].inputs).dtype is torch.float32


def test_an_offloaded_component_keeps_its_dtype_and_its_input_follows(half: Loaded) -> None:
    """A module on ``meta`` (accelerate holds its weights elsewhere) cannot be cast."""
    projector = half.handle.components()["projector"].float().to("meta")
    report = plugin.tuichat_align_dtype(half)
    row = next(row for row in report.rows if row.component == "projector")
    assert "its weights are offloaded" in row.reason
    assert (row.input, row.device) == ("float32", "meta")
    width = projector.linear_1.in_features
    features = projector(torch.zeros(1, 2, width, dtype=torch.float16, device="meta"))
    assert features.dtype is torch.float32


def test_a_replaced_module_is_found(half: Loaded) -> None:
    base = half.handle.model.base_model
    base.multi_modal_projector = copy.deepcopy(base.multi_modal_projector).float()
    assert plugin.tuichat_align_dtype(half).changed == ("projector",)
    assert "red" in text_of(answer(half, ask("What colour is the circle?", scene("red"))))


def test_a_repair_forgets_what_was_computed_with_other_weights(half: Loaded) -> None:
    question = ask("What colour is the circle?", scene("red"))
    answer(half, question)
    assert answer(half, question)[-1].usage.reused_tokens > 0  # type: ignore[union-attr]
    half.handle.components()["language model"].float()
    plugin.tuichat_align_dtype(half)
    assert answer(half, question)[-1].usage.reused_tokens == 0  # type: ignore[union-attr]


# --------------------------------------------------------------------------- norms, packed weights


def packed(weight: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(weight.to(torch.uint8), requires_grad=False)


def test_boundary_dtype_is_that_of_the_weights_the_input_meets_first() -> None:
    norm_first = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 4).half())
    assert boundary_dtype(norm_first) is torch.float16
    embedding_first = torch.nn.Sequential(torch.nn.Embedding(4, 4), torch.nn.Linear(4, 4).half())
    assert boundary_dtype(embedding_first) is torch.float16
    patches = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2).bfloat16(), torch.nn.Linear(4, 4))
    assert boundary_dtype(patches) is torch.bfloat16


def test_boundary_dtype_is_never_a_packed_integer() -> None:
    linear = torch.nn.Linear(4, 4).half()
    linear.weight = packed(linear.weight)
    linear.compute_dtype = torch.bfloat16
    assert next(linear.parameters()).dtype is torch.uint8
    assert boundary_dtype(linear) is torch.bfloat16
    del linear.compute_dtype
    assert boundary_dtype(linear) is torch.float16  # of its bias: the only floating weight
    assert boundary_dtype(torch.nn.Sequential(linear, torch.nn.Conv2d(3, 4, 2))) is torch.float32
    assert boundary_dtype(torch.nn.ReLU()) is None


# --------------------------------------------------------------------------- 4 and 8 bits


@pytest.mark.parametrize(("quantize", "kind"), [("4bit", "nf4"), ("8bit", "int8")])
def test_only_the_language_models_layers_are_quantised(quantize: str, kind: str) -> None:
    loaded = load_llava(demo_folder(), quantize=quantize)
    report = plugin.tuichat_align_dtype(loaded)
    quantised = {row.component: row.quantised for row in report.rows}
    assert quantised["language model"] == kind
    assert {value for name, value in quantised.items() if name != "language model"} == {None}
    packed_layers = [
        name
        for name, module in loaded.handle.model.named_modules()
        if isinstance(module, torch.nn.Linear) and not module.weight.is_floating_point()
    ]
    layers = loaded.handle.model.config.text_config.num_hidden_layers
    assert len(packed_layers) == layers * 7  # q, k, v, o, gate, up, down
    assert all(".layers." in name and "language_model" in name for name in packed_layers)
    right = sum(
        colour in text_of(answer(loaded, ask("What colour is the circle?", scene(colour))))
        for colour in ("red", "blue", "green", "yellow")
    )
    assert right >= 3


@pytest.mark.parametrize(("hidden", "intermediate"), [(48, 96), (64, 288), (64, 128)])
def test_layers_of_any_shape_run_in_4_bits(
    hidden: int, intermediate: int, make_llava: Callable[..., Path]
) -> None:
    """bitsandbytes' kernel for CPUs with AVX512-BF16 takes whole blocks only."""
    text = {"hidden_size": hidden, "intermediate_size": intermediate}
    loaded = load_llava(make_llava(text=text), quantize="4bit")
    assert answer(loaded, ask("x", SCENES[0]))[-1].stop_reason in ("end", "length")


def test_a_skip_list_that_skips_nothing_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The short names that many guides give match nothing on transformers 5."""
    from tuichat.api import BackendError
    from tuichat.torchkit import quantize

    monkeypatch.setattr(quantize, "linear_names", lambda *_, **__: ["vision_tower"])
    with pytest.raises(BackendError, match=r"vision_tower.* was quantised, against the plan"):
        load_llava(demo_folder(), quantize="4bit")


def test_a_checkpoint_that_is_stored_quantised(tmp_path: Path) -> None:
    import shutil

    shutil.copytree(demo_folder(), tmp_path / "stored")
    original = load_llava(demo_folder(), quantize="4bit")
    (tmp_path / "stored" / "model.safetensors").unlink()
    original.handle.model.save_pretrained(tmp_path / "stored")
    loaded = load_llava(tmp_path / "stored", quantize="8bit")
    assert any("stored quantised" in notice for notice in loaded.facts.notices)
    rows = {row.component: row.quantised for row in plugin.tuichat_align_dtype(loaded).rows}
    assert rows["language model"] == "nf4"
    question = ask("What colour is the circle?", scene("red"))
    assert text_of(answer(loaded, question)) == text_of(answer(original, question))


def test_a_stray_cast_of_a_quantised_model_is_mended() -> None:
    loaded = load_llava(demo_folder(), quantize="4bit", dtype="bfloat16")
    for module in loaded.handle.model.modules():
        if "norm" in type(module).__name__.lower():
            module.float()
    report = plugin.tuichat_align_dtype(loaded)
    assert "language model" in report.changed
    row = next(row for row in report.rows if row.component == "language model")
    assert (row.weights, row.compute, row.quantised) == ("uint8", "bfloat16", "nf4")
    assert "red" in text_of(answer(loaded, ask("What colour is the circle?", scene("red"))))


def test_a_nested_config_that_lies_is_overruled_and_said(
    make_llava: Callable[..., Path], tmp_path: Path
) -> None:
    import json

    folder = make_llava(style="llama3")
    config = json.loads((folder / "config.json").read_text())
    config["dtype"] = "bfloat16"
    config["vision_config"]["dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(config))
    loaded = load_llava(folder, dtype="float16")
    assert {boundary_dtype(m) for m in loaded.handle.components().values()} == {torch.float16}
    assert any("float32 in vision_config" in notice for notice in loaded.facts.notices)


def test_alignment_before_a_turn_is_cheap(demo: Loaded) -> None:
    """No weight is read when nothing moved: the check looks at dtypes and devices only."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class NoArithmetic(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            raise AssertionError(f"{func} ran during a check")

    plugin.tuichat_align_dtype(demo)
    with NoArithmetic():
        assert plugin.tuichat_align_dtype(demo).changed == ()


def test_a_library_that_repeats_itself_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """bitsandbytes warns in every int8 layer of every forward that it casts what it is given."""
    loaded = load_llava(demo_folder(), quantize="8bit", dtype="bfloat16")
    answer(loaded, ask("What colour is the circle?", scene("red")))
    said = [record.getMessage() for record in caplog.records if "MatMul8bitLt" in record.message]
    assert len(said) == len(set(said)) <= 1
