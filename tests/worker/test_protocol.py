"""Frames come out as they went in, and nothing else is believed."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuichat.api import Capabilities, DtypeRow, ModelFacts
from tuichat.worker import protocol

ROW = DtypeRow("projector", "float16", "float16", "float16", "cpu", changed=True, reason="mended")


def received(*chunks: bytes) -> bytes | None:
    async def read() -> bytes | None:
        reader = asyncio.StreamReader()
        for chunk in chunks:
            reader.feed_data(chunk)
        reader.feed_eof()
        return await protocol.read_body(reader)

    return asyncio.run(read())


@pytest.mark.parametrize(
    "frame",
    [
        protocol.Welcome(protocol.PROTOCOL, "1", 2),
        protocol.Loading("weights", 3, None, "layers", "model.layers.3"),
        protocol.Ready(
            1.5,
            ModelFacts(4096, frozenset({2, 7}), Capabilities(max_images=1), ("said",)),
            (ROW,),
            "a CPU",
        ),
        protocol.LoadFailed("no"),
        protocol.Accepted(1, 0),
        protocol.Started(1, 600, 576, ("left out",)),
        protocol.Text(1, 4, "naïve 🎉\x1b", "hm"),
        protocol.Finished(1, "failed", "why", (ROW,)),
        protocol.Cost(10, 20, None),
        protocol.Notice("so"),
    ],
)
def test_worker_frames_round_trip(frame: protocol.WorkerFrame) -> None:
    body = received(protocol.encode(frame))
    assert body is not None
    assert protocol.decode_worker(body) == frame


@given(st.text(), st.integers(1, 2**60), st.dictionaries(st.text(), st.integers() | st.booleans()))
def test_client_frames_round_trip(store: str, reply_id: int, options: dict[str, object]) -> None:
    frame = protocol.Run(reply_id, store, options={k: v for k, v in options.items() if v != 2**64})
    try:
        wire = protocol.encode(frame)
    except OverflowError:
        return  # integers beyond 64 bits never reach a frame
    assert protocol.decode_client(wire[4:]) == frame


def test_what_a_backend_says_can_always_be_sent() -> None:
    frame = protocol.Finished(1, "failed", "caf\udce9", (ROW,))
    sent = protocol.decode_worker(protocol.encode(frame)[4:])
    assert sent == protocol.Finished(1, "failed", "caf?", (ROW,))
    with pytest.raises(UnicodeEncodeError):
        protocol.encode(protocol.Run(1, "/home/caf\udce9"))


def test_a_frame_may_arrive_in_pieces() -> None:
    wire = protocol.encode(protocol.Notice("x" * 1000))
    assert received(*(wire[i : i + 7] for i in range(0, len(wire), 7))) == wire[4:]


@pytest.mark.parametrize("cut", [0, 3, 4, 10])
def test_a_cut_stream_is_an_end(cut: int) -> None:
    assert received(protocol.encode(protocol.Stop(7, "/store"))[:cut]) is None


def test_a_length_beyond_the_bound_is_refused_before_it_is_read() -> None:
    with pytest.raises(protocol.FrameError, match="exceeds the bound"):
        received((protocol.MAX_FRAME + 1).to_bytes(4, "big"))
    with pytest.raises(protocol.FrameError, match="exceeds the bound"):
        protocol.encode(protocol.Notice("x" * (protocol.MAX_FRAME + 1)))


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x81\xa4type\xa5bogus", b"(lp0\nI1\na."])
def test_what_is_not_a_frame_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        protocol.decode_client(body)


def test_identity_tells_workers_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    base = protocol.WorkerSpec("llava", "demo")
    assert base.identity == protocol.WorkerSpec("llava", "demo").identity
    others = [
        protocol.WorkerSpec("glm4v", "demo"),
        protocol.WorkerSpec("llava", "other"),
        protocol.WorkerSpec("llava", "demo", device="cuda:1"),
        protocol.WorkerSpec("llava", "demo", dtype="float16"),
        protocol.WorkerSpec("llava", "demo", quantize="4bit"),
        protocol.WorkerSpec("llava", "demo", options={"attn": "eager"}),
        protocol.WorkerSpec("llava", "demo", distribution="tuichat 9"),
    ]
    assert protocol.WorkerSpec("llava", "demo", offline=True).identity == base.identity
    identities = {base.identity, *(other.identity for other in others)}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    identities.add(base.identity)
    assert len(identities) == len(others) + 2
