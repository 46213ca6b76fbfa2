"""The machine's clock with a bound, driven by hand."""

import pytest

from tests.support.machine import START_NS, HandMachine, StatedSource
from tests.support.values import TIME_KEY
from timeagent.agent.bounded_clock import SAMPLE_PERIOD_NS, STEP_NS, EmbeddedTime
from timeagent.agent.discipline import DISRUPTED_NS, FRESH_NS
from timeagent.clock import PAUSE_NS
from timeagent.errors import BadTime
from timeagent.sources.local import AssumedSource
from timeagent.sources.port import Source
from timeagent.units import DAY, HOUR, MS, SECOND, TimeInterval

RADIUS = 5 * MS
WIDE = DAY


@pytest.fixture
def machine() -> HandMachine:
    return HandMachine()


@pytest.fixture
def source(machine: HandMachine) -> StatedSource:
    return StatedSource(machine, RADIUS)


@pytest.fixture
def clock(machine: HandMachine, source: StatedSource) -> EmbeddedTime:
    return EmbeddedTime(machine, [source], TIME_KEY, radius_ns_max=WIDE, clock_epoch=10)


def code_of(clock: EmbeddedTime) -> str:
    with pytest.raises(BadTime) as refused:
        clock.look()
    assert refused.value.hint
    return refused.value.code


def test_interval_is_the_clock_plus_what_the_source_says(clock: EmbeddedTime, source: StatedSource) -> None:
    source.offset = TimeInterval(-3, 11)
    look = clock.look()
    assert look.now == TimeInterval(START_NS - 3, START_NS + 11)
    assert look.clock_epoch == 10
    assert look.source == "stated"


@pytest.mark.parametrize(
    ("age", "drift"),
    [(0, 0), (1, 1), (4_999, 1), (5_000, 1), (5_001, 2), (SECOND // 2, 100_000), (SECOND - 1, 200_000)],
)
def test_sample_ages_by_the_drift_bound_rounded_up(
    clock: EmbeddedTime, machine: HandMachine, age: int, drift: int
) -> None:
    clock.look()
    machine.pass_time(age)
    assert clock.look().now == TimeInterval.around(machine.real, RADIUS + drift)


def test_source_is_asked_again_after_a_period(clock: EmbeddedTime, machine: HandMachine, source: StatedSource) -> None:
    clock.look()
    machine.pass_time(SAMPLE_PERIOD_NS - 1)
    clock.look()
    assert source.asked == 1
    machine.pass_time(1)
    assert clock.look().now.radius == RADIUS
    assert source.asked == 2


@pytest.mark.parametrize(("radius_max", "good"), [(RADIUS, True), (RADIUS - 1, False)])
def test_radius_at_its_limit_is_taken(
    machine: HandMachine,
    source: StatedSource,
    radius_max: int,
    good: bool,  # noqa: FBT001
) -> None:
    clock = EmbeddedTime(machine, [source], TIME_KEY, radius_ns_max=radius_max)
    if good:
        assert clock.look().now.radius == RADIUS
    else:
        assert code_of(clock) == "radius-too-wide"


# A policy that states its own maximum must work all the time, not only in the nanosecond of the sample.
def test_assumed_radius_at_the_limit_never_ages_out(machine: HandMachine) -> None:
    clock = EmbeddedTime(machine, [AssumedSource(machine, RADIUS)], TIME_KEY, radius_ns_max=RADIUS)
    for _ in range(30):
        assert clock.look().now == TimeInterval.around(machine.real, RADIUS)
        machine.pass_time(99 * MS)


def test_first_source_with_a_bound_is_used_and_refusals_are_kept(machine: HandMachine, source: StatedSource) -> None:
    clock = EmbeddedTime(machine, [source, AssumedSource(machine, 250 * MS)], TIME_KEY, radius_ns_max=WIDE)
    assert clock.look().source == "stated"
    source.refusal = BadTime("no-bound", "nothing today", hint="x")
    machine.pass_time(SECOND)
    assert clock.look().source == "assumed"
    assert "nothing today" in clock.refusals()["stated"]
    source.refusal = None
    machine.pass_time(SECOND)
    assert clock.look().source == "stated"
    assert clock.refusals() == {}


# A measured bound that is too wide is not replaced by a narrower one that nobody measured.
def test_wide_measurement_is_not_replaced_by_an_assumption(machine: HandMachine) -> None:
    sources: list[Source] = [StatedSource(machine, 300 * MS), AssumedSource(machine, 250 * MS)]
    assert code_of(EmbeddedTime(machine, sources, TIME_KEY, radius_ns_max=250 * MS)) == "radius-too-wide"


def test_without_a_bound_every_reason_is_named(machine: HandMachine, source: StatedSource) -> None:
    source.refusal = BadTime("no-bound", "nothing today")
    clock = EmbeddedTime(machine, [source], TIME_KEY, radius_ns_max=WIDE)
    with pytest.raises(BadTime, match="stated: nothing today") as refused:
        clock.look()
    assert refused.value.code == "no-time"
    assert code_of(EmbeddedTime(machine, [], TIME_KEY, radius_ns_max=WIDE)) == "no-time"


def test_old_sample_is_not_used_when_the_source_falls_silent(
    clock: EmbeddedTime, machine: HandMachine, source: StatedSource
) -> None:
    clock.look()
    source.refusal = BadTime("no-bound", "nothing today")
    machine.pass_time(SECOND - 1)
    clock.look()
    machine.pass_time(1)
    assert code_of(clock) == "no-time"


# The same where the answer takes its time.
def test_old_sample_is_not_used_for_another_period(
    clock: EmbeddedTime, machine: HandMachine, source: StatedSource
) -> None:
    source.at_sample = lambda: machine.pass_time(10 * MS)
    clock.look()
    source.at_sample = lambda: None
    source.refusal = BadTime("no-bound", "nothing today")
    machine.pass_time(SECOND - 5 * MS)
    clock.look()
    machine.pass_time(5 * MS)
    assert code_of(clock) == "no-time"


# Up to there what is known, true time minus CLOCK_BOOTTIME, stays what it was, and the source need not be asked.
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("size", "epochs"), [(STEP_NS, 0), (STEP_NS + 1, 1)])
def test_step_begins_at_its_threshold(machine: HandMachine, sign: int, size: int, epochs: int) -> None:
    source = StatedSource(machine, SECOND)  # wide enough for both to be true
    clock = EmbeddedTime(machine, [source], TIME_KEY, radius_ns_max=WIDE)
    before = clock.look()
    machine.step(sign * size)
    after = clock.look()
    assert after.clock_epoch - before.clock_epoch == epochs
    assert source.asked == 1 + epochs


# What is known is true time minus CLOCK_BOOTTIME: who sets CLOCK_REALTIME changes nothing in it.
@pytest.mark.parametrize("size", [1, 700_000, -700_000, STEP_NS, -STEP_NS])
def test_small_movement_of_the_clock_changes_nothing_in_what_is_known(
    clock: EmbeddedTime, machine: HandMachine, source: StatedSource, size: int
) -> None:
    was = clock.look().now
    machine.step(size)
    assert clock.look().now == was
    assert source.asked == 1


@pytest.mark.parametrize("step", [HOUR, -HOUR, 11 * MS, -60 * MS])
def test_contradiction_silences_the_clock_and_then_the_new_reading_counts(
    clock: EmbeddedTime, machine: HandMachine, step: int
) -> None:
    first = clock.look()
    machine.step(step)
    if abs(step) <= STEP_NS:  # found out when the source is asked next
        clock.look()
        machine.pass_time(SAMPLE_PERIOD_NS)
    assert code_of(clock) == "clock-disrupted"
    machine.pass_time(DISRUPTED_NS - 1)
    assert code_of(clock) == "clock-disrupted"
    machine.pass_time(1)
    look = clock.look()
    assert look.now.radius <= RADIUS + 200_000
    assert look.clock_epoch > first.clock_epoch
    assert look.now.earliest <= machine.real <= look.now.latest


# An assumed radius is a statement about the clock: a step within it contradicts nothing, one beyond it does.
@pytest.mark.parametrize(("step", "good"), [(500 * MS, True), (500 * MS + 1, False), (-500 * MS, True), (-HOUR, False)])
def test_assumed_clock_may_step_within_what_was_assumed(machine: HandMachine, step: int, good: bool) -> None:  # noqa: FBT001
    clock = EmbeddedTime(machine, [AssumedSource(machine, 250 * MS)], TIME_KEY, radius_ns_max=250 * MS)
    first = clock.look()
    machine.step(step)
    if good:
        look = clock.look()
        assert look.clock_epoch == first.clock_epoch + 1
        assert look.now == TimeInterval.around(machine.real, 250 * MS)
    else:
        assert code_of(clock) == "clock-disrupted"


# The clock is set while nobody can say how good it is: the old word is kept to compare with.
def test_contradiction_is_found_after_a_time_without_a_source(
    clock: EmbeddedTime, machine: HandMachine, source: StatedSource
) -> None:
    clock.look()
    machine.step(HOUR)
    source.refusal = BadTime("not-synchronized", "was set")
    assert code_of(clock) == "no-time"
    machine.pass_time(5 * SECOND)
    source.refusal = None
    assert code_of(clock) == "clock-disrupted"


def test_second_contradiction_begins_the_silence_again(clock: EmbeddedTime, machine: HandMachine) -> None:
    clock.look()
    machine.step(HOUR)
    assert code_of(clock) == "clock-disrupted"
    machine.pass_time(DISRUPTED_NS - 1)
    machine.step(-HOUR)
    assert code_of(clock) == "clock-disrupted"
    machine.pass_time(DISRUPTED_NS - 1)
    assert code_of(clock) == "clock-disrupted"
    machine.pass_time(1)
    clock.look()


# What a source says may move as far as the drift bound allows; a bound that could not have been true is found out.
@pytest.mark.parametrize(("jump", "good"), [(10 * MS + 200_000, True), (10 * MS + 200_001, False)])
def test_source_that_contradicts_itself_is_found_without_a_step(
    clock: EmbeddedTime,
    machine: HandMachine,
    source: StatedSource,
    jump: int,
    good: bool,  # noqa: FBT001
) -> None:
    clock.look()
    machine.pass_time(SECOND)
    source.offset = TimeInterval.around(jump, RADIUS)
    if good:
        clock.look()
    else:
        assert code_of(clock) == "clock-disrupted"


# Both clocks run at one pace: hours without a look are no step.
def test_long_pause_between_looks_is_no_step(clock: EmbeddedTime, machine: HandMachine) -> None:
    first = clock.look()
    machine.pass_time(10 * HOUR)
    assert clock.look().clock_epoch == first.clock_epoch


# The process is stopped for a second between its two readings: neither a step, nor an interval of the past.
def test_pause_between_the_two_readings_is_no_step(clock: EmbeddedTime, machine: HandMachine) -> None:
    first = clock.look()
    reads = iter(range(100))

    def pause() -> None:
        if next(reads) in {1, 2}:
            machine.pass_time(300 * MS)

    machine.at_read = pause
    look = clock.look()
    assert look.clock_epoch == first.clock_epoch
    assert look.now.earliest <= machine.real <= look.now.latest


# The source has spoken, and then somebody sets the clock by less than a step, before anybody has read it again.
@pytest.mark.parametrize("moved", [40 * MS, -40 * MS])
def test_clock_that_is_moved_right_after_the_source_looked_at_it_is_allowed_for(
    clock: EmbeddedTime, machine: HandMachine, source: StatedSource, moved: int
) -> None:
    true_ns = machine.real
    source.offset = TimeInterval(0, 0)

    def once() -> None:
        machine.step(moved)
        source.offset = TimeInterval(-moved, -moved)
        source.at_sample = lambda: None

    source.at_sample = once
    now = clock.look().now
    assert now.earliest <= true_ns <= now.latest
    assert source.asked == 2  # which of the two readings it spoke of, nobody knows


# It is set while the source is asked, before the source looks, and back later: the looks before and now are alike.
@pytest.mark.parametrize("moved", [MS, -MS])
def test_clock_that_is_moved_right_before_the_source_looks_at_it_and_later_back_is_allowed_for(
    clock: EmbeddedTime, machine: HandMachine, source: StatedSource, moved: int
) -> None:
    true_ns = machine.real
    source.offset = TimeInterval(-moved, -moved)
    source.at_sample = lambda: machine.step(moved)
    clock.look()
    machine.step(-moved)
    now = clock.look().now
    assert source.asked == 1
    assert now.earliest <= true_ns <= now.latest


# The process was paused in the reading that the sample goes with: how far the clock was set since, it cannot tell.
@pytest.mark.parametrize("moved", [40 * MS, -40 * MS])
def test_move_that_a_pause_in_an_earlier_reading_hides_is_allowed_for(
    clock: EmbeddedTime, machine: HandMachine, source: StatedSource, moved: int
) -> None:
    source.offset = TimeInterval(0, 0)
    machine.at_read = lambda: machine.pass_time(60 * MS)
    clock.look()
    machine.at_read = lambda: None
    true_ns = machine.real
    machine.step(moved)
    source.offset = TimeInterval(-moved, -moved)
    now = clock.look().now
    assert now.earliest <= true_ns <= now.latest


# What one look cannot tell from a slew, because a reading takes its time, is allowed for once, and not once a look.
def test_looking_often_widens_nothing(clock: EmbeddedTime, machine: HandMachine) -> None:
    machine.at_read = lambda: machine.pass_time(300)
    first = clock.look().now
    for _ in range(1_000):
        last = clock.look().now
    assert last.radius <= first.radius + 2_000 + 1_000 * 1_500 * 200 // 1_000_000


class PausedMachine(HandMachine):
    """Stands still after each reading of CLOCK_REALTIME, so many times."""

    pause, times = 0, 0

    def realtime_ns(self) -> int:
        real = super().realtime_ns()
        self.times -= 1
        self.pass_time(self.pause if self.times >= 0 else 0)
        return real


# A pause in the readings that an assumption was asked with is no error of the clock that it is about.
@pytest.mark.parametrize("pause", [PAUSE_NS, 60 * MS])
def test_assumed_clocks_of_two_processes_are_never_apart(pause: int) -> None:
    machine, radius = PausedMachine(), PAUSE_NS
    machine.pause, machine.times = pause, 16
    clocks = [EmbeddedTime(machine, [AssumedSource(machine, radius)], TIME_KEY, radius_ns_max=WIDE) for _ in "ab"]
    clocks[0].look()
    machine.times = 0
    for _ in range(2):
        assert [each.look().now for each in clocks] == [TimeInterval.around(machine.real, radius)] * 2
        machine.pass_time(SAMPLE_PERIOD_NS)


# What the pause hides of a step, the next look tells.
def test_step_that_a_pause_in_the_look_before_hides_is_found_at_once() -> None:
    machine = PausedMachine()
    source = StatedSource(machine, RADIUS)
    clock = EmbeddedTime(machine, [source], TIME_KEY, radius_ns_max=WIDE)
    machine.pause, machine.times = 60 * MS, 100
    clock.look()
    machine.times = 0
    machine.step(-60 * MS - STEP_NS + 1)
    clock.look()
    assert source.asked == 2


# On a machine that is paused between any two readings the interval holds every instant of the look.
def test_interval_holds_the_whole_of_a_look_that_takes_long(clock: EmbeddedTime, machine: HandMachine) -> None:
    machine.at_read = lambda: machine.pass_time(2 * MS)
    look = clock.look()
    began = machine.real - (machine.boot - look.boot_ns)
    assert look.now.earliest <= began - RADIUS
    assert machine.real + RADIUS <= look.now.latest


# The clock is set while the source is being asked: its answer may be about the clock before.
def test_step_while_a_source_is_asked_drops_its_answer(
    clock: EmbeddedTime, machine: HandMachine, source: StatedSource
) -> None:
    clock.look()
    machine.pass_time(SECOND)
    asked = iter([True])
    source.at_sample = lambda: machine.step(HOUR) if next(asked, False) else None
    assert code_of(clock) == "clock-disrupted"
    assert source.asked == 3


def test_clock_that_is_set_all_the_time_is_given_up(
    clock: EmbeddedTime, machine: HandMachine, source: StatedSource
) -> None:
    source.at_sample = lambda: machine.step(HOUR)
    assert code_of(clock) == "clock-unsteady"
    assert source.asked < 10


# A source that takes longer than a period to answer is used, at its age.
def test_slow_source_is_aged_from_before_it_was_asked(
    clock: EmbeddedTime, machine: HandMachine, source: StatedSource
) -> None:
    source.at_sample = lambda: machine.pass_time(3 * SECOND)
    assert clock.look().now == TimeInterval.around(machine.real, RADIUS + 600_000)
    assert source.asked == 1
    machine.pass_time(SAMPLE_PERIOD_NS - 1)
    clock.look()  # whoever waited meanwhile has an answer too
    assert source.asked == 1


def test_answer_that_took_too_long_to_count_is_named(
    clock: EmbeddedTime, machine: HandMachine, source: StatedSource
) -> None:
    source.at_sample = lambda: machine.pass_time(FRESH_NS + 1)
    with pytest.raises(BadTime, match="stated: its last answer does not count"):
        clock.look()


# Who looks next after a clock that was set all the time asks at once: the last answer is about another clock.
def test_quiet_after_a_clock_that_was_set_all_the_time_is_answered_at_once(machine: HandMachine) -> None:
    source = StatedSource(machine, SECOND)  # wide enough for all of it to be true
    clock = EmbeddedTime(machine, [source], TIME_KEY, radius_ns_max=WIDE)
    clock.look()
    machine.step(60 * MS)
    source.at_sample = lambda: machine.step(60 * MS)
    assert code_of(clock) == "clock-unsteady"
    assert source.asked == 1 + 4
    source.at_sample = lambda: None
    now = clock.now()
    assert now.earliest <= machine.real <= now.latest


# Silence that a contradiction began is over: what keeps the clock silent now is that its source is.
def test_reason_of_a_source_is_named_once_the_silence_of_a_contradiction_is_over(
    clock: EmbeddedTime, machine: HandMachine, source: StatedSource
) -> None:
    clock.look()
    machine.step(HOUR)
    assert code_of(clock) == "clock-disrupted"
    source.refusal = BadTime("no-bound", "nothing today")
    machine.pass_time(DISRUPTED_NS)
    with pytest.raises(BadTime, match="stated: nothing today") as refused:
        clock.look()
    assert refused.value.code == "no-time"
