"""The door for applications, over a real directory: threads, processes, forks and endings."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread
from threading import enumerate as enumerate_threads
from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.admin.trust import next_policy, publish_policy
from appliance.bag.writing import Committed
from appliance.cluster import Cluster, known_nodes, refuse_root_user, time_sources
from appliance.formats.chains import CeilingKind, open_ceiling
from appliance.formats.paths import chain_path
from appliance.lease.wire import Denied
from appliance.node.records import StoredChain
from appliance.node.settings import root_path
from appliance.session.endings import LossReason
from tests.support.cluster import Site, fast_policy, wait_until
from timeagent.agent.bounded_clock import EmbeddedTime
from timeagent.clock import SystemClock
from timeagent.errors import BadRequest, BadTime, Environment, LeaseLost, NotTrusted, TenureError, TryAgain
from timeagent.units import MS

if TYPE_CHECKING:
    from appliance.session.session import Session

ROUNDS = 12


def kinds(site: Site) -> list[CeilingKind]:
    chain = StoredChain(site.storage, chain_path(1, 0))
    return [open_ceiling(chain.read(number) or b"", "record")[0].kind for number in chain.list_afresh()]


def count_up(cluster: Cluster, rounds: int = ROUNDS) -> None:
    """Under a lease: read how many messages there are, and write that number. Two who overlap write one twice."""
    with cluster.session() as session:
        for _ in range(rounds):
            with session.acquire("counter") as leases:
                number = len(session.read("log", under=leases))
                text = f"{number} {leases[0].fence}".encode()
                assert session.publish("log", [text], under=leases) == Committed()


def test_two_sessions_in_two_threads_exclude_each_other_in_the_record(site: Site) -> None:
    with site.open() as cluster:
        threads = [Thread(target=count_up, args=(cluster,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        found = list(cluster.read("log", level="latest"))
    numbers, fences = zip(*(map(int, message.payload.split()) for message in found), strict=True)
    assert list(numbers) == list(range(2 * ROUNDS))
    assert list(fences) == sorted(set(fences))
    assert len({message.incarnation for message in found}) == 2


def test_one_session_may_be_shared_between_threads(site: Site) -> None:
    with site.open() as cluster, cluster.session() as session, session.acquire("a") as leases:

        def write(name: bytes) -> None:
            for number in range(ROUNDS):
                assert session.publish("log", [b"%s %d" % (name, number)], under=leases) == Committed()

        threads = [Thread(target=write, args=(name,)) for name in (b"x", b"y")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        found = [message.payload for message in session.read("log", under=leases)]
        assert leases[0].messages == 2 * ROUNDS
    for name in (b"x", b"y"):
        assert [each for each in found if each.startswith(name)] == [b"%s %d" % (name, n) for n in range(ROUNDS)]


HOLDER = """
import sys
from tenure import Cluster
with Cluster.open(sys.argv[1], node_dir=sys.argv[2], allow_root=True) as cluster, cluster.session("first") as session:
    with session.acquire("a") as leases:
        session.publish("log", [b"first"], under=leases)
        print(cluster.inspect(0)[0].incarnation.hex(), flush=True)
        sys.stdin.readline()
"""


def test_two_processes_of_one_machine_share_its_shard_and_the_second_takes_over(site: Site) -> None:
    command = [sys.executable, "-c", HOLDER, str(site.root), str(site.node_dir())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdin
        assert first.stdout
        runs = first.stdout.readline().strip()
        with site.open() as cluster, cluster.session() as session:
            with pytest.raises(TryAgain, match=r"\(first\)"):
                session.acquire("a", timeout_s=0)
            with session.acquire("b"):
                assert cluster.inspect(0)[0].incarnation.hex() == runs
                assert cluster.routes.host.everything() == {}
            first.stdin.write("\n")
            first.stdin.close()
            assert first.wait(60) == 0
            with session.acquire("a") as leases:
                assert [m.payload for m in session.read("log", under=leases)] == [b"first"]
                assert leases[0].settle_to_ns == 0
                assert cluster.inspect(0)[0].incarnation.hex() != runs
    assert kinds(site)[-1] is CeilingKind.ORDERLY


FORK = """
import os, sys
from tenure import BadRequest, Cluster, Committed
with Cluster.open(sys.argv[1], node_dir=sys.argv[2], allow_root=True) as cluster, cluster.session() as session:
    with session.acquire("a") as leases:
        session.publish("log", [b"1"], under=leases)
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            print(session.publish("log", [b"2"], under=leases) == Committed(), flush=True)
            print(cluster.inspect(0)[0].leases, flush=True)
        else:
            for use in (lambda: session.publish("log", [b"x"], under=leases), cluster.session):
                try:
                    use()
                except BadRequest as problem:
                    print(problem.code, flush=True)
            sys.exit()  # through every with block: the lease and the shard are not the child's
    child = os.fork()  # now with nothing held: an orderly stop would not even wait
    if not child:
        sys.exit()
    os.waitpid(child, 0)
    with session.acquire("a", timeout_s=0) as leases:
        print(session.publish("log", [b"3"], under=leases) == Committed(), flush=True)
"""


def test_child_after_fork_ends_without_stopping_its_parents_shard(site: Site) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, str(site.root), str(site.node_dir())],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == ["forked", "forked", "True", "1", "True"], done.stderr
    assert done.stderr == ""
    assert kinds(site).count(CeilingKind.ORDERLY) == 1
    with site.open() as cluster:
        assert [m.payload for m in cluster.read("log", level="latest")] == [b"1", b"2", b"3"]


def test_closing_while_another_thread_holds_ends_its_leases_by_name(site: Site) -> None:
    cluster = site.open()
    held, closed = Event(), Event()
    codes: list[str] = []

    def work() -> None:
        with cluster.session() as session, session.acquire("a") as leases:
            held.set()
            assert closed.wait(60)
            try:
                session.publish("log", [b"1"], under=leases)
            except LeaseLost as problem:
                codes.append(problem.code)

    thread = Thread(target=work)
    thread.start()
    assert held.wait(60)
    cluster.close()
    closed.set()
    thread.join(60)
    assert codes == ["lease-relinquished"]
    assert kinds(site)[-1] is CeilingKind.ORDERLY


def test_closed_cluster_is_closed(site: Site) -> None:
    cluster = site.open()
    with cluster.session() as session, session.acquire("a"):
        pass
    cluster.create_log("log")
    cluster.close()
    cluster.close()
    reading = (lambda: cluster.read("log"), lambda: cluster.batches("log"), lambda: cluster.follow("log"))
    for call in (cluster.session, *reading, lambda: cluster.settle("log", 1), lambda: cluster.create_log("after")):
        with pytest.raises(BadRequest) as refused:
            call()
        assert refused.value.code == "cluster-closed"
    assert not (site.root / "logs" / "after").exists()


def test_session_that_fails_to_close_does_not_keep_the_shard_running(site: Site) -> None:
    cluster = site.open()
    session = cluster.session()
    session.acquire("a")

    def failing() -> None:
        type(session).close(session)
        raise ZeroDivisionError

    session.close = failing  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        cluster.close()
    assert kinds(site)[-1] is CeilingKind.ORDERLY


def test_sessions_that_are_over_are_forgotten(site: Site) -> None:
    with site.open() as cluster:
        for _ in range(3):
            with cluster.session() as session, session.acquire("a"):
                pass
        del session
        gc.collect()
        assert len(cluster._sessions) == 0


def test_lease_is_kept_by_its_thread_for_longer_than_a_term(site: Site) -> None:
    clock = SystemClock()
    with site.open() as cluster, cluster.session() as session, session.acquire("a", term_s=0.6) as leases:
        first = leases[0].expiry_ns
        wait_until(clock, lambda: clock.realtime_ns() > first + 100 * MS)
        assert session.publish("log", [b"1"], under=leases) == Committed()


def test_reading_by_level_and_bounds(site: Site) -> None:
    with site.open() as cluster, cluster.session() as session:
        with session.acquire("a") as leases:
            for number in range(3):
                session.publish("log", [b"%d" % number], under=leases)
        stamps = [message.timestamp_ns for message in cluster.read("log", level="latest")]
        shown = cluster.read("log", level="latest", after_ns=stamps[0], until_ns=stamps[1])
        assert [message.payload for message in shown] == [b"1"]
        assert cluster.settle("log", stamps[-1] + 1) > stamps[-1]
        assert [message.payload for message in cluster.read("log")] == [b"0", b"1", b"2"]
        assert [message.payload for message in cluster.read("log", until_ns=stamps[1])] == [b"0", b"1"]
        assert cluster.log_names() == ["log"]
        assert known_nodes(cluster.registers) == ["node1"]


@pytest.mark.parametrize("ahead", [2**80, 2**60])
def test_settling_further_ahead_than_anybody_waits_is_refused(site: Site, ahead: int) -> None:
    with site.open() as cluster:
        cluster.create_log("log")
        with pytest.raises(BadRequest) as refused:
            cluster.settle("log", SystemClock().realtime_ns() + ahead)
        assert refused.value.code == "too-far-ahead"


@pytest.mark.parametrize(("log", "level", "code"), [("log", "all", "bad-level"), ("log", "settled", "no-such-log")])
def test_bad_reading_is_refused_at_once_not_when_it_is_iterated(site: Site, log: str, level: str, code: str) -> None:
    with site.open() as cluster:
        with pytest.raises(BadRequest) as refused:
            cluster.read(log, level=level)
        assert refused.value.code == code


def test_who_reads_a_log_that_does_not_exist_is_told_which_do(site: Site) -> None:
    with site.open() as cluster, cluster.session("names") as session:
        for hint in ("publish to it first", "its logs are orders; who publishes to another makes it"):
            with pytest.raises(BadRequest) as refused:
                cluster.read("ordres")
            assert refused.value.hint == hint
            with session.acquire("a") as leases:
                session.publish("orders", [b"1"], under=leases)


def test_superuser_is_refused_unless_allowed() -> None:
    refuse_root_user(1000, allow_root=False)
    refuse_root_user(0, allow_root=True)
    with pytest.raises(NotTrusted) as refused:
        refuse_root_user(0, allow_root=False)
    assert refused.value.exit_status == 77
    assert "--allow-root" in refused.value.hint


def test_root_is_named_by_the_call_or_by_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TENURE_ROOT", raising=False)
    with pytest.raises(BadRequest) as refused:
        root_path(None)
    assert "TENURE_ROOT" in refused.value.hint
    monkeypatch.setenv("TENURE_ROOT", str(tmp_path))
    assert root_path(None) == tmp_path
    assert str(root_path("/elsewhere")) == "/elsewhere"
    assert root_path("s3://bucket/prefix/") == "s3://bucket/prefix"


def test_place_that_no_path_can_name_is_refused(site: Site) -> None:
    with site.open() as cluster:
        for open_it in (
            lambda: Cluster.open("/tmp/a\0b", allow_root=True),
            lambda: Cluster.open(site.root, node_dir=Path("a\0b"), allow_root=True),
            lambda: cluster.create_log("log", store="/tmp/a\0b"),
        ):
            with pytest.raises(BadRequest) as refused:
                open_it()
            assert refused.value.code == "bad-type"


def test_assumed_time_is_asked_last_and_has_a_bound_only_where_the_policy_states_one() -> None:
    policy = fast_policy()
    kernel, assumed = time_sources(SystemClock(), policy)
    assert (kernel.name, assumed.name) == ("kernel", "assumed")
    assert assumed.sample().offset.radius == policy.assumed_radius_ns
    _, nothing = time_sources(SystemClock(), msgspec.structs.replace(policy, assumed_radius_ns=0))
    with pytest.raises(BadTime):
        nothing.sample()


def test_radius_that_a_policy_states_is_taken_up_by_an_open_cluster(site: Site) -> None:
    with site.open() as cluster:
        assert isinstance(cluster.time, EmbeddedTime)
        _, assumed = (each.source for each in cluster.time._hearing.listed)
        for radius in (8 * MS, 4 * MS):
            policy = next_policy(site.registers.newest_policy(), {"assumed_radius_ns": radius})
            publish_policy(site.registers, site.root_key, policy)
            cluster.policy.refresh()
            assert assumed.sample().offset.radius == radius


# What one session gives back while the cluster is closed must not be granted to another that ends as well: nobody
# would give that back, and the shard, which stops in good order, would wait until it expires.
def test_cluster_closes_while_a_session_waits_for_what_another_has(site: Site) -> None:
    told: list[object] = []
    waits = Event()

    def wait_for_it(session: Session) -> None:
        def asked() -> bool:
            waits.set()
            return False

        try:
            told.append(session.acquire("a", timeout_s=3600, given_up=asked))
        except TenureError as problem:
            told.append(problem.code)

    cluster = site.open()
    cluster.session().acquire("a")
    threads = [Thread(target=wait_for_it, args=(cluster.session(),), daemon=True) for _ in range(3)]
    for each in threads:
        each.start()
    assert waits.wait(60)
    cluster.close()
    for each in threads:
        each.join(60)
    assert told == ["session-closed"] * 3
    assert kinds(site)[-1] is CeilingKind.ORDERLY


# Who has left the queue is in nobody's way: whoever comes next need not wait until its place is kept no more.
@pytest.mark.parametrize("where", ["waiting", "given_up"])
def test_who_raises_while_it_waits_leaves_no_waiter_behind(site: Site, where: str) -> None:
    told: list[Denied] = []

    class Wrong(Exception):
        pass

    def waiting(denied: Denied) -> None:
        told.append(denied)
        if where == "waiting":
            raise Wrong

    def given_up() -> bool:
        if told:
            raise Wrong
        return False

    with site.open() as cluster, cluster.session("first") as first, cluster.session("second") as second:
        with first.acquire("d"):
            with pytest.raises(Wrong):
                second.acquire("d", timeout_s=60, waiting=waiting, given_up=given_up)
            _, (view,) = cluster.inspect(0)
            assert view.waiting == 0
        cluster.session("third").acquire("d", timeout_s=0)


# A process may have no more threads for a while: nobody has a lease then that nobody else knows of.
@pytest.mark.parametrize("name", ["tenure-renewal", "tenure-recalls"])
def test_session_that_gets_no_thread_keeps_nothing_and_gets_one_with_the_next_lease(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    start = Thread.start
    refused: list[str] = []

    def refuse(thread: Thread) -> None:
        if thread.name.startswith(name) and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with site.open() as cluster, cluster.session("first") as first, cluster.session("second") as second:
        monkeypatch.setattr(Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            first.acquire("d", recall="finish")
        with second.acquire("d", timeout_s=0):
            pass
        with first.acquire("d", timeout_s=0, recall="finish"):
            assert any(each.name.startswith(name) for each in enumerate_threads())


def test_cluster_that_gets_no_thread_for_its_policies_gets_one_with_the_next_session(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Thread.start
    refused: list[str] = []

    def refuse(thread: Thread) -> None:
        if thread.name == "tenure-policy" and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with site.open() as cluster:
        monkeypatch.setattr(Thread, "start", refuse)
        with pytest.raises(Environment):
            cluster.session()
        with cluster.session():
            assert cluster.policy.thread is not None


def test_lease_is_flushed_by_who_hears_that_it_is_asked_for_where_there_is_no_other_thread(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Thread.start

    def refuse(thread: Thread) -> None:
        if thread.name == "tenure-flush":
            raise RuntimeError("can't start new thread")
        start(thread)

    flushed: list[str] = []
    with site.open() as cluster, cluster.session("first") as first, cluster.session("second") as second:
        monkeypatch.setattr(Thread, "start", refuse)
        for domain in ("d", "e"):
            (lease,) = first.acquire(domain, recall="flush")
            lease.on_recall(lambda each: flushed.append(each.domain))
            with second.acquire(domain, timeout_s=60):
                assert lease.loss is not None
                assert lease.loss.reason is LossReason.RECALLED
    assert flushed == ["d", "e"]


# Somebody who hangs in the middle of asking does not keep a session from ending.
def test_session_does_not_wait_for_ever_for_who_asks(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asks, goes_on = Event(), Event()

    def hang(*_: object, **__: object) -> list[object]:
        asks.set()
        goes_on.wait(60)
        return []

    def ask(session: Session) -> None:
        with pytest.raises(BadRequest):
            session.acquire("a")

    with site.open() as cluster:
        session = cluster.session()
        monkeypatch.setattr(session._leasing, "acquire", hang)
        thread = Thread(target=ask, args=(session,))
        thread.start()
        assert asks.wait(60)
        session.close()
        assert thread.is_alive()
        goes_on.set()
        thread.join(60)
