"""The clock ports, the only reader of this machine's clocks, and how those moved against each other.

Protocol code takes a ``NodeTime`` by its constructor and never asks the machine. Data types never ask for the time at
all: they are given it.

``CLOCK_REALTIME`` and ``CLOCK_BOOTTIME`` run at the same pace, whatever slews them, so their difference changes only
when somebody sets the clock. ``CLOCK_BOOTTIME`` and ``CLOCK_MONOTONIC`` differ by the time that the machine was
suspended. ``CLOCK_MONOTONIC_RAW`` is not slewed: what it and ``CLOCK_BOOTTIME`` disagree about is a slew, and chrony
slews by up to 83,333 ppm, far beyond any drift bound. A machine whose clocks all stood still shows nothing here; only
others can tell: timeagent/sources/nonce.py.
"""

from __future__ import annotations

import time
from functools import cache, partial
from pathlib import Path
from typing import Final, Protocol

import msgspec

from .signedtime import SignedTime
from .units import MS, SECOND, Instant, Span, TimeInterval


class Clock(Protocol):
    """Time as an interval, a monotonic count, and waiting."""

    def now(self) -> TimeInterval:
        """Return an interval that holds true time. Raises BadTime while no bound can be given. Never blocks."""

    def boot_ns(self) -> int:
        """Return nanoseconds since boot, suspended time included. For time-outs and ages, never for ordering."""

    def sleep(self, span: Span) -> None:
        """Wait about that long; at once if it is not positive."""


class Stamper(Protocol):
    """Signed times, by two doors."""

    def token(self) -> SignedTime:
        """Return the node's current signed time. It was signed *before* it is used: up to the staleness older."""

    def token_over(self, digest: bytes) -> SignedTime:
        """Return a signed time made now, whose signature covers 32 bytes: signed after they existed."""


class NodeTime(Clock, Stamper, Protocol):
    """All that protocol code knows of time."""

    def now_and_token(self) -> tuple[TimeInterval, SignedTime]:
        """Return ``now`` and ``token`` by one look at the clock: the token was signed at that look or before it."""


class MachineClock(Protocol):
    """What the operating system says, unjudged: four clocks, by which a step, a suspend and a slew are told apart."""

    def realtime_ns(self) -> Instant:
        """Return CLOCK_REALTIME: may step, in both directions."""

    def boot_ns(self) -> int:
        """Return CLOCK_BOOTTIME."""

    def monotonic_ns(self) -> int:
        """Return CLOCK_MONOTONIC: CLOCK_BOOTTIME without the time that the machine was suspended."""

    def raw_ns(self) -> int:
        """Return CLOCK_MONOTONIC_RAW: nobody slews it."""

    def sleep(self, span: Span) -> None:
        """Wait about that long."""


class SystemClock:
    """A MachineClock: this machine's. Each is one call from C to C: a method around it would cost as much again."""

    realtime_ns = staticmethod(partial(time.clock_gettime_ns, time.CLOCK_REALTIME))
    boot_ns = staticmethod(partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME))
    monotonic_ns = staticmethod(partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC))
    raw_ns = staticmethod(partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC_RAW))

    def sleep(self, span: Span) -> None:
        """Wait, by the monotonic clock."""
        if span > 0:
            time.sleep(span / SECOND)


@cache
def boot_id() -> bytes:
    """Return the kernel's name of this boot: 16 bytes (reads /proc once)."""
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").replace("-", ""))


PAUSE_NS: Final[Span] = MS
"""A reading that took longer than this is repeated: a pause inside of it can hide a step."""

_READINGS_MAX: Final = 4


class ClockSample(msgspec.Struct, frozen=True, gc=False):
    """All clocks: CLOCK_REALTIME, and then the last two, are read between two looks at CLOCK_BOOTTIME."""

    boot_ns: int
    real_ns: int
    boot_after_ns: int
    monotonic_ns: int
    raw_ns: int

    def ahead(self) -> TimeInterval:
        """Return the interval that holds CLOCK_REALTIME minus CLOCK_BOOTTIME."""
        return TimeInterval(self.real_ns - self.boot_after_ns, self.real_ns - self.boot_ns)

    @property
    def paused(self) -> bool:
        return self.boot_after_ns - self.boot_ns > PAUSE_NS


def read_clocks(clock: MachineClock) -> ClockSample:
    """Read all clocks; again, a few times, if this process was paused in between."""
    for _ in range(_READINGS_MAX):
        boot, real, mono, raw = clock.boot_ns(), clock.realtime_ns(), clock.monotonic_ns(), clock.raw_ns()
        reading = ClockSample(boot, real, clock.boot_ns(), mono, raw)
        if not reading.paused:
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
    stepped_min = after.real_ns - after.boot_after_ns - (before.real_ns - before.boot_ns)
    stepped_max = after.real_ns - after.boot_ns - (before.real_ns - before.boot_after_ns)
    suspended = (after.boot_ns - after.monotonic_ns) - (before.boot_after_ns - before.monotonic_ns)
    suspended_max = (after.boot_after_ns - after.monotonic_ns) - (before.boot_ns - before.monotonic_ns)
    raw = after.raw_ns - before.raw_ns
    slow = after.boot_ns - before.boot_after_ns - max(0, suspended_max) - raw
    fast = after.boot_after_ns - before.boot_ns - max(0, suspended) - raw
    return Movement(
        elapsed_ns=after.boot_after_ns - before.boot_ns,
        stepped_ns=stepped_min if stepped_min > 0 else min(stepped_max, 0),
        suspended_ns=max(0, suspended),
        slewed_ns=max(abs(slow), abs(fast)),
    )


DRIFT_PPM: Final = 200
"""How fast a machine's clock may run away between samples, in parts per million. Measured slews reach 145."""


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
