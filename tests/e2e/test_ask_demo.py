"""``tuichat ask`` with a real vision-language model, which answers about the image it was given."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tuichat.store import Store

DEMO = ("--backend", "llava", "--model", "demo")


def _patches() -> int:
    """Image tokens of the demo model: one for each patch of its vision tower."""
    import tuichat_llava

    config = Path(tuichat_llava.__file__).parent / "demo" / "config.json"
    vision = json.loads(config.read_text())["vision_config"]
    return (vision["image_size"] // vision["patch_size"]) ** 2


def test_two_questions_about_one_image(run_tuichat, scene):
    first = run_tuichat("ask", *DEMO, str(scene), "What colour is the circle?")
    assert first.code == 0
    assert "red" in first.out
    assert "\x1b" not in first.out
    assert "float" in first.err, "the dtype is said"
    # Neither backend nor model is named again, or only one of them: the session has both.
    second = run_tuichat("ask", "-b", "llava", "--session", "last", "--json", "What shape is it?")
    assert second.code == 0
    answer = json.loads(second.out)
    assert "circle" in answer["text"]
    assert answer["backend"] == "llava"
    assert answer["usage"]["image_tokens"] == _patches()
    assert answer["usage"]["new_tokens"] > 1
    assert answer["timing"]["load_s"] > 0
    assert answer["timing"]["first_token_s"] <= answer["timing"]["total_s"]
    rows = {row["component"]: row for row in answer["dtype"]}
    assert {"pixels", "vision tower", "projector", "language model"} <= rows.keys()
    for row in rows.values():
        assert set(row) == {
            "component",
            "weights",
            "compute",
            "input",
            "device",
            "quantised",
            "changed",
            "reason",
        }
        assert row["reason"]


def test_no_image_no_guess(run_tuichat):
    ran = run_tuichat("ask", *DEMO, "-q", "--no-store", "What colour is the circle?")
    assert ran.code == 0
    assert ran.err == ""
    assert "red" not in ran.out


def test_a_folder_that_is_no_model(run_tuichat, tmp_path: Path):
    ran = run_tuichat("ask", "-q", "-b", "llava", "-m", str(tmp_path), "hi")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert str(tmp_path) in ran.err
    assert "config.json" in ran.err


def test_a_model_that_is_not_here_says_what_is_missing_and_what_to_do(run_tuichat, tmp_path):
    ran = run_tuichat(
        "ask", "-q", "-b", "llava", "--offline", "hi", env={"HF_HOME": str(tmp_path / "hub")}
    )
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    for word in ("llava-hf/llava-1.5-7b-hf", "14.1 GB", "--model demo"):
        assert word in ran.err
    with Store.open() as store:
        path = store.path(store.resolve_session("last").id)
    assert [turn.state for turn in path] == ["done", "failed"]
    assert path[0].text == "hi"


def test_a_damaged_checkpoint_is_one_sentence(run_tuichat, tmp_path):
    import tuichat_llava

    damaged = tmp_path / "damaged"
    shutil.copytree(Path(tuichat_llava.__file__).parent / "demo", damaged)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100_000])
    ran = run_tuichat("ask", "-q", "-b", "llava", "-m", str(damaged), "hi")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err


def test_ctrl_c_while_the_model_loads(home):
    process = subprocess.Popen(
        [sys.executable, "-m", "tuichat", "ask", *DEMO, "hi"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        process.stderr.readline()  # starting
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        out = process.stdout.read()
        process.wait(30)
    assert process.returncode == 130
    assert out == b""
    assert time.monotonic() - began < 15
    with Store.open() as store:
        reply = store.path(store.resolve_session("last").id)[-1]
    assert (reply.state, reply.text) == ("stopped", "")
