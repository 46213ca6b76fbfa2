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
import errno
import logging
import selectors
import socket
import ssl
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from timeagent.errors import Damaged, Environment, NotTrusted
from timeagent.keys import key_id
from timeagent.units import MS, SECOND

from ..formats.names import Address
from . import tls
from .connection import refusal
from .server import ShardServer
from .tls import Trust
from .transport import BootClock
from .wire import LENGTH_BYTES, PROTOCOL_VERSION, Hello, Request, body_length, decode_call

_log = logging.getLogger(__name__)

PLACES: Final = 128
"""How many visitors a listener has at once at most."""

STAY_NS: Final = 5 * SECOND
"""How long one of them may stay."""

PATIENCE_NS: Final = 250 * MS
"""How long one may have stayed before it has to make room for another: some round trips, and work for each."""

TICK_NS: Final = 100 * MS
BACKLOG: Final = 1024
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(slots=True, eq=False)
class Visitor:
    """A client that is not known yet."""

    socket: socket.socket
    since_ns: int
    whence: str
    received: bytearray = field(default_factory=bytearray)


class BoundedListener[V: Visitor](ABC):
    """Listens until it is told to stop. One thread of its own runs it."""

    def __init__(self, listener: socket.socket, clock: BootClock) -> None:
        """Take a socket that listens; nobody is let in before run() runs."""
        self._clock = clock
        self._visitors: dict[int, V] = {}
        self._stopping = False
        self._deaf_until = 0
        self._listening = True
        self.refused: Counter[str] = Counter()
        """Who was turned away, by reason. Read by other threads."""
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        for each in (self._listener, self._wake, self._woken):
            each.settimeout(0)
        for listening in (self._listener, self._woken):
            self._selector.register(listening, selectors.EVENT_READ)

    @property
    def visitors(self) -> int:
        """How many are let in just now."""
        return len(self._visitors)

    @abstractmethod
    def _taken(self, accepted: socket.socket, now: int, whence: str) -> V:
        """Return who has come. Raises OSError: it is gone again."""

    @abstractmethod
    def _go_on(self, visitor: V) -> None:
        """Do what can be done for a visitor without waiting. Whatever it raises, the visitor has to leave."""

    @abstractmethod
    def _send_away(self, visitor: V) -> None:
        """Tell a visitor that it has been here for too long, and drop it. Never blocks."""

    def run(self) -> None:
        """Look after who comes until stop(); then drop who is there. Blocks; call it once."""
        try:
            while not self._stopping:
                self._loop_once()
        finally:
            for visitor in list(self._visitors.values()):
                self._drop(visitor)
            for each in (self._listener, self._wake, self._woken):
                each.close()
            self._selector.close()

    def stop(self) -> None:
        """End run() soon. Thread-safe, idempotent."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def _loop_once(self) -> None:
        ready = self._selector.select(TICK_NS / SECOND)
        now = self._clock.boot_ns()
        knocks = False
        for key, _ in ready:
            if key.fileobj is self._listener:
                knocks = True  # last: who has gone on by then makes room
            elif key.fileobj is self._woken:
                with contextlib.suppress(OSError):
                    self._woken.recv(4096)
            else:
                self._guarded(self._visitors[key.fd])
        for visitor in list(self._visitors.values()):
            if now - visitor.since_ns > STAY_NS:
                self._send_away(visitor)
        if knocks:
            self._accept(now)
        self._listen(now >= self._deaf_until)

    def _guarded(self, visitor: V) -> None:
        try:
            self._go_on(visitor)
        except Exception:  # noqa: BLE001 - whatever it is: this one leaves, the others stay
            self.refused["unexpected"] += 1
            _log.exception("visitor-failed from=%s", visitor.whence)
            self._drop(visitor)

    def _listen(self, willing: bool) -> None:  # noqa: FBT001 - what it says
        if willing is not self._listening:
            self._listening = willing
            if willing:
                self._selector.register(self._listener, selectors.EVENT_READ)
            else:
                self._selector.unregister(self._listener)

    def _accept(self, now: int) -> None:
        for _ in range(PLACES):
            if len(self._visitors) >= PLACES and not self._made_room(now):
                self._deaf_until = now + TICK_NS
                return
            try:
                accepted, whence = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as problem:
                if problem.errno in _EXHAUSTED:
                    _log.warning("accept-failed reason=%s", problem.strerror)
                    self._deaf_until = now + TICK_NS
                return
            try:
                accepted.settimeout(0)
                visitor = self._taken(accepted, now, str(whence[0]) if whence else "")
            except OSError:
                accepted.close()
                continue
            self._visitors[visitor.socket.fileno()] = visitor
            self._selector.register(visitor.socket, selectors.EVENT_READ)

    def _made_room(self, now: int) -> bool:
        """Have somebody leave who has been here for a while; False: nobody has."""
        crowd = Counter(each.whence for each in self._visitors.values())
        waiting = [each for each in self._visitors.values() if now - each.since_ns >= PATIENCE_NS]
        if waiting:
            self._send_away(max(waiting, key=lambda each: (crowd[each.whence], -each.since_ns)))
        return bool(waiting)

    def _forget(self, visitor: V) -> None:
        """Look after a visitor no more. Idempotent."""
        if self._visitors.pop(visitor.socket.fileno(), None) is not None:
            self._selector.unregister(visitor.socket)

    def _drop(self, visitor: V) -> None:
        self._forget(visitor)
        visitor.socket.close()


HELLO_BYTES_MAX: Final = 4096
_USER_TIMEOUT_MS: Final = 10_000


@dataclass(slots=True, eq=False)
class _Visitor(Visitor):
    """A client that is not known yet."""

    socket: ssl.SSLSocket
    key_id: bytes | None = None
    """None: the handshake is not done."""


class _Refusal(Exception):
    """Why a visitor is not let in."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.answer = refusal(code, message, hint)


class TlsListener(BoundedListener[_Visitor]):
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
        self._context = context
        self._trust = trust
        self._cluster_id = cluster_id
        self._server_of = server_of
        self.let_in = 0
        try:
            listener = socket.create_server(
                (address.host, address.port),
                family=socket.AF_INET6 if ":" in address.host else socket.AF_INET,
                backlog=BACKLOG,
            )
        except OSError as problem:
            raise Environment(
                "no-door", f"cannot listen at {address}: {problem}", hint="see what else listens there, or `listen`"
            ) from None
        super().__init__(listener, clock)
        self.address = type(address)(address.host, listener.getsockname()[1])

    def _taken(self, accepted: socket.socket, now: int, whence: str) -> _Visitor:
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        wrapped = self._context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        return _Visitor(wrapped, now, whence)

    def _go_on(self, visitor: _Visitor) -> None:
        """Do the next step that needs no waiting."""
        try:
            if visitor.key_id is None:
                visitor.socket.do_handshake()
                visitor.key_id = self._judged(visitor)
            while True:
                part = visitor.socket.recv(HELLO_BYTES_MAX + LENGTH_BYTES - len(visitor.received))
                if not part:
                    self._drop(visitor)
                    return
                visitor.received += part
                if self._hand_over(visitor):
                    return
        except ssl.SSLWantReadError:
            self._selector.modify(visitor.socket, selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._selector.modify(visitor.socket, selectors.EVENT_WRITE)
        except _Refusal as refused:
            self._turn_away(visitor, refused)
        except OSError as problem:
            # Mostly: no certificate, one that the library refuses, or no TLS at all. It was told as far as TLS tells.
            self.refused["tls"] += 1
            _log.info("handshake-failed from=%s reason=%s", visitor.whence, problem)
            self._drop(visitor)

    def _judged(self, visitor: _Visitor) -> bytes:
        try:
            identifier = key_id(tls.peer_key(visitor.socket))
        except NotTrusted as problem:
            raise _Refusal("not-trusted", problem.message) from None
        why = self._trust.refuses(identifier)
        if why is not None:
            self._trust.look()
            raise _Refusal("not-trusted", f"{why} (trust record {self._trust.number})", "see tenure trust ls")
        return identifier

    def _hand_over(self, visitor: _Visitor) -> bool:
        """Read the Hello once it is whole, and hand the visitor to its shard; False: not whole yet."""
        if len(visitor.received) < LENGTH_BYTES:
            return False
        try:
            end = LENGTH_BYTES + body_length(bytes(visitor.received[:LENGTH_BYTES]), HELLO_BYTES_MAX)
            if len(visitor.received) < end:
                return False
            call = decode_call(bytes(visitor.received[LENGTH_BYTES:end]))
        except Damaged as problem:
            raise _Refusal(problem.code, problem.message, "a connection begins with a Hello") from None
        server, node = self._asked_for(visitor, call)
        assert visitor.key_id is not None
        self._forget(visitor)
        self.let_in += 1
        server.adopt(visitor.socket, node, visitor.key_id, bytes(visitor.received))
        return True

    def _asked_for(self, visitor: _Visitor, call: list[Request]) -> tuple[ShardServer, str]:
        """Return which shard's server a Hello asks for, and as which node."""
        hello = call[0] if len(call) == 1 else None
        if not isinstance(hello, Hello):
            raise _Refusal("hello-expected", "a connection begins with a Hello, alone in its frame")
        if hello.version != PROTOCOL_VERSION:
            raise _Refusal(
                "protocol-version",
                f"this node speaks version {PROTOCOL_VERSION}; version {hello.version} was offered",
                "use the same release",
            )
        if hello.cluster_id != self._cluster_id:
            raise _Refusal(
                "other-cluster",
                f"this node is of cluster {self._cluster_id.hex()}, not of {hello.cluster_id.hex()}",
                "check the root",
            )
        assert visitor.key_id is not None
        if (owner := self._trust.node_of(visitor.key_id)) != hello.node:
            raise _Refusal("other-node", f"this is the key of {owner}, not {hello.node}")
        server = None if hello.shard is None else self._server_of(hello.shard)
        if server is None:
            raise _Refusal("not-here", f"shard {hello.shard} does not run here now", "see tenure shards")
        return server, hello.node

    def _turn_away(self, visitor: _Visitor, why: _Refusal) -> None:
        self.refused[why.code] += 1
        _log.info("turned-away from=%s code=%s reason=%s", visitor.whence, why.code, why)
        with contextlib.suppress(OSError):
            visitor.socket.send(why.answer)
        self._drop(visitor)

    def _send_away(self, visitor: _Visitor) -> None:
        self._turn_away(visitor, _Refusal("too-slow", "handshake and Hello took too long"))
