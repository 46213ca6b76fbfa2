"""The sources that need no other program: *kernel* (adjtimex), *assumed* (a stated radius), *mount* (file server)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Final

from ..clock import MachineClock
from ..errors import BadTime, TenureError
from ..units import MS, US, Instant, Span, TimeInterval
from .port import Sample, offset_between

SLEW_ALLOWANCE_NS: Final = MS
"""For a correction that the kernel was not told of. The chrony source, which reads it, needs no such guess."""

_STA_UNSYNC: Final = 0x0040
_STA_NANO: Final = 0x2000
_TIME_ERROR: Final = 5
_AGEING_US: Final = 500
"""What the kernel adds to maxerror each second."""


class Timex(ctypes.Structure):
    """``struct timex`` of the 64-bit Linux ABI; what is not asked about is left together."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 164),
    )


assert ctypes.sizeof(Timex) == 208  # noqa: PLR2004 - as the kernel has it

type ReadTimex = Callable[[Timex], int]
"""Fills a Timex and returns adjtimex's result: the clock state, or -1."""


def read_timex(timex: Timex) -> int:
    """Call adjtimex(2) with no modes: it reads and changes nothing."""
    result = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    assert isinstance(result, int)
    return result


class KernelSource:
    """The kernel's own error bound, if something disciplines the clock.

    What it refuses: UNSYNC, and the zero that systemd-timesyncd writes into ``maxerror`` and ``esterror``: it looks
    perfect and means nothing. The kernel then adds 500 us to ``maxerror`` each second and leaves ``esterror`` alone, so
    a zero ``esterror`` beside a whole multiple of 500 us is that zero, grown old.

    ``maxerror`` alone is no bound: chrony passes half the root delay plus the root dispersion, without what is still
    being slewed, so the kernel's remaining offset and a fixed allowance are added.
    """

    name = "kernel"

    def __init__(self, machine: MachineClock, read: ReadTimex = read_timex) -> None:
        """Take the machine's clock for the sample's instant; ``read`` is replaced in tests."""
        self._machine = machine
        self._read = read

    def sample(self) -> Sample:
        """Ask the kernel. Raises BadTime with what it said."""
        timex = Timex()
        boot_ns = self._machine.boot_ns()  # before the answer: a pause in between must age it
        state = self._read(timex)
        if state < 0:
            reason = os.strerror(ctypes.get_errno())
            raise BadTime("kernel-refused", f"adjtimex failed: {reason}", hint="a unit's ProtectClock= blocks it")
        if state == _TIME_ERROR or timex.status & _STA_UNSYNC:
            raise BadTime(
                "not-synchronized",
                f"the kernel's clock is unsynchronised (status 0x{timex.status:04x}, maxerror {timex.maxerror} us)",
                hint="run chrony with rtcsync, or state a radius in the policy (assumed_radius_ns)",
            )
        if timex.maxerror <= 0 or (timex.esterror == 0 and timex.maxerror % _AGEING_US == 0):
            raise BadTime(
                "no-bound",
                f"the kernel's clock claims no error but its age (maxerror {timex.maxerror} us, esterror 0): "
                "systemd-timesyncd writes that, and it is no bound",
                hint="run chrony instead, or state a radius in the policy (assumed_radius_ns)",
            )
        pending = abs(timex.offset) * (1 if timex.status & _STA_NANO else US)
        radius = timex.maxerror * US + pending + SLEW_ALLOWANCE_NS
        return Sample(TimeInterval(-radius, radius), boot_ns)


NOTHING_ASSUMED: Final = "no radius is stated: --assume-radius, or assumed_radius_ns in a cluster's policy"


class AssumedSource:
    """``true = CLOCK_REALTIME`` plus or minus a stated radius.

    For laptops and test machines whose clocks nobody disciplines, and for clusters on one machine, where all processes
    share one clock. It is labelled in every signed time that it makes. A radius that is too small breaks no promise
    about the record; it makes writes fail and the auditor speak up.
    """

    name = "assumed"

    def __init__(self, machine: MachineClock, radius_ns: Span) -> None:
        """Take the radius from the policy; 0: none is stated."""
        self._machine = machine
        self.state(radius_ns)

    def state(self, radius_ns: Span) -> None:
        """State another radius, from now on; 0: none."""
        assert radius_ns >= 0
        self._radius_ns = radius_ns

    def sample(self) -> Sample:
        """Return the stated radius. Raises BadTime where none is. Never blocks."""
        if not self._radius_ns:
            raise BadTime("nothing-assumed", NOTHING_ASSUMED)
        offset = TimeInterval(-self._radius_ns, self._radius_ns)
        return Sample(offset, self._machine.boot_ns(), assumed=True)


GRANULARITY_NS: Final[Span] = 10 * MS
"""A kernel stamps files with the instant of its last tick: up to 10 ms ago."""


class MountSource:
    """The file server's clock, plus or minus what it is trusted to.

    The one clock that all writers share, and a cheap cross-check; never a time of its own, because a file server's
    clock is often wrong, and its error is only a statement of the settings. How a file is touched comes in by the
    constructor.
    """

    name = "mount"

    def __init__(self, machine: MachineClock, touch: Callable[[], Instant], radius_ns: Span) -> None:
        """Take how a file on the mount is made or changed, returning its new ctime as the server gave it."""
        assert radius_ns > 0
        self._machine = machine
        self._touch = touch
        self._radius_ns = radius_ns

    def sample(self) -> Sample:
        """Touch the file once. Blocks as long as the mount does. Raises BadTime when it fails."""
        boot_ns = self._machine.boot_ns()
        before = self._machine.realtime_ns()
        try:
            stamped = self._touch()
        except TenureError as problem:
            raise BadTime("mount-refused", problem.message, hint=problem.hint) from None
        except OSError as problem:
            raise BadTime(
                "mount-refused", f"cannot touch a file on the mount: {problem.strerror}", hint="is it mounted?"
            ) from None
        after = self._machine.realtime_ns()
        # The server's clock showed `stamped`, or up to a tick more, at some instant between the two readings.
        offset = offset_between(TimeInterval(stamped, stamped + GRANULARITY_NS), before, after)
        return Sample(offset.widened(self._radius_ns), boot_ns)
