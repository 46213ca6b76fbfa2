"""A node whose keys are revoked stops to sign: sessions, bags and the daemon say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from appliance.node import Node
from appliance.trust import revoke_node
from tests.support.bags import KEYS, TIME_KEY, FixedRecords, key
from tests.support.bags import Node as BagNode
from tests.support.cluster import Site, sites
from tests.support.storage import MemoryStorage
from timeagent.errors import NotTrusted
from timeagent.trust import Keyring, Purpose
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
            revoke_node(site.registers, site.root_key, "node1", cluster.time.now().midpoint)
            with pytest.raises(NotTrusted, match="revoked"):
                cluster.session("late")
            with pytest.raises(NotTrusted, match="revoked"):
                node.run(Event())
        finally:
            node.stop()
            node.close()


@pytest.mark.parametrize("ahead", [0, 60 * SECOND])
def test_revoked_node_closes_no_bag_from_that_instant_on(ahead: int) -> None:
    node = BagNode(MemoryStorage())
    bag = node.grid.bag(node.time.midpoint_ns)
    node.time.advance(10 * SECOND)
    revoked = key(TIME_KEY, Purpose.TIME, revoked_from_ns=node.time.midpoint_ns + ahead)
    records = FixedRecords(keyrings={1: Keyring((revoked, *KEYS[1:]))})
    late = BagNode(node.context.storage, time=node.time, records=records, grid=node.grid)
    if ahead:
        late.closer.close(bag)
        assert late.closer.read(bag) is not None
    else:
        with pytest.raises(NotTrusted, match="may not close"):
            late.closer.close(bag)
        assert late.closer.read(bag) is None
        node.closer.close(bag)
        assert late.closer.read(bag) is not None, "another node finishes what was begun"
