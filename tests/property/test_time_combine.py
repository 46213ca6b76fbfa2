"""Intersection against a truth that only the test knows, and against the definition, counted point by point."""

import random
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest

from tests.support.shares import shares
from timeagent.agent import discipline as combining
from timeagent.agent.discipline import Agreed, Contradicted, Voice, Weight, combine, tolerated
from timeagent.units import TimeInterval

TRUTH = 1_000
SETS, SHARES = 100_000, 5


def held(intervals: list[TimeInterval], instant: int) -> int:
    return sum(each.earliest <= instant <= each.latest for each in intervals)


def by_definition(intervals: list[TimeInterval], liars: int) -> TimeInterval | None:
    """The hull of the points that all but so many intervals hold: only ends can be the ends of it."""
    ends = [instant for each in intervals for instant in (each.earliest, each.latest)]
    good = [instant for instant in ends if held(intervals, instant) >= len(intervals) - liars]
    return TimeInterval(min(good), max(good)) if good else None


def honest(chance: random.Random) -> TimeInterval:
    reach = chance.choice((0, 1, 20, 400))
    return TimeInterval(TRUTH - chance.randint(0, reach), TRUTH + chance.randint(0, reach))


def lying(chance: random.Random) -> TimeInterval:
    """Anything that does not hold the truth: near by, far away, narrow, wide; often where other liars are."""
    width = chance.choice((0, 3, 200))
    away = chance.choice((1, 1, 5, 300, 5000))
    low = TRUTH + away if chance.random() < 0.5 else TRUTH - away - width
    return TimeInterval(low, low + width)


def sets(count: int, seed: int) -> Iterator[tuple[list[Voice], int]]:
    """Random voices, and how many of them lie."""
    chance = random.Random(seed)
    for _ in range(count):
        number = chance.randint(1, 9)
        liars = chance.randint(0, min(number, tolerated(number, None) + 2))
        said = [lying(chance) for _ in range(liars)] + [honest(chance) for _ in range(number - liars)]
        chance.shuffle(said)
        yield [Voice(str(index), each) for index, each in enumerate(said)], liars


def violation(count: int, seed: int) -> str | None:
    """What the first set of voices shows to be wrong, or None."""
    for voices, liars in sets(count, seed):
        intervals = [voice.ahead for voice in voices]
        allowed = (len(voices) - 1) // 2
        expected = by_definition(intervals, allowed)
        said = combine(voices)
        if liars <= allowed:
            if not isinstance(said, Agreed):
                return f"contradiction with {liars} liars: {intervals}"
            if not said.ahead.earliest <= TRUTH <= said.ahead.latest:
                return f"truth outside with {liars} liars: {intervals} gave {said.ahead}"
        if isinstance(said, Agreed) and said.ahead != expected:
            return f"{intervals} gave {said.ahead}, not {expected}"
        if expected is None and not isinstance(said, Contradicted):
            return f"more liars than tolerated went unseen: {intervals}"
    return None


@pytest.mark.parametrize("share", shares(SHARES))
def test_truth_is_inside_or_the_liars_are_found_in_a_hundred_thousand_sets(share: int) -> None:
    assert violation(SETS // SHARES, seed=1 + share) is None


# A cross-check that is honest changes nothing; one that lies is outvoted or found, and never moves an end.
def test_cross_checks_never_move_an_end() -> None:
    chance = random.Random(2)
    for voices, _ in sets(SETS // 10, seed=3):
        checks = [
            Voice(f"check {index}", honest(chance) if chance.random() < 0.7 else lying(chance), Weight.CROSS_CHECK)
            for index in range(chance.randint(0, 3))
        ]
        alone, checked = combine(voices), combine([*checks, *voices])
        if isinstance(checked, Agreed):
            assert isinstance(alone, Agreed)
            assert checked.ahead == alone.ahead


type Hull = Callable[[list[TimeInterval], int], TimeInterval | None]


def averaging(intervals: list[TimeInterval], liars: int) -> TimeInterval | None:
    return TimeInterval(
        sum(each.earliest for each in intervals) // len(intervals),
        sum(each.latest for each in intervals) // len(intervals),
    )


def one_liar_more(intervals: list[TimeInterval], liars: int) -> TimeInterval | None:
    return by_definition(intervals, min(liars + 1, len(intervals) - 1))


def one_liar_less(intervals: list[TimeInterval], liars: int) -> TimeInterval | None:
    return by_definition(intervals, max(0, liars - 1))


def open_ends(intervals: list[TimeInterval], liars: int) -> TimeInterval | None:
    found = by_definition(intervals, liars)
    return found if found is not None and found.earliest < found.latest else None


def first_island(intervals: list[TimeInterval], liars: int) -> TimeInterval | None:
    """The first stretch that enough intervals hold, though true time may be on a later one."""
    ends = sorted({instant for each in intervals for instant in (each.earliest, each.latest)})
    good = [instant for instant in ends if held(intervals, instant) >= len(intervals) - liars]
    if not good:
        return None
    last = good[0]
    for instant in good[1:]:
        if held(intervals, last + 1) < len(intervals) - liars and instant > last + 1:
            break
        last = instant
    return TimeInterval(good[0], last)


@pytest.mark.parametrize("mutant", [averaging, one_liar_more, one_liar_less, open_ends, first_island])
def test_mutant_of_the_hull_is_found(mutant: Hull) -> None:
    with patch.object(combining, "hull", mutant):
        assert violation(3000, seed=1) is not None


def half_may_lie(voices: int, liars: int | None) -> int:
    return voices // 2 if liars is None else min(liars, voices // 2)


def test_mutant_that_tolerates_half_is_found() -> None:
    with patch.object(combining, "tolerated", half_may_lie):
        assert violation(3000, seed=1) is not None
