"""Whole agents over a truth that only the test knows: drift, slews, steps, chronyd's packets, peers, liars.

Each world is made from one number. An honest agent's interval holds the truth at every turn, or it says nothing; every
mutant below says something that is not so in some world.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.chrony import Report
from tests.support.machine import HandMachine
from tests.support.timeagent import KEY, HandAgent
from timeagent.agent import bounded_clock as bounded_module
from timeagent.agent import discipline as combine_module
from timeagent.agent import discipline as discipline_module
from timeagent.agent.bounded_clock import PERIOD_NS
from timeagent.agent.discipline import OWN_GROUP, Listed, Verdict, Voice
from timeagent.clock import DRIFT_PPM
from timeagent.keys import Signer
from timeagent.signedtime import ClockStatus, SignedTime, TimeFlags, sign_time
from timeagent.sources import chrony as chrony_module
from timeagent.sources.chrony import ChronySource, Tracking
from timeagent.sources.nonce import PeerSource, decode_question, encode_answer, peer_digest
from timeagent.units import HOUR, MS, SECOND, Span, TimeInterval

THERE = Signer(b"the time key of all hand peers..")
WORLDS = 400
TURNS = 40


class World:
    """One machine, its chronyd, up to four peers of which fewer than half of all voices lie."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        chance = self.chance
        self.machine = HandMachine()
        self.truth = self.machine.real + chance.randint(-80 * MS, 80 * MS)
        self.drift = chance.choice((-1, 0, 1)) * (DRIFT_PPM - 1)
        self.correction = self.truth - self.machine.real
        self.error = chance.choice((MS, 20 * MS))
        peers = chance.randint(0, 4)
        self.liars = chance.randint(0, peers // 2)
        self.lie = chance.choice((SECOND, -SECOND, 60 * MS, -60 * MS))
        self.sources = [ChronySource(self.machine, self._chrony, random.Random(1))]
        listed = [Listed(self.sources[0], group=OWN_GROUP)]
        listed += [Listed(self._peer(index), period_ns=SECOND) for index in range(peers)]
        self.hand = HandAgent(self.machine, *listed, radius_ns_max=10 * SECOND)

    def pass_time(self, span: Span) -> None:
        self.truth += span
        self.machine.pass_time(span + span * self.drift // 1_000_000)
        self.correction -= span * self.drift // 1_000_000

    def _chrony(self, request: bytes, _wanted: Callable[[bytes], bool]) -> bytes:
        self.pass_time(self.chance.choice((0, MS)))
        # chronyd believes a correction that is wrong by up to half the delay and the dispersion.
        wrong = self.chance.choice((-1, 0, 1)) * self.error
        believed = self.truth - self.machine.real + wrong
        dispersion = self.chance.choice((self.error // 10, self.error))
        delay = 2 * (self.error - dispersion)
        seconds = (self.machine.real + believed) // SECOND
        slack = 1.000001  # 25 bits of coefficient
        report = Report(
            correction=believed / SECOND * slack,
            delay=delay / SECOND * slack,
            dispersion=dispersion / SECOND * slack,
            seconds=seconds,
            interval=1.0,
        )
        return report.encode(int.from_bytes(request[8:12], "big"))

    def _peer(self, index: int) -> PeerSource:
        lie = self.lie if index < self.liars else 0
        radius = self.chance.choice((MS, 30 * MS))

        def exchange(request: bytes, _wanted: Callable[[bytes], bool]) -> bytes:
            question = decode_question(request)
            assert question is not None
            self.pass_time(self.chance.choice((0, MS, 40 * MS)))
            wrong = self.chance.choice((-1, 1)) * radius + lie
            token = sign_time(
                THERE,
                TimeInterval.around(self.truth + wrong, radius),
                status=ClockStatus.SYNCHRONIZED,
                flags=TimeFlags.NONE,
                staleness_ns=0,
                sequence=1,
                clock_epoch=1,
                digest=peer_digest(question.nonce),
            )
            self.pass_time(self.chance.choice((0, MS, 40 * MS)))
            return encode_answer(question, token.encode())

        return PeerSource(self.machine, str(index), exchange, trusting, random.Random(index))

    def run(self, turns: int) -> str | None:
        """Return what was said that is not so, or None."""
        slewing = self.chance.choice((0, 0, 83_333))
        step_at = self.chance.choice((None, None, self.chance.randrange(turns)))
        for turn in range(turns):
            span = self.chance.choice((PERIOD_NS, PERIOD_NS, 4 * PERIOD_NS))
            self.pass_time(span)
            left = self.truth - self.machine.real
            # Either far beyond the drift bound or none: a clock's drift includes the slews that are within it.
            slew = span * slewing // 1_000_000
            self.machine.slew(0 if abs(left) < slew else slew if left > 0 else -slew)
            if turn == step_at:
                self.machine.step(self.chance.choice((HOUR, -HOUR, SECOND)))
            if turn % 10 == 0:
                for each in self.hand.listed:
                    self.hand.agent.poll(each)
            self.hand.agent.turn()
            problem = self._problem(turn)
            if problem is not None:
                return problem
        return None

    def _problem(self, turn: int) -> str | None:
        page = self.hand.page.last
        if not page.status.usable:
            # Nothing here contradicts itself: all but fewer than half are honest, and nobody is believed who is not.
            return "disrupted" if page.status is ClockStatus.DISRUPTED else None
        said = self.hand.said()
        if not said.earliest <= self.truth <= said.latest:
            return f"turn {turn}: {said} does not hold {self.truth}, by {self.truth - said.midpoint} of {said.radius}"
        token = SignedTime.decode(page.token)
        assert token.interval.earliest <= self.truth <= token.interval.latest
        assert token.key_id == KEY.id
        return None


def trusting(token: SignedTime, covered: bytes) -> str | None:
    return None if token.key_id == THERE.id else "another key"


def violation(worlds: range) -> str | None:
    for seed in worlds:
        found = World(seed).run(TURNS)
        if found is not None:
            return f"world {seed}: {found}"
    return None


def test_agent_says_what_is_true_or_nothing() -> None:
    assert violation(range(WORLDS)) is None


@pytest.mark.slow
@pytest.mark.parametrize("first", range(WORLDS, 20_000, 1000))
def test_agent_says_what_is_true_or_nothing_in_many_worlds(first: int) -> None:
    assert violation(range(first, first + 1000)) is None


def without_sign(report: Tracking) -> Span:
    return max(0, (report.root_delay_ns + 1) // 2 + report.root_dispersion_ns + report.correction_ns)


def without_correction(report: Tracking) -> Span:
    return (report.root_delay_ns + 1) // 2 + report.root_dispersion_ns


def without_delay(report: Tracking) -> Span:
    return report.root_dispersion_ns + abs(report.correction_ns)


def without_dispersion(report: Tracking) -> Span:
    return (report.root_delay_ns + 1) // 2 + abs(report.correction_ns)


def averaged(intervals: Sequence[TimeInterval], liars: int) -> TimeInterval:
    return TimeInterval(
        sum(each.earliest for each in intervals) // len(intervals),
        sum(each.latest for each in intervals) // len(intervals),
    )


def never_aged(span: Span, drift_ppm: int) -> Span:
    return 0


def all_agree(voices: int, liars: int | None) -> int:
    return 0


def first_peer_alone(voices: list[Voice], liars: int | None = None) -> Verdict:
    return combine_module.combine(voices[1:2] or voices, liars)


MUTANTS: list[tuple[str, Any, str, Any]] = [
    ("the correction's sign", chrony_module, "radius_of", without_sign),
    ("no correction", chrony_module, "radius_of", without_correction),
    ("no delay", chrony_module, "radius_of", without_delay),
    ("no dispersion", chrony_module, "radius_of", without_dispersion),
    ("averaging", combine_module, "hull", averaged),
    ("nobody may lie", combine_module, "tolerated", all_agree),
    ("one voice is believed", bounded_module, "combine", first_peer_alone),
    ("no ageing", discipline_module, "drift_ns", never_aged),
    ("no slews", bounded_module, "excess_slew_ns", never_aged),
]


@pytest.mark.parametrize(("name", "module", "attribute", "mutant"), MUTANTS, ids=[each[0] for each in MUTANTS])
def test_mutant_says_what_is_not_so(name: str, module: Any, attribute: str, mutant: Any) -> None:  # noqa: ANN401
    with patch.object(module, attribute, mutant):
        assert violation(range(WORLDS)) is not None


def test_peer_without_its_round_trip_says_what_is_not_so() -> None:
    honest = PeerSource.sample

    def sample(source: PeerSource) -> Any:  # noqa: ANN401 - the sample of the base
        found = honest(source)
        middle = found.offset.midpoint
        return replace(found, offset=TimeInterval.around(middle, MS))

    with patch.object(PeerSource, "sample", sample):
        assert violation(range(WORLDS)) is not None
