"""One tenancy among nodes of which a test says what they answer, and whose threads and clock it moves by hand."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from appliance.daemon import failover
from appliance.daemon.failover import ShardFailover
from appliance.formats.shardmap import ShardMap
from appliance.node.shards import CHECK_NS
from tests.support.values import CLUSTER
from timeagent.errors import Environment
from timeagent.units import SECOND

if TYPE_CHECKING:
    from timeagent.units import Instant, Span

NODES = ("node-a", "node-b", "node-c", "node-d")
TERM_NS = 10 * SECOND


def map_of(*owners: str, number: int = 1, chain: int = 1) -> ShardMap:
    return ShardMap(number=number, cluster_id=CLUSTER, owners=owners, chains=(chain,) * len(owners))


class Bugs(logging.Handler):
    """What was logged as a bug, and went on."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.found.append(record.exc_info[1])


@dataclass
class Tenant:
    """A shard that runs here."""

    map_number: int = 1
    """The newest map that it goes by."""
    over: str | None = None
    broke: str | None = None
    leases: int = 0

    @property
    def store(self) -> Tenant:
        """Its own store: how many leases are out is all that is looked at there."""
        return self

    def is_held(self) -> bool:
        return self.leases > 0

    def closes_if_free(self) -> bool:
        return not self.is_held()

    def ended(self) -> str | None:
        return self.over

    def broken(self) -> str | None:
        return self.broke


@dataclass
class Host:
    """Runs what it is told to, unless somebody may still grant; an orderly stop lasts until the test lets it end."""

    running: dict[int, Tenant] = field(default_factory=dict)
    held: dict[int, str] = field(default_factory=dict)
    """Shards whose ceiling is not surely past: why."""
    overtaken: set[int] = field(default_factory=set)
    elsewhere: set[int] = field(default_factory=set)
    """Shards that another process of this machine runs."""
    failing: set[int] = field(default_factory=set)
    problem: Exception = field(default_factory=lambda: Environment("tmpfs-full", "no room for a shard"))
    """What they fail with."""
    tried: list[int] = field(default_factory=list)
    suspended: list[int] = field(default_factory=list)
    """Shards that a run left here for a restart."""
    behind: set[int] = field(default_factory=set)
    """Those whose predecessors have not ended."""
    left: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    looked: list[int] = field(default_factory=list)
    holders_are_done: Event = field(default_factory=Event)
    map_number: int = 1

    def everything(self) -> dict[int, Tenant]:
        return dict(self.running)

    def hosted(self, shard: int) -> Tenant | None:
        return self.running.get(shard)

    def try_host(self, shard: int, _: ShardMap) -> bool:
        self.tried.append(shard)
        if shard in self.failing:
            raise self.problem
        if shard in self.held or shard in self.elsewhere:
            return False
        self.running[shard] = Tenant(self.map_number)
        return True

    def resumable(self) -> list[int]:
        return list(self.suspended)

    def go_on(self, shard: int) -> bool:
        self.suspended.remove(shard)
        self.running[shard] = Tenant(self.map_number, leases=1)
        return True

    def waits_for(self, shard: int, _: ShardMap) -> str | None:
        return self.held.get(shard)

    check_ns = CHECK_NS

    def superseded(self, shard: int) -> bool:
        self.looked.append(shard)
        return shard in self.overtaken

    def leave(self, shard: int) -> None:
        self.left.append(shard)
        assert self.holders_are_done.wait(60)
        self.running.pop(shard, None)

    def drop(self, shard: int) -> None:
        self.dropped.append(shard)
        del self.running[shard]

    def go_by(self, shard: int, newest: ShardMap) -> bool:
        if shard not in self.behind:
            self.running[shard].map_number = newest.number
        return shard not in self.behind


class Street:
    """A node with its tenancy, and what the others answer. ``here``: its name."""

    def __init__(self, *owners: str, here: str = "node-a") -> None:
        self.map = map_of(*owners)
        self.now: Instant = 100 * SECOND
        self.host = Host()
        self.host.holders_are_done.set()
        self.maps = SimpleNamespace(newest=self.map)
        self.known = list(NODES)
        """The nodes that answer others somewhere."""
        self.says: dict[str, str] = dict.fromkeys(NODES, "not-here")
        self.probed: list[tuple[int, str]] = []
        self.taken_meanwhile = False
        """Whether somebody takes a lease of the shard while a node is asked for it."""
        routes: Any = SimpleNamespace(host=self.host, maps=self.maps, probe=self.probe)
        policy: Any = SimpleNamespace(granted_ns_max=TERM_NS)
        time: Any = SimpleNamespace(boot_ns=lambda: self.now)
        self.failover = ShardFailover(routes, here, lambda: self.known, time, policy)

    def probe(self, shard: int, node: str) -> str:
        self.probed.append((shard, node))
        if self.taken_meanwhile:
            self.host.running[shard].leases += 1
        return self.says[node]

    def runs(self, *shards: int) -> None:
        """Have shards run here already."""
        self.host.running.update({shard: Tenant() for shard in shards})

    def turn(self, after_ns: Span = 0) -> None:
        """One look at everything, so long after the one before; then shards that leave at once have left."""
        self.now += after_ns
        bugs = Bugs()
        log = logging.getLogger(failover.__name__)
        log.addHandler(bugs)
        try:
            self.failover.turn()
        finally:
            log.removeHandler(bugs)
        for bug in bugs.found:
            if bug is not self.host.problem:
                raise bug
        if self.host.holders_are_done.is_set():
            self.wait()

    def wait(self) -> None:
        """Wait until what leaves has left."""
        for thread in self.failover._leaving.values():
            thread.join(60)
            assert not thread.is_alive()

    def moved_to(self, newest: ShardMap) -> None:
        """Have a newer map published."""
        self.maps.newest = newest
