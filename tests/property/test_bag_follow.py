"""Who follows a log gets, in the end, what who reads it then gets; in order, each message once, wherever it began."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.bag.message import START, Message
from appliance.bag.reader import Follower, Level
from appliance.bag.writing import Committed
from tests.support.bags import T0
from tests.support.readings import fresh_node
from tests.support.shares import examples
from timeagent.errors import TryAgain
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from appliance.bag.message import Position
    from timeagent.units import Instant, Span

LOOKS = 12

STEP = st.tuples(
    st.lists(st.integers(0, 40), max_size=3),  # quarters of a second, in which somebody flushes
    st.integers(0, 40),  # to which quarter the log is settled, if it is that late yet
)


class Enough(Exception):
    """The follower has looked often enough."""


class LiveLog:
    """Each time that a follower waits, others write and close. ``wait`` is what it waits by."""

    def __init__(self, steps: list[tuple[list[int], int]]) -> None:
        self.node = fresh_node()
        self._steps = iter(steps)
        self._sequence = itertools.count(1)

    def wait(self, span: Span, horizon_ns: Instant) -> None:
        assert span > 0
        assert horizon_ns >= T0
        for quarters, settled_to in self._steps:
            for quarter in quarters:
                self._write(quarter)
            self.node.time.midpoint_ns = T0 + 60 * SECOND
            self.node.horizon.settle(T0 + settled_to * SECOND // 4)
            return
        raise Enough

    def _write(self, quarter: int) -> None:
        """Write what is late too: in a bag that is closed it does not come into being."""
        sequence = next(self._sequence)
        self.node.time.midpoint_ns = T0 + quarter * SECOND // 4
        file = self.node.file(b"%d" % sequence, b"-", sequence=sequence, writer=f"n{sequence % 3}")
        outcome = self.node.writer.write(file)
        assert isinstance(outcome, Committed) is not (self.node.horizon.reached > self.node.time.midpoint_ns)


def followed(log: LiveLog, after: Position = START, level: Level = Level.SETTLED) -> tuple[list[Message], Follower]:
    follower = Follower(log.node.again().reader, log.wait, after, level=level)
    found: list[Message] = []
    try:
        for batch in follower.batches():
            found += batch
    except Enough:
        return found, follower
    raise AssertionError


@examples(60)
@given(st.lists(STEP, max_size=LOOKS))
def test_follower_of_a_live_log_has_what_a_reader_has_at_the_end(steps: list[tuple[list[int], int]]) -> None:
    log = LiveLog(steps)
    found, follower = followed(log)
    assert found == list(log.node.again().reader.settled())
    assert follower.overtaken == 0


@settings(max_examples=60)
@given(st.lists(STEP, max_size=LOOKS))
def test_latest_way_never_repeats_never_goes_back_and_counts_what_it_left_out(
    steps: list[tuple[list[int], int]],
) -> None:
    log = LiveLog(steps)
    found, follower = followed(log, level=Level.LATEST)
    positions = [message.position for message in found]
    assert positions == sorted(set(positions))
    settled = list(log.node.again().reader.settled())
    assert set(found) <= set(log.node.again().reader.latest())
    assert follower.overtaken == len(set(settled) - set(found))


# Stopped anywhere and begun again from its position, by another process: nothing twice, nothing lost.
@examples(60)
@given(st.lists(STEP, max_size=LOOKS), st.lists(st.integers(1, 3), min_size=1, max_size=LOOKS))
def test_follower_that_begins_again_goes_on_exactly(steps: list[tuple[list[int], int]], turns: list[int]) -> None:
    log = LiveLog(steps)
    found: list[Message] = []
    position = START
    for batches in itertools.chain(turns, itertools.repeat(LOOKS)):
        follower = Follower(log.node.again().reader, log.wait, position)
        try:
            for batch in itertools.islice(follower.batches(), batches):
                found += batch
        except Enough:
            break
        position = follower.position
    assert found == list(log.node.again().reader.settled())


def test_follower_survives_what_can_be_tried_again() -> None:
    node = fresh_node()
    node.writer.write(node.file(b"m"))
    node.time.advance(10 * SECOND)
    tries = iter([TryAgain("planted", "not now"), TryAgain("planted", "not now"), None])

    def help_closing() -> None:
        problem = next(tries)
        if problem is not None:
            raise problem
        node.horizon.settle(T0 + SECOND)

    follower = Follower(node.again().reader, lambda _span, _horizon: None, help_closing=help_closing, poll_ns=MS)
    assert [message.payload for message in next(follower.batches())] == [b"m"]
