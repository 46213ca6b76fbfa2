"""What a process and its node's daemon say about a sub-lease, on the socket of the node's writer.

A message has the writer's framing: a u32 length (big-endian), then words with a NUL between them. The first word of a
connection, LEASE, is no msgpack record: by it the socket knows whom it serves. A process that takes a sub-lease loads
this module and hardly another, so that it starts as quickly as an interpreter does: no library but the standard one.
"""

from __future__ import annotations

import _socket as socket  # what `socket` adds takes as long to load as all of this
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Self

VERSION: Final = "2"

LEASE: Final = "lease"
"""Ask: version, domain, mode (X or S), how long to wait as a person writes it, purpose.

Answered by WAITS, then by one of three."""
WAITS: Final = "waits"
"""Not yet: the place in the queue, and who has it."""
HELD: Final = "held"
"""Fence, expiry (RFC 3339), and the grace: how many ns before the end whoever works under it has to end."""
REFUSED: Final = "refused"
"""As an error: its class, code, message, hint."""
NOT_HERE: Final = "not-here"
"""The daemon gives none out: take a lease of your own."""
KEEP: Final = "keep"
"""Ask how long it is good. Who asks no more has it no longer than it was told last."""
GOOD: Final = "good"
"""For so many ns from when it was asked."""
OVER: Final = "over"
"""It is lost, and not extended: why, and ``doubt`` where nobody knows any more for how long it was good."""
DOUBT: Final = "doubt"
BACK: Final = "back"
"""Give it back: nothing is done under it any more."""
DONE: Final = "done"

LENGTH_BYTES: Final = 4
MESSAGE_BYTES_MAX: Final = 64 * 1024

_NAME_BYTES_MAX: Final = 255


def packed(*words: str) -> bytes:
    """Return a message. The words have no NUL in them."""
    body = "\0".join(words).encode(errors="surrogateescape")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def words_of(body: bytes) -> list[str]:
    return body.decode(errors="surrogateescape").split("\0")


def unpacked(data: bytearray) -> list[str] | None:
    """Take the first message out of what was received; None: it is not there as a whole. Raises ValueError."""
    size = int.from_bytes(data[:LENGTH_BYTES], "big")
    if size > MESSAGE_BYTES_MAX:
        raise ValueError(size)
    if len(data) < LENGTH_BYTES + size:
        return None
    words = words_of(bytes(data[LENGTH_BYTES : LENGTH_BYTES + size]))
    del data[: LENGTH_BYTES + size]
    return words


class Line:
    """Either end of the connection. All raise OSError where that is lost, and what is received also ValueError."""

    def __init__(self, connection: socket.socket) -> None:
        """Have it connected."""
        self._socket = connection
        self._data = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def say(self, *words: str) -> None:
        """Send a message."""
        self._socket.sendall(packed(*(each.replace("\0", " ") for each in words)))

    def receive(self) -> list[str]:
        """Return the next message; waits for it."""
        while (words := unpacked(self._data)) is None:
            self._more(0)
        return words

    def received(self) -> list[str] | None:
        """Return the next message, if it is there."""
        try:
            while (words := unpacked(self._data)) is None:
                self._more(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        return words

    def be_patient(self, seconds: int) -> None:
        """Wait so long for an answer, 0: for ever. The kernel does: Python's time-outs are those of every call."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))

    def _more(self, flags: int) -> None:
        data = self._socket.recv(MESSAGE_BYTES_MAX, flags)
        if not data:
            raise ConnectionError("it hung up")
        self._data += data


def door(user_directory: str, root: str, node_directory: str | None) -> str | None:
    """Return the symbolic link to the writer's socket of the daemon that serves a root; None: it has no such name.

    By it a process finds the daemon without asking the mount which cluster that is. ``node_directory``: of a node that
    is not in the usual place.
    """
    key = (root if "://" in root else os.path.abspath(root)) + (
        "" if node_directory is None else "\0" + os.path.abspath(node_directory)
    )
    name = key.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    return None if len(os.fsencode(name)) > _NAME_BYTES_MAX else f"{user_directory}/doors/{name}"
