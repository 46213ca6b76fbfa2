"""A sign of life means that every loop went round, and nothing less."""

from __future__ import annotations

from tests.support.machine import HandMachine
from timeagent.notify import Notifier, Pulse
from timeagent.units import SECOND


class Supervisor(Notifier):
    def __init__(self, watchdog_ns: int) -> None:
        super().__init__({})
        self.watchdog_ns = watchdog_ns
        self.signs = 0

    def alive(self) -> None:
        self.signs += 1


def test_sign_is_given_only_when_all_loops_have_gone_round() -> None:
    supervisor, machine = Supervisor(3 * SECOND), HandMachine()
    pulse = Pulse(supervisor, machine.boot_ns)
    pulse.watch("a")
    pulse.watch("b")
    for _ in range(5):
        machine.pass_time(SECOND)
        pulse.beat("a")
    assert supervisor.signs == 0
    pulse.beat("b")
    assert supervisor.signs == 1
    pulse.beat("a")
    pulse.beat("b")
    assert supervisor.signs == 1  # too soon
    machine.pass_time(SECOND)
    pulse.beat("a")
    assert supervisor.signs == 2


def test_loop_that_ended_as_it_should_is_not_waited_for() -> None:
    supervisor, machine = Supervisor(SECOND), HandMachine()
    pulse = Pulse(supervisor, machine.boot_ns)
    pulse.watch("a")
    pulse.watch("b")
    pulse.forget("b")
    pulse.beat("b")  # a last one that came late
    pulse.beat("a")
    assert supervisor.signs == 1


def test_nobody_who_listens_is_told_nothing() -> None:
    supervisor = Supervisor(0)
    pulse = Pulse(supervisor, HandMachine().boot_ns)
    pulse.watch("a")
    pulse.beat("a")
    assert supervisor.signs == 0
