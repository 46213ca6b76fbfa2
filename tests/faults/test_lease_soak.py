"""Leases over two real shards, asked for by many threads in every order: all get their turn, none together."""

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path, PurePosixPath
from threading import Barrier, Lock, Thread

import pytest

from appliance.cluster import Cluster
from appliance.formats.lease import Mode, conflicts
from appliance.recipes.path_lock import PathLock
from appliance.session.endings import LossReason
from tests.support.cluster import Site, sites
from timeagent.errors import TryAgain
from timeagent.units import SECOND

THREADS = 6
ROUNDS = 60
WAIT_NS = 120 * SECOND
"""Far more than a busy machine needs: who waits so long is in a circle of waiters, and would for ever."""
PATIENCE_S = 250
DOMAINS = ("soak/0", "soak/1", "soak/2", "soak/3", "soak/4")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield from sites(tmp_path, "node1", "node2")


class Watch:
    """Who has what, as the threads believe it: a lease of one of them must not conflict with another's."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: list[tuple[str, Mode]] = []
        self.broken: list[str] = []
        self.turns = 0

    def enter(self, wanted: dict[str, Mode]) -> None:
        with self._lock:
            self.turns += 1
            for domain, mode in wanted.items():
                for other, theirs in self._held:
                    if other == domain and conflicts(mode, theirs):
                        self.broken.append(f"{domain}: {mode} beside {theirs}")
                self._held.append((domain, mode))

    def leave(self, wanted: dict[str, Mode]) -> None:
        with self._lock:
            for each in wanted.items():
                self._held.remove(each)


def take_turns(cluster: Cluster, watch: Watch, seed: int) -> None:
    chance = random.Random(seed)
    with cluster.session(f"soak {seed}") as session:
        for _ in range(ROUNDS):
            names = chance.sample(DOMAINS, chance.choice((1, 2, 3)))
            wanted = {name: chance.choice((Mode.X, Mode.X, Mode.S, Mode.IX)) for name in names}
            with session.acquire(*names, mode=wanted, timeout_s=WAIT_NS / SECOND) as leases:
                watch.enter(wanted)
                session.check_held(leases)
                watch.leave(wanted)


# Every thread asks in another order, and each must get every set that it asks for: no deadlock, no starvation.
def test_sets_in_opposite_orders_over_two_shards_all_get_their_turn(site: Site) -> None:
    watch = Watch()
    with site.daemon("node1") as one, site.daemon("node2") as two:
        assert {one.map.shard_of(name) for name in DOMAINS} == {0, 1}
        for cluster, shard in ((one, 0), (two, 1)):
            cluster.routes.host.try_host(shard, cluster.map)
        threads = [Thread(target=take_turns, args=((one, two)[n % 2], watch, n), daemon=True) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)
    assert watch.broken == []
    assert watch.turns == THREADS * ROUNDS


def take_one_by_one(
    cluster: Cluster,
    first: str,
    second: str,
    all_have_one: Barrier,
    recall: str | None,
    told: list[tuple[str, str, LossReason | None]],
) -> None:
    """Take one domain and, once everybody has theirs, another beside it; who is told to give way begins anew."""
    with cluster.session(f"has {first}") as session:
        for number in range(ROUNDS):
            with session.acquire(first, timeout_s=WAIT_NS / SECOND, recall=recall) as one:
                if number == 0:
                    all_have_one.wait(PATIENCE_S)
                try:
                    with session.acquire(second, timeout_s=WAIT_NS / SECOND) as two:
                        session.check_held([*one, *two])
                        return
                except TryAgain as problem:
                    told.append((problem.code, first, None if one[0].loss is None else one[0].loss.reason))


# Nobody asks for a set: each has one domain of a circle and waits for the next one's. No shard sees the whole of it.
@pytest.mark.parametrize("recall", [None, "yield"])
@pytest.mark.parametrize("size", [2, 3])
def test_circle_of_single_acquisitions_is_left_by_a_younger_one(site: Site, size: int, recall: str | None) -> None:
    told: list[tuple[str, str, LossReason | None]] = []
    with site.daemon("node1") as one, site.daemon("node2") as two:
        ordered = sorted(DOMAINS, key=one.map.shard_of)
        circle = [ordered[0], ordered[-1], ordered[1]][:size]
        assert {one.map.shard_of(name) for name in circle} == {0, 1}
        for cluster, shard in ((one, 0), (two, 1)):
            cluster.routes.host.try_host(shard, cluster.map)
        met = Barrier(size)
        threads = [
            Thread(
                target=take_one_by_one,
                args=((one, two)[n % 2], circle[n], circle[n - 1], met, recall, told),
                daemon=True,
            )
            for n in range(size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)
    assert 1 <= len({first for _, first, _ in told}) < size, "the oldest waits until it has what it wants"
    assert {(code, reason) for code, _, reason in told} == {
        ("deadlock", None if recall is None else LossReason.RECALLED)
    }


PATHS = ("/", "/a", "/a/b", "/a/b/c", "/a/d", "/e", "/e/f")


class PathWatch:
    """Who reads and writes what, as the threads believe it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._tasks: list[tuple[list[str], list[str]]] = []
        self.broken: list[str] = []
        self.turns = 0

    def enter(self, read: list[str], write: list[str]) -> None:
        with self._lock:
            self.turns += 1
            for others_read, others_write in self._tasks:
                for mine, theirs in ((write, others_read + others_write), (read, others_write)):
                    for one, other in product(map(PurePosixPath, mine), map(PurePosixPath, theirs)):
                        if one.is_relative_to(other) or other.is_relative_to(one):
                            self.broken.append(f"{one} beside {other}")
            self._tasks.append((read, write))

    def leave(self, read: list[str], write: list[str]) -> None:
        with self._lock:
            self._tasks.remove((read, write))


def lock_paths(cluster: Cluster, watch: PathWatch, seed: int) -> None:
    chance = random.Random(seed)
    lock = PathLock(cluster)
    for _ in range(ROUNDS):
        read = chance.sample(PATHS, chance.choice((0, 1, 2)))
        write = chance.sample(PATHS, chance.choice((1, 2)))
        with lock(read, write, timeout_s=WAIT_NS / SECOND) as held:
            watch.enter(read, write)
            held.check()
            watch.leave(read, write)


def test_tasks_on_paths_of_one_tree_all_get_their_turn_and_none_beside_what_it_touches(site: Site) -> None:
    watch = PathWatch()
    with site.daemon("node1") as one, site.daemon("node2") as two:
        for cluster, shard in ((one, 0), (two, 1)):
            cluster.routes.host.try_host(shard, cluster.map)
        threads = [Thread(target=lock_paths, args=((one, two)[n % 2], watch, n), daemon=True) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)
    assert watch.broken == []
    assert watch.turns == THREADS * ROUNDS
