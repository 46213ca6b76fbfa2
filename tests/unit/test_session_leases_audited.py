"""Leases kept together, in a cluster on a real file system: what readers accept and what the audit says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from appliance.bag.writing import Committed
from appliance.session.session_leases import DROP_FROM
from appliance.testing.stepped_cluster import SteppedCluster
from auditor.audit import audit
from auditor.evidence.finding import Verdict
from auditor.evidence.tree import Tree
from tests.support.cluster import Site

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from appliance.session.held import Lease
    from appliance.session.open_logs import OpenLog
    from auditor.evidence.finding import Finding


def audited(cluster: SteppedCluster, directory: Path) -> tuple[Finding, ...]:
    """Close all bags, and audit a copy of everything."""
    cluster.close_bags("log")
    for path, data in cluster.storage.files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
    return audit(Tree(directory)).findings


def test_what_is_written_under_session_leases_is_read_and_audited_clean(site: Site) -> None:
    with site.open() as cluster:
        with cluster.session("together", session_leases=True) as session:
            leases = session.acquire(*(f"tenant/{number}" for number in range(20)))
            assert all(lease.session_lease is not None for lease in leases)
            for lease in leases[:3]:
                assert isinstance(session.publish("log", [lease.domain.encode()], under=[lease]), Committed)
            session.relinquish(leases[:1])
        with cluster.session("after") as session:
            again = session.acquire("tenant/0", "tenant/1")
            found = [message.payload for message in session.read("log", under=again)]
        assert sorted(found) == sorted(lease.domain.encode() for lease in leases[:3])
        cluster.logs.opened("log").horizon.settle(cluster.time.now().latest)
    result = audit(Tree(site.root))
    assert [each.code for each in result.findings if each.verdict is Verdict.VIOLATION] == []
    assert result.summary.messages >= 3


# One thread has settled the log and is about to stamp; a change of mode that another asked for is answered in between.
def test_message_beside_a_change_of_mode_waits_until_the_log_is_settled_as_that_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SteppedCluster() as cluster:
        cluster.create_log("log")
        dead, holder = cluster.session("dead"), cluster.session("holder")
        dead.acquire("a", mode="IX")
        (lease,) = holder.acquire("a", mode="IX")
        cluster.pause(dead)
        settle = holder._settle_for

        def settled(book: OpenLog, leases: Sequence[Lease]) -> None:
            settle(book, leases)
            monkeypatch.undo()
            holder.upgrade(lease, "X")

        monkeypatch.setattr(holder, "_settle_for", settled)
        assert holder.publish("log", [b"1"], under=[lease]) == Committed()
        holder.relinquish([lease])
        assert audited(cluster, tmp_path) == ()


# One thread is about to drop a session lease: those under it are given back one by one meanwhile, when it is renewed,
# and another thread has had one more, and knows not yet that it is given back.
@pytest.mark.parametrize("more", [True, False])
def test_session_lease_is_dropped_for_those_only_that_are_to_be_given_back_by_that(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: bool,  # noqa: FBT001 - one of the cases
) -> None:
    with SteppedCluster() as cluster:
        cluster.create_log("log")
        holder = cluster.session("holder", session_leases=True)
        leases = holder.acquire(*(f"d/{number}" for number in range(DROP_FROM)))
        holder.publish("log", [b"1"], under=leases[:1])
        dropping = holder._leasing.session_leases
        drop = dropping.drop

        def dropped(*arguments: Any) -> object:  # noqa: ANN401 - whatever it is given
            monkeypatch.undo()
            cluster.advance(8)
            if more:
                (last,) = holder.acquire("e")
                holder.publish("log", [b"2"], under=[last])
                way = cluster.transport(0)
                running, way.shard = way.shard, None
                holder.relinquish([last], timeout_s=0.5)
                way.shard = running
            return drop(*arguments)

        monkeypatch.setattr(dropping, "drop", dropped)
        holder.relinquish(leases)
        with cluster.session("next").acquire("e", record_only=True) as (lease,):
            floor_ns = lease.floor_ns
        assert audited(cluster, tmp_path) == ()
        last_ns = cluster.read("log")[-1].timestamp_ns
    assert not more or floor_ns >= last_ns
