"""torchkit as a package: lazy, complete, and quiet about downloads."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tuichat import torchkit
from tuichat.api import BackendError, GenerationError, Progress, Prompt, Span
from tuichat.torchkit.checkpoint import _byte_counter
from tuichat.torchkit.failures import generation_failure, is_out_of_memory
from tuichat.torchkit.generation import layout_of


def test_importing_it_imports_no_torch() -> None:
    code = (
        "import sys, tuichat.torchkit, tuichat.torchkit.hooks\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there() -> None:
    code = (
        "import tuichat.torchkit as kit\n"
        "import types\n"
        "for _ in range(2):\n"
        "    for name in kit.__all__:\n"
        "        assert not isinstance(getattr(kit, name), types.ModuleType), name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no_such_thing"):
        torchkit.no_such_thing  # noqa: B018


def test_bytes_of_a_download_are_reported_and_never_go_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As the hub library drives it: a bar of received bytes, one of written ones, one of files."""
    seen: list[Progress] = []
    bar = _byte_counter(seen.append, "owner/name")
    received = bar(total=0, initial=0, unit="B", unit_scale=True, desc="Downloading bytes")
    written = bar(total=0, initial=0, unit="B", unit_scale=True, bar_format="{l_bar}")
    files = bar(total=2, desc="Fetching 2 files")
    for one in (received, written):
        one.total += 100
        one.refresh()
    received.update(40)
    written.update(10)
    received.update(60)
    files.update(1)
    written.update(90)
    written.set_postfix_str("1 MB/s", refresh=False)
    received.set_description("done")
    assert received.format_dict.get("rate") is None
    with files:
        files.close()
    assert [(p.done, p.total, p.unit, p.detail) for p in seen] == [
        (40, 100, "bytes", "owner/name"),
        (100, 100, "bytes", "owner/name"),
    ]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (Prompt([]), "a prompt of 0 ids"),
        (Prompt([1, 2], position_ids=[0]), "2 ids with 1 positions"),
        (Prompt([1, 2], (Span(1, 2, "a"),)), "positions 1 to 3 of a prompt of 2"),
        (Prompt([1, 2, 3], (Span(0, 2, "a"), Span(1, 1, "b"))), "where it cannot be"),
    ],
)
def test_prompts_that_contradict_themselves(prompt: Prompt, said: str) -> None:
    with pytest.raises(BackendError, match=said):
        layout_of(prompt)


@pytest.mark.parametrize(
    ("error", "out_of_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("expected scalar type Half"), False),
        (ValueError("out of memory of what was said"), False),
    ],
)
def test_failures_become_one_sentence(error: Exception, out_of_memory: bool) -> None:
    assert is_out_of_memory(error) is out_of_memory
    failure = generation_failure(error, torch.device("cpu"), 7)
    assert isinstance(failure, GenerationError)
    assert "\n" not in str(failure)
    assert ("4bit" in str(failure)) is out_of_memory
    assert error.__traceback__ is None
