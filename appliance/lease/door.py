"""The door for other nodes: one TCP address, TLS, and a Hello; who passes is handed to the shard that it names.

It stands before the shards so that no handshake, and nobody who is not trusted, ever costs a shard's thread any time.
The order is the protection:

1. accept     a bounded number at once, each for a bounded time (``threshold.py``);
2. handshake  TLS 1.3, with a certificate from the other end: it proves that it has the key;
3. judge      the newest trust record known here says whose key that is, and that it counts now;
4. hello      one frame: version, cluster, the node whose key it is, a shard that runs here;
5. hand over  to that shard's server, which asks the trust record again, as long as the connection lives.

Nothing that came from the other end is read before 3. Who is refused after 2 is told why.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from timeagent.errors import Damaged, Environment, NotTrusted
from timeagent.keys import key_id

from . import tls
from .connection import refusal
from .threshold import BACKLOG, Threshold, Visitor
from .wire import LENGTH_BYTES, PROTOCOL_VERSION, Hello, body_length, decode_call

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..formats.address import Address
    from .ports import Trust
    from .server import ShardServer
    from .transport import Counter as BootClock
    from .wire import Request

_log = logging.getLogger(__name__)

HELLO_BYTES_MAX: Final = 4096
_USER_TIMEOUT_MS: Final = 10_000


@dataclass(slots=True, eq=False)
class _Visitor(Visitor):
    """Somebody on the threshold."""

    socket: ssl.SSLSocket
    key_id: bytes | None = None
    """None: the handshake is not done."""


class _Refusal(Exception):
    """Why a visitor is not let in."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.answer = refusal(code, message, hint)


class Door(Threshold[_Visitor]):
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
            self._watch(visitor, selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._watch(visitor, selectors.EVENT_WRITE)
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

    def _watch(self, visitor: _Visitor, events: int) -> None:
        self._selector.modify(visitor.socket, events)

    def _turn_away(self, visitor: _Visitor, why: _Refusal) -> None:
        self.refused[why.code] += 1
        _log.info("turned-away from=%s code=%s reason=%s", visitor.whence, why.code, why)
        with contextlib.suppress(OSError):
            visitor.socket.send(why.answer)
        self._drop(visitor)

    def _send_away(self, visitor: _Visitor) -> None:
        self._turn_away(visitor, _Refusal("too-slow", "handshake and Hello took too long"))
