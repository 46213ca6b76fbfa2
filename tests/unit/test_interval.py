import pytest

from timeagent.interval import TimeInterval

TEN = TimeInterval(10, 20)


def test_an_interval_that_holds_nothing_is_a_bug() -> None:
    TimeInterval(5, 5)
    with pytest.raises(AssertionError):
        TimeInterval(5, 4)


@pytest.mark.parametrize(("instant", "past", "before"), [(9, True, False), (10, False, False), (20, False, False)])
def test_ends_belong_to_the_interval(instant: int, past: bool, before: bool) -> None:  # noqa: FBT001
    assert TEN.surely_past(instant) is past
    assert TEN.surely_before(instant) is before


def test_surely_before_begins_one_nanosecond_after_the_latest() -> None:
    assert not TEN.surely_before(20)
    assert TEN.surely_before(21)


@pytest.mark.parametrize(
    "interval", [TimeInterval(0, 0), TimeInterval(0, 1), TimeInterval(-3, 4), TimeInterval(-4, -1)]
)
def test_midpoint_and_radius_cover_the_interval(interval: TimeInterval) -> None:
    around = TimeInterval.around(interval.midpoint, interval.radius)
    assert around.earliest <= interval.earliest
    assert interval.latest <= around.latest
    assert around.latest - around.earliest - (interval.latest - interval.earliest) <= 1


@pytest.mark.parametrize(
    ("other", "both"),
    [
        (TimeInterval(20, 30), TimeInterval(20, 20)),
        (TimeInterval(21, 30), None),
        (TimeInterval(0, 9), None),
        (TimeInterval(0, 10), TimeInterval(10, 10)),
        (TimeInterval(12, 13), TimeInterval(12, 13)),
        (TimeInterval(0, 30), TEN),
    ],
)
def test_intersection_is_what_both_allow(other: TimeInterval, both: TimeInterval | None) -> None:
    assert TEN.intersection(other) == both
    assert other.intersection(TEN) == both


def test_shifting_moves_and_widening_moves_outwards() -> None:
    assert TEN.shifted(-5) == TimeInterval(5, 15)
    assert TEN.widened(5) == TimeInterval(5, 25)


def test_interval_is_a_value() -> None:
    assert hash(TimeInterval(10, 20)) == hash(TEN)
    with pytest.raises(AttributeError):
        TEN.earliest = 3  # type: ignore[misc]
