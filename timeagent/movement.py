"""How a machine's clocks moved against each other between two readings: steps, suspends, slews. Pure but for reading.

``CLOCK_REALTIME`` and ``CLOCK_BOOTTIME`` run at the same pace, whatever slews them, so their difference changes only
when somebody sets the clock. ``CLOCK_BOOTTIME`` and ``CLOCK_MONOTONIC`` differ by the time that the machine was
suspended. ``CLOCK_MONOTONIC_RAW`` is not slewed: what it and ``CLOCK_BOOTTIME`` disagree about is a slew, and chrony
slews by up to 83,333 ppm, far beyond any drift bound.

A machine whose clocks all stood still shows nothing here. Only others can tell: timeagent/sources/peer.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from .interval import TimeInterval
from .units import MS

if TYPE_CHECKING:
    from .clock import AgentClock
    from .units import Span

PAUSE_NS: Final[Span] = MS
"""A reading that took longer than this is repeated: a pause inside of it can hide a step."""

_ROUNDS_MAX: Final = 4


class ClockSample(msgspec.Struct, frozen=True, gc=False):
    """All clocks, read one after the other in the order of the fields."""

    boot_ns: int
    real_ns: int
    monotonic_ns: int
    raw_ns: int
    boot_after_ns: int

    def ahead(self) -> TimeInterval:
        """Return the interval that holds CLOCK_REALTIME minus CLOCK_BOOTTIME."""
        return TimeInterval(self.real_ns - self.boot_after_ns, self.real_ns - self.boot_ns)


def read_clocks(clock: AgentClock) -> ClockSample:
    """Read all clocks; again, a few times, if this process was paused in between."""
    for _ in range(_ROUNDS_MAX):
        reading = ClockSample(
            clock.boot_ns(), clock.realtime_ns(), clock.monotonic_ns(), clock.raw_ns(), clock.boot_ns()
        )
        if reading.boot_after_ns - reading.boot_ns <= PAUSE_NS:
            break
    return reading


class Movement(msgspec.Struct, frozen=True, gc=False):
    """What surely happened between two readings: what a pause inside of one explains is not counted."""

    elapsed_ns: Span
    """Of CLOCK_BOOTTIME, at most."""
    stepped_ns: Span
    """How far CLOCK_REALTIME was set; negative: back."""
    suspended_ns: Span
    slewed_ns: Span
    """How far CLOCK_BOOTTIME ran away from CLOCK_MONOTONIC_RAW, at most, in either direction, not counting suspends."""


def movement(before: ClockSample, after: ClockSample) -> Movement:
    """Return how the clocks moved against each other."""
    was, now = before.real_ns, after.real_ns  # as the ends of ``ahead``, without making two intervals each turn
    low = (now - after.boot_after_ns) - (was - before.boot_ns)
    high = (now - after.boot_ns) - (was - before.boot_after_ns)
    stepped = low if low > 0 else min(high, 0)
    suspended = (after.boot_ns - after.monotonic_ns) - (before.boot_after_ns - before.monotonic_ns)
    suspended_max = (after.boot_after_ns - after.monotonic_ns) - (before.boot_ns - before.monotonic_ns)
    raw = after.raw_ns - before.raw_ns
    slow = after.boot_ns - before.boot_after_ns - max(0, suspended_max) - raw
    fast = after.boot_after_ns - before.boot_ns - max(0, suspended) - raw
    return Movement(
        elapsed_ns=after.boot_after_ns - before.boot_ns,
        stepped_ns=stepped,
        suspended_ns=max(0, suspended),
        slewed_ns=max(abs(slow), abs(fast)),
    )


def drift_ns(span: Span, drift_ppm: int) -> Span:
    """Return how far a clock may run away in a span, rounded up."""
    return -(-max(0, span) * drift_ppm // 1_000_000)


def excess_slew_ns(moved: Movement, drift_ppm: int) -> Span:
    """Return by how much more than its drift what was known before must be widened: nothing, unless it was slewed.

    True time elapsed is CLOCK_MONOTONIC_RAW's plus or minus drift, so CLOCK_BOOTTIME's is wrong by at most that and
    the slew. A slew within the drift bound is what the drift bound is for.
    """
    if moved.slewed_ns <= drift_ns(moved.elapsed_ns, drift_ppm):
        return 0
    return moved.slewed_ns + drift_ns(moved.slewed_ns, drift_ppm)  # the raw clock ran for longer than the other
