"""The clocks of nodes: asked, carried to one instant, compared, drawn on one axis."""

from dataclasses import replace
from typing import Any, cast

import pytest
from textual.pilot import Pilot

import tui.model.clocks
import tui.sources.live
from appliance.cluster import Cluster
from appliance.doctor.health import CheckVerdict, not_well, worst
from appliance.lease.wire import ClockTold
from appliance.node.routes import TimeThere
from tests.support.machine import HandMachine
from tests.support.mutants import plant
from tests.support.screens import (
    NOW_NS,
    HandFeed,
    RecordedSource,
    busy_state,
    node_clock,
    signed_clock,
    silent_clock,
    state,
)
from tests.support.shares import sampled
from tests.tui.piloting import drive, press, seen
from timeagent.errors import ShardUnavailable
from timeagent.units import HOUR, MS, SECOND, TimeInterval
from tui.model.clocks import Agreement, ClockRows, agreement_words
from tui.model.overview import health
from tui.model.state import NodeClock, Reach, ViewKind
from tui.sources.live import CLOCK_PERIOD_NS, NodeClocks, told_clock

BOOT_NS = 1_000 * SECOND


def agreement(clocks: tuple[NodeClock, ...]) -> Agreement:
    return tui.model.clocks.agreement(clocks)


def there(
    midpoint: int = NOW_NS, radius: int = MS, asked: int = BOOT_NS, trip: int = 0, problem: str = ""
) -> TimeThere:
    """What a node says of which the clock is right, asked when this machine has run for 1000 s."""
    if problem:
        return TimeThere(ClockTold(node="node1", problem=problem), asked, asked + trip)
    told = ClockTold(node="node1", earliest_ns=midpoint - radius, latest_ns=midpoint + radius)
    return TimeThere(told, asked, asked + trip)


# -- readings ----------------------------------------------------------------------------------------------------------


def test_slow_round_trip_widens_and_never_moves_the_truth_outside() -> None:
    quick, slow = told_clock(there()), told_clock(there(trip=40 * MS))
    truth = NOW_NS - BOOT_NS
    assert quick.ahead == TimeInterval.around(truth, MS)
    assert slow.ahead == TimeInterval(truth - MS - 40 * MS, truth + MS)  # it looked as the question was sent
    assert (slow.radius_ns, slow.trip_ns) == (MS, 40 * MS)
    looked_last = told_clock(there(midpoint=NOW_NS + 40 * MS, trip=40 * MS)).ahead
    assert looked_last is not None
    assert looked_last.earliest <= truth <= looked_last.latest


def test_node_without_a_bound_has_no_interval_and_says_why() -> None:
    reading = told_clock(there(problem="no source has a bound"))
    assert (reading.ahead, reading.radius_ns, reading.problem) == (None, None, "no source has a bound")


class OneShard:
    """A cluster of which a node's shard answers what it is told to."""

    def __init__(self, *answers: TimeThere | ShardUnavailable) -> None:
        self.answers = list(answers)
        self.asked = 0

    def clock_of(self, shard: int, node: str) -> TimeThere:
        assert (shard, node) == (0, "node1")
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, ShardUnavailable):
            raise answer
        return answer


def asked_of(cluster: OneShard, machine: HandMachine, run: list[bytes] | None = None) -> NodeClocks:
    clocks = NodeClocks(machine)
    runs = run or [bytes(8)]
    clocks.question("node1", cast("Cluster", cluster), lambda: (0, runs[0])).put()
    return clocks


def told(clocks: NodeClocks) -> NodeClock:
    (clock,) = clocks.told(["node1"], {}, TimeInterval.around(NOW_NS, MS))
    return clock


def test_answer_is_carried_to_now_and_ages() -> None:
    machine = HandMachine()
    clocks = asked_of(OneShard(there(asked=machine.boot_ns())), machine)
    at_once = told(clocks)
    machine.sleep(10 * SECOND)
    later = told(clocks)
    assert at_once.ahead is not None
    assert later.ahead == at_once.ahead.widened(2 * MS)  # 200 ppm of 10 s
    assert (later.age_ns, later.radius_ns) == (10 * SECOND, MS)
    assert later.midpoint_ns is not None
    assert at_once.midpoint_ns is not None
    assert later.midpoint_ns - at_once.midpoint_ns == 10 * SECOND


def test_node_that_does_not_answer_has_no_interval() -> None:
    machine = HandMachine()
    gone = ShardUnavailable("no-answer", "connection refused")
    cluster = OneShard(there(asked=machine.boot_ns()), gone)
    clocks = asked_of(cluster, machine)
    machine.sleep(CLOCK_PERIOD_NS)
    clocks._questions["node1"].put()
    clock = told(clocks)
    assert (clock.reach, clock.ahead, clock.midpoint_ns, clock.radius_ns) == (Reach.SILENT, None, None, None)
    assert clock.problem == "connection refused"
    assert clock.silent_ns == CLOCK_PERIOD_NS


def test_release_that_does_not_know_the_question_is_asked_once_in_each_of_its_runs() -> None:
    machine = HandMachine()
    unknown = ShardUnavailable("call-damaged", "a call is no list of requests")
    cluster = OneShard(unknown, there(asked=machine.boot_ns()))
    run = [b"first..."]
    clocks = asked_of(cluster, machine, run)
    for _ in range(3):
        clocks._questions["node1"].put()
    assert cluster.asked == 1
    assert told(clocks).problem == "its release does not tell what time it is there"
    run[0] = b"second.."
    clocks._questions["node1"].put()
    assert cluster.asked == 2
    assert told(clocks).ahead is not None


# -- agreement ---------------------------------------------------------------------------------------------------------

TRIO = (node_clock("node1"), node_clock("node2", offset_ns=200_000), node_clock("node3", offset_ns=-100_000))
HOUR_FAST = node_clock("node3", offset_ns=HOUR)


def test_interval_of_all_is_what_all_hold_and_no_average() -> None:
    found = agreement(TRIO)
    one, two, three = (clock.ahead for clock in TRIO)
    assert one is not None
    assert two is not None
    assert three is not None
    assert found.common == TimeInterval(two.earliest, three.latest)
    assert (found.outside, found.good) == ((), True)
    assert agreement_words(found) == "all 3 clocks have ±630 us in common"


def test_node_one_hour_fast_is_outside_and_named() -> None:
    found = agreement((*TRIO[:2], HOUR_FAST))
    assert [each.node for each in found.outside] == ["node3"]
    assert found.common is not None
    assert found.common == agreement(TRIO[:2]).common
    assert HOUR_FAST.ahead is not None
    assert found.outside[0].by_ns == HOUR_FAST.ahead.earliest - found.common.latest
    text = agreement_words(found)
    assert text.startswith("node3 is 59.9")
    assert "ahead of all that 2 of 3 clocks have in common: its bound is broken, or theirs are" in text
    slow = agreement((*TRIO[:2], node_clock("node3", offset_ns=-HOUR)))
    assert "behind all that 2 of 3" in agreement_words(slow)


def test_two_that_contradict_each_other_are_both_named_and_none_is_blamed() -> None:
    found = agreement((TRIO[0], HOUR_FAST))
    assert (found.common, found.outside, found.good) == (None, (), False)
    assert agreement_words(found).startswith("node1 and node3 have no instant in common")


def test_half_of_the_clocks_are_no_majority() -> None:
    early, late = TRIO[:2], (HOUR_FAST, node_clock("node4", offset_ns=HOUR))
    found = agreement((*early, *late))
    assert found.common is None
    assert agreement_words(found).startswith("no majority of 4 clocks has an instant in common")


def test_clock_of_which_nothing_is_known_is_counted_as_that() -> None:
    found = agreement((*TRIO, silent_clock("node4")))
    assert (found.compared, found.not_known) == (("node1", "node2", "node3"), 1)
    assert agreement_words(found).endswith("of 1 more nothing is known")
    assert agreement_words(agreement((silent_clock(),))) == ""
    assert agreement((silent_clock(),)).good
    assert agreement_words(agreement(TRIO[:1])).startswith("only node1 says")


def test_clock_outside_the_others_is_not_healthy() -> None:
    good, bad = health(state(clocks=TRIO)), health(state(clocks=(*TRIO[:2], HOUR_FAST)))
    assert worst(good) is CheckVerdict.PASS
    assert worst(bad) is CheckVerdict.FAIL
    assert "node3 is 59.9" in not_well(bad)[0].reason


# -- rows --------------------------------------------------------------------------------------------------------------

WIDTH = 41


def cells(rows: ClockRows, index: int) -> list[str]:
    return [cast("Any", field).text for field in rows.row(index, WIDTH)]


def test_bars_stand_where_their_clocks_are() -> None:
    rows = ClockRows(state(clocks=TRIO))
    bars = [cells(rows, index)[3] for index in range(4)]
    assert bars[2].index("├") < bars[0].index("├") < bars[1].index("├") == bars[3].index("█")
    assert bars[2].index("┤") == bars[3].rindex("█")
    assert [cells(rows, index)[4] for index in range(3)] == ["-50 us", "+150 us", "-150 us"]


def test_clock_far_outside_leaves_the_others_to_be_seen() -> None:
    rows = ClockRows(state(clocks=(*TRIO[:2], HOUR_FAST)))
    symbol, name, _, bar, offset, *_, remark = cells(rows, 2)
    assert (symbol, name, remark) == ("✗", "node3", "outside the others")
    assert bar.endswith("▸")
    assert offset.startswith(("+59.9", "+1 h"))
    assert cells(rows, 0)[3].count("━") > 10


def test_no_answer_is_no_interval_at_zero() -> None:
    unheard = (
        silent_clock("node2"),
        replace(node_clock("node3"), ahead=None, midpoint_ns=None, radius_ns=None, problem="no source has a bound"),
        replace(silent_clock("node4"), reach=Reach.WAITING, silent_ns=None),
    )
    rows = ClockRows(state(clocks=(TRIO[0], *unheard)))
    for index in (1, 2, 3):
        symbol, _, status, bar, offset, radius, said, remark = cells(rows, index)
        assert (bar, offset, radius, said) == ("", "?", "?", "-")
        assert status != "synchronized"
        assert remark
        assert symbol in "✗…"
    assert cells(rows, 1)[-1] == "no answer for 3.2 s; last signed 14.0 s ago"
    assert cells(rows, 2)[-1] == "no bound: no source has a bound"


def test_filter_narrows_what_is_shown_and_not_what_is_compared() -> None:
    rows = ClockRows(state(clocks=(*TRIO[:2], HOUR_FAST)), "node3")
    assert (rows.shown, rows.name(0)) == (1, "node3")
    assert cells(rows, 0)[0] == "✗"
    assert len(rows.agreed.compared) == 3


def test_filter_takes_clocks_out_as_it_takes_rows_of_other_screens() -> None:
    rows = ClockRows(state(clocks=(*TRIO[:2], HOUR_FAST)), "!node3")
    assert [rows.name(index) for index in range(rows.shown)] == ["node1", "node2"]


def test_node_whose_shards_have_moved_away_is_not_said_to_be_silent() -> None:
    clocks = NodeClocks(HandMachine())
    clocks.question("node1", cast("Cluster", OneShard()), lambda: None).put()
    assert (told(clocks).reach, told(clocks).problem) == (Reach.NOT_ASKED, "runs no shard that could be asked")


def test_of_a_copy_widths_are_drawn_and_nothing_is_compared() -> None:
    narrow, wide = signed_clock("node1", MS), signed_clock("node2", 4 * MS)
    rows = ClockRows(state(clocks=(narrow, wide), view=ViewKind.OFFLINE))
    assert (len(rows), rows.agreed.compared) == (2, ())
    bars = [cells(rows, index)[3] for index in range(2)]
    assert all(abs(bar.index("├") + bar.index("┤") - (WIDTH - 1)) <= 1 for bar in bars)
    assert bars[1].count("━") > 3 * bars[0].count("━") > 0


# -- the screen --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", sampled([(80, 24), (120, 36), (200, 60)], 3))
def test_liar_is_named_at_every_size(size: tuple[int, int]) -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        text = await press(pilot, "4")
        assert "✗ node3" in text
        assert "node3 is 59.9" in text
        assert "in common" in text

    drive(course, state(clocks=(*TRIO[:2], HOUR_FAST)), size=size)


def test_row_of_what_all_share_can_be_stood_on_and_leads_nowhere() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "4", "G")
        assert "▸  in common" in seen(pilot)
        assert "4 Time" in await press(pilot, "enter")
        assert "about" not in seen(pilot)

    drive(course, busy_state())


def test_offset_has_a_history() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "4")
        for step in range(1, 4):
            clock = replace(node_clock("node1", offset_ns=step * 50_000), read_ns=step)
            feed.source = RecordedSource(state(clocks=(clock, node_clock("node2"))))
            feed.hand_over()
            feed.hand_over()
            await pilot.pause()
        text = seen(pilot)
        assert "offset of node1, last 4 readings" in text
        assert "to +75 us" in text

    drive(course, state(clocks=(node_clock("node1"), node_clock("node2"))))


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_round_trip_that_is_forgotten_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = property(lambda self: TimeInterval(*(each - self.answered_ns for each in _ends(self))))
    monkeypatch.setattr(TimeThere, "ahead", narrow)
    with pytest.raises(AssertionError):
        test_slow_round_trip_widens_and_never_moves_the_truth_outside()


def _ends(told: TimeThere) -> tuple[int, int]:
    assert told.told.earliest_ns is not None
    assert told.told.latest_ns is not None
    return told.told.earliest_ns, told.told.latest_ns


def test_silence_shown_as_the_last_answer_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = "said is None or freshness.reach is not Reach.ANSWERS"
    plant(monkeypatch, tui.sources.live, "NodeClocks.told", silent, "said is None")
    with pytest.raises(AssertionError):
        test_node_that_does_not_answer_has_no_interval()


def test_answer_that_does_not_age_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.sources.live, "NodeClocks._by_now", "drift_ns(age, DRIFT_PPM)", "0")
    with pytest.raises(AssertionError):
        test_answer_is_carried_to_now_and_ages()


def test_liar_that_is_let_in_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        monkeypatch,
        tui.model.clocks,
        "agreement",
        "ahead.earliest > common.latest or (by := (ahead.latest - common.earliest)) < 0",
        "(by := (ahead.latest - common.earliest)) < 0",
    )
    with pytest.raises(AssertionError):
        test_node_one_hour_fast_is_outside_and_named()


def test_half_taken_for_a_majority_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tui.model.clocks, "tolerated", lambda voices, _liars: voices // 2)
    with pytest.raises(AssertionError):
        test_half_of_the_clocks_are_no_majority()


def test_comparison_of_the_rows_that_are_shown_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    init = "agreement(state.clocks if self.asked else ())"
    narrowed = "agreement([c for c in state.clocks if words in c.node] if self.asked else ())"
    plant(monkeypatch, tui.model.clocks, "ClockRows.__init__", init, narrowed)
    with pytest.raises(AssertionError):
        test_filter_narrows_what_is_shown_and_not_what_is_compared()
