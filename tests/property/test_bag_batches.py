"""Columns and objects say the same; a cursor goes on exactly after what was delivered, wherever a reading was cut."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from appliance.bag.message import START, Message, MessageBatch, Position, before, cursor_text, merged, parse_cursor
from appliance.bag.reader import Level
from tests.support.bags import LOG, T0, Node
from tests.support.readings import FLUSHES, SECONDS, Flush, Row, fill, fresh_node, seal_all
from tests.support.shares import examples
from timeagent.units import SECOND


def row(message: Message) -> Row:
    origin = message.origin.frame.head
    place = (message.timestamp_ns, origin.writer, origin.incarnation, origin.sequence, message.index)
    return (*place, message.payload)


def columns(batch: MessageBatch) -> list[Row]:
    heads = [batch.parts[number].origin.frame.head for number in batch.parts_of.tolist()]
    zipped = zip(batch.timestamps.tolist(), heads, batch.indices.tolist(), batch.payloads(), strict=True)
    return [(at, head.writer, head.incarnation, head.sequence, n, payload) for at, head, n, payload in zipped]


@examples(60)
@given(FLUSHES, st.integers(0, SECONDS), st.sampled_from(Level))
def test_columns_and_messages_of_batches_are_the_sorted_list(
    flushes: list[Flush], settled_to: int, level: Level
) -> None:
    node = fresh_node()
    model = fill(node, flushes)
    horizon = node.horizon.settle(T0 + settled_to * SECOND)
    batches = list(node.again().reader.batches(level=level, as_of_ns=horizon))
    expected = [each for each in model if each[0] < horizon or level is Level.LATEST]
    assert [each for batch in batches for each in columns(batch)] == expected
    assert [row(message) for batch in batches for message in batch] == expected
    assert all(batch.last == list(batch)[-1].position for batch in batches)
    assert [len(batch) for batch in batches] == [len(list(batch)) for batch in batches]
    assert all(batch.settled for batch in batches if batch.timestamps[-1] < horizon)


# Large batches sort arrays, small ones tuples: both ways have to be taken, on the same messages.
@examples(30)
@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=30, unique=True).map(sorted), min_size=1, max_size=9))
def test_small_and_large_batches_are_sorted_alike(frames: list[list[int]]) -> None:
    node = fresh_node()
    fill(node, [(0, f"n{len(offsets) % 3}", b"a" * 8, offsets) for offsets in frames])
    node.horizon.settle(T0 + SECOND)
    (batch,) = node.again().reader.batches()
    assert [row(message) for message in batch] == [row(message) for message in batch._few()] == columns(batch)
    assert [row(message) for message in batch] == sorted(columns(batch))


@examples(60)
@given(FLUSHES, st.integers(0, SECONDS), st.lists(st.integers(1, 5), min_size=1), st.sampled_from(["closed", "sealed"]))
def test_cursor_resumes_exactly_wherever_the_reading_was_cut(
    flushes: list[Flush], settled_to: int, sizes: list[int], state: str
) -> None:
    node = fresh_node()
    fill(node, flushes)
    node.horizon.settle(T0 + settled_to * SECOND)
    if state == "sealed":
        seal_all(node)
    expected = [row(message) for message in node.again().reader.settled()]
    found: list[Row] = []
    cursor = cursor_text(LOG, START)
    for size in itertools.chain(sizes, itertools.repeat(3)):
        taken = delivered(node, parse_cursor(cursor, LOG), size)
        if not taken:
            break
        found += map(row, taken)
        cursor = cursor_text(LOG, taken[-1].position)
    assert found == expected


def delivered(node: Node, after: Position, size: int) -> list[Message]:
    """Return the next messages of a reading that begins anew, as a command with a limit does."""
    taken: list[Message] = []
    for batch in node.again().reader.batches(after):
        taken += batch.head(size - len(taken))
        if len(taken) == size:
            break
    return taken


@examples(40)
@given(FLUSHES, st.integers(0, SECONDS), st.integers(0, SECONDS), st.integers(0, 4))
def test_position_of_a_reading_is_never_above_the_horizon_and_misses_nothing(
    flushes: list[Flush], first: int, second: int, batches: int
) -> None:
    node = fresh_node()
    model = fill(node, flushes)
    node.horizon.settle(T0 + first * SECOND)
    for level in (Level.SETTLED, Level.LATEST):
        reading = node.again().reader.batches(level=level)
        taken = [each for batch in itertools.islice(reading, batches) if batch.settled for each in columns(batch)]
        assert reading.position <= before(reading.horizon_ns)
        horizon = node.horizon.settle(T0 + second * SECOND)
        rest = [row(message) for batch in node.again().reader.batches(reading.position) for message in batch]
        assert taken + rest == [each for each in model if each[0] < horizon]


@examples(60)
@given(FLUSHES, st.integers(0, SECONDS), st.integers(0, SECONDS))
def test_stale_answer_is_the_beginning_of_the_settled_one_and_the_latest_holds_it(
    flushes: list[Flush], known: int, settled_to: int
) -> None:
    node = fresh_node()
    fill(node, flushes)
    node.horizon.settle(T0 + known * SECOND)
    stale = node.again()
    stale.horizon.refresh()
    node.horizon.settle(T0 + settled_to * SECOND)
    old = [row(m) for batch in stale.reader.batches(level=Level.STALE_OK) for m in batch]
    settled = [row(m) for m in node.again().reader.settled()]
    latest = [row(m) for m in node.again().reader.latest()]
    assert old == settled[: len(old)]
    assert settled == latest[: len(settled)]
    assert latest == sorted(latest)


@examples(40)
@given(FLUSHES, st.integers(0, 26 * 4))
def test_split_and_merged_are_inverse(flushes: list[Flush], quarter: int) -> None:
    node = fresh_node()
    fill(node, flushes)
    for batch in node.reader.batches(level=Level.LATEST):
        below, above = batch.split(T0 + quarter * SECOND // 4)
        assert columns(below) + columns(above) == columns(batch) == columns(merged([above, below]))
