"""One client of a server: what came in and is no whole frame yet, what it has not read yet, and what it may do.

Everything that a client can make a server keep is bounded here: bytes not yet a frame, bytes not yet read, requests a
second, time that nothing moves. Works the same over a plain socket and over TLS; never blocks.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from timeagent.units import MINUTE, SECOND

from .wire import (
    LENGTH_BYTES,
    NO_REQUEST,
    REQUEST_FRAME_BYTES_MAX,
    Acquire,
    Attend,
    Refused,
    Upgrade,
    body_length,
    encode_answer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from timeagent.units import Span

    from .wire import Encoded, Reply, Request

RECEIVE_BYTES: Final = 64 * 1024
"""How much is received at once. With twice as much each receiving maps fresh pages, and takes nine times as long."""

_SEND_BYTES: Final = 1024 * 1024
_TLS_RECORD_BYTES: Final = 16 * 1024
_PEERCRED: Final = struct.Struct("3i")
_SO_PEERGROUPS: Final = 59
"""socket(7): the supplementary groups of the other end; the socket module has no name for it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client, and all of them, may ask of a server."""

    connections_max: int = 512
    connections_per_peer: int = 256
    """A peer is a process of this machine, or another node."""
    output_bytes_max: int = 32 * 1024 * 1024
    """How much a client may leave unread before it is cut off: more than the largest answer."""
    calls_per_turn: int = 16
    """How many calls of one connection go into one turn; the rest waits for the next."""
    requests_per_turn: int = 16_384
    """Requests in flight: what came in and is more waits for the next turn, in the order of arrival."""
    requests_per_second: int = 200_000
    """Of one peer, all its connections together. Who asks for more is read from later, and told nothing."""
    burst: int = 200_000
    """How many requests a peer may ask at once after a pause; at least those of one call."""
    waiters_per_peer: int = 4096
    """How many requests of one peer may be held back until they can be granted; more are denied at once."""
    owed_per_connection: int = 256
    """How many calls of one connection may be without their answers; who sends more is cut off."""
    idle_ns: Span = 10 * MINUTE
    """A connection without a call for so long is closed; a client opens another when it needs one."""
    frame_ns: Span = 30 * SECOND
    """How long the rest of a frame may take."""
    unread_ns: Span = 10 * SECOND
    """How long a client may read nothing of what waits for it."""
    drain_ns: Span = SECOND
    """How long a server that stops waits for its answers to be read."""


@dataclass(slots=True, eq=False)
class Peer:
    """Who is at the other end, and how much it may still ask; shared by all its connections."""

    name: str
    key_id: bytes | None = None
    """The TLS key by which it was let in; None on this machine."""
    connections: int = 0
    waiting: int = 0
    """How many of its requests are held back."""
    tokens: float = 0.0
    filled_ns: int = 0

    def fill(self, now: int, limits: Limits) -> None:
        """Add what may be asked since the last time."""
        gained = (now - self.filled_ns) * limits.requests_per_second / SECOND
        self.tokens = min(float(limits.burst), self.tokens + gained)
        self.filled_ns = now


@dataclass(slots=True, eq=False)
class Owed:
    """A call of which some answer is held back."""

    connection: Connection
    replies: list[Reply | Encoded | None]
    missing: int
    waiters: list[HeldBack] = field(default_factory=list)

    def fill(self, replies: Sequence[Reply | Encoded | None]) -> None:
        """Take what was answered at once. What a waiter has got meanwhile stays."""
        for position, reply in enumerate(replies):
            self.replies[position] = self.replies[position] or reply
        self.missing = self.replies.count(None)


@dataclass(slots=True, eq=False)
class HeldBack:
    """Who waits for one answer of a call: the shard's waiter."""

    owed: Owed
    position: int
    answered: Callable[[Owed], None]
    """Called after the answer has come, from whichever thread called the shard."""

    @property
    def gone(self) -> bool:
        """Whether the connection is closed."""
        return not self.owed.connection.open

    def answer(self, reply: Reply) -> None:
        """Take the answer, from whichever thread called the shard."""
        self.owed.replies[self.position] = reply
        self.answered(self.owed)


@dataclass(slots=True, eq=False)
class Connection:
    """One socket of a peer. Whoever reads or sends here must be ready for OSError: the connection is over then."""

    socket: socket.socket
    peer: Peer
    since_ns: int
    """When something last moved: a whole call came in, or a part of an answer was read."""
    received: bytes | bytearray = b""
    """What is no whole frame yet: as it came where one receiving brought it, gathered where several did."""
    unsent: bytearray = field(default_factory=bytearray)
    events: int = select.EPOLLIN
    """What the loop is told of; 0: of nothing."""
    owed: deque[Owed] = field(default_factory=deque)
    """Calls whose answers are not complete, and those behind them: answers go out in the order of the calls."""
    leaving: bool = False
    """It gets what waits for it, and is closed then."""
    tls: bool = field(init=False)

    def __post_init__(self) -> None:
        """See what kind of socket it is."""
        self.tls = isinstance(self.socket, ssl.SSLSocket)

    @property
    def open(self) -> bool:
        """Whether it has not been closed."""
        return self.socket.fileno() >= 0

    def release(self) -> None:
        """Let the answers go that are complete, up to the first that is not."""
        while self.owed and not self.owed[0].missing:
            owed = self.owed.popleft()
            self.peer.waiting -= len(owed.waiters)
            self.unsent += encode_answer([reply for reply in owed.replies if reply is not None])

    def receive(self) -> bool:
        """Take what is there; False: nothing yet. Raises OSError, also when the other end has closed."""
        try:
            part = self.socket.recv(RECEIVE_BYTES)
            # TLS hands over one record at a time; what it has decrypted already no selector ever reports.
            while part and self.tls and self.socket.pending():  # type: ignore[attr-defined]
                self._gather(part)
                part = self.socket.recv(_TLS_RECORD_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        if not part:
            raise ConnectionResetError("closed by the other end")
        self._gather(part)
        return True

    def _gather(self, part: bytes) -> None:
        if not self.received:
            self.received = part
            return
        if isinstance(self.received, bytes):
            self.received = bytearray(self.received)
        self.received += part

    def used(self, size: int) -> None:
        """Forget the first bytes of what was received."""
        if size == len(self.received):
            self.received = b""
        elif size:
            self.received = self.received[size:]

    def send_at_once(self, frame: bytes) -> bool:
        """Send an answer if nothing else waits; what the socket does not take waits. False: some does. Raises OSError.

        TLS is not asked here: a write of its that is tried again has to be the same.
        """
        if self.tls or self.unsent:
            self.unsent += frame
            return False
        try:
            sent = self.socket.send(frame)
        except BlockingIOError:
            sent = 0
        if sent < len(frame):
            self.unsent += memoryview(frame)[sent:]
        return not self.unsent

    def send(self) -> int:
        """Send what the socket takes; return how many bytes it took. Raises OSError."""
        before = len(self.unsent)
        try:
            while self.unsent:
                # The same bytes again from the same place: what TLS asks of a write that is tried again.
                sent = self.socket.send(memoryview(self.unsent)[:_SEND_BYTES].toreadonly())
                del self.unsent[:sent]
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        return before - len(self.unsent)

    def next_frame(self, offset: int) -> int | None:
        """Return where the frame that begins at ``offset`` ends, or None while it is not whole. Raises Damaged."""
        begin = offset + LENGTH_BYTES
        if len(self.received) < begin:
            return None
        end = begin + body_length(self.received, REQUEST_FRAME_BYTES_MAX, offset)
        return end if end <= len(self.received) else None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A connection that the door has let in, with the frame of its Hello."""

    socket: socket.socket
    name: str
    key_id: bytes
    received: bytes


def refusal(code: str, message: str, hint: str = "") -> bytes:
    """Return the answer that ends a connection: one Refused, about no request."""
    return encode_answer([Refused(request_id=NO_REQUEST, code=code, message=message, hint=hint)])


def credentials(connection: socket.socket) -> tuple[int, int, list[int]]:
    """Return process, user and groups of the other end of a Unix socket, as they were when it connected.

    Raises OSError.
    """
    process, user, group = _PEERCRED.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
    )
    groups = {group}
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * 1024)
    except OSError:  # an old kernel, or more groups than fit: the first group is known all the same
        raw = b""
    groups.update(struct.unpack(f"{len(raw) // 4}I", raw))
    return process, user, sorted(groups)


def permitted(user: int, groups: Iterable[int], *, own_user: int, group: int | None) -> bool:
    """Whether a process of this machine may use the socket: the same user, the superuser, or the configured group."""
    return user in (own_user, 0) or (group is not None and group in groups)


def held_back(
    connection: Connection, call: Sequence[Request], limits: Limits, answered: Callable[[Owed], None]
) -> Owed | None:
    """Return where the answers of a call are gathered, if it lets the shard hold any back; counted with its peer."""
    owed: Owed | None = None
    for position, request in enumerate(call):
        if isinstance(request, Acquire | Upgrade | Attend) and request.wait_ns:
            if connection.peer.waiting >= limits.waiters_per_peer:
                break
            owed = owed or Owed(connection, [None] * len(call), len(call))
            owed.waiters.append(HeldBack(owed, position, answered))
            connection.peer.waiting += 1
    return owed
