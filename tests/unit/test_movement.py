"""Steps, suspends and slews are told apart, and a pause inside a reading is none of them."""

import pytest

from tests.support.machine import HandMachine
from timeagent.clock import PAUSE_NS, Movement, drift_ns, excess_slew_ns, movement, read_clocks
from timeagent.units import HOUR, MS, SECOND


@pytest.fixture
def machine() -> HandMachine:
    return HandMachine()


def test_time_that_only_passes_moves_nothing(machine: HandMachine) -> None:
    before = read_clocks(machine)
    machine.pass_time(10 * HOUR)
    assert movement(before, read_clocks(machine)) == Movement(10 * HOUR, 0, 0, 0)


@pytest.mark.parametrize("size", [1, -1, HOUR, -HOUR])
def test_step_is_seen_with_its_direction(machine: HandMachine, size: int) -> None:
    before = read_clocks(machine)
    machine.pass_time(SECOND)
    machine.step(size)
    assert movement(before, read_clocks(machine)) == Movement(SECOND, size, 0, 0)


def test_suspend_is_neither_a_step_nor_a_slew(machine: HandMachine) -> None:
    before = read_clocks(machine)
    machine.pass_time(SECOND)
    machine.suspend(HOUR)
    assert movement(before, read_clocks(machine)) == Movement(HOUR + SECOND, 0, HOUR, 0)


@pytest.mark.parametrize("size", [3 * MS, -3 * MS])
def test_slew_is_seen_in_either_direction(machine: HandMachine, size: int) -> None:
    before = read_clocks(machine)
    machine.pass_time(SECOND)
    machine.slew(size)
    moved = movement(before, read_clocks(machine))
    assert (moved.stepped_ns, moved.suspended_ns, moved.slewed_ns) == (0, 0, 3 * MS)


# What the drift bound covers is not counted twice; beyond it, all of it counts.
@pytest.mark.parametrize(("slew", "excess"), [(200_000, 0), (200_201, 200_242), (-80 * MS, 80_016_000)])
def test_slew_counts_from_the_drift_bound_on(machine: HandMachine, slew: int, excess: int) -> None:
    before = read_clocks(machine)
    machine.pass_time(SECOND)
    machine.slew(slew)
    assert excess_slew_ns(movement(before, read_clocks(machine)), 200) == excess


@pytest.mark.parametrize("place", range(5))
def test_pause_inside_a_reading_is_read_again(machine: HandMachine, place: int) -> None:
    before = read_clocks(machine)
    reads = iter(range(100))

    def pause() -> None:
        if next(reads) == place:
            machine.pass_time(300 * MS)

    machine.at_read = pause
    reading = read_clocks(machine)
    assert reading.boot_after_ns - reading.boot_ns <= PAUSE_NS
    assert movement(before, reading).stepped_ns == movement(before, reading).suspended_ns == 0


# On a machine that pauses all the time no reading is narrow, and none of them invents a step.
def test_pauses_in_every_reading_explain_what_they_can(machine: HandMachine) -> None:
    before = read_clocks(machine)
    machine.at_read = lambda: machine.pass_time(30 * MS)
    moved = movement(before, read_clocks(machine))
    assert (moved.stepped_ns, moved.suspended_ns) == (0, 0)
    machine.step(SECOND)
    assert 0 < movement(before, read_clocks(machine)).stepped_ns <= SECOND


@pytest.mark.parametrize(("span", "drift"), [(-5, 0), (0, 0), (1, 1), (5_000, 1), (5_001, 2), (SECOND, 200_000)])
def test_drift_is_rounded_up(span: int, drift: int) -> None:
    assert drift_ns(span, 200) == drift
