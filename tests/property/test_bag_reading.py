"""Whatever was written where, readers give the accepted messages in one order, closed or open, sealed or not."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.bag.outcome import Committed
from tests.support.bags import POLICY, T0, Node
from tests.support.storage import MemoryStorage
from timeagent.units import MINUTE, MS, SECOND

BATCH = st.tuples(
    st.integers(0, 25),  # second in which it is written
    st.sampled_from(["n1", "n2"]),
    st.sampled_from([b"a" * 8, b"b" * 8]),
    st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True).map(sorted),  # offsets: many are equal
)


@settings(max_examples=60)
@given(st.lists(BATCH, max_size=12), st.integers(0, 26), st.integers(0, 26), st.integers(0, 26))
def test_reading_equals_a_sorted_list(
    batches: list[tuple[int, str, bytes, list[int]]], settled_to: int, after: int, until: int
) -> None:
    server = MemoryStorage()
    node = Node(server)
    server.server_clock_ns = lambda: node.time.midpoint_ns
    model: list[tuple[int, str, bytes, int, int, bytes]] = []
    for sequence, (second, writer, incarnation, offsets) in enumerate(batches, 1):
        node.time.midpoint_ns = T0 + second * SECOND + 500 * MS
        stamps = [node.time.midpoint_ns + offset for offset in offsets]
        payloads = [b"%d/%d" % (sequence, offset) for offset in offsets]
        file = node.file(*payloads, sequence=sequence, writer=writer, incarnation=incarnation, timestamps=stamps)
        assert node.writer.write(file) == Committed()
        rows = zip(stamps, payloads, strict=True)
        model += [(at, writer, incarnation, sequence, n, payload) for n, (at, payload) in enumerate(rows)]
    model.sort()

    node.time.midpoint_ns = T0 + 26 * SECOND
    horizon = node.horizon.settle(T0 + settled_to * SECOND)
    expected = [row[-1] for row in model]
    assert node.again().settled() == [row[-1] for row in model if row[0] < horizon]
    assert node.again().latest() == expected

    node.time.advance(MINUTE)
    node.sealer.seal(node.grid.rack(T0 + 2 * POLICY.rack_ns))
    between = node.again().reader.settled(T0 + after * SECOND, T0 + until * SECOND)
    assert [m.payload for m in between] == [
        row[-1] for row in model if T0 + after * SECOND < row[0] <= T0 + until * SECOND
    ]
    assert node.again().settled() == expected
