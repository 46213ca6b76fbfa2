"""Simulated time does what its rules say: what steps, what stands still, and what never does either."""

from __future__ import annotations

import pytest

from tests.simulation.clocks import TOKEN_PERIOD_NS, SimulatedTime
from tests.simulation.cluster import T0, signer
from tests.simulation.scheduler import Scheduler
from timeagent.units import HOUR, MS, SECOND


def a_time() -> tuple[Scheduler, SimulatedTime]:
    scheduler = Scheduler(1, start_ns=T0, end_ns=T0 + HOUR, steps_max=100)
    return scheduler, SimulatedTime(scheduler, signer("n1", real=False))


# All clocks of a virtual machine stand still while it is paused: what is old looks fresh to it afterwards.
@pytest.mark.parametrize("right", [True, False])
def test_boot_time_stands_still_with_a_frozen_machine_and_goes_on_from_there(*, right: bool) -> None:
    scheduler, time = a_time()
    boot, believed, token = time.boot_ns(), time.believed_ns(), time.token()
    time.freeze()
    scheduler.now += SECOND
    time.freeze()
    scheduler.now += SECOND
    assert (time.boot_ns(), time.believed_ns(), time.token()) == (boot, believed, token)
    time.thaw(right=right)
    assert time.boot_ns() == boot
    assert time.believed_ns() == (scheduler.now if right else believed)
    scheduler.now += TOKEN_PERIOD_NS - 1
    assert (time.token() == token) is not right  # what is right again has been set: a clock and its tokens agree
    scheduler.now += 1
    assert time.boot_ns() == boot + TOKEN_PERIOD_NS
    assert time.token() != token
    assert abs(time.token().midpoint_ns - time.believed_ns()) < TOKEN_PERIOD_NS


@pytest.mark.parametrize("span", [HOUR, -HOUR])
def test_boot_time_never_steps(span: int) -> None:
    scheduler, time = a_time()
    boot = time.boot_ns()
    time.set_forward(span)
    assert time.boot_ns() == boot
    time.freeze()
    time.set_forward(span)
    assert time.boot_ns() == boot
    time.thaw(right=False)
    scheduler.now += MS
    assert time.boot_ns() == boot + MS
    assert time.believed_ns() == scheduler.now + 2 * span
