"""Finding, starting and ending worker processes.

Owns the sockets' paths, the lock under which a worker is started, and the handshake. Refuses to
know replies and sessions. Invariant: two clients that want the same model at the same instant share
one worker, because looking for it and starting it happen under one lock; a socket left by a dead
worker is recognised by the refused connection and replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tuichat import __version__, paths
from tuichat.api import WorkerError
from tuichat.worker import protocol
from tuichat.worker.peer import peer_uid

HANDSHAKE_S = 60.0
"""Seconds for a worker to say welcome: Python itself may take long to start on a busy machine."""

STOP_S = 10.0
"""Seconds that a worker has to end when it is asked to."""

LOG_BOUND = 4 * 1024 * 1024
"""Bytes of a worker's log that are kept when the next one with its identity starts."""


@dataclass(frozen=True, slots=True)
class WorkerHandle:
    """A worker that is, or was, running."""

    identity: str
    pid: int
    backend: str
    model: str


class Connection:
    """A greeted connection to a worker."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        welcome: protocol.Welcome,
        process: subprocess.Popen[bytes] | None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._process = process
        self.pid = welcome.pid

    def send(self, frame: protocol.ClientFrame) -> None:
        """Queue a frame; a connection that is gone shows in ``frames``."""
        if not self._writer.is_closing():
            self._writer.write(protocol.encode(frame))

    async def frames(self) -> AsyncIterator[protocol.WorkerFrame]:
        """Frames until the worker goes."""
        with contextlib.suppress(ConnectionError, protocol.FrameError, protocol.DecodeError):
            while (body := await protocol.read_body(self._reader)) is not None:
                yield protocol.decode_worker(body)

    async def close(self) -> None:
        """Send what is queued, and leave."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(self._writer.drain(), 1)
        self._writer.close()

    async def exit_status(self) -> int | None:
        """The exit status of a worker that this process started, negative for a signal."""
        process = self._process
        if process is None:
            return None
        for _ in range(50):
            if (code := process.poll()) is not None:
                return code
            await asyncio.sleep(0.02)
        return None


_children: list[subprocess.Popen[bytes]] = []
"""Workers that this process started, to be reaped; they may well outlive it."""


def log_path(identity: str) -> Path:
    """Where the worker's stdout, stderr and log lines go."""
    return paths.state_dir() / "workers" / f"{identity}.log"


@contextlib.contextmanager
def _start_lock(identity: str) -> Iterator[None]:
    with (paths.runtime_dir() / f"{identity}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _listening(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(os.fspath(path))
    listener.listen(64)
    return listener


def _spawn(spec: protocol.WorkerSpec, listener: socket.socket) -> subprocess.Popen[bytes]:
    log = log_path(spec.identity)
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = "ab" if log.exists() and log.stat().st_size < LOG_BOUND else "wb"
    with log.open(mode) as output:
        process = subprocess.Popen(
            # -P: a torch.py in the folder where somebody happens to stand is not torch.
            [sys.executable, "-P", "-m", "tuichat.worker", str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(listener.fileno(),),
            start_new_session=True,
            cwd="/",
        )
    _children[:] = [child for child in _children if child.poll() is None]
    _children.append(process)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(msgspec.json.encode(spec))
    return process


def _connect_or_spawn(
    spec: protocol.WorkerSpec,
) -> tuple[socket.socket, subprocess.Popen[bytes] | None]:
    path = paths.socket_path(f"{spec.identity}.sock")
    with _start_lock(spec.identity):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            client.connect(os.fspath(path))
        except OSError:
            with _listening(path) as listener:
                process = _spawn(spec, listener)
            client.close()
            client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            client.connect(os.fspath(path))
            _write_record(spec, process.pid)
            return client, process
        return client, None


def _write_record(spec: protocol.WorkerSpec, pid: int) -> None:
    record = WorkerHandle(spec.identity, pid, spec.backend, spec.model)
    path = paths.runtime_dir() / f"{spec.identity}.json"
    whole = path.with_suffix(".new")
    whole.write_bytes(msgspec.json.encode(record))
    whole.replace(path)


_Greeted = tuple[asyncio.StreamReader, asyncio.StreamWriter, protocol.Welcome | None]


async def _greet(client: socket.socket, within: float) -> _Greeted:
    """Shake hands; None when the worker was just ending and turned us away.

    Raises:
        TimeoutError: no answer.
        WorkerError: whoever answers is no worker of this user's.
    """
    client.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=client)
    try:
        if peer_uid(client) != os.getuid():
            raise WorkerError(
                f"The socket in {paths.runtime_dir()} belongs to another user: set TUICHAT_HOME "
                "to a folder of yours."
            )
        writer.write(protocol.encode(protocol.Hello()))
        body = None
        with contextlib.suppress(ConnectionError):
            body = await asyncio.wait_for(protocol.read_body(reader), within)
        welcome = None if body is None else protocol.decode_worker(body)
        if welcome is not None and not isinstance(welcome, protocol.Welcome):
            raise protocol.FrameError("no welcome")
    except (protocol.FrameError, protocol.DecodeError) as error:
        writer.close()
        raise WorkerError(
            f"The worker does not speak as it should ({error}): end it with `tuichat stop --all`."
        ) from None
    except BaseException:  # whoever leaves now would leave the socket behind
        writer.close()
        raise
    return reader, writer, welcome


async def _reach(
    spec: protocol.WorkerSpec,
) -> tuple[socket.socket, subprocess.Popen[bytes] | None]:
    """``_connect_or_spawn`` in a thread, whose socket is not lost when we are cancelled."""
    reaching = asyncio.ensure_future(asyncio.to_thread(_connect_or_spawn, spec))

    def close(done: asyncio.Future[tuple[socket.socket, subprocess.Popen[bytes] | None]]) -> None:
        if not done.cancelled() and done.exception() is None:
            done.result()[0].close()

    try:
        return await asyncio.shield(reaching)
    except asyncio.CancelledError:
        reaching.add_done_callback(close)
        raise


async def connect(spec: protocol.WorkerSpec) -> Connection:
    """A connection to the worker that ``spec`` describes, started if there is none.

    Raises:
        WorkerError: it cannot be started, does not answer, or speaks another version.
    """
    for _ in range(3):
        try:
            client, process = await _reach(spec)
            reader, writer, welcome = await _greet(client, HANDSHAKE_S)
        except TimeoutError:
            raise WorkerError(
                f"The worker did not answer within {HANDSHAKE_S:.0f} seconds: "
                "end it with `tuichat stop --all` and try again."
            ) from None
        except OSError as error:
            raise WorkerError(f"The worker process could not be started: {error}.") from error
        if welcome is None:
            writer.close()
            continue
        if welcome.protocol != protocol.PROTOCOL or welcome.version != __version__:
            writer.close()
            raise WorkerError(
                f"A worker of tuichat {welcome.version} is running and this is {__version__}: "
                "end it with `tuichat stop --all` and try again."
            )
        return Connection(reader, writer, welcome, process)
    raise WorkerError(
        f"The worker process ended while it started: its log is {log_path(spec.identity)}."
    )


def list_workers() -> list[WorkerHandle]:
    """Workers whose sockets answer; records of dead ones are removed.

    Raises:
        WorkerError: the runtime folder is not to be trusted.
    """
    found = []
    try:
        records = sorted(paths.runtime_dir().glob("*.json"))
    except OSError as error:
        raise WorkerError(f"Workers cannot be looked for: {error}.") from error
    for record in records:
        with _start_lock(record.stem), socket.socket(socket.AF_UNIX) as probe:
            try:
                handle = msgspec.json.decode(record.read_bytes(), type=WorkerHandle)
                probe.connect(os.fspath(paths.socket_path(f"{record.stem}.sock")))
            except (OSError, msgspec.DecodeError):
                record.unlink(missing_ok=True)
                continue
        found.append(handle)
    return found


async def stop_worker(handle: WorkerHandle) -> None:
    """End a worker, its replies stopped and kept.

    One that does not end within ``STOP_S``, because a load or a kernel holds it, is killed.
    """
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        client.connect(os.fspath(paths.socket_path(f"{handle.identity}.sock")))
    except OSError:
        client.close()
        return
    writer = None
    try:
        async with asyncio.timeout(STOP_S):
            reader, writer, welcome = await _greet(client, STOP_S)
            if welcome is not None and welcome.protocol == protocol.PROTOCOL:
                writer.write(protocol.encode(protocol.Shutdown()))
                with contextlib.suppress(ConnectionError):
                    while await protocol.read_body(reader) is not None:
                        pass
                return
    except (TimeoutError, WorkerError):
        pass
    finally:
        if writer is not None:
            writer.close()
    with contextlib.suppress(ProcessLookupError):
        os.kill(handle.pid, signal.SIGKILL)
