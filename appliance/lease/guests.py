"""Who is connected to a server: let in, heard, read to, told why and sent away.

Each connection is one of a peer's; a peer is a process of this machine, or another node. What they may ask of the
server, and how long they may stand still, is ``connection.Limits``.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
from collections import deque
from typing import TYPE_CHECKING, Final

from timeagent.units import MS

from .connection import Arrival, Connection, HeldBack, Peer, credentials, permitted, refusal

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from .connection import Limits
    from .counts import ServerCounts
    from .listener import UnixListener
    from .ports import Trust
    from .presence import Presence
    from .transport import Counter as BootClock

_log = logging.getLogger(__name__)

TICK_NS: Final = 100 * MS
"""How often a server looks at least after what has stood still for too long, and after who may stay."""

_ACCEPTED_AT_ONCE: Final = 64
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Guests:
    """The connections of one server. For its thread; what may be called by others says so. Never blocks."""

    def __init__(
        self,
        listener: UnixListener,
        limits: Limits,
        counts: ServerCounts,
        presence: Presence,
        *,
        clock: BootClock,
        trust: Trust | None,
        group: int | None,
        abandon: Callable[[Sequence[HeldBack]], None],
    ) -> None:
        """Begin with nobody. ``abandon``: told of those who wait for an answer and are gone."""
        self._listener = listener
        self._limits = limits
        self._counts = counts
        self._presence = presence
        self._clock = clock
        self._trust = trust
        self._group = group
        self._abandon = abandon
        self._user = os.geteuid()
        self._judged_by: int | None = None
        self._deaf_until = 0
        listener.socket.settimeout(0)
        self.poll = select.epoll()
        self.poll.register(listener.socket, select.EPOLLIN)
        self.connections: dict[int, Connection] = {}
        """By file descriptor."""
        self.peers: dict[str, Peer] = {}
        self.arrivals: deque[Arrival] = deque()
        """Those whom the door has let in; anybody may add to it."""
        self.unfinished: dict[Connection, None] = {}
        """Those of whom more is here than went into this turn."""
        self.throttled: dict[Connection, None] = {}
        """Those who have asked for too much, and are looked at again soon; nobody is told meanwhile what they send."""

    def accept(self, now: int) -> None:
        """Take those in who knock at the listener, or tell them why not."""
        for number in range(_ACCEPTED_AT_ONCE):
            if number and len(self.connections) >= self._limits.connections_max:
                return  # who came while we were here is turned away only after those who left meanwhile were seen
            try:
                accepted, _ = self._listener.socket.accept()
            except BlockingIOError:
                return
            except OSError as problem:
                if problem.errno in _EXHAUSTED:
                    # The listener stays ready: without a pause the loop would do nothing else from now on.
                    _log.warning("accept-failed reason=%s", problem.strerror)
                    self._deaf_until = now + TICK_NS
                    self.poll.unregister(self._listener.socket)
                return
            try:
                process, user, groups = credentials(accepted)
            except OSError:
                accepted.close()
                continue
            if permitted(user, groups, own_user=self._user, group=self._group):
                self._take(accepted, f"process {process}", None, b"", now)
            else:
                self._counts.closed["not-permitted"] += 1
                self._turn_away(
                    accepted, refusal("not-permitted", f"user {user} may not use this shard's socket", "see node.toml")
                )

    def stop_listening(self) -> None:
        """Take nobody in any more."""
        self._listener.unlink()
        if not self._deaf_until:
            self.poll.unregister(self._listener.socket)
        self._listener.close()

    def close(self) -> None:
        """Close all connections, and the listener."""
        for connection in list(self.connections.values()):
            self.drop(connection, "server-stopped")
        while self.arrivals:
            self.arrivals.popleft().socket.close()
        self._listener.unlink()
        self._listener.close()
        self.poll.close()

    def admit(self, now: int, active: dict[Connection, None]) -> None:
        """Take those in whom the door has handed over; what came with them is served in this turn."""
        while self.arrivals:
            arrival = self.arrivals.popleft()
            connection = self._take(arrival.socket, f"node {arrival.name}", arrival.key_id, arrival.received, now)
            if connection is not None:
                self.receive(connection)  # what TLS holds decrypted already, the selector never reports
                if connection.open:
                    active[connection] = None

    def _take(
        self, accepted: socket.socket, name: str, key_id: bytes | None, received: bytes, now: int
    ) -> Connection | None:
        peer = self.peers.get(name) or Peer(name, key_id, tokens=self._limits.burst, filled_ns=now)
        full = len(self.connections) >= self._limits.connections_max
        if full or peer.connections >= self._limits.connections_per_peer:
            self._counts.closed["too-many"] += 1
            whose = "this shard has" if full else f"{name} has"
            self._turn_away(accepted, refusal("too-many-connections", f"{whose} all the connections it may have"))
            return None
        accepted.settimeout(0)
        if peer.key_id != key_id:  # the node has another key since: each connection stays with the one it came with
            peer = Peer(name, key_id, tokens=peer.tokens, filled_ns=peer.filled_ns)
        self.peers[name] = peer
        peer.connections += 1
        connection = Connection(accepted, peer, now, received)
        self.connections[accepted.fileno()] = connection
        self.poll.register(accepted, select.EPOLLIN)
        self._counts.accepted += 1
        return connection

    def _turn_away(self, accepted: socket.socket, why: bytes) -> None:
        """Say why, if that can be said at once, and close."""
        with contextlib.suppress(OSError):
            accepted.settimeout(0)
            accepted.send(why)
        accepted.close()

    def judge_nodes(self, *, due: bool) -> None:
        """Close the connections of nodes that the trust record does not let stay; all are asked about when ``due``."""
        trust = self._trust
        if trust is None or (trust.number == self._judged_by and not due):
            return
        self._judged_by = trust.number
        for connection in list(self.connections.values()):
            key_id = connection.peer.key_id
            if key_id is not None and (why := trust.refuses(key_id)) is not None:
                self.refuse(connection, "not-trusted", why)

    def refuse(self, connection: Connection, code: str, why: str, hint: str = "") -> None:
        """Say why, and close: at once if it cannot be said at once."""
        connection.unsent += refusal(code, why, hint)
        connection.leaving = True
        self._counts.closed[code] += 1
        self.send(connection)
        if connection.open:
            self.drop(connection, "")

    def drop(self, connection: Connection, reason: str) -> None:
        """Close, and count it under ``reason``, if there is one. Idempotent."""
        if connection.open:
            if connection.events:
                self.poll.unregister(connection.socket)
            del self.connections[connection.socket.fileno()]
            connection.socket.close()
            if reason:
                self._counts.closed[reason] += 1
            connection.peer.connections -= 1
            self._presence.left(connection, self._clock.boot_ns())
            waiters = [waiter for owed in connection.owed for waiter in owed.waiters]
            connection.peer.waiting -= len(waiters)
            if waiters:
                self._abandon(waiters)
        self.unfinished.pop(connection, None)
        self.throttled.pop(connection, None)

    def look_around(self, now: int) -> None:
        """Close what has stood still for too long, forget peers without connections, listen again after a pause."""
        limits = self._limits
        for connection in list(self.connections.values()):
            still = now - connection.since_ns
            if connection.unsent:
                if still > limits.unread_ns:
                    self.drop(connection, "unread")
            elif connection.received:
                if still > limits.frame_ns and connection not in self.unfinished and connection not in self.throttled:
                    self.refuse(connection, "frame-too-slow", "the rest of a frame did not come in time")
            elif still > limits.idle_ns and not connection.owed:
                self.drop(connection, "idle")
        for name, peer in list(self.peers.items()):
            peer.fill(now, limits)
            if not peer.connections and peer.tokens >= limits.burst:
                del self.peers[name]
        if self._deaf_until and now >= self._deaf_until:
            self._deaf_until = 0
            self.poll.register(self._listener.socket, select.EPOLLIN)

    def receive(self, connection: Connection) -> bool:
        """Take what is there; False: nothing, or it has closed, and is dropped."""
        try:
            return connection.receive()
        except OSError:
            self.drop(connection, "left")
            return False

    def send_at_once(self, connection: Connection, frame: bytes) -> None:
        """Send an answer, and what waits of it as ``send`` does."""
        try:
            if not connection.send_at_once(frame):
                self.send(connection)
        except OSError:
            self.drop(connection, "left")

    def send(self, connection: Connection) -> None:
        """Send what the socket takes; cut off who leaves too much unread."""
        try:
            if connection.send():
                connection.since_ns = self._clock.boot_ns()
        except OSError:
            self.drop(connection, "left")
            return
        if len(connection.unsent) > self._limits.output_bytes_max:
            self.drop(connection, "unread")
            return
        if connection.leaving and not connection.unsent:
            self.drop(connection, "")
            return
        # Who has answers to read is not heard: nobody makes the shard work ahead of what is read.
        if connection.unsent:
            self.unfinished.pop(connection, None)
            self.throttled.pop(connection, None)
        self.watch(connection)

    def watch(self, connection: Connection) -> None:
        """Have the loop told of what it can do for a connection now: nothing for who has asked for too much.

        Not even that it has closed, which is said again and again: what it asked for before is done first.
        """
        events = select.EPOLLOUT if connection.unsent else 0 if connection in self.throttled else select.EPOLLIN
        before, connection.events = connection.events, events
        if events == before or not connection.open:
            return
        if not before:
            self.poll.register(connection.socket, events)
        elif not events:
            self.poll.unregister(connection.socket)
        else:
            self.poll.modify(connection.socket, events)
