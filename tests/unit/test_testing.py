"""The cluster for tests of applications: time passes when the test says so, and so does everything that goes wrong."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from appliance.bag.writing import Committed
from tenure import BadRequest, CachedValue, Election, LeaseLost, Mutex, Semaphore, ShardUnavailable, TryAgain
from tenure.testing import SteppedCluster
from tests.support.documents import blocks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest_plugins = ["tenure.pytest_plugin"]


def test_leases_are_renewed_while_time_passes(tenure_cluster: SteppedCluster) -> None:
    (lease,) = tenure_cluster.session().acquire("d")
    expiry = lease.expiry_ns
    tenure_cluster.advance(60)
    lease.check()
    assert lease.expiry_ns > expiry


def test_paused_holder_loses_its_lease_to_who_waits(tenure_cluster: SteppedCluster) -> None:
    ours, theirs = tenure_cluster.session("ours"), tenure_cluster.session("theirs")
    hold = Mutex(ours, "d").acquire()
    tenure_cluster.pause(ours)
    began = tenure_cluster.time.boot_ns()
    assert Mutex(theirs, "d").acquire().fence > hold.fence
    assert tenure_cluster.time.boot_ns() - began >= tenure_cluster.policy.lease_term_max_ns
    tenure_cluster.wake(ours)
    with pytest.raises(LeaseLost):
        hold.check()


def test_holder_that_is_paused_for_a_moment_keeps_its_lease(tenure_cluster: SteppedCluster) -> None:
    session = tenure_cluster.session()
    hold = Mutex(session, "d").acquire()
    tenure_cluster.pause(session)
    tenure_cluster.advance(5)
    tenure_cluster.wake(session)
    tenure_cluster.advance(8)
    hold.check()


def test_holder_that_is_paused_or_woken_twice_is_so_once(tenure_cluster: SteppedCluster) -> None:
    session = tenure_cluster.session()
    hold = Mutex(session, "d").acquire()
    for _ in range(2):
        tenure_cluster.pause(session)
    tenure_cluster.wake(session)
    tenure_cluster.advance(60)
    hold.check()
    tenure_cluster.wake(session)


def test_waiting_takes_the_clocks_time_and_others_go_on_meanwhile(tenure_cluster: SteppedCluster) -> None:
    hold = Mutex(tenure_cluster.session("holder"), "d").acquire()
    with pytest.raises(TryAgain, match="holder"):
        Mutex(tenure_cluster.session(), "d").acquire(timeout_s=60)
    hold.check()


def test_lost_lease_is_told_to_its_holder(tenure_cluster: SteppedCluster) -> None:
    hold = Mutex(tenure_cluster.session(), "d").acquire()
    told: list[str] = []
    hold.on_lost(lambda loss: told.append(str(loss)))
    tenure_cluster.lose(hold.lease, "maintenance")
    with pytest.raises(LeaseLost):
        hold.check()
    assert told == ["revoked by node1/1: maintenance"]


def test_shard_that_is_stopped_answers_nobody_and_one_that_is_started_knows_nothing(
    tenure_cluster: SteppedCluster,
) -> None:
    session = tenure_cluster.session()
    hold = Semaphore(session, "s", 1).acquire()
    tenure_cluster.stop_shard()
    with pytest.raises(ShardUnavailable):
        Mutex(session, "d").acquire(timeout_s=1)
    hold.check()
    tenure_cluster.start_shard()
    later = Semaphore(tenure_cluster.session(), "s", 1).acquire(timeout_s=60)
    assert later.fence > hold.fence
    with pytest.raises(LeaseLost):
        hold.check()


def test_messages_are_final_when_bags_are_closed(tenure_cluster: SteppedCluster) -> None:
    session = tenure_cluster.session()
    with session.acquire("d") as leases:
        assert session.publish("log", [b"1", b"2"], under=leases) == Committed()
    assert tenure_cluster.read("log") == []
    tenure_cluster.close_bags("log")
    assert [each.payload for each in tenure_cluster.read("log")] == [b"1", b"2"]


def test_value_that_is_put_is_written_as_time_passes(tenure_cluster: SteppedCluster) -> None:
    threads = threading.active_count()
    value = CachedValue(tenure_cluster.session(), "config", "limits", flush_s=1)
    value.put(b"1")
    assert threading.active_count() == threads, "nothing happens in between"
    tenure_cluster.advance(0.5)
    assert value.counts.flushes == 0
    tenure_cluster.advance(1)
    assert value.counts.flushes == 1
    tenure_cluster.close_bags("config")
    assert [each.payload for each in tenure_cluster.read("config")] == [b"1"]


def test_elections_of_both_kinds(tenure_cluster: SteppedCluster) -> None:
    for one, other in (
        [Election(tenure_cluster.session(name), "e") for name in ("a", "b")],
        [tenure_cluster.election("e", name) for name in ("a", "b")],
    ):
        with one.campaign() as leadership:
            leader = other.leader()
            assert leader is not None
            assert leader.candidate == "a"
        assert other.campaign(timeout_s=1).epoch > leadership.epoch


def test_same_seed_is_the_same_cluster() -> None:
    fences = []
    for seed in (1, 1, 2):
        with SteppedCluster(seed=seed, shards=2) as cluster, cluster.session() as session:
            fences.append(session.acquire("d")[0].correlation_id)
    assert fences[0] == fences[1] != fences[2]


def test_shard_that_is_not_there_is_refused(tenure_cluster: SteppedCluster) -> None:
    with pytest.raises(BadRequest):
        tenure_cluster.stop_shard(1)


def test_program_in_the_document_is_run(repository: Path) -> None:
    (program,) = blocks((repository / "docs/recipes/testing.md").read_text(encoding="utf-8"), "python")
    names: dict[str, object] = {}
    exec(program, names)
    tests = [each for name, each in names.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        with SteppedCluster() as cluster:
            test(cluster)  # type: ignore[operator]


def test_wrong_value_is_a_bad_request_as_with_a_real_cluster(tenure_cluster: SteppedCluster) -> None:
    cluster = tenure_cluster
    (lease,) = cluster.session().acquire("a")
    wrong: list[Callable[[Any], object]] = [
        lambda value: SteppedCluster(shards=value),
        lambda value: SteppedCluster(seed=value),
        lambda value: cluster.session(session_leases=value),
        lambda value: cluster.create_log("log", value),
        lambda value: cluster.lose(lease, value),
        cluster.lose,
        cluster.pause,
        cluster.wake,
        cluster.stop_shard,
        cluster.start_shard,
    ]
    for ask in wrong:
        for value in (None, 1.5, b"x", ["x"], object()):
            with pytest.raises(BadRequest):
                ask(value)
    for none in (0, -1):
        with pytest.raises(BadRequest):
            SteppedCluster(shards=none)
    with pytest.raises(BadRequest):
        SteppedCluster(policy=1)  # type: ignore[arg-type]
    lease.check()
