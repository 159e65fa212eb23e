"""The headless application that the chat screen and ``tuichat ask`` are the faces of.

Owns a conversation from draft to answer. Refuses to know terminals. ``Engine`` is imported late,
because it brings the store and the wire, while ``Settings`` is wanted before the first frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuichat.engine.settings import Settings

if TYPE_CHECKING:
    from tuichat.engine.engine import Engine

__all__ = ["Engine", "Settings"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from tuichat.engine.engine import Engine

        return Engine
    raise AttributeError(name)
