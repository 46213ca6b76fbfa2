"""The agent over a hand-driven machine: what it says after what happened to its clocks and sources."""

import json
from typing import Any

import pytest

from tests.support.machine import START_NS, HandMachine, StatedSource
from tests.support.timeagent import KEY, HandAgent, own
from timeagent.agent.bounded_clock import PERIOD_NS, STEP_NS
from timeagent.agent.discipline import DISRUPTED_NS, FRESH_NS, STALL_NS, SUSPEND_NS, Listed, Weight
from timeagent.errors import BadTime
from timeagent.signedtime import ClockStatus, SignedTime, TimeFlags
from timeagent.sources.local import AssumedSource
from timeagent.units import HOUR, MS, SECOND, TimeInterval

RADIUS = 5 * MS


@pytest.fixture
def machine() -> HandMachine:
    return HandMachine()


@pytest.fixture
def source(machine: HandMachine) -> StatedSource:
    return StatedSource(machine, RADIUS)


@pytest.fixture
def hand(machine: HandMachine, source: StatedSource) -> HandAgent:
    return HandAgent(machine, own(source))


def code_of(hand: HandAgent) -> str:
    with pytest.raises(BadTime) as refused:
        hand.agent.sign_over(bytes(32))
    return refused.value.code


def status_of(hand: HandAgent) -> ClockStatus:
    return hand.page.last.status


def around(hand: HandAgent) -> bool:
    said = hand.said()
    return said.earliest <= hand.machine.real <= said.latest


def test_nothing_is_said_before_a_source_is_heard(hand: HandAgent) -> None:
    hand.agent.turn()
    assert hand.page.last.status is ClockStatus.UNKNOWN
    assert not hand.page.last.token
    assert code_of(hand) == "no-time"


def test_page_says_what_the_source_says_and_ages_it(hand: HandAgent) -> None:
    hand.ask()
    page = hand.page.last
    assert page.status is ClockStatus.SYNCHRONIZED
    assert hand.said() == TimeInterval.around(hand.machine.real, RADIUS)
    token = SignedTime.decode(page.token)
    assert token.interval == hand.said()
    assert token.verified_by(KEY.verifier())
    hand.run(SECOND - PERIOD_NS, asking=False)
    aged = hand.said()
    assert aged.radius == RADIUS + (SECOND - PERIOD_NS) * 200 // 1_000_000
    assert SignedTime.decode(hand.page.last.token).sequence == token.sequence + 19


# As a mount says it whose path is no UTF-8: it ended the door's thread, and the agent with it.
def test_reason_of_a_source_that_is_no_utf8_is_told_as_text(hand: HandAgent, source: StatedSource) -> None:
    source.refusal = BadTime("mount-failed", "create /a\udcff/tmp: input/output error")
    hand.ask()
    assert r"/a\xff/tmp" in json.loads(hand.agent.report())["sources"][0]["reason"]


@pytest.mark.parametrize(
    ("earliest", "latest"), [(-(2**92), 2**92), (-START_NS - 1, 0), (0, 2**63 - START_NS), (2**63, 2**63)]
)
def test_what_is_no_instant_is_no_bound(hand: HandAgent, source: StatedSource, earliest: int, latest: int) -> None:
    source.offset = TimeInterval(earliest, latest)
    hand.ask()
    assert hand.page.last.status is ClockStatus.UNKNOWN
    assert "[no-bound]" in json.loads(hand.agent.report())["sources"][0]["reason"]
    source.offset = TimeInterval(-START_NS, 2**63 - 1 - START_NS)
    hand.ask()
    assert hand.said() == TimeInterval(0, 2**63 - 1)


def test_nonce_is_signed_now(hand: HandAgent) -> None:
    hand.ask()
    hand.machine.pass_time(7)
    token = hand.agent.sign_over(bytes(32))
    assert token.verified_by(KEY.verifier(), bytes(32))
    assert abs(token.midpoint_ns - hand.machine.real) <= 1
    assert token.clock_epoch == hand.page.last.clock_epoch


def test_door_refuses_what_is_wider_than_the_policy(machine: HandMachine) -> None:
    hand = HandAgent(machine, own(StatedSource(machine, 251 * MS)))
    hand.ask()
    assert code_of(hand) == "radius-too-wide"
    hand.agent.limit_radius(252 * MS)
    assert hand.said().radius > 250 * MS
    hand.agent.limit_radius(250 * MS)
    assert code_of(hand) == "radius-too-wide"


# Readings take their time: a policy that states its own maximum must work all the time, by the door and by the page.
def test_assumed_radius_at_the_limit_is_never_too_wide(machine: HandMachine) -> None:
    hand = HandAgent(machine, Listed(AssumedSource(machine, 250 * MS), Weight.ASSUMED), radius_ns_max=250 * MS)
    machine.at_read = lambda: machine.pass_time(100)
    for _ in range(3):
        hand.ask()
        hand.run(2 * PERIOD_NS, asking=False)
        assert SignedTime.decode(hand.page.last.token).radius_ns == 250 * MS
        assert hand.agent.sign_over(bytes(32)).radius_ns == 250 * MS
        assert hand.agent.now().radius == 250 * MS


# Nobody makes a node's time useless by asking for it: what a reading cannot tell from a slew does not add up.
def test_asking_the_doors_often_widens_nothing(hand: HandAgent) -> None:
    hand.ask()
    hand.machine.at_read = lambda: hand.machine.pass_time(300)
    first = hand.agent.sign_over(bytes(32)).radius_ns
    for _ in range(1_000):
        last = hand.agent.sign_over(bytes(32)).radius_ns
    assert last <= first + 2_000 + 1_000 * 1_500 * 200 // 1_000_000


# A step means that somebody believes otherwise: nothing counts but what is heard afterwards.
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("size", "epochs"), [(STEP_NS, 0), (STEP_NS + 1, 1)])
def test_step_ends_the_epoch(machine: HandMachine, sign: int, size: int, epochs: int) -> None:
    source = StatedSource(machine, 100 * MS)
    hand = HandAgent(machine, own(source))
    hand.ask()
    epoch = hand.page.last.clock_epoch
    machine.step(sign * size)
    hand.agent.turn()
    assert hand.page.last.clock_epoch == epoch + epochs
    assert hand.page.last.status is (ClockStatus.UNKNOWN if epochs else ClockStatus.SYNCHRONIZED)
    hand.ask()
    assert hand.page.last.status is ClockStatus.SYNCHRONIZED


# What is said is tied to CLOCK_BOOTTIME: who reads the page between a step and the next turn is not led astray.
def test_step_changes_nothing_in_what_was_said(hand: HandAgent) -> None:
    hand.ask()
    truth = hand.machine.real
    hand.machine.step(HOUR)
    assert hand.said() == TimeInterval.around(truth, RADIUS)


@pytest.mark.parametrize("size", [SECOND, -SECOND, HOUR, -HOUR])
def test_source_that_believes_the_step_disrupts_for_ten_seconds(hand: HandAgent, size: int) -> None:
    hand.ask()
    epoch = hand.page.last.clock_epoch
    hand.machine.step(size)
    hand.ask()
    hand.ask()
    assert status_of(hand) is ClockStatus.DISRUPTED
    assert code_of(hand) == "clock-disrupted"
    assert hand.page.last.silent_until_ns == hand.machine.boot + DISRUPTED_NS
    hand.run(DISRUPTED_NS + SECOND)
    assert status_of(hand) is ClockStatus.SYNCHRONIZED
    assert hand.page.last.clock_epoch > epoch
    assert around(hand)
    assert [record["kind"] for record in hand.evidence.kept] == ["contradiction"]


# The clock is set forth, and its service knows by how much: nobody contradicts anybody.
def test_source_that_knows_of_the_step_goes_on_in_another_epoch(hand: HandAgent, source: StatedSource) -> None:
    hand.ask()
    truth = hand.machine.real
    hand.machine.step(SECOND)
    source.offset = TimeInterval.around(-SECOND, RADIUS)
    hand.ask()
    hand.ask()
    assert hand.page.last.status is ClockStatus.SYNCHRONIZED
    assert hand.said() == TimeInterval.around(truth, RADIUS)


@pytest.mark.parametrize(("span", "epochs"), [(SUSPEND_NS, 0), (SUSPEND_NS + 1, 1), (HOUR, 1)])
def test_suspend_ends_the_epoch(hand: HandAgent, span: int, epochs: int) -> None:
    hand.ask()
    epoch = hand.page.last.clock_epoch
    hand.machine.suspend(span)
    hand.agent.turn()
    assert hand.page.last.clock_epoch == epoch + epochs
    assert hand.page.last.status is (ClockStatus.UNKNOWN if epochs else ClockStatus.SYNCHRONIZED)


@pytest.mark.parametrize(("span", "epochs"), [(STALL_NS, 0), (STALL_NS + 1, 1)])
def test_long_stall_ends_the_epoch(hand: HandAgent, span: int, epochs: int) -> None:
    hand.ask()
    epoch = hand.page.last.clock_epoch
    hand.machine.pass_time(span)
    hand.agent.turn()
    assert hand.page.last.clock_epoch == epoch + epochs


def test_sources_are_asked_again_at_once_after_a_step(hand: HandAgent) -> None:
    called: list[int] = []
    hand.agent.on_moved = lambda: called.append(hand.page.last.clock_epoch)
    hand.ask()
    hand.machine.step(SECOND)
    hand.agent.turn()
    assert called == [101]


# chrony slews by up to 83,333 ppm: what was known before is widened by all of it.
def test_slew_beyond_the_drift_bound_widens(hand: HandAgent) -> None:
    hand.ask()
    before = hand.said()
    hand.machine.pass_time(PERIOD_NS)
    hand.machine.slew(4 * MS)
    hand.agent.turn()
    after = hand.said()
    assert after.earliest <= before.earliest + PERIOD_NS
    assert after.latest >= before.latest + PERIOD_NS


def test_silent_source_leaves_the_clock_running_free(hand: HandAgent, source: StatedSource) -> None:
    hand.ask()
    source.refusal = BadTime("no-answer", "gone")
    hand.run(20 * SECOND)
    assert hand.page.last.status is ClockStatus.FREE_RUNNING
    assert around(hand)
    assert hand.said().radius >= RADIUS + 19 * 200_000


def test_one_liar_of_three_is_outvoted_and_kept(machine: HandMachine) -> None:
    liar = StatedSource(machine, RADIUS, "liar")
    hand = HandAgent(
        machine, own(StatedSource(machine, RADIUS, "a")), Listed(StatedSource(machine, RADIUS, "b")), Listed(liar)
    )
    hand.ask()
    liar.offset = TimeInterval.around(SECOND, RADIUS)
    hand.run(3 * SECOND)
    assert hand.page.last.status is ClockStatus.SYNCHRONIZED
    assert around(hand)
    assert [record["kind"] for record in hand.evidence.kept] == ["dissent"]  # once, not once a second
    assert [voice["source"] for voice in hand.evidence.kept[0]["voices"] if voice["dissents"]] == ["liar"]


def test_more_liars_than_tolerated_disrupt(machine: HandMachine) -> None:
    liar = StatedSource(machine, RADIUS, "liar")
    hand = HandAgent(machine, own(StatedSource(machine, RADIUS, "a")), Listed(liar))
    hand.ask()
    liar.offset = TimeInterval.around(SECOND, RADIUS)
    hand.run(2 * SECOND)
    assert hand.page.last.status is ClockStatus.DISRUPTED
    record = hand.evidence.kept[0]
    assert record["kind"] == "contradiction"
    assert {voice["source"] for voice in record["voices"]} == {"a", "liar"}


# Two readings of one chronyd are one witness.
def test_sources_of_one_origin_are_one_voice(machine: HandMachine) -> None:
    same = [own(StatedSource(machine, RADIUS, name)) for name in ("chrony", "kernel")]
    peer = StatedSource(machine, RADIUS, "peer")
    hand = HandAgent(machine, *same, Listed(peer))
    peer.offset = TimeInterval.around(SECOND, RADIUS)
    hand.ask()
    assert hand.page.last.status is ClockStatus.DISRUPTED
    roles = {each["source"]: each["role"] for each in report(hand)["sources"]}
    assert roles == {"chrony": "disputed", "kernel": "spare", "peer": "disputed"}


def test_cross_check_is_no_time_by_itself(machine: HandMachine) -> None:
    hand = HandAgent(machine, Listed(StatedSource(machine, RADIUS, "mount"), Weight.CROSS_CHECK))
    hand.ask()
    assert hand.page.last.status is ClockStatus.UNKNOWN


def test_assumption_is_labelled_and_does_not_age(machine: HandMachine) -> None:
    hand = HandAgent(machine, Listed(AssumedSource(machine, 250 * MS), Weight.ASSUMED))
    hand.ask()
    hand.run(3 * SECOND, asking=False)
    page = hand.page.last
    assert (page.status, page.drift_ppm) == (ClockStatus.FREE_RUNNING, 0)
    assert hand.said() == TimeInterval.around(machine.real, 250 * MS)
    assert SignedTime.decode(page.token).flags == TimeFlags.ASSUMED
    assert hand.agent.sign_over(bytes(32)).flags == TimeFlags.ASSUMED | TimeFlags.NONCE


# The answer is about a clock that is no longer that one.
def test_answer_is_dropped_when_the_clock_is_set_while_a_source_is_asked(hand: HandAgent, source: StatedSource) -> None:
    source.at_sample = lambda: hand.machine.step(HOUR)
    hand.ask()
    assert hand.page.last.status is ClockStatus.UNKNOWN
    assert "set while" in report(hand)["sources"][0]["reason"]


# The turn sees the step first, and the answer, about the clock before, arrives after it.
def test_answer_from_before_a_step_is_dropped(hand: HandAgent, source: StatedSource) -> None:
    hand.agent.turn()

    def step_and_turn() -> None:
        hand.machine.step(HOUR)
        hand.agent.turn()
        hand.machine.step(-HOUR)

    source.at_sample = step_and_turn
    hand.agent.poll(hand.listed[0])
    assert "set while" in report(hand)["sources"][0]["reason"]


def test_source_whose_answer_is_too_old_is_not_called_unasked(hand: HandAgent) -> None:
    hand.ask()
    hand.machine.pass_time(FRESH_NS + 1)
    assert report(hand)["sources"][0]["reason"] == "its last answer does not count"


def test_door_does_not_sign_between_a_step_and_the_next_turn(hand: HandAgent) -> None:
    hand.ask()
    hand.machine.step(HOUR)
    assert code_of(hand) == "clock-unsteady"


def report(hand: HandAgent) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(hand.agent.report())
    return fields


def test_report_names_every_source_and_what_it_counts_for(machine: HandMachine) -> None:
    silent = StatedSource(machine, RADIUS, "silent")
    silent.refusal = BadTime("no-answer", "gone")
    check = StatedSource(machine, SECOND, "mount")
    hand = HandAgent(
        machine, own(StatedSource(machine, RADIUS, "a")), Listed(silent), Listed(check, Weight.CROSS_CHECK)
    )
    assert [each["reason"] for each in report(hand)["sources"]] == ["not asked yet"] * 3
    hand.ask()
    fields = report(hand)
    assert fields["status"] == "synchronized"
    assert [(each["source"], each["role"]) for each in fields["sources"]] == [
        ("a", "shapes"),
        ("silent", "silent"),
        ("mount", "agrees"),
    ]
    assert fields["latest_ahead_ns"] - fields["earliest_ahead_ns"] == 2 * RADIUS
    machine.slew(4 * MS)  # since the last turn
    fields = report(hand)
    assert fields["latest_ahead_ns"] - fields["earliest_ahead_ns"] > 2 * (RADIUS + 4 * MS)
