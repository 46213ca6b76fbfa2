"""A node whose keys are revoked stops to sign: sessions and the daemon say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from appliance.node import Node
from appliance.trust import revoke_node
from tests.support.cluster import Site, sites
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
