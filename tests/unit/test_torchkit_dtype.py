"""The one decision about the working dtype, on every kind of device."""

from __future__ import annotations

import pytest
import torch

from tuichat.api import BackendError
from tuichat.torchkit import resolve_device, resolve_dtype

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
SEVEN_BILLION = 7_000_000_000


@pytest.fixture
def cpu_has(monkeypatch: pytest.MonkeyPatch) -> object:
    def set_to(**capabilities: bool) -> None:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)

    return set_to


@pytest.fixture
def gpu_is(monkeypatch: pytest.MonkeyPatch) -> object:
    def set_to(major: int, minor: int) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (major, minor))

    return set_to


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("device", [CPU, CUDA])
def test_an_explicit_dtype_is_honoured(name: str, device: torch.device, gpu_is: object) -> None:
    gpu_is(7, 5)  # type: ignore[operator]
    resolved = resolve_dtype(name, device)
    assert str(resolved.dtype) == f"torch.{name}"
    assert resolved.reason == f"{name}: asked for with --dtype"


def test_what_is_slow_is_said(gpu_is: object) -> None:
    assert "slow on a CPU" in resolve_dtype("float16", CPU).notices[0]
    assert resolve_dtype("float32", CPU).notices == ()
    gpu_is(7, 5)  # type: ignore[operator]
    assert "emulated" in resolve_dtype("bfloat16", CUDA).notices[0]
    gpu_is(8, 0)  # type: ignore[operator]
    assert resolve_dtype("bfloat16", CUDA).notices == ()


def test_a_gpu_runs_the_backends_default(gpu_is: object) -> None:
    gpu_is(9, 0)  # type: ignore[operator]
    resolved = resolve_dtype("auto", CUDA, preferred=torch.float16, checkpoint=torch.float16)
    assert resolved.dtype is torch.float16
    assert "default on a GPU" in resolved.reason


def test_a_checkpoint_in_bfloat16_stays_so_where_the_gpu_has_it(gpu_is: object) -> None:
    gpu_is(8, 6)  # type: ignore[operator]
    assert resolve_dtype("auto", CUDA, checkpoint=torch.bfloat16).dtype is torch.bfloat16
    gpu_is(7, 5)  # type: ignore[operator]
    resolved = resolve_dtype("auto", CUDA, checkpoint=torch.bfloat16)
    assert resolved.dtype is torch.float16
    assert "compute capability 7.5" in resolved.reason
    assert resolved.notices


def test_a_cpu_never_gets_float16_by_itself(cpu_has: object) -> None:
    cpu_has(avx512_bf16=True)  # type: ignore[operator]
    large = resolve_dtype("auto", CPU, parameters=SEVEN_BILLION)
    assert large.dtype is torch.bfloat16
    assert "slow on a CPU" in large.reason
    small = resolve_dtype("auto", CPU, parameters=1_200_000)
    assert small.dtype is torch.float32
    assert "small enough" in small.reason
    cpu_has(avx2=True)  # type: ignore[operator]
    old = resolve_dtype("auto", CPU, parameters=SEVEN_BILLION)
    assert old.dtype is torch.float32
    assert "no fast 16-bit" in old.reason


def test_names_that_are_none() -> None:
    with pytest.raises(BackendError, match="--dtype half is not known: use auto, bfloat16"):
        resolve_dtype("half", CPU)
    with pytest.raises(BackendError, match="'warp' is not a device"):
        resolve_device("warp")


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == CUDA
    assert resolve_device("cuda") == CUDA
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    assert resolve_device("cpu") == CPU
    with pytest.raises(BackendError, match=r"has 2 CUDA GPU\(s\), cuda:0 to cuda:1"):
        resolve_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    with pytest.raises(BackendError, match="finds no Metal GPU"):
        resolve_device("mps")
