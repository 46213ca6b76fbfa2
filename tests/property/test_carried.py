"""The short way of a turn publishes, byte for byte, what the whole turn would, or leaves the turn to it.

Agents live through histories of a machine, each made from one number. Whenever one took the short way, it goes the
whole way as well, with the same readings of the clocks. Each mutant publishes something else in some history.
"""

import inspect
import random
import textwrap
from threading import Lock
from unittest.mock import patch

import pytest

from tests.support.machine import HandMachine, StatedSource
from tests.support.timeagent import HandAgent, HandPage, own
from timeagent.agent import agent as carried_module
from timeagent.agent.agent import Agent, Carried
from timeagent.agent.discipline import FRESH_NS, VOID_AFTER_NS, Listed, Weight
from timeagent.clock import ClockSample
from timeagent.sources.local import AssumedSource
from timeagent.units import MS, SECOND, US

HISTORIES = 60
TURNS = 60


class History:
    """What happens to a machine, and when its source is asked."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.machine = HandMachine()
        self.source = StatedSource(self.machine, radius_ns=20 * MS)
        listed = [own(self.source)]
        if self.chance.random() < 0.3:  # stated beside what is measured, or alone
            assumed = Listed(AssumedSource(self.machine, 30 * MS), Weight.ASSUMED)
            listed = [assumed] if self.chance.random() < 0.5 else [*listed, assumed]
        with patch("tests.support.timeagent.Agent", Compared):
            self.hand = HandAgent(self.machine, *listed, radius_ns_max=10 * SECOND)
        self.machine.at_read = self._while_reading
        self.jitter = self.chance.choice((0, 3 * US, 40 * US))

    def _while_reading(self) -> None:
        """Readings take their time, and now and then another process runs in between."""
        span = self.chance.randrange(self.jitter + 1)
        if self.chance.random() < 0.002:
            span += self.chance.choice((2 * MS, 70 * MS))
        self.machine.pass_time(span)

    def live(self) -> None:
        chance, machine = self.chance, self.machine
        asking = chance.choice((10, 10, 10, 200))
        slewing = chance.choice((0, 0, 150, 900, 83_333))
        for turn in range(TURNS):
            span = chance.choice((50 * MS, 50 * MS, 50 * MS, 200 * MS, 3 * MS))
            if chance.random() < 0.02:
                span = chance.choice((FRESH_NS - SECOND, FRESH_NS, 6 * SECOND, VOID_AFTER_NS))
            machine.pass_time(span)
            machine.slew(chance.choice((-1, 1, 1)) * (span * slewing // 1_000_000))
            if chance.random() < 0.02:
                machine.step(chance.choice((-1, 1)) * chance.choice((MS // 2, 3 * MS, 49 * MS, 51 * MS, SECOND)))
            if chance.random() < 0.02:
                machine.suspend(chance.choice((MS // 2, 2 * MS, 9 * MS, 11 * MS, 30 * SECOND)))
            if turn % asking == 0:
                for each in self.hand.listed:
                    self.hand.agent.poll(each)
            if chance.random() < 0.05:
                self.hand.agent.own_word(bytes(32))  # a door signs in between
            self.hand.agent.turn()


class Compared(Agent):
    """Takes the short way, and then the whole one with the same readings of the clocks, and compares."""

    short = 0

    def _carry_on(self) -> bool:
        before = (self._last, self._slewed_ns, self._sequence)
        if not super()._carry_on():
            return False
        Compared.short += 1
        page = HandPage()
        whole = WholeTurns.__new__(WholeTurns)
        vars(whole).update(vars(self))
        assert self._last is not None
        whole._clock, whole._page, whole._lock = Replayed(self._last), page, Lock()
        whole._last, whole._slewed_ns, whole._sequence = before
        whole.turn()
        assert isinstance(self._page, HandPage)
        if page.last != self._page.last or (whole._last, whole._slewed_ns) != (self._last, self._slewed_ns):
            raise Different
        return True


class WholeTurns(Agent):
    def _carry_on(self) -> bool:
        return False


class Different(Exception):
    pass


class Replayed:
    """A MachineClock that says once more what it said."""

    def __init__(self, reading: ClockSample) -> None:
        self._boot = iter((reading.boot_ns, reading.boot_after_ns))
        self._reading = reading

    def boot_ns(self) -> int:
        return next(self._boot)

    def realtime_ns(self) -> int:
        return self._reading.real_ns

    def monotonic_ns(self) -> int:
        return self._reading.monotonic_ns

    def raw_ns(self) -> int:
        return self._reading.raw_ns

    def sleep(self, span: int) -> None:
        raise AssertionError(span)


def differs(histories: range) -> bool:
    for seed in histories:
        try:
            History(seed).live()
        except Different:
            return True
    return False


def test_short_way_publishes_what_the_whole_turn_would() -> None:
    Compared.short = 0
    assert not differs(range(HISTORIES))
    assert Compared.short > HISTORIES * TURNS // 3


@pytest.mark.slow
def test_short_way_publishes_what_the_whole_turn_would_in_many_histories() -> None:
    assert not differs(range(HISTORIES, 2_000))


MUTANTS = [
    ("after > self._until", "False"),
    ("not -PAUSE_NS <= real - boot - last.real_ns + last_boot <= PAUSE_NS", "False"),
    ("not -PAUSE_NS <= stopped <= PAUSE_NS", "False"),
    ("max(0, longest)", "0"),
    ("max(0, shortest)", "0"),
    ("max(abs(slow), abs(fast))", "abs(fast)"),
    ("max(abs(slow), abs(fast))", "abs(slow)"),
    ("abs(slow), abs(fast)", "slow, fast"),
    ("slew > -(-elapsed * drift_ppm // _MILLION)", "False"),
    ("slew - (-slew * drift_ppm // _MILLION)", "slew"),
    ("slewed_ns - self._slewed - (", "-("),
    ("-(after - self._at) * drift // _MILLION", "-(boot - self._at) * drift // _MILLION"),
    ("after + high", "boot + high"),
    ("(latest - earliest + 1) // 2", "(latest - earliest) // 2"),
    ("(self._boot, boot, raw,", "(self._boot, after, raw,"),
]


@pytest.mark.parametrize(("right", "wrong"), MUTANTS, ids=[right for right, _ in MUTANTS])
def test_mutant_of_the_short_way_is_caught(right: str, wrong: str) -> None:
    source = textwrap.dedent(inspect.getsource(Carried.turn))
    assert source.count(right) == 1, right
    names = dict(vars(carried_module))
    exec("from __future__ import annotations\n" + source.replace(right, wrong), names)
    with patch.object(Carried, "turn", names["turn"]):
        assert differs(range(HISTORIES))
