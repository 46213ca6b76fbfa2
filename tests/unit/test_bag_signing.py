"""A node whose key is refused by now signs nothing that stays: no birth, no list, no seal. Others do, in its place."""

from __future__ import annotations

import pytest

from appliance.bag.closing import Closed
from appliance.bag.logs import create_log, open_log
from appliance.bag.writing import Committed, NotCommitted, Unknown
from appliance.formats.birth import BagKind
from appliance.formats.closed import RackSeal
from appliance.formats.paths import LOCK, SEAL
from tests.support.bags import POLICY, SHARD_KEY, STRANGER, T0, TIME_KEY, Node, key
from tests.support.clocks import HandTime
from tests.support.storage import MemoryStorage
from timeagent.errors import NotTrusted
from timeagent.keys import Purpose
from timeagent.trust import Keyring
from timeagent.units import SECOND


@pytest.fixture(params=list(BagKind))
def revoked(request: pytest.FixtureRequest) -> Node:
    """A node that wrote one message, and was revoked then."""
    node = Node(MemoryStorage(), kind=request.param)
    assert node.writer.write(node.file(b"a")) == Committed()
    instant = node.time.midpoint_ns + 1
    node.records.keyrings[2] = Keyring(
        [
            key(TIME_KEY, Purpose.TIME, revoked_from_ns=instant),
            key(STRANGER, Purpose.TIME, "n2"),
            key(SHARD_KEY, Purpose.WITNESS),
        ]
    )
    return node


def other_than(node: Node) -> Node:
    """A node that is trusted, at the same time."""
    return Node(node.context.storage, "n2", HandTime(STRANGER, node.time.midpoint_ns), node.records, node.grid)


def test_revoked_node_makes_no_log(revoked: Node) -> None:
    revoked.time.advance(SECOND)
    with pytest.raises(NotTrusted, match="revoked"):
        create_log(revoked.context, "more")
    assert open_log(revoked.context, "more") is None
    assert create_log(other_than(revoked).context, "more").created_by == "n2"


def test_revoked_node_closes_no_bag_and_another_does(revoked: Node) -> None:
    bag = revoked.grid.bag(T0)
    revoked.time.advance(4 * SECOND)
    with pytest.raises(NotTrusted, match="revoked"):
        revoked.closer.close(bag)
    assert revoked.context.storage.read(f"{bag.path}/{LOCK}") is None
    assert isinstance(other_than(revoked).closer.close(bag), Closed)
    closed = revoked.closer.close(bag)
    assert isinstance(closed, Closed)
    assert closed.lock.closer == "n2"
    assert revoked.again().settled() == [b"a"]


def test_revoked_node_seals_no_rack_and_another_does(revoked: Node) -> None:
    rack = revoked.grid.rack(T0)
    revoked.time.advance(POLICY.rack_ns + POLICY.seal_delay_ns + SECOND)
    assert isinstance(other_than(revoked).closer.close(revoked.grid.bag(T0)), Closed)
    with pytest.raises(NotTrusted, match="revoked"):
        revoked.sealer.seal(rack)
    assert revoked.context.storage.read(f"{rack.path}/{SEAL}") is None
    seal = other_than(revoked).sealer.seal(rack)
    assert isinstance(seal, RackSeal)
    assert revoked.again().sealer.seal(rack) == seal


def test_writer_that_would_have_to_close_is_told_unknown_until_another_has(revoked: Node) -> None:
    file = revoked.file(b"late", sequence=2)
    revoked.context.storage.ensure_marker(f"{file.bag.path}/prelock")
    revoked.time.advance(4 * SECOND)
    outcome = revoked.writer.write(file)
    assert isinstance(outcome, Unknown)
    assert "revoked" in outcome.reason
    assert isinstance(other_than(revoked).closer.close(file.bag), Closed)
    assert isinstance(revoked.writer.write(file), Committed | NotCommitted)
