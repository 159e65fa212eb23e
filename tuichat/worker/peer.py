"""Who is at the other end of a Unix socket.

Owns the question to the kernel. Both sides ask it: a worker answers its own user only, and a client
trusts no socket that somebody else listens on.
"""

from __future__ import annotations

import socket
import struct
import sys


def peer_uid(sock: socket.socket) -> int:
    """The user id of the process at the other end."""
    if sys.platform == "linux":
        size = struct.calcsize("3i")
        return int(
            struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1]
        )
    # LOCAL_PEERCRED of the BSDs: version, uid, ...
    return int(struct.unpack("2i", sock.getsockopt(0, 1, struct.calcsize("2i")))[1])
