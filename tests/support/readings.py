"""Random logs for tests of reading, and what has to come out, as a sorted list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from appliance.bag.writing import Committed
from appliance.formats.closed import PACK, PackMaker
from appliance.formats.paths import SEAL
from tests.support.bags import POLICY, T0, Node
from tests.support.storage import MemoryStorage
from timeagent.units import MINUTE, MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from appliance.formats.paths import Rack
    from timeagent.units import Instant

type Flush = tuple[int, str, bytes, list[int]]
type Row = tuple[Instant, str, bytes, int, int, bytes]
"""Timestamp, writer, incarnation, sequence, index, payload: as a tuple they sort as messages do."""

SECONDS = 26

FLUSH: st.SearchStrategy[Flush] = st.tuples(
    st.integers(0, SECONDS - 1),  # second in which it is written
    st.sampled_from(["n1", "n2"]),
    st.sampled_from([b"a" * 8, b"b" * 8]),
    st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True).map(sorted),  # offsets: many are equal
)
FLUSHES = st.lists(FLUSH, max_size=12)


def fresh_node() -> Node:
    """Return a node on a server of its own, whose clock goes with the node's."""
    server = MemoryStorage()
    node = Node(server)
    server.server_clock_ns = lambda: node.time.midpoint_ns
    return node


def fill(node: Node, flushes: Sequence[Flush]) -> list[Row]:
    """Write the flushes, each in its second; return the messages in order. Leaves the time after the last second."""
    rows: list[Row] = []
    for sequence, (second, writer, incarnation, offsets) in enumerate(flushes, 1):
        node.time.midpoint_ns = T0 + second * SECOND + 500 * MS
        stamps = [node.time.midpoint_ns + offset for offset in offsets]
        payloads = [b"%d/%d" % (sequence, offset) for offset in offsets]
        file = node.file(
            *payloads,
            sequence=sequence,
            writer=writer,
            incarnation=incarnation,
            timestamps=stamps,
            log=node.grid.birth.log,
        )
        assert node.writer.write(file) == Committed()
        pairs = zip(stamps, payloads, strict=True)
        rows += [(at, writer, incarnation, sequence, n, payload) for n, (at, payload) in enumerate(pairs)]
    node.time.midpoint_ns = T0 + SECONDS * SECOND
    return sorted(rows)


def seal_all(node: Node) -> None:
    """Seal every rack that was written to."""
    node.time.advance(MINUTE)
    node.sealer.seal(node.grid.rack(T0 + 2 * POLICY.rack_ns))


def pack_rack(node: Node, rack: Rack, *, delete: bool = True) -> None:
    """Put a pack beside the seal of a rack, and take the directories of its bags away."""
    server = node.context.storage
    assert isinstance(server, MemoryStorage)
    where = f"{rack.path}/{SEAL}"
    maker = PackMaker(server.files[where], where)
    data = [server.files[f"{rack.path}/{each.bag}/{each.entry.name}"][: each.entry.size] for each in maker.listed]
    for each in data:
        maker.add(each)
    server.files[f"{rack.path}/{PACK}"] = maker.head + b"".join(data) + maker.tail()
    if delete:
        delete_bags(node, rack)


def delete_bags(node: Node, rack: Rack) -> None:
    """Take the directories of a rack's bags away."""
    server = node.context.storage
    assert isinstance(server, MemoryStorage)
    for bag in node.grid.bags(rack):
        server.remove_tree(bag.path)
