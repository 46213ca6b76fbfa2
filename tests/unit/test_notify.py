"""A sign of life means that every loop went round; of log lines that are alike one a minute is told, with a count."""

from __future__ import annotations

import logging

from tests.support.machine import HandMachine
from timeagent.notify import EVERY_S, KINDS_MAX, Notifier, Pulse, Repeats
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


class Log:
    def __init__(self) -> None:
        self.repeats, self.now, self.told = Repeats(), 1_000.0, list[str]()

    def say(self, message: str, *values: object) -> None:
        record = logging.LogRecord("appliance.daemon.daemon", logging.WARNING, __file__, 1, message, values, None)
        record.created = self.now
        let_through = self.repeats.filter(record)
        if let_through:
            shown = record if let_through is True else let_through
            assert isinstance(shown, logging.LogRecord)
            self.told.append(shown.getMessage())


def test_line_that_comes_again_is_told_once_a_minute_with_the_count_of_those_held_back() -> None:
    log = Log()
    for tenth in range(int(20 * EVERY_S) + 1):
        log.now = 1_000 + tenth / 10
        log.say("beat-failed code=%s reason=%s", "io-error", f"no room: {tenth} of {2 * tenth} bytes")
    first, second, third = log.told
    assert first == "beat-failed code=io-error reason=no room: 0 of 0 bytes"
    assert second.endswith(f"(held back since the last of this kind: {int(10 * EVERY_S) - 1})")
    assert third.endswith(f"(held back since the last of this kind: {int(10 * EVERY_S) - 1})")


def test_lines_about_different_things_are_all_told() -> None:
    log = Log()
    for name in ("log1", "log2"):
        for reason in ("no room", "no answer"):
            log.say("metronome-failed log=%s reason=%s", name, reason)
    assert len(log.told) == 4
    log.say("plain")
    log.say("plain")
    log.say("with %(name)s", {"name": "x"})
    assert len(log.told) == 6


def test_clock_that_was_set_back_holds_nothing_back_for_long() -> None:
    log = Log()
    log.say("a")
    log.now = 5
    log.say("a")
    assert log.told == ["a", "a"]


def test_kinds_are_forgotten_the_oldest_first() -> None:
    log = Log()
    for kind in range(KINDS_MAX + 1):
        log.say("kind=%s reason=%s", kind, "x")
    log.say("kind=%s reason=%s", 0, "x")
    log.say("kind=%s reason=%s", KINDS_MAX, "x")
    assert len(log.told) == KINDS_MAX + 2
