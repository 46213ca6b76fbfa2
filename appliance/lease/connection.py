"""One client of a shard's server: what it sent and has not read, what it may do, its calls of a turn; that it has gone.

Everything that a client can make a server keep is bounded here: bytes not yet a frame, bytes not yet read, requests a
second, time that nothing moves. Works the same over a plain socket and over TLS; never blocks.

Answers of a connection go out in the order of its calls (``RequestBatch``). Most calls are answered in their turn, and
nothing of them is kept; the others wait at their connection until their answers are complete (``PendingCall``).

A tentative lease may be ended at any time, because nothing was written under it. So what a holder has taken tentatively
is withdrawn when the connections are gone over which it asked, and none has come in their place for a while
(``TentativeLeaseReaper``). A held lease does not depend on a connection.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from timeagent.units import MINUTE, SECOND, Span

from ..formats.lease import Holder, Phase
from . import wire

RECEIVE_BYTES: Final = 64 * 1024
"""How much is received at once. With twice as much each receiving maps fresh pages, and takes nine times as long."""

_SEND_BYTES: Final = 1024 * 1024
_TLS_RECORD_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class ClientLimits:
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

    def fill(self, now: int, limits: ClientLimits) -> None:
        """Add what may be asked since the last time."""
        gained = (now - self.filled_ns) * limits.requests_per_second / SECOND
        self.tokens = min(float(limits.burst), self.tokens + gained)
        self.filled_ns = now


@dataclass(slots=True, eq=False)
class Connection:
    """One socket of a peer. Whoever reads or sends here must be ready for OSError: the connection is over then."""

    socket: socket.socket
    peer: Peer
    since_ns: int
    """When something last moved: a call began to come in or was answered, or a part of an answer was read."""
    received: bytearray = field(default_factory=bytearray)
    """What is no whole frame yet."""
    unsent: bytearray = field(default_factory=bytearray)
    events: int = select.EPOLLIN
    """What the loop is told of; 0: of nothing."""
    owed: deque[PendingCall] = field(default_factory=deque)
    """Calls whose answers are not complete, and those behind them: answers go out in the order of the calls."""
    leaving: bool = False
    """It gets what waits for it, and is closed then."""

    @property
    def open(self) -> bool:
        """Whether it has not been closed."""
        return self.socket.fileno() >= 0

    def release(self) -> None:
        """Let the answers go that are complete, up to the first that is not."""
        while self.owed and None not in self.owed[0].replies:
            owed = self.owed.popleft()
            self.peer.waiting -= len(owed.waiters)
            self.unsent += wire.encode_answer([reply for reply in owed.replies if reply is not None])

    def receive(self) -> bool:
        """Take what is there; False: nothing yet. Raises OSError, also when the other end has closed."""
        try:
            part = self.socket.recv(RECEIVE_BYTES)
            self.received += part
            # TLS hands over one record at a time; what it has decrypted already no selector ever reports.
            while part and isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
                part = self.socket.recv(_TLS_RECORD_BYTES)
                self.received += part
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        if not part:
            raise ConnectionResetError("closed by the other end")
        return True

    def next_frame(self, offset: int) -> int | None:
        """Return where the frame that begins at ``offset`` ends, or None while it is not whole. Raises Damaged."""
        begin = offset + wire.LENGTH_BYTES
        if len(self.received) < begin:
            return None
        end = begin + wire.body_length(self.received, wire.REQUEST_FRAME_BYTES_MAX, offset)
        return end if end <= len(self.received) else None

    def send_at_once(self, frame: bytes) -> bool:
        """Send an answer if nothing else waits; what the socket does not take waits. False: some does. Raises OSError.

        TLS is not asked here: a write of its that is tried again has to be the same.
        """
        sent = 0
        if not self.unsent and not isinstance(self.socket, ssl.SSLSocket):
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
        most = _TLS_RECORD_BYTES if isinstance(self.socket, ssl.SSLSocket) else _SEND_BYTES
        try:
            while self.unsent:
                # The same bytes again from the same place: what TLS asks of a write that is tried again.
                sent = self.socket.send(memoryview(self.unsent)[:most].toreadonly())
                del self.unsent[:sent]
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        return before - len(self.unsent)


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call of which some answer is held back: it goes out once none is None."""

    connection: Connection
    replies: list[wire.Reply | wire.Encoded | None]
    waiters: list[DeferredReply] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class DeferredReply:
    """Who waits for one answer of a call: the shard's waiter."""

    owed: PendingCall
    position: int
    answered: Callable[[Connection], None]
    """Called after the answer has come, from whichever thread called the shard."""

    @property
    def gone(self) -> bool:
        return not self.owed.connection.open

    def answer(self, reply: wire.Reply | wire.Encoded) -> None:
        """Take the answer, from whichever thread called the shard."""
        self.owed.replies[self.position] = reply
        self.answered(self.owed.connection)


GRACE_NS: Final[Span] = 2 * SECOND
"""How long a holder may be without a connection: longer than a client needs that lost an answer and asks again."""

DOMAINS_MAX: Final = 4096
"""How many domains are remembered of one holder: what it took tentatively before has been upgraded, or runs out."""


HOLDERS_MAX: Final = 1024
"""Likewise how many holders of one connection: a process has many sessions over it, one after the other."""


@dataclass(slots=True)
class _Asked:
    """What a holder took tentatively, and over which connections that are open."""

    domains: dict[str, None] = field(default_factory=dict)
    connections: set[Connection] = field(default_factory=set)
    left_ns: int = 0


class TentativeLeaseReaper:
    """The holders that have asked one server for tentative leases. For one thread."""

    def __init__(self) -> None:
        self._asked: dict[Holder, _Asked] = {}
        self._over: dict[Connection, dict[Holder, None]] = {}
        """Who asks over each, the longest ago first: one that ends costs what it brought, whatever others make up."""
        self._left: dict[Holder, None] = {}
        """Those without a connection."""

    def heard(self, connection: Connection, call: Sequence[wire.Request]) -> None:
        """Take note of who asks for what over a connection."""
        for request in call:
            if isinstance(request, wire.Acquire) and request.phase is Phase.TENTATIVE:
                asked = self._asked.setdefault(request.holder, _Asked())
                asked.connections.add(connection)
                asked.domains[request.domain] = None
                if len(asked.domains) > DOMAINS_MAX:
                    del asked.domains[next(iter(asked.domains))]
                holders = self._over.setdefault(connection, {})
                holders.pop(request.holder, None)
                holders[request.holder] = None
                self._left.pop(request.holder, None)
                if len(holders) > HOLDERS_MAX:
                    self._forget(connection, next(iter(holders)))

    def _forget(self, connection: Connection, holder: Holder) -> None:
        del self._over[connection][holder]
        self._asked[holder].connections.discard(connection)
        if not self._asked[holder].connections:
            del self._asked[holder]

    def left(self, connection: Connection, now: int) -> None:
        """Take note that a connection is closed."""
        for holder in self._over.pop(connection, ()):
            asked = self._asked[holder]
            asked.connections.discard(connection)
            if not asked.connections:
                asked.left_ns = now
                self._left[holder] = None

    def gone(self, now: int) -> list[wire.Task]:
        """Return what has to be withdrawn of those who have been away for too long; they are not known any more."""
        over = [holder for holder in self._left if now - self._asked[holder].left_ns >= GRACE_NS]
        for holder in over:
            del self._left[holder]
        return [wire.Withdraw(holder=holder, domains=tuple(self._asked.pop(holder).domains)) for holder in over]


def ordinary(call: Sequence[wire.Request]) -> bool:
    """Whether there is nothing in a call that a server has to remember: no Hello, nothing tentative, nobody waits."""
    for request in call:
        kind = type(request)
        if kind is wire.Acquire:
            if request.wait_ns or request.phase is not Phase.HELD:  # type: ignore[union-attr]
                return False
        elif kind is not wire.Relinquish and kind is not wire.Renew:
            return False
    return True


class RequestBatch:
    """The calls of one turn, in the order in which they came."""

    __slots__ = ("_answered", "_limits", "_reaper", "calls", "requests", "waiters")

    def __init__(
        self, limits: ClientLimits, reaper: TentativeLeaseReaper, answered: Callable[[Connection], None]
    ) -> None:
        """Begin without any. ``answered``: called when an answer has come that was held back."""
        self._limits = limits
        self._reaper = reaper
        self._answered = answered
        self.requests: list[wire.Request] = []
        self.calls: list[tuple[Connection, int, PendingCall | None, bool]] = []
        """Whose call, how many requests, where its answers are gathered if any may be held back; is it a Hello."""
        self.waiters: dict[int, DeferredReply] = {}
        """By position among the requests."""

    def take(self, connection: Connection, call: list[wire.Request]) -> None:
        """Take a connection's next call."""
        owed, hello = None, False
        if not ordinary(call):
            self._reaper.heard(connection, call)
            owed = self._held_back(connection, call)
            hello = any(isinstance(request, wire.Hello) for request in call)
        self.requests += call
        self.calls.append((connection, len(call), owed, hello))

    def _held_back(self, connection: Connection, call: Sequence[wire.Request]) -> PendingCall | None:
        """Return where the answers of a call are gathered, if it lets the shard hold any back."""
        owed: PendingCall | None = None
        for position, request in enumerate(call):
            if isinstance(request, wire.Acquire | wire.Upgrade | wire.Attend) and request.wait_ns:
                if connection.peer.waiting >= self._limits.waiters_per_peer:
                    break
                owed = owed or PendingCall(connection, [None] * len(call))
                waiter = DeferredReply(owed, position, self._answered)
                owed.waiters.append(waiter)
                self.waiters[len(self.requests) + position] = waiter
                connection.peer.waiting += 1
        return owed

    def frames(
        self, replies: Sequence[wire.Encoded | wire.Reply | None]
    ) -> tuple[dict[Connection, bytes], list[Connection]]:
        """Return what goes out at once; and who has answers at the connection. Those whose Hello is refused leave."""
        out: dict[Connection, bytes] = {}
        behind: list[Connection] = []
        start = 0
        for connection, count, owed, hello in self.calls:
            answer = replies[start : start + count]
            start += count
            if owed is None and not connection.owed:
                frame = wire.encode_answer(answer)  # type: ignore[arg-type]  # nobody waits for any of them
                out[connection] = out[connection] + frame if connection in out else frame
            else:
                waiting = owed or PendingCall(connection, [None] * count)
                for position, reply in enumerate(answer):
                    if reply is not None:  # else a waiter has it, or will get it from another thread
                        waiting.replies[position] = reply
                connection.owed.append(waiting)
                behind.append(connection)
            if hello and any(isinstance(each, wire.Refused) for each in answer):
                connection.leaving = True  # another version, another cluster: nothing it says means what it seems to
        return out, behind
