"""How a holder reaches a shard: the port, in this process, over a Unix socket, and over TLS.

A call that does not come back is no answer: whether it happened is unknown to the caller, who asks again with the same
request ids. The connection is thrown away then, so that a late answer cannot be taken for the next one's. A connection
begins with a Hello: another version, another cluster or another shard is refused there, in words.
"""

from __future__ import annotations

import contextlib
import select
import socket
from abc import ABC, abstractmethod
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from timeagent.errors import Damaged, LeaseholdError, NotTrusted, ShardUnavailable
from timeagent.keys import key_id
from timeagent.units import SECOND, span_text

from . import tls
from .wire import (
    LENGTH_BYTES,
    NO_REQUEST,
    REPLY_FRAME_BYTES_MAX,
    Hello,
    Refused,
    Welcome,
    body_length,
    decode_answer,
    encode_call,
)

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from timeagent.units import Span

    from .ports import Trust
    from .shard import Shard
    from .wire import Reply, Request

_CHUNK_BYTES = 256 * 1024
_TCP_USER_TIMEOUT_MS = 10_000
"""How long what was sent may stay unacknowledged before the kernel gives the connection up."""


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


class SocketTransport(ABC):
    """A shard behind a socket. Thread-safe: one call at a time. Opens its connection when it is first used."""

    def __init__(self, clock: Counter, greeting: Hello | None) -> None:
        """Take what every new connection begins with. Connects to nothing yet."""
        self._clock = clock
        self._greeting = greeting
        self._lock = Lock()
        self._socket: socket.socket | None = None

    @abstractmethod
    def __str__(self) -> str:
        """Return where the shard is, for people."""

    @abstractmethod
    def _connect(self, until: int) -> socket.socket:
        """Return a connection, made by then. Raises OSError, LeaseholdError."""

    def _check(self) -> None:  # noqa: B027 - on this machine the socket's mode has said it
        """Raise LeaseholdError if whoever is at the other end of the open connection does not count any more."""

    def call(self, requests: list[Request], timeout_ns: Span) -> list[Reply]:
        """Send, and wait for the answer. Raises ShardUnavailable; the next call connects anew then."""
        frame = encode_call(requests)
        with self._lock:
            until = self._clock.boot_ns() + timeout_ns
            try:
                self._connected(until)
                return self._replies(self._exchange(frame, until), requests)
            except ShardUnavailable:
                self._drop()
                raise
            except LeaseholdError as problem:
                self._drop()
                code = problem.code if isinstance(problem, NotTrusted) else "no-answer"
                raise self._unavailable(code, timeout_ns, problem.message) from None
            except OSError as problem:
                self._drop()
                raise self._unavailable("no-answer", timeout_ns, str(problem)) from None
            except BaseException:
                self._drop()  # an interrupted exchange leaves half an answer in the connection
                raise

    def close(self) -> None:
        """Close the connection. Idempotent; a later call opens another."""
        with self._lock:
            self._drop()

    def _unavailable(self, code: str, timeout_ns: Span, why: str) -> ShardUnavailable:
        return ShardUnavailable(
            code,
            f"no answer from the shard at {self} within {span_text(timeout_ns)}: {why}",
            hint="see whether a node serves this shard; ask again with the same request ids",
        )

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self, until: int) -> None:
        """Have a connection that was greeted. One on which something came unasked, or which is closed, is no good."""
        if self._socket is not None and self._is_stale(self._socket):
            self._drop()
        if self._socket is not None:
            self._check()
            return
        self._socket = self._connect(until)
        self._check()
        if self._greeting is not None:
            (reply,) = self._replies(self._exchange(encode_call([self._greeting]), until), [self._greeting])
            if isinstance(reply, Refused):
                raise ShardUnavailable(reply.code, f"{self} refuses: {reply.message}", hint=reply.hint)
            if not isinstance(reply, Welcome):
                raise Damaged("answer-damaged", f"a Hello was answered with a {type(reply).__name__}")

    @staticmethod
    def _is_stale(connection: socket.socket) -> bool:
        ready = select.poll()
        ready.register(connection, select.POLLIN)
        return bool(ready.poll(0))

    def _replies(self, answer: bytes, requests: list[Request]) -> list[Reply]:
        """Read an answer. Raises Damaged, and ShardUnavailable for the word that ends a connection."""
        try:
            replies = decode_answer(answer, len(requests))
        except Damaged:
            replies = decode_answer(answer, 1)  # Damaged again if it is not that word
        first = replies[0] if replies else None
        if isinstance(first, Refused) and first.request_id == NO_REQUEST and not isinstance(requests[0], Hello):
            raise ShardUnavailable(first.code, f"{self} refuses: {first.message}", hint=first.hint)
        if len(replies) != len(requests):
            raise Damaged("answer-damaged", f"{len(replies)} replies to {len(requests)} requests")
        return replies

    def _exchange(self, frame: bytes, until: int) -> bytes:
        assert self._socket is not None
        self._arm(self._socket, until)
        self._socket.sendall(frame)
        length = body_length(self._receive(LENGTH_BYTES, until), REPLY_FRAME_BYTES_MAX)
        return self._receive(length, until)

    def _receive(self, size: int, until: int) -> bytes:
        assert self._socket is not None
        data = bytearray()
        while len(data) < size:
            self._arm(self._socket, until)
            part = self._socket.recv(min(size - len(data), _CHUNK_BYTES))
            if not part:
                raise ConnectionResetError("the shard closed the connection")
            data += part
        return bytes(data)

    def _arm(self, connection: socket.socket, until: int) -> None:
        left = until - self._clock.boot_ns()
        if left <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left / SECOND)


class UnixTransport(SocketTransport):
    """A shard of this machine. Who may connect is the socket's business: its user, the superuser, its group."""

    def __init__(self, path: Path, clock: Counter, greeting: Hello | None = None) -> None:
        """Take the socket's path. Connects to nothing yet."""
        super().__init__(clock, greeting)
        self._path = path

    def __str__(self) -> str:
        """Return the socket's path."""
        return str(self._path)

    def _connect(self, until: int) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._arm(connection, until)
            connection.connect(str(self._path))
        except BaseException:
            connection.close()
            raise
        return connection


class TlsTransport(SocketTransport):
    """A shard of another node, by TCP and TLS: the other end must show that node's key, and so must this one."""

    def __init__(self, node: str, context: ssl.SSLContext, trust: Trust, clock: Counter, greeting: Hello) -> None:
        """Take the node: its address and its keys are looked up in the trust record for every new connection."""
        super().__init__(clock, greeting)
        self._node = node
        self._context = context
        self._trust = trust
        self._key_id: bytes | None = None

    def __str__(self) -> str:
        """Return the node and its address."""
        return f"{self._node} ({self._trust.address_of(self._node) or 'no address'})"

    def _connect(self, until: int) -> socket.socket:
        address = self._trust.address_of(self._node)
        if address is None:
            self._trust.look()
            raise ShardUnavailable(
                "no-address",
                f"trust record {self._trust.number} has no address of node {self._node}",
                hint=f"leasehold trust move {self._node} HOST:PORT, or run this on {self._node}",
            )
        left = until - self._clock.boot_ns()
        if left <= 0:
            raise TimeoutError("timed out")
        plain = socket.create_connection((address.host, address.port), timeout=left / SECOND)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _TCP_USER_TIMEOUT_MS)
            self._arm(plain, until)
            connection = self._context.wrap_socket(plain, server_hostname=None)
        except BaseException:
            plain.close()
            raise
        try:
            self._key_id = key_id(tls.peer_key(connection))
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self) -> None:
        assert self._key_id is not None
        why = self._trust.refuses(self._key_id)
        if why is None and (owner := self._trust.node_of(self._key_id)) != self._node:
            why = f"its key is that of node {owner}"
        if why is not None:
            self._trust.look()
            raise NotTrusted("peer-not-trusted", f"whoever answers at {self} is not trusted: {why}")
