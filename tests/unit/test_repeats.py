"""Log lines that are alike: the first is told, then one a minute with the count of the others."""

from __future__ import annotations

import logging

from timeagent.notify import EVERY_S, KINDS_MAX, Repeats


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
