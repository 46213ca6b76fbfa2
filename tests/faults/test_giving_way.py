"""An application runs a shard in a cluster of one node, until a daemon or another node comes; of several, never."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from appliance.admin.membership import enroll
from appliance.daemon.daemon import Node
from appliance.formats.chains import CeilingKind, open_ceiling
from appliance.formats.paths import chain_path
from appliance.node.records import StoredChain
from tests.support.cluster import Site, wait_until
from tests.support.daemons import Daemons
from timeagent.clock import SystemClock
from timeagent.errors import LeaseLost, ShardUnavailable

if TYPE_CHECKING:
    from pathlib import Path


CLOCK = SystemClock()


def test_application_that_goes_on_beside_its_dead_daemon_opens_no_shard_and_another_node_takes_it_over(
    tmp_path: Path,
) -> None:
    with Daemons(tmp_path, "node1", "node2") as daemons:
        daemons.start("node1", "node2")
        with daemons.site.open("node1") as cluster, cluster.session("goes on") as session:
            shard_map = cluster.map
            domain = next(name for n in range(99) if shard_map.owners[shard_map.shard_of(name := f"d{n}")] == "node1")
            with session.acquire(domain):
                pass
            daemons.kill("node1")
            elsewhere = daemons.tenure("node2", "lease", "hold", domain, "--seconds", "0", "--wait", "60s")
            assert elsewhere.returncode == 0, elsewhere.stderr
            with session.acquire(domain, timeout_s=60):
                assert cluster.routes.host.everything() == {}
            daemons.start("node1")
            with session.acquire(domain, timeout_s=60):
                assert cluster.routes.host.everything() == {}
        assert daemons.stop("node1") == 0


def test_shard_of_a_single_node_is_given_up_when_another_joins_and_then_needs_a_daemon(
    site: Site, tmp_path: Path
) -> None:
    with site.open() as application, application.session() as session:
        with session.acquire("a"):
            assert application.routes.host.hosted(0) is not None
        enroll(site.registers, site.root, site.root_key, "node2", CLOCK.realtime_ns(), tmp_path / "node2")
        wait_until(CLOCK, lambda: application.routes.host.hosted(0) is None)
        with pytest.raises(ShardUnavailable, match="the daemon of node node1 does not run"):
            session.acquire("a", timeout_s=0)
        with site.open() as other:
            node = Node(other)
            assert node.start() == [0], "it was left in good order"
            with session.acquire("a", timeout_s=20) as (lease,):
                assert lease.settle_to_ns == 0
            node.stop()
        node.close()


# It ends in good order: what is held is held until it is given back, and nobody waits for a ceiling.
def test_application_gives_its_shard_up_orderly_and_begins_none_while_there_is_a_daemon(site: Site) -> None:
    with site.open() as application, site.open() as other, application.session() as session:
        with session.acquire("a") as leases:
            assert application.routes.host.hosted(0) is not None
            node = Node(other)
            node.start()
            taken = other.routes.host.hosted(0)
            with suppress(LeaseLost):  # on a slow machine its term may be over
                leases[0].check()
                assert taken is None
        chain = StoredChain(site.storage, chain_path(1, 0))
        wait_until(CLOCK, lambda: other.routes.host.hosted(0) is not None)
        kinds = [open_ceiling(data, str(name))[0].kind for name in chain.list_afresh() if (data := chain.read(name))]
        assert CeilingKind.ORDERLY in kinds
        assert application.routes.host.hosted(0) is None
        assert not application.routes.host.try_host(0, application.map)
        node.stop()
        node.close()
