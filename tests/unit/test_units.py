import pytest

from timeagent.errors import BadRequest
from timeagent.units import (
    DAY,
    HOUR,
    INSTANT_MAX,
    MINUTE,
    MS,
    SECOND,
    US,
    TimeInterval,
    bound_text,
    parse_instant,
    parse_span,
    rfc3339,
    span_text,
)

INSTANTS = [
    (0, "1970-01-01T00:00:00.000000000Z"),
    (1, "1970-01-01T00:00:00.000000001Z"),
    (SECOND - 1, "1970-01-01T00:00:00.999999999Z"),
    (SECOND, "1970-01-01T00:00:01.000000000Z"),
    (951_782_400 * SECOND - 1, "2000-02-28T23:59:59.999999999Z"),
    (951_782_400 * SECOND, "2000-02-29T00:00:00.000000000Z"),
    (1_795_212_607_000_000_001, "2026-11-20T22:10:07.000000001Z"),
    (INSTANT_MAX, "2262-04-11T23:47:16.854775807Z"),
]


@pytest.mark.parametrize(("instant", "text"), INSTANTS)
def test_instant_is_written_and_read_to_the_nanosecond(instant: int, text: str) -> None:
    assert rfc3339(instant) == text
    assert parse_instant(text) == instant
    assert parse_instant(str(instant)) == instant


def test_floor_that_nothing_moved_is_none_and_no_day_of_1970() -> None:
    assert bound_text(0) == "none"
    assert bound_text(1) == rfc3339(1)


# An interval around an early instant can begin before 1970; it still has to be shown.
def test_instant_before_1970_is_written() -> None:
    assert rfc3339(-1) == "1969-12-31T23:59:59.999999999Z"


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("1970-01-01 00:00:01Z", SECOND),
        ("1970-01-01t00:00:01z", SECOND),
        ("1970-01-01T00:00:01+00:00", SECOND),
        ("1970-01-01T00:00:01.5Z", 1_500 * MS),
    ],
)
def test_instant_is_read_in_every_form_of_utc(text: str, instant: int) -> None:
    assert parse_instant(text) == instant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-11-20",
        "2026-11-20T22:10:07",  # no zone: whose?
        "2026-11-20T22:10:07+01:00",
        "2026-11-20T22:10:07.0000000001Z",
        "2026-13-20T22:10:07Z",
        "2026-11-20T22:10:60Z",
        "-1",
        "1.5",
        "1969-12-31T23:59:59Z",
        "2262-04-11T23:47:16.854775808Z",
        str(INSTANT_MAX + 1),
        "9" * 5000,
        "٢٠٢٦-11-20T22:10:07Z",
        "٢",
        "2026-11-20T22:10:07Z\n",
    ],
)
def test_what_is_no_instant_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_instant(text)
    assert refused.value.code == "bad-instant"
    assert repr(text) in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("0", 0),
        ("1", SECOND),
        ("1.5", 1_500 * MS),
        ("1ns", 1),
        ("0.001us", 1),
        ("1.5us", 1_500),
        ("250ms", 250 * MS),
        ("0.000000001s", 1),
        ("10m", 10 * MINUTE),
        ("0.5h", 30 * MINUTE),
        ("2d", 2 * DAY),
        (" 1s ", SECOND),
        (f"{INSTANT_MAX}ns", INSTANT_MAX),
    ],
)
def test_span_is_read_exactly(text: str, span: int) -> None:
    assert parse_span(text) == span


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "-1s",
        "1 s",
        "1e3",
        "1.s",
        ".5",
        "1w",
        "0.0000000001s",
        "1.5ns",
        "0.0001us",
        "٢s",
        f"{INSTANT_MAX + 1}ns",
    ],
)
def test_what_is_no_span_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_span(text)
    assert refused.value.code == "bad-span"
    assert repr(text) in refused.value.message
    assert refused.value.hint


def test_endless_digits_are_refused_before_they_are_counted() -> None:
    with pytest.raises(BadRequest):
        parse_span("9" * 100 + "h")


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (0, "0 ns"),
        (1, "1 ns"),
        (-5, "-5 ns"),
        (999, "999 ns"),
        (US, "1 us"),
        (1_500, "1.5 us"),
        (250 * MS, "250 ms"),
        (SECOND - 1, "999.999 ms"),
        (1_500 * MS, "1.5 s"),
        (-1_500 * MS, "-1.5 s"),
        (90 * SECOND, "1.5 min"),
        (HOUR, "1 h"),
        (DAY, "24 h"),
    ],
)
def test_span_is_shown_in_the_largest_unit(span: int, text: str) -> None:
    assert span_text(span) == text


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
