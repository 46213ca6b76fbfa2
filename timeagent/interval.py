"""``TimeInterval``: what is known about an instant. Time is an interval, never a point (docs/protocol/time.md)."""

from __future__ import annotations

import msgspec

from .units import Instant, Span  # here, not for type checkers only: `help` looks at the types of a struct


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
