"""Real daemons that are restarted under holders in processes of their own: nobody loses a lease; kill -9 loses them."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from appliance.node.runtime import runtime_of
from tests.faults import maintenance
from tests.faults.test_moves import audit_is_clean, domain_in
from tests.support.cluster import Site, sites
from tests.support.daemons import Daemons
from tests.support.holding import Holder, patient_policy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.cluster import Cluster

pytestmark = pytest.mark.timeout(300)
NODES = ("node1", "node2", "node3")


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    with Daemons(tmp_path, *NODES, policy=patient_policy(tmp_path)) as each:
        yield each


def runs_of(cluster: Cluster) -> list[bytes]:
    return [cluster.inspect(shard)[0].incarnation for shard in range(len(NODES))]


def test_holders_keep_their_leases_through_a_restart_of_each_daemon(daemons: Daemons) -> None:
    daemons.start(*NODES)
    with daemons.site.open("node1") as cluster, ExitStack() as stack:
        domains = [domain_in(cluster, shard) for shard in range(len(NODES))]
        holders = [stack.enter_context(Holder(daemons, "node2", domain)).renewed() for domain in domains]
        before = runs_of(cluster)
        for node in NODES:
            daemons.restart(node)
            for holder in holders:
                holder.renewed()
        assert runs_of(cluster) == before
        with closing(sqlite3.connect(_file(daemons.site, "node1", 0))) as file:
            assert domains[0] in {row[0] for row in file.execute("SELECT domain FROM entry WHERE kind > 0")}
        fences = [holder.fence for holder in holders]
        assert [holder.close() for holder in holders] == ["kept"] * len(NODES)
        with cluster.session() as session, session.acquire(*domains) as leases:
            assert all(lease.fence > fence for lease, fence in zip(leases, fences, strict=True))
            assert [lease.ended for lease in leases] == [None] * len(NODES)
    assert [daemons.stop(node) for node in NODES] == [0, 0, 0]
    audit_is_clean(daemons)


def _file(site: Site, node: str, shard: int) -> Path:
    return runtime_of(site.settings[node], site.cluster_id) / f"shard-{shard:04d}.db"


def test_daemon_that_is_killed_loses_them(daemons: Daemons) -> None:
    daemons.start(*NODES)
    with daemons.site.open("node2") as cluster, ExitStack() as stack:
        own, other = (
            stack.enter_context(Holder(daemons, "node2", domain_in(cluster, shard))).renewed() for shard in (0, 1)
        )
        before = runs_of(cluster)
        daemons.kill("node1")
        daemons.start("node1")
        assert own.lost() != "kept"
        after = runs_of(cluster)
        assert (after[0] != before[0], after[1:] == before[1:]) == (True, True)
        assert other.renewed().close() == "kept"
    assert [daemons.stop(node) for node in NODES] == [0, 0, 0]
    audit_is_clean(daemons)


def test_upgrade_keeps_them(daemons: Daemons) -> None:
    daemons.start_with_release("node1", "0.0.1")
    daemons.start("node2", "node3")
    with daemons.site.open("node2") as cluster, ExitStack() as stack:
        holder = stack.enter_context(Holder(daemons, "node2", domain_in(cluster, 0))).renewed()
        maintenance.upgrade(daemons, "node1")
        assert holder.renewed().close() == "kept"
    assert [daemons.stop(node) for node in NODES] == [0, 0, 0]
    audit_is_clean(daemons)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Site]:
    yield from sites(tmp_path, "node1")


# The next process takes its place, with the leases of all others; the one that ends waits for none of them.
def test_application_that_runs_the_shard_leaves_it_with_others_leases_to_the_next(alone: Site) -> None:
    with alone.open() as other, other.session() as session:
        first = alone.open()
        assert first.routes.host.try_host(0, first.map)
        (lease,) = leases = session.acquire("a")
        before = first.inspect(0)[0]
        first.close()
        session.publish("log", [b"1"], under=leases)
        session.renew_due()
        lease.check()
        with session.acquire("b"):
            after, views = other.inspect(0)
        assert (after.incarnation, {each.domain for each in views}) == (before.incarnation, {"a", "b"})
        assert other.routes.host.hosted(0) is not None
        session.relinquish(leases)
