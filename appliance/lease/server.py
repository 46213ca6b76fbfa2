"""The shell around a shard: one thread, one loop. Receive what is ready, one turn, send.

Everything that is ready when the loop wakes is one turn, with one signature. Processes of this machine come by
a Unix socket; those of other nodes are handed over by the door, which has let them in (``door.py``). A client that
breaks the rules of the wire, or does not read its answers, is told why, loses its connection (``guests.py``), and
nothing else; leases do not depend on connections.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque
from typing import TYPE_CHECKING, Final

from timeagent.clock import SystemClock
from timeagent.errors import Damaged, Environment
from timeagent.units import MS, SECOND

from .calls import Gathered
from .connection import Arrival, Connection, HeldBack, Limits, Owed
from .counts import ServerCounts
from .guests import TICK_NS, Guests
from .listener import UnixListener
from .presence import Presence
from .wire import LENGTH_BYTES, decode_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from .ports import Trust
    from .shard import Shard
    from .transport import Counter as BootClock
    from .wire import Encoded, Reply, Request, Task

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
        self._guard = guard or contextlib.nullcontext()
        self._limits = limits or Limits()
        self._clock = clock or SystemClock()
        self._trust = trust
        self._on_loop = on_loop
        self._checked_ns = 0
        self._presence = Presence()
        self._answered: deque[Owed] = deque()
        self._in_turn = False
        self._stopping = False
        self.counts = ServerCounts(looped_ns=self._clock.boot_ns())
        self._listener = UnixListener(path, group)
        self._guests = Guests(
            self._listener,
            self._limits,
            self.counts,
            self._presence,
            clock=self._clock,
            trust=trust,
            group=group,
            abandon=self._abandon,
        )
        self._wake, self._woken = socket.socketpair()
        for each in (self._wake, self._woken):
            each.settimeout(0)
        self._guests.poll.register(self._woken, select.EPOLLIN)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._guests.connections)

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
            self._guests.close()
            self._wake.close()
            self._woken.close()

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
        self._guests.arrivals.append(Arrival(connection, name, key_id, received))
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
        guests = self._guests
        guests.stop_listening()
        for connection in list(guests.connections.values()):
            guests.receive(connection)
        self._turn([each for each in guests.connections.values() if not each.unsent])
        while guests.unfinished:  # finite: nothing more is received
            again, guests.unfinished = list(guests.unfinished), {}
            self._turn(again)
        until = self._clock.boot_ns() + self._limits.drain_ns
        while any(each.unsent for each in guests.connections.values()) and self._clock.boot_ns() < until:
            for number, _ in guests.poll.poll(TICK_NS / SECOND):
                reader = guests.connections.get(number)
                if reader is not None and reader.unsent:
                    guests.send(reader)

    def _abandon(self, waiters: Sequence[HeldBack]) -> None:
        with self._guard:
            self._shard.abandon(waiters)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _patience(self) -> float:
        if self._guests.unfinished or self._answered:
            return 0
        with self._guard:
            due = self._shard.due_in()
        tick = THROTTLED_NS if self._guests.throttled else TICK_NS
        return (tick if due is None else min(due, tick)) / SECOND

    def _loop_once(self) -> None:
        guests = self._guests
        ready = guests.poll.poll(self._patience())
        now = self.counts.looped_ns = self._clock.boot_ns()
        throttled = guests.throttled
        active = guests.unfinished | throttled
        guests.unfinished, guests.throttled = {}, {}
        connections, knocks = guests.connections, False
        for number, _ in ready:
            connection = connections.get(number)
            if connection is None:
                knocks = self._heard(number) or knocks
            elif connection.unsent:
                guests.send(connection)
                if connection.open and not connection.unsent:
                    active[connection] = None
            elif connection not in active and guests.receive(connection):
                active[connection] = None
        tick = now - self._checked_ns >= TICK_NS
        guests.judge_nodes(due=tick)
        guests.admit(now, active)
        if knocks:
            guests.accept(now)  # last, because who has just left has made room
        self._turn([each for each in active if each.open])
        for connection in throttled | guests.throttled:
            guests.watch(connection)
        if tick:
            self._checked_ns = now
            with self._guard:
                self._shard.housekeeping()
            guests.look_around(now)
            if gone := self._presence.gone(now):
                with self._guard:
                    self._replies(gone, {})
        self._on_loop()

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
        gathered = Gathered(self._limits, self._presence, self.answered)
        now = self._clock.boot_ns()
        for connection in active:
            if len(gathered.requests) >= self._limits.requests_per_turn:
                self._guests.unfinished[connection] = None
                continue
            try:
                self._take_calls(connection, now, gathered)
            except Damaged as problem:
                self._guests.refuse(connection, problem.code, problem.message, "speak the protocol of this release")
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
                self._guests.send_at_once(connection, frame)
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
                self._guests.refuse(
                    connection, "too-many-waiting", f"{len(connection.owed)} calls wait for their answers"
                )
            else:
                self._guests.send(connection)

    def _replies(self, requests: Sequence[Task], waiters: dict[int, HeldBack]) -> Sequence[Reply | Encoded | None]:
        """Take requests through a turn; where nothing of it could be, for a full tmpfs, all are told so."""
        try:
            return self._shard.encoded(requests, waiters)
        except Environment as problem:
            self.counts.full += 1
            return self._shard.unserved(requests, problem.code, f"{problem.message}; {problem.hint}")

    def _take_calls(self, connection: Connection, now: int, gathered: Gathered) -> None:
        """Split off whole frames, as many as this peer may have done now. Raises Damaged: none of them is done."""
        calls: list[list[Request]] = []
        offset = 0
        peer, received = connection.peer, connection.received
        if peer.filled_ns != now:
            peer.fill(now, self._limits)
        while (end := connection.next_frame(offset)) is not None and not connection.leaving:
            if peer.tokens < 1:
                self._guests.throttled[connection] = None
                self.counts.throttled += 1
                break
            if len(calls) == self._limits.calls_per_turn:
                self._guests.unfinished[connection] = None
                break
            calls.append(decode_call(received[offset + LENGTH_BYTES : end]))
            peer.tokens -= max(1, len(calls[-1]))
            offset = end
        connection.used(offset)
        for call in calls:
            gathered.take(connection, call)
