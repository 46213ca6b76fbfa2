"""The shell around a shard: one thread, one loop. Receive what is ready, one turn, send.

Everything that is ready when the loop wakes is one turn, with one signature. Processes of this machine come by
a Unix socket; those of other nodes are handed over by the TLS listener, which has let them in (``listeners.py``). A
client that breaks the rules of the wire, or does not read its answers, is told why, loses its connection, and nothing
else; leases do not depend on connections. Each connection is one of a peer's; a peer is a process of this machine, or
another node. What they may ask of the server, and how long they may stand still, is ``connection.Limits``.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from timeagent.clock import SystemClock
from timeagent.errors import Damaged
from timeagent.units import MS, SECOND

from .connection import (
    Arrival,
    ClientLimits,
    Connection,
    DeferredReply,
    Peer,
    PendingCall,
    RequestBatch,
    TentativeLeaseReaper,
    UnixListener,
    credentials,
    permitted,
    refusal,
)
from .shard import Shard
from .tls import Trust
from .transport import BootClock
from .wire import LENGTH_BYTES, Encoded, Reply, Request, decode_call


@dataclass(slots=True)
class ServerCounts:
    """What a server has done since it began. Written by its thread, read by others: each number for itself."""

    accepted: int = 0
    calls: int = 0
    requests: int = 0
    turns: int = 0
    turn_ns: int = 0
    """Time spent in turns, waiting for the mount included."""
    looped_ns: int = 0
    """When the loop went round last, since boot; 0: never."""
    throttled: int = 0
    closed: Counter[str] = field(default_factory=Counter)
    """Connections that ended, by reason."""


_log = logging.getLogger(__name__)

TICK_NS: Final = 100 * MS
"""How often a server looks at least after what has stood still for too long, and after who may stay."""

_ACCEPTED_AT_ONCE: Final = 64
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Connections:
    """The connections of one server. For its thread; what may be called by others says so. Never blocks."""

    def __init__(
        self,
        listener: UnixListener,
        limits: ClientLimits,
        counts: ServerCounts,
        reaper: TentativeLeaseReaper,
        *,
        clock: BootClock,
        trust: Trust | None,
        group: int | None,
        abandon: Callable[[Sequence[DeferredReply]], None],
    ) -> None:
        """Begin with nobody. ``abandon``: told of those who wait for an answer and are gone."""
        self._listener = listener
        self._limits = limits
        self._counts = counts
        self._reaper = reaper
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
        """Those whom the TLS listener has let in; anybody may add to it."""
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
        for connection in list(self.connections.values()):
            self.drop(connection, "server-stopped")
        while self.arrivals:
            self.arrivals.popleft().socket.close()
        self._listener.unlink()
        self._listener.close()
        self.poll.close()

    def admit(self, now: int, active: dict[Connection, None]) -> None:
        """Take those in whom the TLS listener has handed over; what came with them is served in this turn."""
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
            self._reaper.left(connection, self._clock.boot_ns())
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


THROTTLED_NS: Final = 5 * MS
"""How soon a peer that asked for too much is looked at again."""


class ShardServer:
    """Serves one shard until it is told to stop. The shard is started and stopped by the caller."""

    def __init__(
        self,
        shard: Shard,
        path: Path,
        guard: contextlib.AbstractContextManager[object] | None = None,
        *,
        limits: ClientLimits | None = None,
        clock: BootClock | None = None,
        trust: Trust | None = None,
        group: int | None = None,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Listen; connections are answered once run() runs. A socket that an earlier run left is removed.

        ``guard``: the lock that everybody holds who calls the shard, if others than this server do. ``trust``: who
        among other nodes may stay; without it nobody is handed over. ``group``: who may connect beside this user.
        ``on_tick`` is called by the loop every tick. Raises Environment.
        """
        self._shard = shard
        self._guard = guard or contextlib.nullcontext()
        self._limits = limits or ClientLimits()
        self._clock = clock or SystemClock()
        self._trust = trust
        self._on_tick = on_tick
        self._checked_ns = 0
        self._reaper = TentativeLeaseReaper()
        self._answered: deque[PendingCall] = deque()
        self._in_turn = False
        self._stopping = self._at_once = False
        self.counts = ServerCounts(looped_ns=self._clock.boot_ns())
        self._listener = UnixListener(path, group)
        self._clients = Connections(
            self._listener,
            self._limits,
            self.counts,
            self._reaper,
            clock=self._clock,
            trust=trust,
            group=group,
            abandon=self._abandon,
        )
        self._wake, self._woken = socket.socketpair()
        for each in (self._wake, self._woken):
            each.settimeout(0)
        self._clients.poll.register(self._woken, select.EPOLLIN)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._clients.connections)

    # -- life ----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until stop(); answer what has come in then, let it be read, close everything and remove the socket.

        Blocks; call it once. A bug in the shard ends it too: the exception comes out here.
        """
        try:
            while not self._stopping:
                self._loop_once()
            if not self._at_once:
                self._drain()
        finally:
            self._clients.close()
            self._wake.close()
            self._woken.close()

    def stop(self, *, at_once: bool = False) -> None:
        """End run() soon; what has come in is answered. Thread-safe, idempotent, safe in a signal handler.

        ``at_once``: behind the turn that is under way, and without another answer: whoever asks is to ask again.
        """
        self._at_once = at_once
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
        self._clients.arrivals.append(Arrival(connection, name, key_id, received))
        self._rouse()

    def answered(self, owed: PendingCall) -> None:
        """Send an answer that was held back, soon. Thread-safe."""
        self._answered.append(owed)
        if not self._in_turn:
            self._rouse()

    def _rouse(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake; closed: it has ended
            self._wake.send(b"\0")

    def _drain(self) -> None:
        """Take nobody in any more; answer the whole frames that are here, and wait a little until that is read."""
        clients = self._clients
        clients.stop_listening()
        for connection in list(clients.connections.values()):
            clients.receive(connection)
        self._turn([each for each in clients.connections.values() if not each.unsent])
        while clients.unfinished:  # finite: nothing more is received
            again, clients.unfinished = list(clients.unfinished), {}
            self._turn(again)
        until = self._clock.boot_ns() + self._limits.drain_ns
        while any(each.unsent for each in clients.connections.values()) and self._clock.boot_ns() < until:
            for number, _ in clients.poll.poll(TICK_NS / SECOND):
                reader = clients.connections.get(number)
                if reader is not None and reader.unsent:
                    clients.send(reader)

    def _abandon(self, waiters: Sequence[DeferredReply]) -> None:
        with self._guard:
            self._shard.abandon(waiters)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _patience(self) -> float:
        if self._clients.unfinished or self._answered:
            return 0
        with self._guard:
            due = self._shard.due_in()
        tick = THROTTLED_NS if self._clients.throttled else TICK_NS
        return (tick if due is None else min(due, tick)) / SECOND

    def _loop_once(self) -> None:
        clients = self._clients
        ready = clients.poll.poll(self._patience())
        now = self.counts.looped_ns = self._clock.boot_ns()
        throttled = clients.throttled
        active = clients.unfinished | throttled
        clients.unfinished, clients.throttled = {}, {}
        connections, knocks = clients.connections, False
        for number, _ in ready:
            connection = connections.get(number)
            if connection is None:
                knocks = self._heard(number) or knocks
            elif connection.unsent:
                clients.send(connection)
                if connection.open and not connection.unsent:
                    active[connection] = None
            elif connection not in active and clients.receive(connection):
                active[connection] = None
        tick = now - self._checked_ns >= TICK_NS
        clients.judge_nodes(due=tick)
        clients.admit(now, active)
        if knocks:
            clients.accept(now)  # last, because who has just left has made room
        self._turn([each for each in active if each.open])
        for connection in throttled | clients.throttled:
            clients.watch(connection)
        if tick:
            self._checked_ns = now
            with self._guard:
                self._shard.housekeeping()
            clients.look_around(now)
            if gone := self._reaper.gone(now):
                with self._guard:
                    self._shard.encoded(gone)
            self._on_tick()

    def _heard(self, number: int) -> bool:
        """Take a call that rouses the loop; True: somebody is at the listener."""
        if number == self._woken.fileno():
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
            return False
        return number == self._listener.socket.fileno()

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _turn(self, active: list[Connection]) -> None:
        """Take the whole frames that came in through one turn of the shard; answer those whose wait is over."""
        batch = RequestBatch(self._limits, self._reaper, self.answered)
        now = self._clock.boot_ns()
        for connection in active:
            if len(batch.requests) >= self._limits.requests_per_turn:
                self._clients.unfinished[connection] = None
                continue
            try:
                self._take_calls(connection, now, batch)
            except Damaged as problem:
                self._clients.refuse(connection, problem.code, problem.message, "speak the protocol of this release")
        self._in_turn = True
        with self._guard:
            replies: Sequence[Reply | Encoded | None] = ()
            if batch.calls or self._shard.due_in() == 0:
                replies = self._shard.encoded(batch.requests, batch.waiters)
        self._in_turn = False
        woken = self._woken_connections()
        if not batch.calls:
            self._send_all(woken)
            return
        after = self._clock.boot_ns()
        self.counts.turns += 1
        self.counts.turn_ns += after - now
        self.counts.calls += len(batch.calls)
        self.counts.requests += len(batch.requests)
        out, behind = batch.frames(replies)
        woken.update(dict.fromkeys(behind))
        for connection, frame in out.items():
            connection.since_ns = after
            if connection in woken or connection.leaving:
                connection.unsent += frame
                woken[connection] = None
            else:
                self._clients.send_at_once(connection, frame)
        self._send_all(woken)

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
                self._clients.refuse(
                    connection, "too-many-waiting", f"{len(connection.owed)} calls wait for their answers"
                )
            else:
                self._clients.send(connection)

    def _take_calls(self, connection: Connection, now: int, batch: RequestBatch) -> None:
        """Split off whole frames, as many as this peer may have done now. Raises Damaged: none of them is done."""
        calls: list[list[Request]] = []
        offset = 0
        peer, received = connection.peer, connection.received
        if peer.filled_ns != now:
            peer.fill(now, self._limits)
        while (end := connection.next_frame(offset)) is not None and not connection.leaving:
            if peer.tokens < 1:
                self._clients.throttled[connection] = None
                self.counts.throttled += 1
                break
            if len(calls) == self._limits.calls_per_turn:
                self._clients.unfinished[connection] = None
                break
            calls.append(decode_call(received[offset + LENGTH_BYTES : end]))
            peer.tokens -= max(1, len(calls[-1]))
            offset = end
        connection.used(offset)
        for call in calls:
            batch.take(connection, call)
