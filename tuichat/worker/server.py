"""The socket side of a worker.

Owns the listening socket, the clients and the decision to end. Refuses to know the model: it passes
requests to the model's thread and frames back. Invariant: the loop never blocks on the model, the
store or a slow client; only this user's processes are answered; the process ends once nobody
listens and nothing is left to finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket

from tuichat import __version__
from tuichat.api import TuichatError
from tuichat.worker import protocol
from tuichat.worker.jobs import Key
from tuichat.worker.model import ModelThread
from tuichat.worker.peer import peer_uid

log = logging.getLogger(__name__)

FIRST_CLIENT_WITHIN = 60.0
"""Seconds to wait for the process that started this one."""

UNLOAD_S = 5.0
"""Seconds that a backend has to clean up; the end of the process frees the memory anyway."""

MAX_BACKLOG = 8 * 1024 * 1024
"""Bytes queued for one client; one that reads no more is let go, the store has everything."""


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.replies: set[Key] = set()
        """Replies that this client asked for and that have not ended."""
        self.stores: set[str] = set()
        """Stores that they were in."""

    def send(self, frame: protocol.WorkerFrame) -> None:
        """Queue a frame; never waits."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > MAX_BACKLOG:
            log.warning("a client reads no more; it is let go")
            transport.abort()
            return
        try:
            self._writer.write(protocol.encode(frame))
        except (protocol.FrameError, UnicodeEncodeError):
            log.exception("a frame was not sent")

    async def receive(self) -> protocol.ClientFrame | None:
        """The next frame, None at the end."""
        body = await protocol.read_body(self._reader)
        return None if body is None else protocol.decode_client(body)

    async def close(self) -> None:
        """Flush and close."""
        self._writer.close()
        with contextlib.suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), 2)


class Server:
    """Serves one model until its last client is gone and its last reply is finished."""

    def __init__(self, listener: socket.socket, spec: protocol.WorkerSpec) -> None:
        self._listener = listener
        self._clients: set[Client] = set()
        self._measuring: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loading: protocol.Loading | None = None
        self._model = ModelThread(spec, self._emit)

    async def serve(self) -> None:
        """Run until the worker has no reason to live."""
        server = await asyncio.start_unix_server(self._serve_client, sock=self._listener)
        self._model.start()
        self._loop.call_later(FIRST_CLIENT_WITHIN, self._let_go)
        await self._ended.wait()
        # Whoever connected meanwhile gets no welcome, and starts another worker.
        server.close()
        for client in list(self._clients):
            await client.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(self._model.unload), UNLOAD_S)

    # ------------------------------------------------------------------ frames from the model

    def _emit(self, frame: protocol.WorkerFrame | protocol.Idle, about: Key | None = None) -> None:
        """From any thread; to the client that asked for the reply ``about``, or to all."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it every client
            self._loop.call_soon_threadsafe(self._dispatch, frame, about)

    def _dispatch(self, frame: protocol.WorkerFrame | protocol.Idle, about: Key | None) -> None:
        if isinstance(frame, protocol.Idle):
            self._let_go()
            return
        if isinstance(frame, protocol.Loading):
            self._loading = frame
        if isinstance(frame, protocol.LoadFailed):
            self._ended.set()
        for client in self._clients:
            if about is None or about in client.replies:
                client.send(frame)
                if isinstance(frame, protocol.Finished) and about is not None:
                    client.replies.discard(about)

    def _let_go(self) -> None:
        """Close stores that nobody uses, and end when nobody is here and nothing is left to do."""
        used: set[str] = set().union(*(client.stores for client in self._clients))
        self._model.close_stores_but(used)
        if not self._clients and not self._model.busy:
            self._ended.set()

    # ------------------------------------------------------------------ clients

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        client = Client(reader, writer)
        sock = writer.get_extra_info("socket")
        if self._ended.is_set() or peer_uid(sock) != os.getuid():
            await client.close()
            return
        try:
            if not await self._greet(client):
                return
            while (frame := await client.receive()) is not None:
                await self._handle(client, frame)
        except (protocol.FrameError, protocol.DecodeError, OSError) as error:
            log.warning("a client was let go: %s", error)
        finally:
            self._clients.discard(client)
            await client.close()
            self._let_go()

    async def _greet(self, client: Client) -> bool:
        hello = await asyncio.wait_for(client.receive(), 10)
        if not isinstance(hello, protocol.Hello) or self._ended.is_set():
            return False
        client.send(protocol.Welcome(protocol.PROTOCOL, __version__, os.getpid()))
        if hello.protocol != protocol.PROTOCOL:
            return False
        self._clients.add(client)
        if self._model.ready is not None:
            client.send(self._model.ready)
        elif self._loading is not None:
            client.send(self._loading)
        return True

    async def _handle(self, client: Client, frame: protocol.ClientFrame) -> None:
        """Do what a client asks; a store that fails is told to that client and ends nothing."""
        match frame:
            case protocol.Run():
                about = (frame.store, frame.reply_id)
                client.replies.add(about)
                client.stores.add(frame.store)
                try:
                    ahead = await asyncio.to_thread(self._model.submit, frame)
                except TuichatError as error:
                    client.replies.discard(about)
                    client.send(protocol.Finished(frame.reply_id, "failed", str(error), ()))
                    return
                client.send(protocol.Accepted(frame.reply_id, ahead))
            case protocol.Stop():
                about = (frame.store, frame.reply_id)
                await asyncio.to_thread(self._model.stop_reply, about)
            case protocol.Measure():
                # By itself: a backend that takes its time must not hold up a stop.
                task = asyncio.create_task(self._measure(client, frame))
                self._measuring.add(task)
                task.add_done_callback(self._measuring.discard)
            case protocol.Shutdown():
                await asyncio.to_thread(self._model.stop_all)
                while self._model.busy:
                    await asyncio.sleep(0.02)
                self._ended.set()
            case protocol.Hello():
                raise protocol.FrameError("a second hello")

    async def _measure(self, client: Client, frame: protocol.Measure) -> None:
        tokens = await asyncio.to_thread(self._model.measure, frame.width, frame.height)
        client.send(protocol.Cost(frame.width, frame.height, tokens))
