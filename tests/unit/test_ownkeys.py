"""A node whose keys are revoked stops to sign: sessions and the daemon say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from appliance.node import Node
from appliance.trust import revoke_node
from leasehold.__main__ import main
from tests.support.cluster import Site, sites, tree
from timeagent.clock import SystemClock
from timeagent.errors import NotTrusted
from timeagent.units import SECOND


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield from sites(tmp_path)


def test_revoked_node_begins_no_session_and_its_daemon_ends(site: Site) -> None:
    with site.open() as cluster:
        cluster.check_trusted_now()
        node = Node(cluster)
        node.start()
        try:
            revoke_node(site.registers, site.root_key, "node1", cluster.time.now().midpoint - SECOND)
            with pytest.raises(NotTrusted, match="revoked"):
                cluster.session("late")
            with pytest.raises(NotTrusted, match="revoked"):
                node.run(Event())
        finally:
            node.stop()
            node.close()


# Started again and again by its supervisor, it would take its shards from those who run them meanwhile, each time.
def test_daemon_of_a_revoked_node_begins_with_no_shard(site: Site) -> None:
    with site.open() as cluster:
        revoke_node(site.registers, site.root_key, "node1", cluster.time.now().midpoint - SECOND)
        node = Node(cluster)
        before = tree(site.root)
        with pytest.raises(NotTrusted, match="revoked") as refused:
            node.start()
        assert "trust rotate" in refused.value.hint
        assert cluster.routes.host.everything() == {}
        node.stop()
        node.close()
    assert tree(site.root) == before


def test_application_of_a_revoked_node_begins_with_no_shard(site: Site) -> None:
    with site.open() as cluster, cluster.session("begun before") as session:
        revoke_node(site.registers, site.root_key, "node1", cluster.time.now().midpoint - SECOND)
        before = tree(site.root)
        with pytest.raises(NotTrusted, match="revoked"):
            session.acquire("a")
        assert cluster.routes.host.everything() == {}
        assert tree(site.root) == before


def test_status_says_whether_the_keys_of_this_node_count(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    main(["status", *site.options()])
    assert "PASS    keys         those of node1 count" in capsys.readouterr().out
    revoke_node(site.registers, site.root_key, "node1", SystemClock().realtime_ns() - SECOND)
    assert main(["status", *site.options()]) == 1
    said = capsys.readouterr().out
    assert "FAIL    keys" in said
    assert "trust rotate" in said
