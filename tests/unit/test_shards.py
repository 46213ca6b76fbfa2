"""Who runs a machine's shard: one process at a time, the next when it ends, and none for ever."""

from __future__ import annotations

import errno
import os
import random
import threading
from contextlib import closing
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

import pytest

from appliance.admin import moving
from appliance.formats.chains import CeilingKind, open_ceiling
from appliance.formats.framing import Kind
from appliance.formats.paths import chain_path
from appliance.lease.ceiling import Deposed, InDoubt, NotYet, ShardIdentity, StoppedOrderly
from appliance.lease.client import LeaseClient, LeaseGranted, LeaseUnavailable
from appliance.lease.store import LeaseStore
from appliance.lease.wire import NEWER_MAP
from appliance.lease.witness_ledger import LedgerSpool
from appliance.node.hosted_shard import HostedShard, ShardRuntime, in_thread
from appliance.node.records import StoredChain
from tests.support.clocks import HandTime
from tests.support.cluster import Site, as_daemon, fast_policy, sites, wait_until
from tests.support.shards import HOLDER, ListLedger
from tests.support.storage import WrappedStorage
from tests.support.values import CLUSTER, NODE, NOW_NS, TIME_KEY
from timeagent.clock import SystemClock
from timeagent.errors import BadTime, Environment, ShardUnavailable
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from appliance.bag.ports import Storage
    from appliance.cluster import Cluster
    from appliance.formats.chains import CeilingRecord


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Site]:
    yield from sites(tmp_path, "node1", "node2")


def open_files() -> list[str]:
    return sorted(str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if os.path.lexists(each))


def newest(site: Site, shard: int = 0) -> CeilingRecord:
    chain = StoredChain(site.storage, chain_path(1, shard))
    data = chain.read(chain.list_afresh()[-1])
    assert data is not None
    return open_ceiling(data, "newest")[0]


def test_first_process_that_asks_runs_the_shard_and_the_second_is_served_by_it(site: Site) -> None:
    with site.open() as first, site.open() as second:
        assert first.routes.host.try_host(0, first.map)
        assert first.routes.host.try_host(0, first.map)  # it does already
        assert not second.routes.host.try_host(0, second.map)
        with second.session() as session, session.acquire("a"):
            assert first.inspect(0)[1][0].domain == "a"
        assert second.routes.host.everything() == {}


def test_next_process_takes_the_place_of_one_that_ended_orderly_without_any_gap(site: Site) -> None:
    first, second = site.open(), site.open()
    with first.session() as session, session.acquire("a") as leases:
        session.publish("log", [b"1"], under=leases)
    with second.session() as session:
        before, _ = second.inspect(0)
        first.close()
        assert newest(site).kind is CeilingKind.ORDERLY
        with session.acquire("a") as leases:
            assert leases[0].settle_to_ns == 0
            assert [m.payload for m in session.read("log", under=leases)] == [b"1"]
            after, _ = second.inspect(0)
    assert after.incarnation != before.incarnation
    second.close()


def left_with_a_lease(site: Site) -> bytes:
    """Have a process run the shard, and end with a lease of another out; return which run that was."""
    with site.open() as first:
        assert first.routes.host.try_host(0, first.map)
        client = LeaseClient(first.routes.transport(0), first.time, first.policy, HOLDER, random.Random(5))
        assert isinstance(client.acquire(["a"])[0], LeaseGranted)
        return first.inspect(0)[0].incarnation


def test_next_process_goes_on_with_the_leases_that_others_have_of_one_that_ends(site: Site) -> None:
    run = left_with_a_lease(site)
    with site.open() as second:
        assert second.routes.host.try_host(0, second.map)
        numbers, (lease,) = second.inspect(0)
        assert (numbers.incarnation, lease.domain, lease.holder) == (run, "a", HOLDER)
        wait_until(SystemClock(), lambda: len(list(site.root.glob("ledger/*/*/*.ledger"))) == 2)  # by its own thread


def test_what_was_left_goes_on_whoever_waits_for_what_and_nothing_begins(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = left_with_a_lease(site)
    with site.open() as second:
        host = second.routes.host
        monkeypatch.setattr(host, "waits_for", lambda *_: "chains before it have not ended")
        assert host.resumable() == [0]
        assert host.go_on(0)
        assert second.inspect(0)[0].incarnation == run
        assert host.resumable() == []
        assert not host.go_on(0)  # it runs
        host.drop(0)
        assert not host.go_on(0)
        assert host.resumable() == []
        assert host.hosted(0) is None


def test_what_was_left_is_lost_to_a_mount_that_fails_only_when_its_leases_are_over(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, storage = left_with_a_lease(site), Refusing(site.storage)
    storage.times = 60
    monkeypatch.setattr("appliance.node.shards.PAUSE_NS", MS)
    with site.open(storage=storage) as second:
        assert second.routes.host.go_on(0)
        assert second.inspect(0)[0].incarnation == run


@pytest.mark.parametrize("damage", ["longer", "shorter", "gone", "another file"])
def test_next_process_begins_with_nothing_where_the_ledger_does_not_end_as_it_was_left(
    site: Site, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = left_with_a_lease(site)
    (ledger,) = site.root.glob("ledger/*/*/*.ledger")
    data = ledger.read_bytes()
    match damage:
        case "longer" | "shorter":
            ledger.write_bytes(data + b"x" if damage == "longer" else data[:-1])
        case "gone":
            ledger.unlink()
        case _:
            ledger.with_name(ledger.name.replace(".ledger", ".2.ledger")).write_bytes(data)
    with site.open() as second:
        assert second.routes.host.try_host(0, second.map)
        numbers, leases = second.inspect(0)
        assert (numbers.incarnation != run, leases) == (True, [])
    assert "shard-not-resumed shard=0 leases=1 reason=shard 0 cannot begin here: its ledger does not end" in caplog.text


def test_shard_of_another_node_is_never_run_here(two: Site) -> None:
    with two.open("node1") as cluster, pytest.raises(ShardUnavailable) as refused:
        cluster.inspect(1)
    assert refused.value.exit_status == 69
    assert "node2" in refused.value.message
    assert "tenure node run" in refused.value.hint


def test_shard_without_an_address_is_unavailable_by_name(two: Site) -> None:
    two.settings["node1"].peers.clear()  # type: ignore[attr-defined]
    (two.node_dir() / "node.toml").write_text((two.node_dir() / "node.toml").read_text().split("[peers]")[0])
    with two.open() as cluster, cluster.session() as session:
        domain = next(f"d{n}" for n in range(99) if cluster.map.shard_of(f"d{n}") == 1)
        with pytest.raises(ShardUnavailable) as refused:
            session.acquire(domain, timeout_s=0)
        assert refused.value.code == "no-address"
        assert "tenure trust move node2" in refused.value.hint
        with pytest.raises(ShardUnavailable):
            cluster.inspect(1)


# It would answer its own machine only, and keep everybody else from the shard for as long as it runs.
def test_application_opens_no_shard_in_a_cluster_of_several_nodes_and_says_which_daemon_is_missing(two: Site) -> None:
    with two.open() as cluster, cluster.session() as session:
        domain = next(f"d{n}" for n in range(99) if cluster.map.shard_of(f"d{n}") == 0)
        for _ in range(2):  # also once the next node is asked for it
            with pytest.raises(ShardUnavailable, match="the daemon of node node1 does not run") as refused:
                session.acquire(domain, timeout_s=0)
            assert "other nodes (node2)" in refused.value.message
            assert refused.value.hint == "start it, on node1: tenure node run, or its unit, tenure-node@NAME"
        with pytest.raises(ShardUnavailable) as refused:
            cluster.routes.host.try_host(0, cluster.map)
        assert refused.value.code == "no-daemon"
        assert cluster.routes.host.everything() == {}


def test_host_that_was_closed_hosts_nothing_any_more(site: Site) -> None:
    cluster = site.open()
    host, shard_map = cluster.routes.host, cluster.map
    host.close()
    host.close()
    assert not host.try_host(0, shard_map)
    cluster.close()


class Refusing(WrappedStorage):
    """Refuses the ceiling chain for a number of calls."""

    times = 0

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        if path.startswith("shards") and verb == "publish" and self.times:
            self.times -= 1
            raise Environment("planted", f"{verb} {path}: No space left on device")
        return call()


def test_start_in_doubt_is_tried_again(site: Site) -> None:
    storage = Refusing(site.storage)
    storage.times = 3
    with site.open(storage=storage) as cluster:
        assert cluster.routes.host.try_host(0, cluster.map)


def test_shard_that_cannot_begin_says_why_and_keeps_no_lock(site: Site) -> None:
    storage = Refusing(site.storage)
    storage.times = 10**9
    with site.open(storage=storage) as cluster:
        with pytest.raises(Environment) as refused:
            cluster.routes.host.try_host(0, cluster.map)
        assert refused.value.code == "chain-in-doubt"
        assert "No space left on device" in refused.value.message
        assert refused.value.exit_status == 74
        storage.times = 0
        assert cluster.routes.host.try_host(0, cluster.map)


class Remembering(WrappedStorage):
    """Says that a directory is not there, as it did before that was made elsewhere, until it is asked to make it."""

    absent = ""

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        if verb == "ensure_directory" and path == self.absent:
            self.absent = ""
        return self.inner.list_afresh("nothing") if verb == "list_afresh" and path == self.absent else call()  # type: ignore[return-value]


def test_owner_that_began_meanwhile_is_waited_for_though_the_mount_remembers_no_chain(two: Site) -> None:
    storage = Remembering(two.storage)
    with two.daemon("node2") as owner, as_daemon(two.open("node1", storage=storage)) as heir:
        assert owner.routes.host.try_host(1, owner.map)
        storage.absent = chain_path(1, 1)
        assert not heir.routes.host.try_host(1, heir.map)
        assert newest(two, 1).node == "node2"


# What ended the move saw no record of it; it grants nothing that nobody would carry over.
@pytest.mark.parametrize("ended", [False, True], ids=["both", "new"])
def test_shard_that_begins_by_an_earlier_map_goes_by_the_newest_before_it_serves(site: Site, *, ended: bool) -> None:
    with site.open() as cluster:
        before = cluster.map
        both = moving.begin(site.registers, site.root_key, lambda newest: moving.moved(newest, {0: "node1"}))
        if ended:
            assert site.registers.publish(Kind.MAP, moving.ended(both), site.root_key)
        assert cluster.routes.host.try_host(0, before)
        client = LeaseClient(cluster.routes.transport(0), cluster.time, cluster.policy, HOLDER, random.Random(5))
        (refused,) = client.acquire(["a"], map_number=before.number)
        assert isinstance(refused, LeaseUnavailable)
        assert refused.code == NEWER_MAP


# -- stopping ----------------------------------------------------------------------------------------------------------


class StubShard:
    """Answers a stop with what it is told."""

    def __init__(self, answer: Callable[[], object]) -> None:
        self.answer = answer
        self.asked = 0

    def stop_orderly(self) -> object:
        self.asked += 1
        return self.answer()


class Stub:
    """A server or a store that ends when it is told."""

    def __init__(self) -> None:
        self.ended = Lock()
        self.ended.acquire()

    def run(self) -> None:
        with self.ended:
            pass

    def stop(self, *, at_once: bool) -> None:
        assert not at_once
        self.ended.release()

    def close(self) -> None:
        self.closed = True


NOWHERE = Path("/nowhere")


def hosted(shard: StubShard, time: HandTime) -> HostedShard:
    stub: Any = shard
    store: Any = Stub()
    server: Any = Stub()
    chain: Any = Stub()
    ledger: Any = Stub()
    nowhere: Any = None
    identity = ShardIdentity(CLUSTER, 1, 0, NODE, bytes(8))
    return HostedShard(
        identity,
        stub,
        store,
        server,
        chain,
        ledger,
        LedgerSpool(ListLedger()),
        Lock(),
        ShardRuntime(NOWHERE),
        time,
        fast_policy(),
        None,
        nowhere,
    )


def raising() -> object:
    raise BadTime("no-time", "no bound")


def full() -> object:
    raise Environment("store-full", "the tmpfs is full")


@pytest.mark.parametrize(
    ("answer", "spans"),
    [
        (lambda: StoppedOrderly(0, 0), (0, 0)),
        (lambda: NotYet(NOW_NS * 2, 1), (4, 5)),  # a clock that went back: the lease would be out for years
        (lambda: InDoubt("the mount is away"), (0, 2)),
        (raising, (0, 2)),
        (full, (0, 2)),
    ],
)
def test_stop_ends_whatever_shard_clock_and_mount_do(answer: Callable[[], object], spans: tuple[int, int]) -> None:
    time = HandTime(TIME_KEY, NOW_NS)
    begun = time.boot_ns()
    shard = StubShard(answer)
    hosted(shard, time).stop()
    assert spans[0] * SECOND <= time.boot_ns() - begun <= spans[1] * SECOND
    assert shard.asked >= 1


def test_interrupted_stop_ends_the_threads_all_the_same() -> None:
    def interrupted() -> object:
        raise KeyboardInterrupt

    running = hosted(StubShard(interrupted), HandTime(TIME_KEY, NOW_NS))
    with pytest.raises(KeyboardInterrupt):
        running.stop()
    assert not any(thread.is_alive() for thread in running._threads)


# It leaves for another node, and the daemon stops for a restart: one thread waits for its turn, the other suspends it.
def test_orderly_stop_that_is_overtaken_by_a_restart_signs_nothing_more(site: Site) -> None:
    suspended, tried = Event(), Event()
    with site.open() as first:
        assert first.routes.host.try_host(0, first.map)
        client = LeaseClient(first.routes.transport(0), first.time, first.policy, HOLDER, random.Random(5))
        assert isinstance(client.acquire(["a"])[0], LeaseGranted)
        (short,) = client.acquire(["b"], term_ns=500 * MS)
        assert isinstance(short, LeaseGranted)
        wait_until(SystemClock(), lambda: first.time.now().surely_past(short.witness.expiry_ns))
        hosted, run = first.routes.host.everything()[0], first.inspect(0)[0].incarnation
        close, step = hosted.chain.close, hosted._tried
        suspending = Thread(target=hosted.suspend, daemon=True)

        def closing() -> None:
            suspended.set()
            assert tried.wait(30)
            close()

        def waited[Said](what: Callable[[], Said]) -> Said | Deposed | None:
            if threading.current_thread() is suspending:
                return step(what)
            suspending.start()
            assert suspended.wait(30)
            try:
                return step(what)
            finally:
                tried.set()

        hosted.chain.close, hosted._tried = closing, waited  # type: ignore[method-assign, assignment]
        hosted.stop()
        suspending.join(30)
    with site.open() as second:
        assert second.routes.host.try_host(0, second.map)
        assert second.inspect(0)[0].incarnation == run


def test_inspecting_pages_through_all_leases(site: Site) -> None:
    with site.open() as cluster, cluster.session() as session:
        domains = [f"d{n:04d}" for n in range(300)]
        leases = session.acquire(*domains)
        numbers, found = cluster.routes.inspect(0)
        assert [view.domain for view in found] == domains
        assert numbers.leases == 300
        session.relinquish(leases)


# The daemon tries again: what is left of this try would be in the way, or be left anew each time.
@pytest.mark.parametrize("short_of", ["tenure-shard", "tenure-ledger", "descriptors"])
def test_shard_for_which_there_are_no_threads_or_descriptors_leaves_nothing_behind(
    site: Site, monkeypatch: pytest.MonkeyPatch, short_of: str
) -> None:
    begin = Thread.start

    def begin_but_that(thread: Thread) -> None:
        if thread.name == short_of:
            raise RuntimeError("can't start new thread")
        begin(thread)

    def no_pair() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with closing(site.daemon()) as cluster:
        host = cluster.routes.host
        threads, files = set(threading.enumerate()), open_files()
        with monkeypatch.context() as patch:
            patch.setattr(Thread, "start", begin_but_that)
            if short_of == "descriptors":
                patch.setattr("socket.socketpair", no_pair)
            with pytest.raises(Environment) as refused:
                host.try_host(0, cluster.map)
        assert refused.value.code == ("no-socket" if short_of == "descriptors" else "no-threads")
        assert (host.everything(), set(threading.enumerate()), open_files()) == ({}, threads, files)
        assert host._pulse is not None
        assert host._pulse._beaten == {}, "the watchdog would wait for a beat that never comes"
        assert host.try_host(0, cluster.map)


# A shard that ended inside a living process must not keep its place: nobody else of this machine could take it.
def test_shard_that_has_ended_here_is_replaced_by_the_next_call(site: Site) -> None:
    with site.open() as cluster, cluster.session() as session:
        with session.acquire("a"):
            pass
        hosted = cluster.routes.host.everything()[0]
        hosted.server.stop()
        wait_until(SystemClock(), lambda: hosted.ended() is not None)
        with session.acquire("a") as (lease,):
            assert lease.settle_to_ns > 0  # a new incarnation, which stands on the ceiling of the one before
        assert cluster.routes.host.everything()[0] is not hosted


def test_shard_that_has_ended_and_cannot_be_closed_keeps_no_lock(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError(errno.EIO, "Input/output error")

    with site.open() as cluster:
        host = cluster.routes.host
        assert host.try_host(0, cluster.map)
        hosted = host.everything()[0]
        hosted.server.stop()
        wait_until(SystemClock(), lambda: hosted.ended() is not None)
        with monkeypatch.context() as patch:
            patch.setattr(LeaseStore, "close", lambda _: broken())
            with pytest.raises(OSError, match="Input/output error"):
                host.try_host(0, cluster.map)
        hosted.store.close()
        assert host.try_host(0, cluster.map)


# SQLite notices damage when it reads: then nothing of the database can be believed, and an empty one is as good.
def test_shard_whose_database_is_damaged_is_replaced_by_a_new_incarnation(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with site.open() as cluster, cluster.session() as session, session.acquire("a") as (kept,):
        hosted = cluster.routes.host.hosted(0)
        assert hosted is not None
        with hosted._guard:
            hosted.store._connection.execute("DROP TABLE entry")
        with session.acquire("b") as (lease,):
            assert lease.settle_to_ns >= kept.expiry_ns  # the ceiling covers what the new one knows nothing of
            assert lease.fence > kept.fence
        replaced = cluster.routes.host.hosted(0)
        assert replaced is not None
        assert replaced is not hosted
    assert "shard-broken" in caplog.text


# Nothing of it can be left for a restart; what the others leave is not lost with it.
@pytest.mark.parametrize("drains", [True, False])
def test_shard_whose_database_is_damaged_ends_as_in_a_crash_and_the_others_as_they_should(
    two: Site, *, drains: bool
) -> None:
    with closing(two.daemon()) as first:
        host = first.routes.host
        assert host.try_host(0, first.map)
        assert host.try_host(1, first.map)
        damaged, other = host.everything().values()
        for shard in (0, 1):
            client = LeaseClient(first.routes.line(shard, "node1"), first.time, first.policy, HOLDER, random.Random(5))
            assert isinstance(client.acquire([domain_of(first, shard)])[0], LeaseGranted)
        host.drains = drains
        with damaged._guard:
            damaged.store._connection.execute("DROP TABLE entry")
        first.close()
        assert not any(each.is_alive() for shard in (damaged, other) for each in shard._threads)
    with closing(two.daemon()) as second:
        host = second.routes.host
        assert [shard for shard in (0, 1) if host.go_on(shard)] == ([] if drains else [1])
        assert newest(two, 0).kind is CeilingKind.RUNNING
        assert newest(two, 1).kind is (CeilingKind.ORDERLY if drains else CeilingKind.RUNNING)


def test_shard_that_cannot_be_closed_keeps_no_other_from_its_end(two: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError(errno.EIO, "Input/output error")

    with closing(two.daemon()) as cluster:
        host = cluster.routes.host
        assert host.try_host(0, cluster.map)
        assert host.try_host(1, cluster.map)
        first, second = host.everything().values()
        with monkeypatch.context() as patch:
            patch.setattr(first.store, "close", broken)
            with pytest.raises(OSError, match="Input/output error"):
                host.close()
        assert host.everything() == {}
        assert not any(each.is_alive() for each in second._threads)
        first.store.close()


def domain_of(cluster: Cluster, shard: int) -> str:
    return next(name for name in map(str, range(100)) if cluster.map.shard_of(name) == shard)


class Hanging(WrappedStorage):
    """Says nothing of ceiling chains until it is told to."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.answers, self.asked = Event(), Event()

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        if path.startswith("shards"):
            self.asked.set()
            assert self.answers.wait(60), f"{verb} {path}"
        return call()


# Whoever looks is the daemon's HTTP door, which says whether it is all right, and its main loop.
def test_who_looks_which_shards_run_here_does_not_wait_for_one_that_begins_on_a_mount_that_hangs(site: Site) -> None:
    storage = Hanging(site.storage)
    with site.open(storage=storage) as cluster:
        host = cluster.routes.host
        begins, looks = Thread(target=host.try_host, args=(0, cluster.map)), Thread(target=host.everything)
        begins.start()
        assert storage.asked.wait(20)
        looks.start()
        looks.join(2)
        waits = looks.is_alive()
        storage.answers.set()
        begins.join(20)
        looks.join(20)
        assert not waits
        assert list(host.everything()) == [0]


# The daemon has begun: what an application has for it must not be lost for want of a thread.
def test_application_without_another_thread_gives_its_shard_to_the_daemon_once_it_may_have_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = Event()

    def no_thread(*_: object) -> None:
        tried.set()
        raise Environment("no-threads", "no more threads")

    with site.open() as application:
        host = application.routes.host
        assert host.try_host(0, application.map)
        hosted = host.everything()[0]
        with monkeypatch.context() as patch:
            patch.setattr(ShardRuntime, "daemon_runs", lambda _: True)
            patch.setattr(ShardRuntime, "spawn", no_thread)
            assert tried.wait(20)
            tried.clear()
            assert tried.wait(20), "it is tried again"
            assert hosted.ended() is None
            patch.setattr(ShardRuntime, "spawn", lambda _, name, body: in_thread(name, body))
            wait_until(SystemClock(), lambda: host.hosted(0) is None)


class FailingMaps(WrappedStorage):
    """Cannot say what a map is, for a number of calls, once a shard's record was linked; ``at_once``: from now on."""

    times, at_once = 0, False

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        if path.startswith("shards") and verb == "publish":
            self.at_once = True
        if path.startswith("map") and self.at_once and self.times:
            self.times -= 1
            raise Environment("planted", f"{verb} {path}: Stale file handle")
        return call()


# It has linked its record by then: another try would have everybody wait for that one's ceiling.
def test_shard_that_has_begun_asks_again_for_the_newest_map(site: Site) -> None:
    storage = FailingMaps(site.storage)
    storage.times = 3
    with site.open(storage=storage) as cluster, cluster.session() as session:
        assert cluster.routes.host.try_host(0, cluster.map)
        assert storage.times == 0
        with session.acquire("a") as (lease,):
            assert lease.settle_to_ns == 0


# What a run left is found once: it would be lost with all leases.
def test_what_was_left_goes_on_by_its_map_though_that_is_read_at_the_second_try(site: Site) -> None:
    run, storage = left_with_a_lease(site), FailingMaps(site.storage)
    moving.begin(site.registers, site.root_key, lambda newest: moving.moved(newest, {0: "node1"}))
    with site.open(storage=storage) as second:
        storage.times, storage.at_once = 3, True
        assert second.routes.host.go_on(0)
        assert storage.times == 0
        assert second.inspect(0)[0].incarnation == run
