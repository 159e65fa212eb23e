"""The screen's hand on the engine.

Owns when the engine is opened and closed. Refuses to know widgets. Invariant: nothing of
the engine is imported before ``open``, which is called after the first frame, and then in a thread;
whoever needs the engine earlier waits for it and loses nothing.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image as PILImage

    from tuichat.engine import Engine, Settings

CLOSE_S = 1.0
"""How long leaving waits for the engine: what is in the store is safe already."""

# What the first reply needs anyway, imported while the reader is still looking around.
_SOON = ("tuichat.engine", "tuichat.tui.reports", "textual.widgets._markdown", "markdown_it")

_logger = logging.getLogger(__name__)


class EngineLink:
    """Opens the engine, and has whoever needs it wait for it."""

    def __init__(self, settings: Settings, session: str | None, keep: bool) -> None:
        self.settings = settings
        self._session = session
        self._keep = keep
        self._engine: asyncio.Future[Engine] = asyncio.get_running_loop().create_future()

    @property
    def engine(self) -> Engine | None:
        """The engine, once it is open."""
        future = self._engine
        return future.result() if future.done() and not future.exception() else None

    @property
    def busy(self) -> bool:
        """Whether a reply is queued or running."""
        return self.engine is not None and bool(self.engine.active)

    async def ready(self) -> Engine:
        """The engine, as soon as it is open.

        Raises:
            TuichatError: it could not be opened.
        """
        return await asyncio.shield(self._engine)

    async def open(self) -> Engine:
        """Import and open the engine.

        Raises:
            SessionNotFound: there is no such session.
        """
        try:
            await asyncio.to_thread(_import_soon)
            from tuichat.engine import Engine

            engine = await Engine.open(self.settings, session=self._session, keep=self._keep)
        except Exception as error:
            self._engine.set_exception(error)
            self._engine.exception()  # seen: whoever awaits ``ready`` gets it too
            raise
        self._engine.set_result(engine)
        return engine

    async def thumbnail(self, digest: str, width: int, height: int) -> PILImage.Image:
        """The image with ``digest``, RGB, scaled to fit (width, height) pixels."""
        engine = await self.ready()
        return await engine.thumbnail(digest, width, height)

    async def close(self) -> None:
        """Let go of the engine; the worker finishes what it has."""
        if self.engine is None:
            return
        try:
            await asyncio.wait_for(self.engine.close(), CLOSE_S)
        except TimeoutError:
            _logger.warning("the engine did not close within %s s", CLOSE_S)


def _import_soon() -> None:
    for name in _SOON:
        importlib.import_module(name)
