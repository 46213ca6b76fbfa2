"""The shell around a shard: one thread, one loop. Receive what is ready, one turn, send.

Everything that is ready when the loop wakes is one turn, with one signature. Processes of this machine come by
a Unix socket; those of other nodes are handed over by the TLS listener, which has let them in (``listeners.py``). A
client that breaks the rules of the wire, or does not read its answers, is told why, loses its connection, and nothing
else; leases do not depend on connections. Each connection is one of a peer's; a peer is a process of this machine, or
another node. What they may ask of the server, and how long they may stand still, is ``connection.ClientLimits``.
"""

from __future__ import annotations

import contextlib
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

from .connection import ClientLimits, Connection, Peer, RequestBatch, TentativeLeaseReaper
from .shard import Shard
from .sockets import TICK_NS, BootClock, Listener, SocketLoop, credentials, permitted
from .tls import Trust
from .wire import LENGTH_BYTES, Encoded, Hello, Refused, Reply, Request, decode_call, refusal


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


THROTTLED_NS: Final = 5 * MS
"""How soon a peer that asked for too much is looked at again."""

_ACCEPTED_AT_ONCE: Final = 64


class ShardServer(SocketLoop):
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
        super().__init__(Listener(path, group), clock or SystemClock())
        self._shard = shard
        self._guard = guard or contextlib.nullcontext()
        self._limits = limits or ClientLimits()
        self._trust = trust
        self._judged_by: int | None = None
        self._user, self._group = os.geteuid(), group
        self._on_tick = on_tick
        self._checked_ns = 0
        self._reaper = TentativeLeaseReaper()
        self._connections: dict[int, Connection] = {}
        """By file descriptor."""
        self._peers: dict[str, Peer] = {}
        self._arrivals: deque[tuple[socket.socket, str, bytes, bytes]] = deque()
        """Those whom the TLS listener has let in; anybody may add to it."""
        self._unfinished: dict[Connection, None] = {}
        """Those of whom more is here than went into this turn."""
        self._throttled: dict[Connection, None] = {}
        """Those who have asked for too much, and are looked at again soon; nobody is told meanwhile what they send."""
        self._answered: deque[Connection] = deque()
        """Those for whom an answer has come that was held back; anybody may add to it."""
        self._in_turn = False
        self._at_once = False
        self.counts = ServerCounts(looped_ns=self._clock.boot_ns())

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    # -- life ----------------------------------------------------------------------------------------------------------

    def stop(self, *, at_once: bool = False) -> None:
        """End run() soon; what has come in is answered. Thread-safe, idempotent, safe in a signal handler.

        ``at_once``: behind the turn that is under way, and without another answer: whoever asks is to ask again.
        """
        self._at_once = at_once
        super().stop()

    def adopt(self, connection: socket.socket, node: str, key_id: bytes, received: bytes) -> None:
        """Take a connection that was let in, with what was received of it already. Thread-safe; never blocks.

        ``key_id``: the key that the trust record is asked about from now on.
        """
        assert self._trust is not None
        self._arrivals.append((connection, f"node {node}", key_id, received))
        self._rouse()
        if self._stopping:  # perhaps for good already: looked at last, nobody is left there
            self._close_arrivals()

    def answered(self, connection: Connection) -> None:
        """Send an answer that was held back, soon. Thread-safe."""
        self._answered.append(connection)
        if not self._in_turn:
            self._rouse()

    def _finish(self) -> None:
        """Take nobody in any more; answer the whole frames that are here, and wait a little until that is read."""
        if self._at_once:
            return
        self._listener.close()
        for connection in list(self._connections.values()):
            self._receive(connection)
        self._turn([each for each in self._connections.values() if not each.unsent])
        while self._unfinished:  # finite: nothing more is received
            again, self._unfinished = list(self._unfinished), {}
            self._turn(again)
        until = self._clock.boot_ns() + self._limits.drain_ns
        while any(each.unsent for each in self._connections.values()) and self._clock.boot_ns() < until:
            for number, _ in self._poll.poll(TICK_NS / SECOND):
                reader = self._connections.get(number)
                if reader is not None and reader.unsent:
                    self._send(reader)

    def _drop_all(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection, "server-stopped")
        self._close_arrivals()

    def _close_arrivals(self) -> None:
        with contextlib.suppress(IndexError):  # by two threads, it may be
            while True:
                self._arrivals.popleft()[0].close()

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _patience(self) -> float:
        if self._unfinished or self._answered:
            return 0
        with self._guard:
            due = self._shard.due_in()
        tick = THROTTLED_NS if self._throttled else TICK_NS
        return (tick if due is None else min(due, tick)) / SECOND

    def _loop_once(self) -> None:
        ready = self._poll.poll(self._patience())
        now = self.counts.looped_ns = self._clock.boot_ns()
        throttled = self._throttled
        active = self._unfinished | throttled
        self._unfinished, self._throttled = {}, {}
        connections, knocks = self._connections, False
        for number, _ in ready:
            connection = connections.get(number)
            if connection is None:
                knocks = self._knocks(number) or knocks
            elif connection.unsent:
                self._send(connection)
                if connection.open and not connection.unsent:
                    active[connection] = None
            elif connection not in active and self._receive(connection):
                active[connection] = None
        tick = now - self._checked_ns >= TICK_NS
        self._judge_nodes(due=tick)
        while self._arrivals:
            arrived = self._take_in(*self._arrivals.popleft(), now)
            if arrived is not None:
                self._receive(arrived)  # what TLS holds decrypted already, the selector never reports
                active[arrived] = None  # what came with it is served in this turn
        if knocks:
            self._accept(now)  # last, because who has just left has made room
        self._turn([each for each in active if each.open])
        for connection in throttled | self._throttled:
            self._watch(connection)
        if tick:
            self._checked_ns = now
            with self._guard:
                self._shard.housekeeping()
            self._look_around(now)
            if gone := self._reaper.gone(now):
                with self._guard:
                    self._shard.encoded(gone)
            self._on_tick()

    def _judge_nodes(self, *, due: bool) -> None:
        """Close the connections of nodes that the trust record does not let stay; all are asked about when ``due``."""
        trust = self._trust
        if trust is None or (trust.number == self._judged_by and not due):
            return
        self._judged_by = trust.number
        for connection in list(self._connections.values()):
            key_id = connection.peer.key_id
            if key_id is not None and (why := trust.refuses(key_id)) is not None:
                self._refuse(connection, "not-trusted", why)

    def _look_around(self, now: int) -> None:
        """Close what has stood still for too long, forget peers without connections, listen again after a pause."""
        limits = self._limits
        for connection in list(self._connections.values()):
            still = now - connection.since_ns
            if connection.unsent:
                if still > limits.unread_ns:
                    self._drop(connection, "unread")
            elif connection.received:
                if still > limits.frame_ns and connection not in self._unfinished and connection not in self._throttled:
                    self._refuse(connection, "frame-too-slow", "the rest of a frame did not come in time")
            elif still > limits.idle_ns and not connection.owed:
                self._drop(connection, "idle")
        for name, peer in list(self._peers.items()):
            peer.fill(now, limits)
            if not peer.connections and peer.tokens >= limits.burst:
                del self._peers[name]
        self._listen_again(now)

    # -- who comes -----------------------------------------------------------------------------------------------------

    def _accept(self, now: int) -> None:
        """Take those in who knock at the listener, or tell them why not."""
        for number in range(_ACCEPTED_AT_ONCE):
            if number and len(self._connections) >= self._limits.connections_max:
                return  # who came while we were here is turned away only after those who left meanwhile were seen
            came = self._next_caller(now)
            if came is None:
                return
            accepted, _ = came
            try:
                process, user, groups = credentials(accepted)
            except OSError:
                accepted.close()
                continue
            if permitted(user, groups, own_user=self._user, group=self._group):
                self._take_in(accepted, f"process {process}", None, b"", now)
            else:
                why = f"user {user} may not use this shard's socket"
                self._turn_away(accepted, "not-permitted", "not-permitted", why, "see node.toml")

    def _take_in(
        self, accepted: socket.socket, name: str, key_id: bytes | None, received: bytes, now: int
    ) -> Connection | None:
        peer = self._peers.get(name) or Peer(name, key_id, tokens=self._limits.burst, filled_ns=now)
        full = len(self._connections) >= self._limits.connections_max
        if full or peer.connections >= self._limits.connections_per_peer:
            why = f"{'this shard' if full else name} has all the connections it may have"
            self._turn_away(accepted, "too-many", "too-many-connections", why)
            return None
        if peer.key_id != key_id:  # the node has another key since: each connection stays with the one it came with
            peer = Peer(name, key_id, tokens=peer.tokens, filled_ns=peer.filled_ns)
        self._peers[name] = peer
        peer.connections += 1
        connection = Connection(accepted, peer, now, bytearray(received))
        self._connections[accepted.fileno()] = connection
        self._poll.register(accepted, select.EPOLLIN)
        self.counts.accepted += 1
        return connection

    def _turn_away(self, accepted: socket.socket, counted: str, code: str, why: str, hint: str = "") -> None:
        """Say why, if that can be said at once, and close."""
        self.counts.closed[counted] += 1
        with contextlib.suppress(OSError):
            accepted.send(refusal(code, why, hint))
        accepted.close()

    # -- who is here ---------------------------------------------------------------------------------------------------

    def _receive(self, connection: Connection) -> bool:
        """Take what is there; False: nothing, or it has closed, and is dropped."""
        begins = not connection.received
        try:
            came = connection.receive()
        except OSError:
            self._drop(connection, "left")
            return False
        if came and begins:
            connection.since_ns = self.counts.looped_ns
        return came

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
            self._unfinished.pop(connection, None)
            self._throttled.pop(connection, None)
        self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        """Have the loop told of what it can do for a connection now: nothing for who has asked for too much.

        Not even that it has closed, which is said again and again: what it asked for before is done first.
        """
        events = select.EPOLLOUT if connection.unsent else 0 if connection in self._throttled else select.EPOLLIN
        before, connection.events = connection.events, events
        if events == before or not connection.open:
            return
        if not before:
            self._poll.register(connection.socket, events)
        elif not events:
            self._poll.unregister(connection.socket)
        else:
            self._poll.modify(connection.socket, events)

    def _refuse(self, connection: Connection, code: str, why: str, hint: str = "") -> None:
        """Say why, and close: at once if it cannot be said at once."""
        connection.unsent += refusal(code, why, hint)
        connection.leaving = True
        self.counts.closed[code] += 1
        self._send(connection)
        self._drop(connection, "")

    def _drop(self, connection: Connection, reason: str) -> None:
        """Close, and count it under ``reason``, if there is one. Idempotent."""
        if connection.open:
            if connection.events:
                self._poll.unregister(connection.socket)
            del self._connections[connection.socket.fileno()]
            connection.socket.close()
            if reason:
                self.counts.closed[reason] += 1
            connection.peer.connections -= 1
            self._reaper.left(connection, self._clock.boot_ns())
            waiters = [waiter for owed in connection.owed for waiter in owed.waiters]
            connection.peer.waiting -= len(waiters)
            if waiters:
                with self._guard:
                    self._shard.abandon(waiters)
        self._unfinished.pop(connection, None)
        self._throttled.pop(connection, None)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _turn(self, active: list[Connection]) -> None:
        """Take the whole frames that came in through one turn of the shard; answer those whose wait is over."""
        batch = RequestBatch(self._limits, self._reaper, self.answered)
        now = self._clock.boot_ns()
        for connection in active:
            if len(batch.requests) >= self._limits.requests_per_turn:
                self._unfinished[connection] = None
                continue
            try:
                self._take_calls(connection, now, batch)
            except Damaged as problem:
                self._refuse(connection, problem.code, problem.message, "speak the protocol of this release")
        self._in_turn = True
        with self._guard:
            replies: Sequence[Reply | Encoded | None] = ()
            if batch.calls or self._shard.due_in() == 0:
                replies = self._shard.encoded(batch.requests, batch.waiters)
        self._in_turn = False
        woken: dict[Connection, None] = {}
        while self._answered:
            woken[self._answered.popleft()] = None
        if batch.calls:
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
                    self._send_at_once(connection, frame)
        self._send_all(woken)

    def _take_calls(self, connection: Connection, now: int, batch: RequestBatch) -> None:
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
                self._unfinished[connection] = None
                break
            calls.append(decode_call(received[offset + LENGTH_BYTES : end]))
            peer.tokens -= max(1, len(calls[-1]))
            offset = end
        del received[:offset]
        for call in calls:
            batch.take(connection, call)
            if call and type(call[0]) is Hello and isinstance(self._shard.unserved(call[:1], "", "")[0], Refused):
                break  # it is going to leave: nothing that came behind this means what it seems to

    def _send_at_once(self, connection: Connection, frame: bytes) -> None:
        try:
            if not connection.send_at_once(frame):
                self._send(connection)
        except OSError:
            self._drop(connection, "left")

    def _send_all(self, connections: Iterable[Connection]) -> None:
        """Send the answers that are complete, up to the first that is not."""
        for connection in connections:
            if not connection.open:
                continue
            connection.release()
            if connection.leaving:
                self.counts.closed["hello-refused"] += 1
            if len(connection.owed) > self._limits.owed_per_connection:
                why = f"{len(connection.owed)} calls wait for their answers"
                self._refuse(connection, "too-many-waiting", why)
            else:
                self._send(connection)
