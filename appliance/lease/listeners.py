"""Listening sockets for clients that are not known yet: bounded in number and in time, one thread's loop each.

Whatever one of these clients sends or leaves out costs nobody else anything:

- a bounded number is there at once, each for a bounded time. Where the places are all taken, whoever has been there for
  a while gives way to somebody new, first of the address that has taken the most places; while nobody has, who comes
  waits in the kernel's queue;
- what goes wrong with one, also what nobody thought of, ends its connection, and not the loop.

``TlsListener`` is that for other nodes: one TCP address, TLS, and a Hello; who passes is handed to the shard that it
names. It stands before the shards so that no handshake, and nobody who is not trusted, ever costs a shard's thread any
time. The order is the protection:

1. accept     a bounded number at once, each for a bounded time;
2. handshake  TLS 1.3, with a certificate from the other end: it proves that it has the key;
3. judge      the newest trust record known here says whose key that is, and that it counts now;
4. hello      one frame: version, cluster, the node whose key it is, a shard that runs here;
5. hand over  to that shard's server, which asks the trust record again, as long as the connection lives.

Nothing that came from the other end is read before 3. Who is refused after 2 is told why.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from timeagent.errors import BadRequest, Damaged, NotTrusted, TenureError
from timeagent.keys import key_id
from timeagent.units import MS, SECOND

from ..formats.names import Address
from . import tls
from .server import ShardServer
from .sockets import TICK_NS, BootClock, Listener, SocketLoop
from .tls import Trust
from .wire import LENGTH_BYTES, Hello, body_length, decode_call, foreign, refusal

_log = logging.getLogger(__name__)

PLACES: Final = 128
"""How many visitors a listener has at once at most."""

STAY_NS: Final = 5 * SECOND
"""How long one of them may stay."""

PATIENCE_NS: Final = 250 * MS
"""How long one may have stayed before it has to make room for another: some round trips, and work for each."""

HELLO_BYTES_MAX: Final = 4096
_USER_TIMEOUT_MS: Final = 10_000


@dataclass(slots=True, eq=False)
class Visitor:
    """A client that is not known yet."""

    socket: socket.socket
    since_ns: int
    whence: str
    received: bytes = b""
    key_id: bytes | None = None
    """The key that it has proven to have by a handshake, and that counts."""


class BoundedListener(SocketLoop):
    """Listens until it is told to stop. One thread of its own runs it."""

    def __init__(self, listener: Listener, clock: BootClock) -> None:
        """Let nobody in before run() runs."""
        super().__init__(listener, clock)
        self._visitors: dict[int, Visitor] = {}
        self.refused: Counter[str] = Counter()
        """Who was turned away, by reason. Read by other threads."""

    @property
    def visitors(self) -> int:
        """How many are let in just now."""
        return len(self._visitors)

    def _dressed(self, accepted: socket.socket) -> socket.socket:
        """Return the socket of who has come, as it is gone on with. Raises OSError: it is gone again."""
        return accepted

    @abstractmethod
    def _go_on(self, visitor: Visitor) -> None:
        """Do what can be done for a visitor without waiting. Whatever it raises, the visitor has to leave."""

    @abstractmethod
    def _send_away(self, visitor: Visitor) -> None:
        """Tell a visitor that it has been here for too long, and drop it. Never blocks."""

    def _loop_once(self) -> None:
        ready = self._poll.poll(TICK_NS / SECOND)
        now = self._clock.boot_ns()
        knocks = False
        for number, _ in ready:
            visitor = self._visitors.get(number)
            if visitor is None:
                knocks = self._knocks(number) or knocks
                continue
            try:
                self._go_on(visitor)
            except Exception:  # noqa: BLE001 - whatever it is: this one leaves, the others stay
                self.refused["unexpected"] += 1
                _log.exception("visitor-failed from=%s", visitor.whence)
                self._drop(visitor)
        for visitor in list(self._visitors.values()):
            if now - visitor.since_ns > STAY_NS:
                self._send_away(visitor)
        self._listen_again(now)
        if knocks:
            self._accept(now)  # last: who has gone on by then makes room

    def _drop_all(self) -> None:
        for visitor in list(self._visitors.values()):
            self._drop(visitor)

    def _accept(self, now: int) -> None:
        for _ in range(PLACES):
            if len(self._visitors) >= PLACES and not self._made_room(now):
                self._be_deaf(now)
                return
            came = self._next_caller(now)
            if came is None:
                return
            accepted, whence = came
            try:
                visitor = Visitor(self._dressed(accepted), now, whence)
            except OSError:
                accepted.close()
                continue
            self._visitors[visitor.socket.fileno()] = visitor
            self._poll.register(visitor.socket, select.EPOLLIN)

    def _made_room(self, now: int) -> bool:
        """Have somebody leave who has been here for a while; False: nobody has."""
        crowd = Counter(each.whence for each in self._visitors.values())
        waiting = [each for each in self._visitors.values() if now - each.since_ns >= PATIENCE_NS]
        if waiting:
            self._send_away(max(waiting, key=lambda each: (crowd[each.whence], -each.since_ns)))
        return bool(waiting)

    def _forget(self, visitor: Visitor) -> None:
        """Look after a visitor no more. Idempotent."""
        if self._visitors.pop(visitor.socket.fileno(), None) is not None:
            self._poll.unregister(visitor.socket)

    def _drop(self, visitor: Visitor) -> None:
        self._forget(visitor)
        visitor.socket.close()


class TlsListener(BoundedListener):
    """Listens for other nodes until it is told to stop. One thread of its own; never touches a shard or the mount."""

    def __init__(
        self,
        address: Address,
        context: ssl.SSLContext | tls.OwnEnds,
        trust: Trust,
        cluster_id: bytes,
        server_of: Callable[[int], ShardServer | None],
        clock: BootClock,
    ) -> None:
        """Listen; nobody is let in before run() runs. ``server_of``: who serves a shard here now. Raises Environment.

        Port 0 is any free port: ``address`` says which then.
        """
        super().__init__(Listener(address, code="no-door", hint="see what else listens there, or `listen`"), clock)
        self._context = context
        self._trust = trust
        self._cluster_id = cluster_id
        self._server_of = server_of
        self.let_in = 0

    @property
    def address(self) -> Address:
        """Where it listens."""
        assert isinstance(self._listener.place, Address)
        return self._listener.place

    def _dressed(self, accepted: socket.socket) -> socket.socket:
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        return self._context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)

    def _go_on(self, visitor: Visitor) -> None:
        """Do the next step that needs no waiting."""
        connection = visitor.socket
        assert isinstance(connection, ssl.SSLSocket)
        try:
            if visitor.key_id is None:
                connection.do_handshake()
                visitor.key_id = self._judged(connection)
            while part := connection.recv(HELLO_BYTES_MAX + LENGTH_BYTES - len(visitor.received)):
                visitor.received += part
                if self._hand_over(visitor, visitor.key_id):
                    return
            self._drop(visitor)
        except ssl.SSLWantReadError:
            self._poll.modify(connection, select.EPOLLIN)
        except ssl.SSLWantWriteError:
            self._poll.modify(connection, select.EPOLLOUT)
        except TenureError as refused:
            self._turn_away(visitor, refused)
        except OSError as problem:
            # Mostly: no certificate, one that the library refuses, or no TLS at all. It was told as far as TLS tells.
            self.refused["tls"] += 1
            _log.info("handshake-failed from=%s reason=%s", visitor.whence, problem)
            self._drop(visitor)

    def _judged(self, connection: ssl.SSLSocket) -> bytes:
        """Return the other end's key, by its identifier. Raises NotTrusted."""
        try:
            identifier = key_id(tls.peer_key(connection))
        except NotTrusted as problem:
            raise NotTrusted("not-trusted", problem.message) from None
        why = self._trust.refuses(identifier)
        if why is not None:
            self._trust.look()
            why = f"{why} (trust record {self._trust.number})"
            raise NotTrusted("not-trusted", why, hint="see tenure trust ls")
        return identifier

    def _hand_over(self, visitor: Visitor, identifier: bytes) -> bool:
        """Read the Hello once it is whole, and hand the visitor to its shard; False: not whole yet.

        Raises TenureError, where it is to be turned away.
        """
        received = visitor.received
        if len(received) < LENGTH_BYTES:
            return False
        try:
            end = LENGTH_BYTES + body_length(received, HELLO_BYTES_MAX)
            if len(received) < end:
                return False
            call = decode_call(received[LENGTH_BYTES:end])
        except Damaged as problem:
            raise Damaged(problem.code, problem.message, hint="a connection begins with a Hello") from None
        hello = call[0] if len(call) == 1 else None
        if not isinstance(hello, Hello):
            raise BadRequest("hello-expected", "a connection begins with a Hello, alone in its frame")
        if (refused := foreign(hello, self._cluster_id, "this node")) is not None:
            raise BadRequest(refused.code, refused.message, hint=refused.hint)
        if (owner := self._trust.node_of(identifier)) != hello.node:
            raise BadRequest("other-node", f"this is the key of {owner}, not {hello.node}")
        server = None if hello.shard is None else self._server_of(hello.shard)
        if server is None:
            raise BadRequest("not-here", f"shard {hello.shard} does not run here now", hint="see tenure shards")
        self._forget(visitor)
        self.let_in += 1
        server.adopt(visitor.socket, hello.node, identifier, received)
        return True

    def _turn_away(self, visitor: Visitor, why: TenureError) -> None:
        self.refused[why.code] += 1
        _log.info("turned-away from=%s code=%s reason=%s", visitor.whence, why.code, why.message)
        with contextlib.suppress(OSError):
            visitor.socket.send(refusal(why.code, why.message, why.hint))
        self._drop(visitor)

    def _send_away(self, visitor: Visitor) -> None:
        self._turn_away(visitor, BadRequest("too-slow", "handshake and Hello took too long"))
