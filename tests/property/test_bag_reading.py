"""Whatever was written where, readers give the accepted messages in one order, closed or open, sealed or not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.bags import T0
from tests.support.readings import FLUSHES, Flush, fill, fresh_node, seal_all
from tests.support.shares import examples
from timeagent.units import SECOND


@examples(60)
@given(FLUSHES, st.integers(0, 26), st.integers(0, 26), st.integers(0, 26))
def test_reading_equals_a_sorted_list(flushes: list[Flush], settled_to: int, after: int, until: int) -> None:
    node = fresh_node()
    model = fill(node, flushes)
    horizon = node.horizon.settle(T0 + settled_to * SECOND)
    expected = [row[-1] for row in model]
    assert node.again().settled() == [row[-1] for row in model if row[0] < horizon]
    assert node.again().latest() == expected

    seal_all(node)
    between = node.again().reader.settled(T0 + after * SECOND, T0 + until * SECOND)
    assert [m.payload for m in between] == [
        row[-1] for row in model if T0 + after * SECOND < row[0] <= T0 + until * SECOND
    ]
    assert node.again().settled() == expected
