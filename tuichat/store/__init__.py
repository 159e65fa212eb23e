"""Everything that must never be lost: sessions, turns, replies and the bytes of their images.

Owns the only SQLite database of the project and the blob folder beside it. Refuses to know models,
sockets and screens. Invariant: what a method has returned from is on the disk as one transaction,
readable by every other process, and survives ``kill -9`` of any of them; whatever goes wrong is one
``StoreError`` sentence.
"""

from tuichat.store.facade import Store
from tuichat.store.locks import Owner, SessionHold
from tuichat.store.problems import ReplyLost
from tuichat.store.records import (
    HEAD,
    LEAVE,
    Chunk,
    Head,
    ImageRecord,
    Leave,
    Posted,
    ReplyState,
    SearchHit,
    SessionRecord,
    TurnRecord,
)

__all__ = [
    "HEAD",
    "LEAVE",
    "Chunk",
    "Head",
    "ImageRecord",
    "Leave",
    "Owner",
    "Posted",
    "ReplyLost",
    "ReplyState",
    "SearchHit",
    "SessionHold",
    "SessionRecord",
    "Store",
    "TurnRecord",
]
