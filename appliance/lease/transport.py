"""Transports by which a holder reaches a shard: over a Unix socket, and over TLS.

A call that does not come back is no answer: whether it happened is unknown to the caller, who asks again with the same
request ids. The connection is thrown away then, so that a late answer cannot be taken for the next one's. A connection
begins with a Hello: another version, another cluster or another shard is refused there, in words.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from timeagent.errors import Damaged, NotTrusted, ShardUnavailable, TenureError
from timeagent.keys import key_id
from timeagent.units import SECOND, Span, span_text

from ..formats.names import Address
from . import tls, wire
from .sockets import BootClock
from .tls import Trust

_CHUNK_BYTES = 64 * 1024
"""As the server's ``RECEIVE_BYTES``."""
_SENT_AT_ONCE = 4096
"""So much goes into any buffer: whoever sends more may have waited for who reads."""
_TCP_USER_TIMEOUT_MS = 10_000
"""How long what was sent may stay unacknowledged before the kernel gives the connection up."""


class Transport(Protocol):
    """One shard, as a holder reaches it."""

    def call(self, requests: list[wire.Request], timeout_ns: Span) -> list[wire.Reply]:
        """Return one reply for each request, in order. Blocks up to the time-out.

        Raises ShardUnavailable when no answer came: it may have happened or not. Raises BadRequest above the limits of
        a call.
        """
        ...


IDLE_MAX: Final = 4
"""How many connections are kept open for later calls."""


class SocketTransport(ABC):
    """A shard behind a socket. Thread-safe: each call that is under way has a connection of its own.

    A call may be held back by the shard; others of this process must not wait behind it. A child after fork makes
    connections of its own: over its parent's each would hear what the other asked for.
    """

    def __init__(self, clock: BootClock, greeting: wire.Hello | None) -> None:
        """Take what every new connection begins with. Connects to nothing yet."""
        self._clock = clock
        self._greeting = greeting
        self._lock = Lock()
        self._idle: list[socket.socket] = []
        self._closings = 0
        self._process = os.getpid()

    @abstractmethod
    def __str__(self) -> str:
        """Return where the shard is, for people."""

    @abstractmethod
    def _connect(self, until: int) -> socket.socket:
        """Return a connection, made by then. Raises OSError, TenureError."""

    def _check(self, connection: socket.socket) -> None:  # noqa: B027 - on this machine the socket's mode has said it
        """Raise TenureError if whoever is at the other end of a connection does not count any more."""

    def call(self, requests: list[wire.Request], timeout_ns: Span) -> list[wire.Reply]:
        """Send, and wait for the answer. Raises ShardUnavailable; the next call connects anew then."""
        frame = wire.encode_call(requests)
        until = self._clock.boot_ns() + timeout_ns
        connection: socket.socket | None = None
        try:
            closings, connection = self._taken()
            if connection is None:
                connection = self._connect(until)
                self._greet(connection, until)
                self._arm(connection, until)
            elif connection.gettimeout() != (seconds := max(timeout_ns, 1) / SECOND):
                connection.settimeout(seconds)  # most calls have the same: then the kernel is not told again
            self._check(connection)
            answer, more = self._exchange(connection, frame, until)
            replies = self._replies(answer, requests)
        except BaseException as problem:
            if connection is not None:
                connection.close()  # an interrupted exchange leaves half an answer in it
            if not isinstance(problem, OSError | TenureError):
                raise
            self.close()  # whatever befell this connection befell the idle ones too, if the shard has died
            raise self._unavailable(timeout_ns, problem) from None
        with self._lock:
            if closings == self._closings and len(self._idle) < IDLE_MAX and not more:
                self._idle.append(connection)
                return replies
        connection.close()
        return replies

    def close(self) -> None:
        """Close the connections: idle ones now, others after their call. Idempotent; a later call opens another."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._closings += 1
        for connection in idle:
            connection.close()

    def _taken(self) -> tuple[int, socket.socket | None]:
        """Return an idle connection, if there is a good one: nothing came on it unasked, and it is not closed."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self.close()  # only these copies
        while True:
            with self._lock:
                closings, connection = self._closings, self._idle.pop() if self._idle else None
            if connection is None:
                return closings, None
            unasked = select.poll()
            unasked.register(connection, select.POLLIN)
            if not unasked.poll(0):
                return closings, connection
            connection.close()

    def _unavailable(self, timeout_ns: Span, problem: OSError | TenureError) -> ShardUnavailable:
        match problem:
            case ShardUnavailable():
                return problem
            case NotTrusted():
                return ShardUnavailable(problem.code, problem.message, hint=problem.hint)
            case _:
                why = getattr(problem, "message", problem)
                return ShardUnavailable(
                    "no-answer",
                    f"no answer from the shard at {self} within {span_text(timeout_ns)}: {why}",
                    hint="see whether a node serves this shard; ask again with the same request ids",
                )

    def _greet(self, connection: socket.socket, until: int) -> None:
        """Say hello on a new connection. Raises ShardUnavailable, in the other end's words, when that is refused."""
        self._check(connection)
        if self._greeting is None:
            return
        self._arm(connection, until)
        answer, _ = self._exchange(connection, wire.encode_call([self._greeting]), until)
        (reply,) = wire.decode_answer(answer, 1)
        if isinstance(reply, wire.Refused):
            raise ShardUnavailable(reply.code, f"{self} refuses: {reply.message}", hint=reply.hint)
        if not isinstance(reply, wire.Welcome):
            raise Damaged("answer-damaged", f"a Hello was answered with a {type(reply).__name__}")

    def _replies(self, answer: memoryview, requests: list[wire.Request]) -> list[wire.Reply]:
        """Read an answer. Raises Damaged, and ShardUnavailable for the word that ends a connection."""
        try:
            replies = wire.decode_answer(answer, len(requests))
        except Damaged:
            replies = wire.decode_answer(answer, 1)  # Damaged again if it is not that word
        first = replies[0] if replies else None
        if (
            isinstance(first, wire.Refused)
            and first.request_id == wire.NO_REQUEST
            and not isinstance(requests[0], wire.Hello)
        ):
            raise ShardUnavailable(first.code, f"{self} refuses: {first.message}", hint=first.hint)
        if len(replies) != len(requests):
            raise Damaged("answer-damaged", f"{len(replies)} replies to {len(requests)} requests")
        return replies

    def _exchange(self, connection: socket.socket, frame: bytes, until: int) -> tuple[memoryview, bool]:
        """Return the answer's body, and whether more came behind it: then a word to all ends the connection."""
        with contextlib.suppress(BrokenPipeError):  # it was turned away: why may be there to be read
            left = memoryview(frame)
            while left := left[connection.send(left) :]:  # a time-out is that of one send, by TLS of one record
                self._arm(connection, until)
        if len(frame) > _SENT_AT_ONCE:
            self._arm(connection, until)
        data = bytearray()
        while True:
            part = connection.recv(_CHUNK_BYTES)
            if not part:
                raise ConnectionResetError("the shard closed the connection")
            data += part
            if len(data) >= wire.LENGTH_BYTES:
                end = wire.LENGTH_BYTES + wire.body_length(data, wire.REPLY_FRAME_BYTES_MAX)
                if len(data) >= end:
                    return memoryview(data)[wire.LENGTH_BYTES : end], len(data) > end
            self._arm(connection, until)

    def _arm(self, connection: socket.socket, until: int) -> None:
        """Have the connection wait no longer than until then. Raises TimeoutError."""
        left = until - self._clock.boot_ns()
        if left <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left / SECOND)


class UnixTransport(SocketTransport):
    """A shard of this machine. Who may connect is the socket's business: its user, the superuser, its group."""

    def __init__(self, path: Path, clock: BootClock, greeting: wire.Hello | None = None) -> None:
        """Take the socket's path. Connects to nothing yet."""
        super().__init__(clock, greeting)
        self.path = path

    def __str__(self) -> str:
        """Return the socket's path."""
        return str(self.path)

    def _connect(self, until: int) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._arm(connection, until)
            connection.connect(str(self.path))
        except BaseException:
            connection.close()
            raise
        return connection


type _Places = list[tuple[Any, ...]]
"""What ``socket.getaddrinfo`` returns."""


def _beside(ask: Callable[[], _Places]) -> Future[_Places]:
    """Ask in a thread that no end of the process waits for. Raises OSError where it may have no more."""
    answer: Future[_Places] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as problem:  # noqa: BLE001 - it is raised where the answer is waited for
            answer.set_exception(problem)

    try:
        Thread(target=run, name="tenure-resolver", daemon=True).start()
    except RuntimeError as problem:
        raise OSError(f"no thread for the resolver: {problem}") from None
    return answer


class TlsTransport(SocketTransport):
    """A shard of another node, by TCP and TLS: the other end must show that node's key, and so must this one."""

    def __init__(
        self, node: str, context: ssl.SSLContext | tls.OwnEnds, trust: Trust, clock: BootClock, greeting: wire.Hello
    ) -> None:
        """Take the node: its address and its keys are looked up in the trust record for every new connection."""
        super().__init__(clock, greeting)
        self._node = node
        self._context = context
        self._trust = trust
        self._keys: WeakKeyDictionary[socket.socket, bytes] = WeakKeyDictionary()
        self._asked: dict[Address, Future[_Places]] = {}
        """What the resolver was asked last about each address."""

    def __str__(self) -> str:
        return f"{self._node} ({self._trust.address_of(self._node) or 'no address'})"

    def _connect(self, until: int) -> ssl.SSLSocket:
        address = self._trust.address_of(self._node)
        if address is None:
            self._trust.look()
            raise ShardUnavailable(
                "no-address",
                f"trust record {self._trust.number} has no address of node {self._node}",
                hint=f"tenure trust move {self._node} HOST:PORT, or run this on {self._node}",
            )
        connection = self._reached(address, until)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _TCP_USER_TIMEOUT_MS)
            self._arm(connection, until)
            connection = wrapped = self._context.wrap_socket(connection)
            self._keys[wrapped] = key_id(tls.peer_key(wrapped))
        except BaseException:
            connection.close()
            raise
        return wrapped

    def _reached(self, address: Address, until: int) -> socket.socket:
        """Connect to a host, by whichever of its addresses answers; each has its share of the time. Raises OSError."""
        found = self._resolved(address, until)
        for others, (*_, place) in zip(reversed(range(len(found))), found, strict=True):
            left = (until - self._clock.boot_ns()) // (others + 1)
            if left <= 0:
                break
            try:
                return socket.create_connection((str(place[0]), address.port), timeout=left / SECOND)
            except OSError:
                if not others:
                    raise
        raise TimeoutError("timed out")

    def _resolved(self, address: Address, until: int) -> _Places:
        """Return the addresses of a host. A resolver waits for as long as it likes: nobody waits for that one here."""
        ask = partial(socket.getaddrinfo, address.host, address.port, type=socket.SOCK_STREAM)
        with contextlib.suppress(socket.gaierror):
            return ask(flags=socket.AI_NUMERICHOST)
        with self._lock:
            asked = self._asked.get(address)
            if asked is None or asked.done():
                asked = self._asked[address] = _beside(ask)
        try:
            return asked.result(max(0, until - self._clock.boot_ns()) / SECOND)
        except TimeoutError:
            raise TimeoutError(f"the resolver says nothing of {address.host}") from None

    def release(self, timeout_ns: Span) -> str:
        """Return which release the node says that it runs; empty: it does not say. A connection of its own; blocks.

        Raises ShardUnavailable, NotTrusted.
        """
        try:
            connection = self._connect(self._clock.boot_ns() + timeout_ns)
        except OSError as problem:
            raise ShardUnavailable("no-answer", f"{self} does not answer: {problem.strerror or problem}") from None
        with connection:
            self._check(connection)
            return tls.peer_release(connection)

    def _check(self, connection: socket.socket) -> None:
        shown = self._keys[connection]
        why = self._trust.refuses(shown)
        if why is None and (owner := self._trust.node_of(shown)) != self._node:
            why = f"its key is that of node {owner}"
        if why is not None:
            self._trust.look()
            raise NotTrusted(
                "peer-not-trusted",
                f"whoever answers at {self} is not trusted: {why}",
                hint=f"tenure trust ls says whose keys count; on {self._node}, trust rotate --purpose tls makes one",
            )
