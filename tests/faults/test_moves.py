"""Three nodes by TCP: shards move, nodes die and stand still and come back, the map gets other shards; under load.

The load is light and counted, not timed: each attempt takes a lease and gives it back, and an attempt that fails is
one that failed for its whole patience. Afterwards the auditor finds nothing.
"""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from contextlib import ExitStack
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from appliance.bag.writing import Committed
from appliance.formats.chains import CeilingKind
from appliance.formats.paths import chain_path
from appliance.lease.ceiling import newest_record
from appliance.node.records import StoredChain
from tests.support.cluster import wait_until
from tests.support.daemons import Daemons
from timeagent.clock import SystemClock
from timeagent.errors import ShardUnavailable, TenureError
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.cluster import Cluster

pytestmark = pytest.mark.timeout(400)
NODES = ("node1", "node2", "node3")
CLOCK = SystemClock()
PATIENCE_NS = 90 * SECOND


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    with Daemons(tmp_path, *NODES) as each:
        yield each


def domain_in(cluster: Cluster, shard: int, prefix: str = "d") -> str:
    return next(name for n in range(9_999) if cluster.map.shard_of(name := f"{prefix}{n}") == shard)


def runner(cluster: Cluster, shard: int) -> str | None:
    """Who runs the shard in a place, as it says itself."""
    CLOCK.sleep(200 * MS)  # asked again and again while others work
    cluster.maps.refresh()
    try:
        return cluster.routes.numbers(cluster.map.layout.shards[shard]).node
    except ShardUnavailable:
        return None


def command(daemons: Daemons, *words: str) -> None:
    done = daemons.tenure("node1", *words, "--root-key", str(daemons.site.root_key_file))
    assert done.returncode == 0, done.stderr


def audit_is_clean(daemons: Daemons) -> dict[str, int]:
    found = json.loads(daemons.command("audit", str(daemons.site.root), "--json").stdout)
    summary: dict[str, int] = found["summary"]
    bad = [each for each in found["findings"] if each["verdict"] == "violation"]
    assert summary["violations"] == 0, json.dumps(bad, indent=1)
    assert summary["witnesses"] > 0
    return summary


@pytest.fixture
def observer() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Load:
    """Attempts on one domain, one after the other, each in a session of one process; publishes now and then."""

    def __init__(self, daemons: Daemons, node: str, domain: str) -> None:
        self.domain = domain
        self.granted = 0
        self.failed: list[str] = []
        self._cluster = daemons.site.open(node)
        self._stop = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._cluster.session("load") as session:
            while not self._stop.is_set():
                try:
                    with session.acquire(self.domain, timeout_s=PATIENCE_NS / SECOND) as leases:
                        self.granted += 1
                        if self.granted % 4 == 0:
                            session.publish("log", [self.domain.encode()], under=leases)
                except TenureError as problem:
                    self.failed.append(str(problem))
                CLOCK.sleep(50 * MS)

    def more(self, count: int = 5) -> None:
        """Wait until so many attempts more were granted."""
        target = self.granted + count
        wait_until(CLOCK, lambda: self.granted >= target, PATIENCE_NS)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(120)
        self._cluster.close()


def kinds(daemons: Daemons, map_number: int, shard: int) -> CeilingKind | None:
    newest = newest_record(StoredChain(daemons.site.storage, chain_path(map_number, shard)))
    return None if newest is None else newest.kind


class Holder:
    """Holds one lease of each place for as long as it lives, in one session, and publishes under all of them."""

    def __init__(self, daemons: Daemons, node: str, *, together: bool) -> None:
        """``together``: by session leases. Holders of both kinds are in nobody's way."""
        self._cluster = daemons.site.open(node)
        self._session = self._cluster.session("holder", session_leases=together)
        self.lost: list[str] = []
        self._session.on_lost(lambda loss: self.lost.append(f"{loss.lease.domain}: {loss}"))
        places = range(len(self._cluster.map.owners))
        domains = (domain_in(self._cluster, place, "s" if together else "d") for place in places)
        self.leases = self._session.acquire(*domains, timeout_s=60)
        self.fences = [each.fence for each in self.leases]

    def publishes(self) -> bool:
        return isinstance(self._session.publish("held", [b"held"], under=self.leases), Committed)

    def close(self) -> None:
        self._session.close()
        self._cluster.close()


def test_holders_of_a_lease_in_each_shard_and_of_session_leases_lose_none_by_moves(
    daemons: Daemons, observer: ExitStack
) -> None:
    daemons.start(*NODES)
    cluster = observer.enter_context(daemons.site.open("node1"))
    holders = [Holder(daemons, "node2", together=together) for together in (False, True)]
    load = Load(daemons, "node1", domain_in(cluster, 1, "e"))
    load.more()
    for words in (("move", "1", "node3"), ("reshard", "5"), ("reshard", "2", "--nodes", "node2,node3")):
        command(daemons, "shards", *words)
        assert [holder.publishes() for holder in holders] == [True, True]
        assert [holder.lost for holder in holders] == [[], []]
    assert all([each.fence for each in holder.leases] == holder.fences for holder in holders)
    assert runner(cluster, 1) in {"node2", "node3"}
    assert {kinds(daemons, 1, place) for place in range(3)} == {CeilingKind.TERMINAL}
    said = json.loads(daemons.tenure("node1", "shards", "--json").stdout)
    assert (said["map"], said["version_skew"]) == (7, False)
    for holder in holders:
        holder.close()
    load.more()
    load.close()
    assert load.failed == []
    assert [daemons.stop(node) for node in NODES] == [0, 0, 0]
    audit_is_clean(daemons)


# The next thing that an operator does with a node that has nothing any more is to end its daemon.
def test_daemon_that_ends_when_its_shard_has_moved_costs_nobody_a_lease(daemons: Daemons, observer: ExitStack) -> None:
    daemons.start(*NODES)
    holder = Holder(daemons, "node1", together=False)
    command(daemons, "shards", "move", "1", "node3")
    assert daemons.stop("node2") == 0
    cluster = observer.enter_context(daemons.site.open("node1"))
    CLOCK.sleep(2 * cluster.policy.lease_term_max_ns)
    assert holder.lost == []
    assert holder.publishes()
    holder.close()


def test_nodes_get_their_share_one_after_the_other(daemons: Daemons, observer: ExitStack) -> None:
    daemons.start(*NODES)
    cluster = observer.enter_context(daemons.site.open("node1"))
    command(daemons, "shards", "reshard", "1", "--nodes", "node1")
    holder = Holder(daemons, "node2", together=True)
    for node in ("node2", "node3"):
        command(daemons, "shards", "share", node)
        assert holder.publishes()
    assert holder.lost == []
    cluster.maps.refresh()
    assert sorted(cluster.map.owners) == list(NODES)
    holder.close()
    assert [daemons.stop(node) for node in NODES] == [0, 0, 0]
    audit_is_clean(daemons)


def test_dead_nodes_shard_is_taken_over_and_goes_home(daemons: Daemons, observer: ExitStack) -> None:
    daemons.start(*NODES)
    cluster = observer.enter_context(daemons.site.open("node1"))
    load, other = Load(daemons, "node1", domain_in(cluster, 1)), Load(daemons, "node1", domain_in(cluster, 0))
    load.more()
    daemons.kill("node2")
    load.more()
    taken = runner(cluster, 1)
    assert taken in {"node1", "node3"}
    daemons.start("node2")
    wait_until(CLOCK, lambda: runner(cluster, 1) == "node2", PATIENCE_NS)
    load.more()
    other.more()
    load.close()
    other.close()
    assert (load.failed, other.failed) == ([], [])
    assert [daemons.stop(node) for node in NODES] == [0, 0, 0]
    audit_is_clean(daemons)


@pytest.mark.slow
def test_node_that_stood_still_is_deposed_and_takes_its_shard_home(daemons: Daemons, observer: ExitStack) -> None:
    daemons.start(*NODES)
    cluster = observer.enter_context(daemons.site.open("node1"))
    load = Load(daemons, "node1", domain_in(cluster, 1))
    load.more()
    daemons.send("node2", signal.SIGSTOP)
    wait_until(CLOCK, lambda: daemons.stopped("node2"))
    load.more()
    daemons.send("node2", signal.SIGCONT)
    wait_until(CLOCK, lambda: runner(cluster, 1) == "node2", PATIENCE_NS)
    load.more()
    load.close()
    assert load.failed == []
    assert [daemons.stop(node) for node in NODES] == [0, 0, 0]
    audit_is_clean(daemons)


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_ten_minutes_of_moves_deaths_and_pauses(daemons: Daemons, observer: ExitStack) -> None:
    daemons.start(*NODES)
    chance = random.Random(5)
    cluster = observer.enter_context(daemons.site.open("node1"))
    load, safe = Load(daemons, "node1", domain_in(cluster, 1)), Load(daemons, "node1", domain_in(cluster, 0))
    until = CLOCK.boot_ns() + 600 * SECOND
    did: Counter[str] = Counter()
    while CLOCK.boot_ns() < until:
        chosen = chance.choice(("move", "kill", "stop"))
        did[chosen] += 1
        match chosen:
            case "move":
                owner = json.loads(daemons.tenure("node1", "shards", "--json").stdout)["shards"][1]["owner"]
                command(daemons, "shards", "move", "1", "node3" if owner == "node2" else "node2")
            case "kill":
                node = chance.choice(("node2", "node3"))
                daemons.kill(node)
                load.more()
                daemons.start(node)
            case _:
                node = chance.choice(("node2", "node3"))
                daemons.send(node, signal.SIGSTOP)
                load.more()
                daemons.send(node, signal.SIGCONT)
        load.more()
        safe.more()
    load.close()
    safe.close()
    print(f"{dict(did)}; moved: {load.granted} granted, failed {load.failed}; ", end="")
    print(f"unaffected: {safe.granted} granted, failed {safe.failed}")
    assert load.failed == []
    assert len(safe.failed) <= safe.granted / 1000
    assert [daemons.stop(node) for node in NODES] == [0, 0, 0]
    print(audit_is_clean(daemons))
