"""Loading: what a checkpoint gets wrong is mended and said; what is no model is one sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conversations import SCENES, ask, image_of, scene
from small_models import answer, build_model, demo_folder, load_llava

from tuichat.api import BackendError, LoadRequest, ModelNotAvailable, Progress
from tuichat_llava import plugin

MakeLlava = Callable[..., Path]


@pytest.fixture
def copy_of(style_folders: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A checkpoint of a style that a test may break."""

    def copy(style: str) -> Path:
        return Path(shutil.copytree(style_folders[style], tmp_path / style))

    return copy


def edit_json(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text())
    value.update(changes)
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not ...}))


# --------------------------------------------------------------------------- what is loaded


def test_progress_tells_its_stages_and_the_layers() -> None:
    seen: list[Progress] = []
    request = LoadRequest(str(demo_folder()), device="cpu")
    plugin.tuichat_load(request, seen.append)
    stages = list(dict.fromkeys(progress.stage for progress in seen))
    assert stages == ["import", "weights", "align", "warmup"]
    layers = [progress for progress in seen if progress.unit == "layers"]
    assert layers[-1].done == layers[-1].total > 100


@pytest.mark.parametrize("stage", ["import", "weights", "warmup"])
def test_a_callback_that_raises_cancels_the_load(stage: str) -> None:
    class Enough(Exception):
        pass

    def cancel(progress: Progress) -> None:
        if progress.stage == stage:
            raise Enough

    with pytest.raises(Enough):
        plugin.tuichat_load(LoadRequest(str(demo_folder()), device="cpu"), cancel)


def test_facts_are_what_the_checkpoint_says() -> None:
    loaded = load_llava(demo_folder())
    facts, config = loaded.facts, loaded.handle.model.config.text_config
    assert facts.context_length == config.max_position_embeddings > 0
    assert facts.end_ids == {loaded.handle.tokenizer.eos_token_id}
    assert facts.capabilities.system_prompt
    assert facts.notices == ()


def test_role_markers_of_words_are_told_from_control_tokens(
    style_folders: dict[str, Path],
) -> None:
    markers = {
        style: load_llava(folder).facts.capabilities.plain_text_markers
        for style, folder in style_folders.items()
        if style != "demo"
    }
    assert markers == {"vicuna": True, "llama3": False, "ordinal": False}


def test_nothing_is_printed_by_any_library(tmp_path: Path) -> None:
    """In a fresh interpreter that logs to a file, as a worker does."""
    code = (
        "import logging\n"
        f"logging.basicConfig(filename={str(tmp_path / 'log')!r}, level=logging.INFO)\n"
        "from tuichat.api import LoadRequest\n"
        "from tuichat_llava import plugin\n"
        f"request = LoadRequest({str(demo_folder())!r}, device='cpu', quantize='4bit')\n"
        "plugin.tuichat_load(request, lambda progress: None)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
    assert "bitsandbytes" in (tmp_path / "log").read_text()


def test_describing_the_backend_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys\n"
        "from tuichat_llava import plugin\n"
        "import tuichat.torchkit.hooks\n"
        "info = plugin.tuichat_backend()\n"
        "assert info.default_model == 'llava-hf/llava-1.5-7b-hf', info\n"
        "loaded = __import__('tuichat.api').api.Loaded(handle=object())\n"
        "hook = tuichat.torchkit.hooks.tuichat_generate\n"
        "assert hook(loaded, 'anything', None, None) is None\n"
        "heavy = {'torch', 'transformers', 'bitsandbytes', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --------------------------------------------------------------------------- what is mended


def test_the_legacy_file_of_a_processors_template_is_read(copy_of: Callable[..., Path]) -> None:
    folder = copy_of("vicuna")
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    loaded = load_llava(folder)
    assert loaded.facts.notices == ()
    assert len(plugin.tuichat_assemble_prompt(loaded, ask("x", SCENES[0])).spans) == 1


@pytest.mark.parametrize(("strategy", "tokens"), [("default", 4), ("full", 5)])
def test_class_token_and_feature_selection_are_the_models_business(
    make_llava: MakeLlava, strategy: str, tokens: int
) -> None:
    loaded = load_llava(make_llava(config={"vision_feature_select_strategy": strategy}))
    assert plugin.tuichat_image_tokens(loaded, 10, 10) == tokens
    assert answer(loaded, ask("x", SCENES[0]))[-1].usage.image_tokens == tokens  # type: ignore[union-attr]


def test_a_small_model_on_a_cpu_takes_one_thread(style_folders: dict[str, Path]) -> None:
    import torch

    torch.set_num_threads(2)
    load_llava(style_folders["vicuna"])
    assert torch.get_num_threads() == 1


def test_explicit_dtypes_are_honoured_and_slowness_is_said() -> None:
    loaded = load_llava(demo_folder(), dtype="float16")
    report = plugin.tuichat_align_dtype(loaded)
    assert {row.compute for row in report.rows} == {"float16"}
    assert report.reason == "float16: asked for with --dtype"
    assert any("slow on a CPU" in notice for notice in loaded.facts.notices)
    auto = plugin.tuichat_align_dtype(load_llava(demo_folder()))
    assert {row.compute for row in auto.rows} == {"float32"}
    assert "slow on a CPU" in auto.reason


# --------------------------------------------------------------------------- images of every form


@pytest.mark.parametrize("size", [(1, 1), (1, 3), (3, 1), (5, 4000), (20000, 10), (3, 3)])
def test_tiny_and_extreme_images_take_as_many_tokens_as_any(size: tuple[int, int]) -> None:
    from PIL import Image as PILImage

    loaded = load_llava(demo_folder())
    picture = image_of(PILImage.new("RGB", size, "red"))
    deltas = answer(loaded, ask("What is it?", picture))
    vision = loaded.handle.model.config.vision_config
    tokens = (vision.image_size // vision.patch_size) ** 2
    assert deltas[-1].usage.image_tokens == tokens  # type: ignore[union-attr]


def test_an_image_that_cannot_be_opened_names_its_file() -> None:
    from dataclasses import replace

    from tuichat.api import ImageRefused

    def gone() -> Any:
        raise OSError("the blob is missing")

    broken = replace(scene("red"), name="holiday.png", open=gone, digest="0" * 64)
    with pytest.raises(ImageRefused, match=r"holiday\.png .*the blob is missing"):
        plugin.tuichat_assemble_prompt(load_llava(demo_folder()), ask("x", broken))


# --------------------------------------------------------------------------- what is refused


def test_a_model_that_is_not_here_says_what_is_missing_and_what_to_do(
    tmp_path: Path,
) -> None:
    request = LoadRequest("llava-hf/llava-1.5-7b-hf", offline=True, cache_dir=str(tmp_path))
    with pytest.raises(ModelNotAvailable) as raised:
        plugin.tuichat_load(request, lambda _: None)
    sentence = str(raised.value)
    for word in ("llava-hf/llava-1.5-7b-hf", "14.1 GB", "offline", "--model demo", "local folder"):
        assert word in sentence
    assert "\n" not in sentence


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    code = (
        "from tuichat.api import LoadRequest, ModelNotAvailable\n"
        "from tuichat_llava import plugin\n"
        f"request = LoadRequest('someone/model', cache_dir={str(tmp_path)!r})\n"
        "try:\n"
        "    plugin.tuichat_load(request, lambda progress: None)\n"
        "except ModelNotAvailable as error:\n"
        "    print(error)\n"
    )
    env = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    env["HF_ENDPOINT"] = "http://127.0.0.1:9"  # nothing listens there
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, env=env
    )
    assert done.stdout.startswith("someone/model is not on this machine and the hub cannot be")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_a_download_that_was_cut_short_names_the_files(tmp_path: Path) -> None:
    """The hub library's own cache layout, with a listing that has more files than the folder."""
    commit = "a" * 40
    repository = tmp_path / "models--someone--partial"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    shutil.copy(demo_folder() / "config.json", snapshot)
    request = LoadRequest("someone/partial", offline=True, cache_dir=str(tmp_path))
    with pytest.raises(ModelNotAvailable, match=r"lacks model\.safetensors and tokenizer_config"):
        plugin.tuichat_load(request, lambda _: None)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("/no/such/folder", "there is no folder /no/such/folder"),
        ("./nothing", "there is no folder nothing"),
        ("a model", "neither a folder here nor a hub id"),
    ],
)
def test_names_that_are_nothing(model: str, said: str) -> None:
    with pytest.raises(ModelNotAvailable, match=said):
        load_llava(model, offline=True)


def test_a_file_and_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotAvailable, match=r"has no config\.json"):
        load_llava(tmp_path)
    (tmp_path / "weights").touch()
    with pytest.raises(ModelNotAvailable, match="is a file"):
        load_llava(tmp_path / "weights")


def test_another_architecture_is_named(copy_of: Callable[..., Path]) -> None:
    folder = copy_of("vicuna")
    edit_json(folder / "config.json", model_type="idefics3", architectures=["Idefics3For…"])
    with pytest.raises(ModelNotAvailable, match=r"is a idefics3 model .*it runs LlavaForCond"):
        load_llava(folder)
    (folder / "config.json").write_text("{not json")
    with pytest.raises(ModelNotAvailable, match="cannot be read"):
        load_llava(folder)


def test_a_vision_tower_with_rows_of_tokens_is_refused(copy_of: Callable[..., Path]) -> None:
    folder = copy_of("vicuna")
    edit_json(folder / "config.json", vision_config={"model_type": "pixtral", "hidden_size": 32})
    with pytest.raises(ModelNotAvailable, match="its vision tower is a pixtral"):
        load_llava(folder)


def test_weights_that_are_damaged_or_incomplete(copy_of: Callable[..., Path]) -> None:
    from safetensors.torch import load_file, save_file

    folder = copy_of("vicuna")
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    gone = next(key for key in tensors if "projector" in key or "mm" in key)
    save_file({k: v for k, v in tensors.items() if k != gone}, weights, {"format": "pt"})
    with pytest.raises(ModelNotAvailable, match="1 weights of LlavaForConditionalGeneration"):
        load_llava(folder)
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelNotAvailable, match="are damaged"):
        load_llava(folder)
    weights.write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    with pytest.raises(ModelNotAvailable, match="are damaged"):
        load_llava(folder)
    weights.unlink()
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(ModelNotAvailable, match="convert them to safetensors"):
        load_llava(folder)


def test_a_tokenizer_without_placeholder_for_images(tmp_path: Path) -> None:
    from small_models import Recipe

    folder = build_model(tmp_path / "m", Recipe())
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace("<image>", "<img0>"))
    edit_json(folder / "config.json", image_token_id=5)
    edit_json(folder / "config.json", image_token_index=5)
    for name in ("tokenizer_config.json", "processor_config.json"):
        path = folder / name
        path.write_text(path.read_text().replace('"<image>"', '"<nothing>"'))
    with pytest.raises(BackendError, match="no placeholder for images"):
        load_llava(folder)


def test_a_cuda_device_that_is_not_there() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(BackendError, match="finds no CUDA GPU"):
        load_llava(demo_folder(), device="cuda")
    with pytest.raises(BackendError, match="'toaster' is not a device"):
        load_llava(demo_folder(), device="toaster")
