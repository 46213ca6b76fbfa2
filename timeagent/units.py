"""Integer nanoseconds, how people read and write them, and ``TimeInterval``: what is known about an instant.

An instant is nanoseconds since the Unix epoch (UTC, leap seconds as the kernel has them); a span is a length of time.
Both are plain ``int``: a float cannot hold today's date to the nanosecond. True time is an interval, never a point
(docs/protocol/time.md). Nothing here touches a clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from .errors import BadRequest

type Instant = int
type Span = int
type Seconds = float | timedelta
"""A span as programs write it: seconds, whole or not, or a timedelta."""

US: Final[Span] = 1_000
MS: Final[Span] = 1_000_000
SECOND: Final[Span] = 1_000_000_000
MINUTE: Final[Span] = 60 * SECOND
HOUR: Final[Span] = 60 * MINUTE
DAY: Final[Span] = 24 * HOUR

INSTANT_MAX: Final[Instant] = 2**63 - 1
"""The last instant that fits a signed 64-bit column (the year 2262)."""

_DIGITS_MAX: Final = len(str(INSTANT_MAX))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SPAN: Final = re.compile(r"(\d+)(?:\.(\d{1,9}))?(ns|us|ms|s|m|h|d)?", re.ASCII)
_UNITS: Final = {"ns": 1, "us": US, "ms": MS, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_RFC3339: Final = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:[Zz]|\+00:00)", re.ASCII)


def rfc3339(instant: Instant) -> str:
    """Return the instant as RFC 3339 in UTC with nine digits: ``2026-11-20T22:10:07.000000001Z``."""
    seconds, rest = divmod(instant, SECOND)
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def bound_text(instant: Instant) -> str:
    """Return a floor, a watermark or the like: ``none`` for 0, which nothing has ever moved."""
    return rfc3339(instant) if instant else "none"


def parse_instant(text: str) -> Instant:
    """Read RFC 3339 in UTC, or bare integer nanoseconds. Raises BadRequest that names the text."""
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX:
        return _in_range(int(text), text)
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise BadRequest(
            "bad-instant", f"{text!r} is not an instant", hint="write 2026-11-20T22:10:07.5Z or integer nanoseconds"
        )
    day, clock, fraction = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}+00:00")
    except ValueError as problem:
        raise BadRequest("bad-instant", f"{text!r} is not an instant: {problem}", hint="check day and time") from None
    whole = (moment - _EPOCH) // timedelta(seconds=1)
    return _in_range(whole * SECOND + int((fraction or "").ljust(9, "0")), text)


def _in_range(instant: Instant, text: str) -> Instant:
    if not 0 <= instant <= INSTANT_MAX:
        raise BadRequest(
            "bad-instant",
            f"{text!r} is not between 1970 and {rfc3339(INSTANT_MAX)}",
            hint="check the year and the unit",
        )
    return instant


def parse_span(text: str) -> Span:
    """Read ``1.5s``, ``250ms``, ``10m``; a bare number is seconds. Raises BadRequest that names the text.

    Nothing is rounded: what is no whole number of nanoseconds is refused, and so is what exceeds an instant's range.
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise BadRequest("bad-span", f"{text!r} is not a span of time", hint="write 250ms, 1.5s, 10m or 2h")
    whole, fraction, unit = match.groups()
    scale = _UNITS[unit or "s"]
    part, rest = divmod(int((fraction or "0").ljust(9, "0")) * scale, SECOND)
    if rest or len(whole) > _DIGITS_MAX or int(whole) * scale + part > INSTANT_MAX:
        raise BadRequest(
            "bad-span", f"{text!r} is not a whole number of nanoseconds below 2^63", hint="check digits and unit"
        )
    return int(whole) * scale + part


def span_of(seconds: Seconds, name: str) -> Span:
    """Return the span that a program names, to the nearest nanosecond. Raises BadRequest for what is none, by name."""
    if isinstance(seconds, timedelta):
        seconds_ns: float = seconds // timedelta(microseconds=1) * US
    elif isinstance(seconds, int | float) and not isinstance(seconds, bool):
        seconds_ns = seconds * SECOND
    else:
        seconds_ns = -1
    if not 0 <= seconds_ns <= INSTANT_MAX:
        raise BadRequest(
            "bad-span",
            f"{name}={seconds!r} is not a span of time from 0 to {span_text(INSTANT_MAX)}",
            hint="write seconds, 1.5, or datetime.timedelta(seconds=1.5)",
        )
    return round(seconds_ns)


def span_text(span: Span) -> str:
    """Return a span for people, in the largest unit that keeps it short: ``1.5 s``, ``250 ms``."""
    size = abs(span)
    for unit, scale in (("h", HOUR), ("min", MINUTE), ("s", SECOND), ("ms", MS), ("us", US)):
        if size >= scale:
            whole, rest = divmod(size, scale)
            digits = f"{rest * 1000 // scale:03d}".rstrip("0")
            return f"{'-' if span < 0 else ''}{whole}{'.' + digits if digits else ''} {unit}"
    return f"{span} ns"


class TimeInterval(msgspec.Struct, frozen=True, gc=False):
    """True time lies in ``[earliest, latest]``, both ends included, in nanoseconds since the Unix epoch.

    A struct, because one is made at every look at a clock: a frozen dataclass takes five times as long.
    """

    earliest: Instant
    latest: Instant

    def __post_init__(self) -> None:
        """Refuse an interval that contains nothing: that is a contradiction between clocks, not a time."""
        assert self.earliest <= self.latest, f"empty interval [{self.earliest}, {self.latest}]"

    @classmethod
    def around(cls, midpoint: Instant, radius: Span) -> TimeInterval:
        return cls(midpoint - radius, midpoint + radius)

    @property
    def midpoint(self) -> Instant:
        """The middle, rounded down."""
        return (self.earliest + self.latest) // 2

    @property
    def radius(self) -> Span:
        """Half the width, rounded up, so that midpoint plus or minus radius always covers the interval."""
        return (self.latest - self.earliest + 1) // 2

    def surely_past(self, instant: Instant) -> bool:
        """Whether the instant is over on every clock within its bounds. False means "cannot tell yet"."""
        return instant < self.earliest

    def surely_before(self, instant: Instant) -> bool:
        """Whether the instant is still to come on every clock within its bounds (*surely still valid*)."""
        return self.latest < instant

    def intersection(self, other: TimeInterval) -> TimeInterval | None:
        """Return what both allow, or None: at least one of the two is wrong."""
        earliest, latest = max(self.earliest, other.earliest), min(self.latest, other.latest)
        return TimeInterval(earliest, latest) if earliest <= latest else None

    def shifted(self, span: Span) -> TimeInterval:
        return TimeInterval(self.earliest + span, self.latest + span)

    def widened(self, span: Span) -> TimeInterval:
        """Return the interval with both ends moved outwards by a span."""
        return TimeInterval(self.earliest - span, self.latest + span)
