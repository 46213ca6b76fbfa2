"""Which shards a daemon runs: those that the map gives to it, and those of nodes that do not answer.

Who hands over, begins and takes over when: docs/protocol/lease.md, "Who runs a shard". These rules only say who
tries; they rest on clocks and on what others answer, and may be wrong at any time, at the cost of a wait for the
holders of that shard. Nobody is ever two owners: the chain has one newest record.

What was left here for a restart goes on first, whatever its shard is by the newest map: its holders wait for it, and
one that is of no map any more ends in good order, so that nobody waits for its ceiling.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

from timeagent.clock import NodeTime
from timeagent.errors import TenureError
from timeagent.units import MS, SECOND, Instant, Span

from ..formats.policy import PolicyNumbers
from ..formats.shardmap import ShardMap
from ..node.hosted_shard import HostedShard, Running, Spawn, in_thread
from ..node.routes import ShardRoutes
from ..node.runtime import begin

_log = logging.getLogger(__name__)

BEAT_NS: Final[Span] = 250 * MS
"""How often it is looked whether a shard should begin or end here."""

SOON_NS: Final[Span] = 50 * MS
"""How often while a shard here waits for the ends of chains: until then holders cannot renew what they have from it."""

ASKED_NS: Final[Span] = 15 * SECOND
"""How long it counts that somebody asked for a shard: longer than a ceiling lies ahead."""

CHECK_NS: Final[Span] = 2 * SECOND
"""How often the node that a shard belongs to which runs here is asked for, and whether its leases are past."""


class ShardFailover:
    """One daemon's choice of shards, in a thread of its own."""

    def __init__(
        self,
        routes: ShardRoutes,
        node: str,
        nodes: Callable[[], list[str]],
        time: NodeTime,
        policy: PolicyNumbers,
        spawn: Spawn = in_thread,
    ) -> None:
        """Run nothing yet. ``nodes``: who answers others somewhere. ``spawn``: begins what goes on beside this."""
        self._routes = routes
        self._host = routes.host
        self._maps = routes.maps
        self._node = node
        self._nodes = nodes
        self._time = time
        self._policy = policy
        self._asked: dict[int, Instant] = {}
        self._checked: dict[int, Instant] = {}
        self._probed: dict[int, Instant] = {}
        self._counted: dict[int, Instant] = {}
        self._spawn = spawn
        self._leaving: dict[int, Running] = {}
        self._waits = False
        """Whether a shard here does not go by the newest map yet."""
        self._stop = Event()
        self.thread: Thread | None = None
        self.taken_over = 0
        """How many shards of other nodes began here."""
        self.handed_over = 0
        """How many shards were stopped here for another node."""

    def start(self) -> None:
        """Begin to choose. Raises Environment."""
        thread = Thread(target=self._run, name="tenure-tenancy", daemon=True)
        begin(thread)
        self.thread = thread

    def close(self) -> None:
        """Choose no more; waits for a step that is under way. Idempotent."""
        self._stop.set()
        if self.thread is not None:
            self.thread.join()

    def asked_for(self, shard: int) -> None:
        """Note that somebody asks here for a shard that does not run here. Never blocks. Thread-safe."""
        self._asked[shard] = self._time.boot_ns()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._time.sleep(self.turn())

    def turn(self) -> Span:
        """Look at everything once; return after which span to look again. What fails is logged and tried again then."""
        newest, self._waits = self._maps.newest, False
        for shard in self._host.resumable():
            if self._stop.is_set() is False:
                self._guarded(shard, lambda shard=shard: self._host.go_on(shard))  # type: ignore[misc]
        for shard, hosted in self._host.everything().items():
            self._guarded(shard, lambda shard=shard, hosted=hosted: self._look_at(shard, hosted, newest))  # type: ignore[misc]
        for shard in newest.shards:
            if self._host.hosted(shard) is None and self._stop.is_set() is False:
                self._guarded(shard, lambda shard=shard: self._consider(shard, newest))  # type: ignore[misc]
        return SOON_NS if self._waits else BEAT_NS

    def _guarded(self, shard: int, step: Callable[[], object]) -> None:
        try:
            step()
        except TenureError as problem:
            _log.warning("tenancy-failed shard=%d code=%s reason=%s", shard, problem.code, problem.message)
        except Exception:  # noqa: BLE001 - whatever it is: the other shards have their turn, and this one the next
            _log.exception("tenancy-failed shard=%d", shard)

    def _look_at(self, shard: int, hosted: HostedShard, newest: ShardMap) -> None:
        if shard in self._leaving and self._leaving[shard].is_alive():
            return
        over = hosted.ended()
        if over is not None:
            if hosted.broken() is None:
                _log.warning("shard-ended shard=%d reason=%s", shard, over)
                self._host.drop(shard)
            return
        self._waits = not self._host.go_by(shard, newest) or self._waits
        owner = newest.owner_of(shard)
        if owner is None:
            self._leave(shard, f"it is of map {newest.number} no more")
            return
        now = self._time.boot_ns()
        if now - self._checked.get(shard, 0) >= self._host.check_ns:
            self._checked[shard] = now
            if self._host.superseded(shard):
                _log.warning("shard-superseded shard=%d", shard)
                self._host.drop(shard)
                return
        if owner == self._node or now - self._probed.get(shard, 0) < CHECK_NS or not self._is_free(shard, hosted, now):
            return
        self._probed[shard] = now
        if self._routes.probe(shard, owner) == "not-here" and hosted.closes_if_free():
            self.handed_over += 1
            self._leave(shard, f"it belongs to node {owner}, which answers")

    def _is_free(self, shard: int, hosted: HostedShard, now: Instant) -> bool:
        """Whether nobody holds a lease of a shard: looked through now and then for such as are past, and not ended."""
        if not hosted.store.leases:
            return True
        if now - self._counted.get(shard, 0) < CHECK_NS:
            return False
        self._counted[shard] = now
        return not hosted.is_held()

    def _leave(self, shard: int, why: str) -> None:
        _log.info("shard-leaves shard=%d reason=%s", shard, why)
        self._leaving[shard] = self._spawn(f"tenure-leave-{shard}", lambda: self._host.leave(shard))

    def _consider(self, shard: int, newest: ShardMap) -> None:
        owner = newest.owner_of(shard)
        if owner != self._node and not self._inherits(shard, newest):
            return
        if self._host.try_host(shard, newest):
            self.taken_over += owner != self._node
            _log.info("shard-begins shard=%d owner=%s", shard, owner)

    def _inherits(self, shard: int, newest: ShardMap) -> bool:
        """Whether somebody misses a shard, nobody may grant in it, and none of those before this node answers."""
        asked = self._asked.get(shard)
        if asked is None or self._time.boot_ns() - asked > ASKED_NS:
            return False
        nodes = self._nodes()
        if self._node not in nodes or self._host.waits_for(shard, newest) is not None:
            return False
        order = newest.heirs(shard, nodes)
        return all(self._routes.probe(shard, node) in _DEAD for node in order[: order.index(self._node)])


_DEAD: Final = frozenset({"no-answer", "no-address"})
"""What a probe says of a node that is taken for dead. One that refuses in words is alive."""
