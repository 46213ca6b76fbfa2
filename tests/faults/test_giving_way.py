"""A daemon gets its machine's shard back from an application that ran it meanwhile, and other nodes their leases."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from appliance.daemon.daemon import Node
from appliance.formats.ceiling import CeilingKind, open_ceiling
from appliance.formats.paths import chain_path
from appliance.node.records import StoredChain
from tests.support.cluster import Site, sites, wait_until
from tests.support.daemons import Daemons
from timeagent.clock import SystemClock
from timeagent.errors import LeaseLost, ShardUnavailable, TryAgain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.cluster import Cluster
    from appliance.session.session import Session

CLOCK = SystemClock()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield from sites(tmp_path)


def runs_the_shard(cluster: Cluster, session: Session, domain: str) -> bool:
    with suppress(TryAgain, ShardUnavailable), session.acquire(domain, timeout_s=1):
        pass
    return cluster.routes.host.hosted(cluster.map.shard_of(domain)) is not None


def test_daemon_that_was_killed_comes_back_while_an_application_goes_on(tmp_path: Path) -> None:
    with Daemons(tmp_path, "node1", "node2") as daemons:
        daemons.start("node1", "node2")
        with daemons.site.open("node1") as cluster, cluster.session("goes on") as session:
            domain = next(
                name for n in range(99) if cluster.map.owners[cluster.map.shard_of(name := f"d{n}")] == "node1"
            )
            with session.acquire(domain):
                assert cluster.routes.host.hosted(cluster.map.shard_of(domain)) is None
            daemons.kill("node1")
            wait_until(CLOCK, lambda: runs_the_shard(cluster, session, domain))
            daemons.start("node1")
            elsewhere = daemons.tenure("node2", "lease", "hold", domain, "--seconds", "0", "--wait", "60s")
            assert elsewhere.returncode == 0, elsewhere.stderr
            with session.acquire(domain, timeout_s=60):
                assert cluster.routes.host.hosted(cluster.map.shard_of(domain)) is None
        assert daemons.stop("node1") == 0


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
