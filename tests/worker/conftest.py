"""Real workers with the example backend, in a home of the test's own."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from echo_env import install_echo
from PIL import Image as PILImage

from tuichat.engine import Engine, Settings, events, workers

OpenEngine = Callable[..., Awaitable["Talk"]]


class Talk:
    """An engine, and everything that it said so far."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.heard: list[events.Event] = []
        self._changed = asyncio.Condition()
        self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for event in self.engine.events():
            async with self._changed:
                self.heard.append(event)
                self._changed.notify_all()

    async def until(self, wanted: Callable[[events.Event], bool], timeout: float = 60) -> Any:
        """The first event, past or to come, that is wanted."""

        def found() -> list[events.Event]:
            return [event for event in self.heard if wanted(event)]

        async with self._changed:
            async with asyncio.timeout(timeout):
                await self._changed.wait_for(lambda: bool(found()))
            return found()[0]

    async def ended(self, reply_id: int, timeout: float = 60) -> events.ReplyEnded:
        """The end of a reply."""
        return await self.until(
            lambda e: isinstance(e, events.ReplyEnded) and e.reply_id == reply_id, timeout
        )

    async def began(self, reply_id: int, timeout: float = 60) -> events.ReplyExtended:
        """The first text of a reply."""
        return await self.until(
            lambda e: isinstance(e, events.ReplyExtended) and e.reply_id == reply_id, timeout
        )

    def shown(self, reply_id: int) -> str:
        """The text of a reply as it was announced."""
        return "".join(
            event.text
            for event in self.heard
            if isinstance(event, events.ReplyExtended) and event.reply_id == reply_id
        )

    async def ask(self, text: str, *images: Any) -> Any:
        """The stored reply to a message."""
        posted = await self.engine.send(text, images)
        await self.ended(posted.reply_id)
        return self.engine.turn(posted.reply_id)

    async def close(self) -> None:
        self._listener.cancel()
        await asyncio.gather(self._listener, return_exceptions=True)
        await self.engine.close()


@pytest.fixture(scope="session")
def echo_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which ``tuichat-echo`` is installed."""
    site = tmp_path_factory.mktemp("echo-site")
    install_echo(site)
    return site


@pytest.fixture
def short_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A TUICHAT_HOME short enough for sockets; its workers are gone afterwards."""
    home = Path(tempfile.mkdtemp(prefix="tc-", dir="/tmp"))
    monkeypatch.setenv("TUICHAT_HOME", str(home))
    yield home
    for handle in workers.list_workers():
        os.kill(handle.pid, signal.SIGKILL)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def with_echo(echo_site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process and its workers see the backend ``echo``."""
    monkeypatch.syspath_prepend(str(echo_site))
    monkeypatch.setenv("PYTHONPATH", str(echo_site))


@pytest.fixture
async def open_engine(short_home: Path, with_echo: None) -> AsyncIterator[OpenEngine]:
    """Opens engines on the backend ``echo`` (or another), and closes them afterwards."""
    talks: list[Talk] = []

    async def open_one(*, session: str | None = None, keep: bool = True, **settings: Any) -> Talk:
        chosen = replace(Settings(backend="echo"), **settings)
        talk = Talk(await Engine.open(chosen, session=session, keep=keep))
        talks.append(talk)
        return talk

    yield open_one
    for talk in talks:
        await talk.close()


@pytest.fixture
def picture(tmp_path: Path) -> Callable[[str, str], Path]:
    """Draws a one-colour PNG."""

    def draw(name: str, colour: str) -> Path:
        path = tmp_path / name
        PILImage.new("RGB", (40, 30), colour).save(path)
        return path

    return draw
