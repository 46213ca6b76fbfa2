"""The shell around a shard: one thread, one loop, a Unix socket. Receive what is ready, one turn, send.

Everything that is ready when the loop wakes shares one transaction and one signature. A client that breaks the rules of
the wire, or does not read its answers, loses its connection and nothing else; leases do not depend on connections.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from timeagent.errors import Damaged, Environment
from timeagent.units import MS, SECOND

from .wire import LENGTH_BYTES, REQUEST_FRAME_BYTES_MAX, body_length, decode_call, encode_answer

if TYPE_CHECKING:
    from pathlib import Path

    from .shard import Shard
    from .wire import Request

CONNECTIONS_MAX: Final = 512
OUTPUT_BYTES_MAX: Final = 32 * 1024 * 1024
"""How much a client may leave unread before it is cut off: more than the largest answer."""

CALLS_PER_CONNECTION: Final = 16
"""How many calls of one connection go into one turn; the rest waits for the next."""

RECEIVE_BYTES: Final = 256 * 1024
TICK_NS: Final = 100 * MS
"""How often the shard's housekeeping is looked after when nothing comes in."""


def _identity(path: Path) -> tuple[int, int]:
    """Return what tells one file from another under the same name."""
    status = path.stat()
    return status.st_dev, status.st_ino


@dataclass(slots=True, eq=False)
class _Connection:
    """One client: what came in and is no whole frame yet, and what it has not read yet."""

    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    events: int = selectors.EVENT_READ

    @property
    def open(self) -> bool:
        """Whether it has not been dropped."""
        return self.socket.fileno() >= 0


class ShardServer:
    """Serves one shard on a Unix socket until it is told to stop. The shard is started and stopped by the caller."""

    def __init__(
        self,
        shard: Shard,
        path: Path,
        guard: contextlib.AbstractContextManager[object] | None = None,
        *,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """Listen; connections are answered once run() runs. A socket that an earlier run left is removed.

        ``guard``: the lock that everybody holds who calls the shard, if others than this server do. Raises Environment.
        """
        self._shard = shard
        self._path = path
        self._guard = guard or contextlib.nullcontext()
        self._connections_max = connections_max
        self._connections: dict[int, _Connection] = {}
        self._waiting: dict[_Connection, None] = {}
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.unlink(missing_ok=True)
            self._listener.bind(str(path))
            path.chmod(0o600)
            self._listener.listen(128)
        except OSError as problem:
            self._close_all()
            raise Environment(
                "no-socket", f"cannot listen at {path}: {problem}", hint="use a short path on tmpfs that is writable"
            ) from None
        self._bound = _identity(path)
        for listening in (self._listener, self._woken):
            listening.settimeout(0)
            self._selector.register(listening, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until stop(); then close every connection and remove the socket. Blocks; call it once.

        A bug in the shard ends it too: the exception comes out here.
        """
        try:
            while not self._stopping:
                self._loop_once()
        finally:
            self._close_all()
            self._unlink_own()

    def _unlink_own(self) -> None:
        """Remove the socket, unless another server has bound its own under the same name meanwhile."""
        with contextlib.suppress(OSError):
            if _identity(self._path) == self._bound:
                self._path.unlink()

    def stop(self) -> None:
        """End run() soon; what is being answered is answered. Thread-safe, idempotent, safe in a signal handler."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def _loop_once(self) -> None:
        ready = self._selector.select(0 if self._waiting else TICK_NS / SECOND)
        active = self._waiting
        self._waiting = {}
        for key, events in ready:
            if key.fileobj is self._listener:
                continue
            if key.fileobj is self._woken:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            else:
                self._handle(self._connections[key.fd], events, active)
        if any(key.fileobj is self._listener for key, _ in ready):
            self._accept()  # last, because who has just left has made room
        self._turn([each for each in active if each.open])
        with self._guard:
            self._shard.housekeeping()

    def _handle(self, connection: _Connection, events: int, active: dict[_Connection, None]) -> None:
        """Send what waits, or receive; a connection whose calls wait for a turn is not received from."""
        if events & selectors.EVENT_WRITE:
            self._send(connection)
            if connection.open and not connection.unsent:
                active[connection] = None
        elif connection not in active and self._receive(connection):
            active[connection] = None

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            accepted, _ = self._listener.accept()
            if len(self._connections) >= self._connections_max:
                accepted.close()
                return
            accepted.settimeout(0)
            self._connections[accepted.fileno()] = _Connection(accepted)
            self._selector.register(accepted, selectors.EVENT_READ)

    def _receive(self, connection: _Connection) -> bool:
        try:
            part = connection.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            part = b""
        if not part:
            self._drop(connection)
            return False
        connection.received += part
        return True

    def _turn(self, active: list[_Connection]) -> None:
        """Take the whole frames that came in through one turn of the shard."""
        requests: list[Request] = []
        answers: list[tuple[_Connection, int]] = []
        for connection in active:
            try:
                calls = self._calls(connection)
            except Damaged:
                self._drop(connection)
                continue
            for call in calls:
                requests += call
                answers.append((connection, len(call)))
        if not answers:
            return
        with self._guard:
            replies = self._shard.turn(requests)
        start = 0
        for connection, count in answers:
            connection.unsent += encode_answer(replies[start : start + count])
            start += count
        for connection in dict.fromkeys(connection for connection, _ in answers):
            self._send(connection)

    def _calls(self, connection: _Connection) -> list[list[Request]]:
        """Split off whole frames. Raises Damaged."""
        calls: list[list[Request]] = []
        received, offset = connection.received, 0
        while len(received) - offset >= LENGTH_BYTES:
            end = offset + LENGTH_BYTES + body_length(memoryview(received)[offset:], REQUEST_FRAME_BYTES_MAX)
            if end > len(received):
                break
            if len(calls) == CALLS_PER_CONNECTION:
                self._waiting[connection] = None
                break
            calls.append(decode_call(bytes(received[offset + LENGTH_BYTES : end])))
            offset = end
        del received[:offset]
        return calls

    def _send(self, connection: _Connection) -> None:
        """Send what the socket takes; cut off who leaves too much unread."""
        try:
            while connection.unsent:
                sent = connection.socket.send(connection.unsent)
                del connection.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
            return
        if len(connection.unsent) > OUTPUT_BYTES_MAX:
            self._drop(connection)
            return
        # Who has answers to read is not heard: nobody makes the shard work ahead of what is read.
        if connection.unsent:
            self._waiting.pop(connection, None)
        events = selectors.EVENT_WRITE if connection.unsent else selectors.EVENT_READ
        if events != connection.events:
            connection.events = events
            self._selector.modify(connection.socket, events)

    def _drop(self, connection: _Connection) -> None:
        if connection.open:
            self._selector.unregister(connection.socket)
            del self._connections[connection.socket.fileno()]
            connection.socket.close()
        self._waiting.pop(connection, None)

    def _close_all(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        for each in (self._listener, self._wake, self._woken):
            each.close()
        self._selector.close()
