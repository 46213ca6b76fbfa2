"""How a holder reaches a shard: the port, in this process, and over a Unix socket.

A call that does not come back is no answer: whether it happened is unknown to the caller, who asks again with the same
request ids. The connection is thrown away then, so that a late answer cannot be taken for the next one's.
"""

from __future__ import annotations

import contextlib
import socket
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from timeagent.errors import Damaged, ShardUnavailable
from timeagent.units import SECOND, span_text

from .wire import LENGTH_BYTES, REPLY_FRAME_BYTES_MAX, body_length, decode_answer, encode_call

if TYPE_CHECKING:
    from pathlib import Path

    from timeagent.units import Span

    from .shard import Shard
    from .wire import Reply, Request

_CHUNK_BYTES = 256 * 1024


class Transport(Protocol):
    """One shard, as a holder reaches it."""

    def call(self, requests: list[Request], timeout_ns: Span) -> list[Reply]:
        """Return one reply for each request, in order. Blocks up to the time-out.

        Raises ShardUnavailable when no answer came: it may have happened or not. Raises BadRequest above the limits of
        a call.
        """
        ...


class Counter(Protocol):
    """A clock, as far as a time-out needs one."""

    def boot_ns(self) -> int:
        """Return nanoseconds since boot."""
        ...


class InProcessTransport:
    """A shard in this process."""

    def __init__(self, shard: Shard, guard: contextlib.AbstractContextManager[object] | None = None) -> None:
        """Take the shard, and the lock that everybody holds who calls it, if there are several threads."""
        self._shard = shard
        self._guard = guard or contextlib.nullcontext()

    def call(self, requests: list[Request], timeout_ns: Span) -> list[Reply]:
        """Do one turn. The time-out is not used: nobody else is waited for."""
        del timeout_ns
        with self._guard:
            return self._shard.turn(requests)


class UnixTransport:
    """A shard behind a Unix socket. Thread-safe: one call at a time. Opens its connection when it is first used."""

    def __init__(self, path: Path, clock: Counter) -> None:
        """Take the socket's path. Connects to nothing yet."""
        self._path = path
        self._clock = clock
        self._lock = Lock()
        self._socket: socket.socket | None = None

    def call(self, requests: list[Request], timeout_ns: Span) -> list[Reply]:
        """Send, and wait for the answer. Raises ShardUnavailable; the next call connects anew then."""
        frame = encode_call(requests)
        with self._lock:
            until = self._clock.boot_ns() + timeout_ns
            try:
                return decode_answer(self._exchange(frame, until), len(requests))
            except (OSError, Damaged) as problem:
                self._drop()
                raise ShardUnavailable(
                    "no-answer",
                    f"no answer from the shard at {self._path} within {span_text(timeout_ns)}: {problem}",
                    hint="see whether a node serves this shard; ask again with the same request ids",
                ) from None
            except BaseException:
                self._drop()  # an interrupted exchange leaves half an answer in the connection
                raise

    def close(self) -> None:
        """Close the connection. Idempotent; a later call opens another."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _exchange(self, frame: bytes, until: int) -> bytes:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._arm(until)
            self._socket.connect(str(self._path))
        self._arm(until)
        self._socket.sendall(frame)
        length = body_length(self._receive(LENGTH_BYTES, until), REPLY_FRAME_BYTES_MAX)
        return self._receive(length, until)

    def _receive(self, size: int, until: int) -> bytes:
        assert self._socket is not None
        data = bytearray()
        while len(data) < size:
            self._arm(until)
            part = self._socket.recv(min(size - len(data), _CHUNK_BYTES))
            if not part:
                raise ConnectionResetError("the shard closed the connection")
            data += part
        return bytes(data)

    def _arm(self, until: int) -> None:
        left = until - self._clock.boot_ns()
        if left <= 0:
            raise TimeoutError("timed out")
        assert self._socket is not None
        self._socket.settimeout(left / SECOND)
