"""What goes over the Unix socket between a process and its node's writer, and how it is read and sent.

A frame is a u32 length (big-endian) and that many bytes of msgpack: a record that begins with its tag. A connection
begins with a hello and its welcome; after that a process hands in frames under numbers of its own, as many at once as
it likes, and each is answered once, in any order.

Time-outs are the kernel's, set once: Python's own switch the whole socket between two modes, under the other threads.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from enum import StrEnum
from threading import Lock
from typing import Final

import msgspec

from timeagent.canonical import U64, Bytes8, Bytes16, Record
from timeagent.errors import Damaged

from ..bag.writing import Committed, NotCommitted, Unknown
from ..formats.framing import FRAME_BYTES_MAX
from ..lease.wire import LENGTH_BYTES, body_length

PROTOCOL_VERSION: Final = 1
WIRE_BYTES_MAX: Final = FRAME_BYTES_MAX + 4 * 1024 * 1024
"""The largest frame of the application with its head and columns."""


class WriterSaid(StrEnum):
    """What the writer found out about what it was handed."""

    COMMITTED = "committed"
    NOT_COMMITTED = "not-committed"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    """Not taken, and never will be: the process writes for itself."""


class WriterHello(Record, frozen=True, tag="hello"):
    """Ask for a writer of this cluster and node."""

    version: U64
    cluster_id: Bytes16
    node: str


class WriterWelcome(Record, frozen=True, tag="welcome"):
    """The writer that answers, by the incarnation in its files' names."""

    incarnation: Bytes8


class Rebuff(Record, frozen=True, tag="rebuff"):
    """Why this is not the writer that was asked for. The connection ends."""

    reason: str


class Submit(Record, frozen=True, tag="submit"):
    """Whole frames of one bag, written by one process of this node."""

    number: U64
    log: str
    bag_start_ns: U64
    frames: bytes


class WriterAnswer(Record, frozen=True, tag="answer"):
    number: U64
    said: WriterSaid
    reason: str
    file_name: str = ""
    """Of what is committed: the only file of the bag that holds it, where that is known."""


type Outgoing = WriterHello | Submit
type Incoming = WriterWelcome | Rebuff | WriterAnswer

_encoder: Final = msgspec.msgpack.Encoder()
_calls: Final[msgspec.msgpack.Decoder[Outgoing]] = msgspec.msgpack.Decoder(WriterHello | Submit)
_answers: Final[msgspec.msgpack.Decoder[Incoming]] = msgspec.msgpack.Decoder(WriterWelcome | Rebuff | WriterAnswer)


def encode(message: Outgoing | Incoming) -> bytes:
    """Return a message with its length before it."""
    body = _encoder.encode(message)
    assert len(body) <= WIRE_BYTES_MAX, "a frame's limit is below the wire's"
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode_call(body: bytes) -> Outgoing:
    """Read what a process sends. Raises Damaged."""
    return _decoded(_calls, body)


def decode_answer(body: bytes) -> Incoming:
    """Read what a writer sends. Raises Damaged."""
    return _decoded(_answers, body)


def _decoded[Message](decoder: msgspec.msgpack.Decoder[Message], body: bytes) -> Message:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise Damaged("wire-damaged", f"no message between a process and a writer: {problem}") from None


def answer_of(number: int, outcome: Committed | NotCommitted | Unknown) -> WriterAnswer:
    if isinstance(outcome, Committed):
        return WriterAnswer(number, WriterSaid.COMMITTED, "", outcome.file_name or "")
    said = WriterSaid.NOT_COMMITTED if isinstance(outcome, NotCommitted) else WriterSaid.UNKNOWN
    return WriterAnswer(number, said, outcome.reason)


_CHUNK_BYTES: Final = 256 * 1024


class Line:
    """A connection: several threads may send, one hears. Blocks."""

    def __init__(self, connection: socket.socket, patience_s: int) -> None:
        """Have it connected. A send fails (BlockingIOError) when the other side makes no room for so long."""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", patience_s, 0))
        self.socket = connection
        self._sending = Lock()

    def send(self, message: Outgoing | Incoming) -> None:
        """Send a message whole. Raises OSError."""
        data = encode(message)
        with self._sending:
            self.socket.sendall(data)

    def hang_up(self) -> None:
        """End it for whoever hears here, or at the other end. Idempotent."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.hang_up()
        with self._sending:  # who sends hears of it at once; on a closed descriptor it might send to another's
            self.socket.close()


def receive(connection: socket.socket) -> bytes | None:
    """Return the next message without its length; None when the connection ends before. Blocks.

    Raises OSError, and Damaged for a message that exceeds the limit.
    """
    head = _exactly(connection, LENGTH_BYTES)
    return None if head is None else _exactly(connection, body_length(head, WIRE_BYTES_MAX))


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), _CHUNK_BYTES))
        if not part:
            return None
        data += part
    return bytes(data)
