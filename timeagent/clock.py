"""The clock ports, and the only reader of this machine's clocks.

Protocol code takes a ``NodeTime`` by its constructor and never asks the machine. Data types never ask for the time at
all: they are given it.
"""

from __future__ import annotations

import time
from functools import cache, partial
from pathlib import Path
from typing import Protocol

from .interval import TimeInterval
from .signedtime import SignedTime
from .units import SECOND, Instant, Span


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
    """What the operating system says, unjudged."""

    def realtime_ns(self) -> Instant:
        """Return CLOCK_REALTIME: may step, in both directions."""

    def boot_ns(self) -> int:
        """Return CLOCK_BOOTTIME."""

    def sleep(self, span: Span) -> None:
        """Wait about that long."""


class AgentClock(MachineClock, Protocol):
    """All four clocks, by which the time agent tells a step, a suspend and a slew apart."""

    def monotonic_ns(self) -> int:
        """Return CLOCK_MONOTONIC: CLOCK_BOOTTIME without the time that the machine was suspended."""

    def raw_ns(self) -> int:
        """Return CLOCK_MONOTONIC_RAW: nobody slews it."""


class SystemClock:
    """This machine's clocks (AgentClock). Each is one call from C to C: a method around it would cost as much again."""

    realtime_ns = staticmethod(partial(time.clock_gettime_ns, time.CLOCK_REALTIME))
    boot_ns = staticmethod(partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME))
    monotonic_ns = staticmethod(partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC))
    raw_ns = staticmethod(partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC_RAW))

    def sleep(self, span: Span) -> None:
        """Wait, by the monotonic clock."""
        if span > 0:
            time.sleep(span / SECOND)


@cache
def boot_id() -> str:
    """Return the kernel's name of this boot (reads /proc once)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
