"""Bytes over a blocking socket that one thread reads and others write.

Time-outs are the kernel's, set once: Python's own switch the whole socket between two modes, under the other threads.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

_CHUNK_BYTES: Final = 256 * 1024


def limit_sending(connection: socket.socket, seconds: int) -> None:
    """Let a send fail (BlockingIOError) when the other side makes no room for so long."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, 0))


def receive_exactly(connection: socket.socket, size: int) -> bytes | None:
    """Return so many bytes; None when the connection ends before. Blocks. Raises OSError."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), _CHUNK_BYTES))
        if not part:
            return None
        data += part
    return bytes(data)
