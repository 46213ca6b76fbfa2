"""The shell around a shard: one thread, one loop. Receive what is ready, one turn, send.

Everything that is ready when the loop wakes shares one transaction and one signature. Processes of this machine come by
a Unix socket; those of other nodes are handed over by the door, which has let them in (``door.py``). A client that
breaks the rules of the wire, or does not read its answers, is told why, loses its connection, and nothing else; leases
do not depend on connections.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
from collections import deque
from typing import TYPE_CHECKING, Final

from timeagent.clock import SystemClock
from timeagent.errors import Damaged, Environment
from timeagent.units import MS, SECOND

from .calls import Gathered
from .connection import Arrival, Connection, HeldBack, Limits, Owed, Peer, credentials, permitted, refusal
from .counts import ServerCounts
from .listener import UnixListener
from .presence import Presence
from .wire import LENGTH_BYTES, NO_REQUEST, Unavailable, decode_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from .ports import Trust
    from .shard import Shard
    from .transport import Counter as BootClock
    from .wire import Encoded, Reply, Request, Task

_log = logging.getLogger(__name__)

TICK_NS: Final = 100 * MS
"""How often the shard's housekeeping, and what has stood still for too long, is looked after at least."""

THROTTLED_NS: Final = 5 * MS
"""How soon a peer that asked for too much is looked at again."""

_ACCEPTED_AT_ONCE: Final = 64
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class ShardServer:
    """Serves one shard until it is told to stop. The shard is started and stopped by the caller."""

    def __init__(
        self,
        shard: Shard,
        path: Path,
        guard: contextlib.AbstractContextManager[object] | None = None,
        *,
        limits: Limits | None = None,
        clock: BootClock | None = None,
        trust: Trust | None = None,
        group: int | None = None,
        on_loop: Callable[[], None] = lambda: None,
    ) -> None:
        """Listen; connections are answered once run() runs. A socket that an earlier run left is removed.

        ``guard``: the lock that everybody holds who calls the shard, if others than this server do. ``trust``: who
        among other nodes may stay; without it nobody is handed over. ``group``: who may connect beside this user.
        ``on_loop`` is called each time the loop goes round, at least every tick. Raises Environment.
        """
        self._shard = shard
        self._path = path
        self._guard = guard or contextlib.nullcontext()
        self._limits = limits or Limits()
        self._clock = clock or SystemClock()
        self._trust = trust
        self._group = group
        self._on_loop = on_loop
        self._user = os.geteuid()
        self._connections: dict[int, Connection] = {}
        self._peers: dict[str, Peer] = {}
        self._waiting: dict[Connection, None] = {}
        self._throttled: dict[Connection, None] = {}
        self._arrivals: deque[Arrival] = deque()
        self._judged_by: int | None = None
        self._checked_ns = 0
        self._deaf_until = 0
        self._presence = Presence()
        self._answered: deque[Owed] = deque()
        self._in_turn = False
        self._stopping = False
        self.counts = ServerCounts(looped_ns=self._clock.boot_ns())
        self._poll = select.epoll()
        self._wake, self._woken = socket.socketpair()
        try:
            self._listener = UnixListener(path, group)
        except BaseException:
            for each in (self._wake, self._woken, self._poll):
                each.close()
            raise
        for listening in (self._listener.socket, self._woken):
            listening.settimeout(0)
            self._poll.register(listening, select.EPOLLIN)
        self._wake.settimeout(0)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    # -- life ----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until stop(); then answer what has come in, let it be read, close everything and remove the socket.

        Blocks; call it once. A bug in the shard ends it too: the exception comes out here.
        """
        try:
            while not self._stopping:
                self._loop_once()
            self._drain()
        finally:
            self._close_all()
            self._listener.unlink()

    def stop(self) -> None:
        """End run() soon; what has come in is answered. Thread-safe, idempotent, safe in a signal handler."""
        self._stopping = True
        self._rouse()

    def adopt(self, connection: socket.socket, name: str, key_id: bytes, received: bytes) -> None:
        """Take a connection that was let in, with what was received of it already. Thread-safe; never blocks.

        ``name``: the node; ``key_id``: the key that the trust record is asked about from now on.
        """
        assert self._trust is not None
        if self._stopping:
            connection.close()
            return
        self._arrivals.append(Arrival(connection, name, key_id, received))
        self._rouse()

    def answered(self, owed: Owed) -> None:
        """Send an answer that was held back, soon. Thread-safe."""
        self._answered.append(owed)
        if not self._in_turn:
            self._rouse()

    def _rouse(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake; closed: it has ended
            self._wake.send(b"\0")

    def _drain(self) -> None:
        """Take nobody in any more; answer the whole frames that are here, and wait a little until that is read."""
        self._listener.unlink()
        if not self._deaf_until:
            self._poll.unregister(self._listener.socket)
        self._listener.close()
        for connection in list(self._connections.values()):
            self._receive(connection)
        self._turn([each for each in self._connections.values() if not each.unsent])
        while self._waiting:  # finite: nothing more is received
            again, self._waiting = list(self._waiting), {}
            self._turn(again)
        until = self._clock.boot_ns() + self._limits.drain_ns
        while any(each.unsent for each in self._connections.values()) and self._clock.boot_ns() < until:
            for number, _ in self._poll.poll(TICK_NS / SECOND):
                reader = self._connections.get(number)
                if reader is not None and reader.unsent:
                    self._send(reader)

    def _close_all(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection, "server-stopped")
        while self._arrivals:
            self._arrivals.popleft().socket.close()
        for each in (self._listener, self._wake, self._woken):
            each.close()
        self._poll.close()

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _patience(self) -> float:
        if self._waiting or self._answered:
            return 0
        with self._guard:
            due = self._shard.due_in()
        tick = THROTTLED_NS if self._throttled else TICK_NS
        return (tick if due is None else min(due, tick)) / SECOND

    def _loop_once(self) -> None:
        ready = self._poll.poll(self._patience())
        now = self.counts.looped_ns = self._clock.boot_ns()
        active = self._waiting | self._throttled
        self._waiting, self._throttled = {}, {}
        connections, knocks = self._connections, False
        for number, _ in ready:
            connection = connections.get(number)
            if connection is None:
                knocks = self._heard(number) or knocks
            elif connection.unsent:
                self._send(connection)
                if connection.open and not connection.unsent:
                    active[connection] = None
            elif connection not in active and self._receive(connection):
                active[connection] = None
        self._judge_nodes()
        self._admit(now, active)
        if knocks:
            self._accept(now)  # last, because who has just left has made room
        self._turn([each for each in active if each.open])
        if now - self._checked_ns >= TICK_NS:
            self._checked_ns = now
            with self._guard:
                self._shard.housekeeping()
            self._look_around(now)
        self._on_loop()

    def _heard(self, number: int) -> bool:
        """Take a call that rouses the loop; True: somebody is at the listener."""
        if number == self._woken.fileno():
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
            return False
        return number == self._listener.socket.fileno()

    def _look_around(self, now: int) -> None:
        """Close what has stood still for too long, forget peers without connections, listen again after a pause."""
        limits = self._limits
        for connection in list(self._connections.values()):
            still = now - connection.since_ns
            if connection.unsent:
                if still > limits.unread_ns:
                    self._drop(connection, "unread")
            elif connection.received:
                if still > limits.frame_ns and connection not in self._waiting and connection not in self._throttled:
                    self._refuse(connection, "frame-too-slow", "the rest of a frame did not come in time")
            elif still > limits.idle_ns and not connection.owed:
                self._drop(connection, "idle")
        if gone := self._presence.gone(now):
            with self._guard:
                self._replies(gone, {})
        for name, peer in list(self._peers.items()):
            peer.fill(now, limits)
            if not peer.connections and peer.tokens >= limits.burst:
                del self._peers[name]
        if self._deaf_until and now >= self._deaf_until:
            self._deaf_until = 0
            self._poll.register(self._listener.socket, select.EPOLLIN)

    # -- who comes and goes --------------------------------------------------------------------------------------------

    def _accept(self, now: int) -> None:
        for number in range(_ACCEPTED_AT_ONCE):
            if number and len(self._connections) >= self._limits.connections_max:
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
                    self._poll.unregister(self._listener.socket)
                return
            try:
                process, user, groups = credentials(accepted)
            except OSError:
                accepted.close()
                continue
            if permitted(user, groups, own_user=self._user, group=self._group):
                self._take(accepted, f"process {process}", None, b"", now)
            else:
                self.counts.closed["not-permitted"] += 1
                self._turn_away(
                    accepted, refusal("not-permitted", f"user {user} may not use this shard's socket", "see node.toml")
                )

    def _admit(self, now: int, active: dict[Connection, None]) -> None:
        """Take those in whom the door has handed over; what came with them is served in this turn."""
        while self._arrivals:
            arrival = self._arrivals.popleft()
            connection = self._take(arrival.socket, f"node {arrival.name}", arrival.key_id, arrival.received, now)
            if connection is not None:
                self._receive(connection)  # what TLS holds decrypted already, the selector never reports
                if connection.open:
                    active[connection] = None

    def _take(
        self, accepted: socket.socket, name: str, key_id: bytes | None, received: bytes, now: int
    ) -> Connection | None:
        peer = self._peers.get(name) or Peer(name, key_id, tokens=self._limits.burst, filled_ns=now)
        full = len(self._connections) >= self._limits.connections_max
        if full or peer.connections >= self._limits.connections_per_peer:
            self.counts.closed["too-many"] += 1
            whose = "this shard has" if full else f"{name} has"
            self._turn_away(accepted, refusal("too-many-connections", f"{whose} all the connections it may have"))
            return None
        accepted.settimeout(0)
        if peer.key_id != key_id:  # the node has another key since: each connection stays with the one it came with
            peer = Peer(name, key_id, tokens=peer.tokens, filled_ns=peer.filled_ns)
        self._peers[name] = peer
        peer.connections += 1
        connection = Connection(accepted, peer, now, received)
        self._connections[accepted.fileno()] = connection
        self._poll.register(accepted, select.EPOLLIN)
        self.counts.accepted += 1
        return connection

    def _turn_away(self, accepted: socket.socket, why: bytes) -> None:
        """Say why, if that can be said at once, and close."""
        with contextlib.suppress(OSError):
            accepted.settimeout(0)
            accepted.send(why)
        accepted.close()

    def _judge_nodes(self) -> None:
        """Close the connections of nodes that the trust record does not let stay; all are asked about in each tick."""
        trust = self._trust
        if trust is None:
            return
        now = self._clock.boot_ns()
        if trust.number == self._judged_by and now - self._checked_ns < TICK_NS:
            return
        self._judged_by = trust.number
        for connection in list(self._connections.values()):
            key_id = connection.peer.key_id
            if key_id is not None and (why := trust.refuses(key_id)) is not None:
                self._refuse(connection, "not-trusted", why)

    def _refuse(self, connection: Connection, code: str, why: str, hint: str = "") -> None:
        """Say why, and close: at once if it cannot be said at once."""
        connection.unsent += refusal(code, why, hint)
        connection.leaving = True
        self.counts.closed[code] += 1
        self._send(connection)
        if connection.open:
            self._drop(connection, "")

    def _drop(self, connection: Connection, reason: str) -> None:
        if connection.open:
            self._poll.unregister(connection.socket)
            del self._connections[connection.socket.fileno()]
            connection.socket.close()
            if reason:
                self.counts.closed[reason] += 1
            connection.peer.connections -= 1
            self._presence.left(connection, self._clock.boot_ns())
            waiters = [waiter for owed in connection.owed for waiter in owed.waiters]
            connection.peer.waiting -= len(waiters)
            if waiters:
                with self._guard:
                    self._shard.abandon(waiters)
        self._waiting.pop(connection, None)
        self._throttled.pop(connection, None)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _receive(self, connection: Connection) -> bool:
        try:
            return connection.receive()
        except OSError:
            self._drop(connection, "left")
            return False

    def _turn(self, active: list[Connection]) -> None:
        """Take the whole frames that came in through one turn of the shard; answer those whose wait is over."""
        gathered = Gathered(self._limits, self._presence, self.answered)
        now = self._clock.boot_ns()
        for connection in active:
            if len(gathered.requests) >= self._limits.requests_per_turn:
                self._waiting[connection] = None
                continue
            try:
                self._take_calls(connection, now, gathered)
            except Damaged as problem:
                self._refuse(connection, problem.code, problem.message, "speak the protocol of this release")
        self._in_turn = True
        with self._guard:
            replies: Sequence[Reply | Encoded | None] = ()
            if gathered.calls or self._shard.due_in() == 0:
                replies = self._replies(gathered.requests, gathered.waiters)
        self._in_turn = False
        woken = self._woken_connections()
        if not gathered.calls:
            self._send_all(woken)
            return
        after = self._clock.boot_ns()
        self.counts.turns += 1
        self.counts.turn_ns += after - now
        self.counts.calls += len(gathered.calls)
        self.counts.requests += len(gathered.requests)
        out, behind = gathered.frames(replies)
        woken.update(dict.fromkeys(behind))
        for connection, frame in out.items():
            connection.since_ns = after
            if connection in woken or connection.leaving:
                connection.unsent += frame
                woken[connection] = None
            else:
                self._send_at_once(connection, frame)
        self._send_all(woken)

    def _send_at_once(self, connection: Connection, frame: bytes) -> None:
        try:
            if not connection.send_at_once(frame):
                self._send(connection)
        except OSError:
            self._drop(connection, "left")

    def _woken_connections(self) -> dict[Connection, None]:
        woken: dict[Connection, None] = {}
        while self._answered:
            owed = self._answered.popleft()
            owed.missing = owed.replies.count(None)
            woken[owed.connection] = None
        return woken

    def _send_all(self, connections: Iterable[Connection]) -> None:
        """Send the answers that are complete, up to the first that is not."""
        for connection in connections:
            if not connection.open:
                continue
            connection.release()
            if connection.leaving:
                self.counts.closed["hello-refused"] += 1
            if len(connection.owed) > self._limits.owed_per_connection:
                self._refuse(connection, "too-many-waiting", f"{len(connection.owed)} calls wait for their answers")
            else:
                self._send(connection)

    def _replies(self, requests: Sequence[Task], waiters: dict[int, HeldBack]) -> Sequence[Reply | Encoded | None]:
        """Take requests through a turn; where the tmpfs is full nothing of it happened, and all are told so."""
        try:
            return self._shard.encoded(requests, waiters)
        except Environment as problem:
            self.counts.full += 1
            return [
                Unavailable(
                    request_id=getattr(each, "request_id", NO_REQUEST), code=problem.code, message=problem.message
                )
                for each in requests
            ]

    def _take_calls(self, connection: Connection, now: int, gathered: Gathered) -> None:
        """Split off whole frames, as many as this peer may have done now. Raises Damaged: none of them is done."""
        calls: list[list[Request]] = []
        offset = 0
        peer, received = connection.peer, connection.received
        if peer.filled_ns != now:
            peer.fill(now, self._limits)
        while (end := connection.next_frame(offset)) is not None and not connection.leaving:
            if peer.tokens < 1:
                self._throttled[connection] = None
                self.counts.throttled += 1
                break
            if len(calls) == self._limits.calls_per_turn:
                self._waiting[connection] = None
                break
            calls.append(decode_call(received[offset + LENGTH_BYTES : end]))
            peer.tokens -= max(1, len(calls[-1]))
            offset = end
        connection.used(offset)
        for call in calls:
            gathered.take(connection, call)

    def _send(self, connection: Connection) -> None:
        """Send what the socket takes; cut off who leaves too much unread."""
        try:
            if connection.send():
                connection.since_ns = self._clock.boot_ns()
        except OSError:
            self._drop(connection, "left")
            return
        if len(connection.unsent) > self._limits.output_bytes_max:
            self._drop(connection, "unread")
            return
        if connection.leaving and not connection.unsent:
            self._drop(connection, "")
            return
        # Who has answers to read is not heard: nobody makes the shard work ahead of what is read.
        if connection.unsent:
            self._waiting.pop(connection, None)
            self._throttled.pop(connection, None)
        events = select.EPOLLOUT if connection.unsent else select.EPOLLIN
        if events != connection.events:
            connection.events = events
            self._poll.modify(connection.socket, events)
