"""Intersection that tolerates liars: by hand, at the exact ends."""

import pytest

from timeagent.agent.combine import Agreed, Contradicted, Unheard, Voice, Weight, combine, hull, tolerated
from timeagent.interval import TimeInterval


def voice(name: str, low: int, high: int, weight: Weight = Weight.MEASURE, *, cluster: bool = False) -> Voice:
    return Voice(name, TimeInterval(low, high), weight, cluster_time=cluster)


def check(name: str, low: int, high: int) -> Voice:
    return voice(name, low, high, Weight.CROSS_CHECK)


@pytest.mark.parametrize(
    ("intervals", "liars", "expected"),
    [
        ([(1, 5)], 0, (1, 5)),
        ([(1, 5), (3, 9)], 0, (3, 5)),
        ([(1, 5), (5, 9)], 0, (5, 5)),  # both ends belong to an interval
        ([(1, 5), (6, 9)], 0, None),
        ([(1, 5), (6, 9)], 1, (1, 9)),
        ([(8, 12), (11, 13), (10, 12)], 0, (11, 12)),
        ([(8, 12), (11, 13), (14, 15)], 1, (11, 12)),
        ([(8, 9), (11, 13), (14, 15)], 1, None),
        ([(0, 10), (0, 1), (9, 10)], 1, (0, 10)),  # two islands: true time may be on either
        ([(5, 5), (5, 5), (5, 5)], 0, (5, 5)),
    ],
)
def test_hull_of_what_enough_intervals_hold(
    intervals: list[tuple[int, int]], liars: int, expected: tuple[int, int] | None
) -> None:
    found = hull([TimeInterval(*each) for each in intervals], liars)
    assert found == (TimeInterval(*expected) if expected else None)


@pytest.mark.parametrize(
    ("voices", "liars", "expected"),
    [(1, None, 0), (2, None, 0), (3, None, 1), (4, None, 1), (5, None, 2), (5, 1, 1), (3, 2, 1), (5, 0, 0)],
)
def test_liars_are_always_fewer_than_half(voices: int, liars: int | None, expected: int) -> None:
    assert tolerated(voices, liars) == expected


def test_one_liar_of_three_is_named_and_changes_nothing() -> None:
    said = combine([voice("a", 0, 10), voice("b", 2, 8), voice("liar", 100, 101)])
    assert said == Agreed(TimeInterval(2, 8), ("a", "b"), ("liar",), assumed=False, cluster_time=False)


def test_two_who_disagree_contradict_each_other() -> None:
    voices = (voice("a", 0, 1), voice("b", 5, 6))
    assert combine(voices) == Contradicted(voices, 0)


def test_nobody_says_nothing() -> None:
    assert combine([]) == Unheard()


# The file server's clock is good to seconds and often wrong: alone it is no time.
def test_cross_check_alone_is_no_time() -> None:
    assert combine([check("mount", 0, 10)]) == Unheard()


def test_cross_check_never_shapes_the_interval() -> None:
    said = combine([voice("a", 4, 6), check("mount", 5, 1000)])
    assert isinstance(said, Agreed)
    assert said.ahead == TimeInterval(4, 6)
    assert said.voices == ("a",)


def test_cross_check_votes() -> None:
    assert isinstance(combine([voice("a", 4, 6), check("mount", 50, 1000)]), Contradicted)
    tolerant = combine([voice("a", 4, 6), voice("b", 4, 6), check("mount", 50, 1000)])
    assert isinstance(tolerant, Agreed)
    assert tolerant.dissenting == ("mount",)
    outvoted = combine([voice("a", 4, 6), check("mount", 50, 1000), check("roughtime", 50, 1000)])
    assert isinstance(outvoted, Contradicted)
    assert outvoted.tolerated == 1


def test_assumption_counts_only_where_nothing_measures() -> None:
    assumed = voice("assumed", -100, 100, Weight.ASSUMED)
    said = combine([assumed])
    assert isinstance(said, Agreed)
    assert said.assumed
    measured = combine([voice("a", 4, 6), assumed])
    assert isinstance(measured, Agreed)
    assert (measured.ahead, measured.assumed, measured.voices) == (TimeInterval(4, 6), False, ("a",))


def test_time_of_a_cluster_is_labelled() -> None:
    said = combine([voice("a", 0, 10, cluster=True), voice("b", 2, 8)])
    assert isinstance(said, Agreed)
    assert said.cluster_time
