"""Fixtures of the tests that run real models; what they are made of is in ``support``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import ARCHITECTURES, Recipe, build_model, demo_folder, load_llava

from tuichat import torchkit
from tuichat.api import Loaded

MakeLlava = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """On models this small, threads cost more than they give, the more so beside other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_llava(tmp_path_factory: pytest.TempPathFactory) -> MakeLlava:
    """``make_llava(style="llama3", …)``: the folder of a small random model (see ``Recipe``)."""

    def make(**changes: Any) -> Path:
        return build_model(tmp_path_factory.mktemp("llava"), Recipe(**changes))

    return make


@pytest.fixture(scope="session")
def style_folders(make_llava: MakeLlava) -> dict[str, Path]:
    """One random LLaVA of every prompt style that such checkpoints have, and the demo's."""
    folders = {style: make_llava(style=style) for style in ("vicuna", "llama3", "ordinal")}
    return {**folders, "demo": demo_folder()}


@pytest.fixture(scope="session")
def architecture_folders(make_llava: MakeLlava, style_folders: dict[str, Path]) -> dict[str, Path]:
    """One random checkpoint of every architecture, in its usual prompt style."""
    folders = {name: make_llava(architecture=name) for name in ARCHITECTURES if name != "llava"}
    return {"llava": style_folders["vicuna"], **folders}


@pytest.fixture(scope="session")
def _demo() -> Loaded:
    return load_llava(demo_folder())


@pytest.fixture
def demo(_demo: Loaded) -> Iterator[Loaded]:
    """The loaded demo model, with nothing kept from other tests."""
    torchkit.forget(_demo.handle)
    yield _demo
    torchkit.forget(_demo.handle)
