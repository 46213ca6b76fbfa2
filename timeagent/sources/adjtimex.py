"""The source *kernel*: adjtimex(2), read-only, any user.

What it refuses: UNSYNC, and the zero that systemd-timesyncd writes into ``maxerror`` and ``esterror``: it looks perfect
and means nothing. The kernel then adds 500 us to ``maxerror`` each second and leaves ``esterror`` alone, so a zero
``esterror`` beside a whole multiple of 500 us is that zero, grown old.

``maxerror`` alone is no bound: chrony passes half the root delay plus the root dispersion, without what is still being
slewed, so the kernel's remaining offset and a fixed allowance are added.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Final, Protocol

from timeagent.errors import BadTime
from timeagent.interval import TimeInterval
from timeagent.signedtime import ClockStatus
from timeagent.units import MS, US

from .port import Sample

if TYPE_CHECKING:
    from timeagent.clock import MachineClock

SLEW_ALLOWANCE_NS: Final = MS
"""For a correction that the kernel was not told of. The chrony source, which reads it, needs no such guess."""

_STA_UNSYNC: Final = 0x0040
_STA_NANO: Final = 0x2000
_TIME_ERROR: Final = 5
_AGEING_US: Final = 500
"""What the kernel adds to maxerror each second."""


class Timex(ctypes.Structure):
    """``struct timex`` of the 64-bit Linux ABI."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time_sec", ctypes.c_long),
        ("time_usec", ctypes.c_long),
        ("tick", ctypes.c_long),
        ("ppsfreq", ctypes.c_long),
        ("jitter", ctypes.c_long),
        ("shift", ctypes.c_int),
        ("stabil", ctypes.c_long),
        ("jitcnt", ctypes.c_long),
        ("calcnt", ctypes.c_long),
        ("errcnt", ctypes.c_long),
        ("stbcnt", ctypes.c_long),
        ("tai", ctypes.c_int),
        ("padding", ctypes.c_int * 11),
    )


class ReadTimex(Protocol):
    """Fill a Timex and return adjtimex's result: the clock state, or -1."""

    def __call__(self, timex: Timex) -> int:
        """Call it."""
        ...


def read_timex(timex: Timex) -> int:
    """Call adjtimex(2) with no modes: it reads and changes nothing."""
    result = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    assert isinstance(result, int)
    return result


class KernelSource:
    """The kernel's own error bound, if something disciplines the clock."""

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
        return Sample(self.name, TimeInterval(-radius, radius), boot_ns, ClockStatus.SYNCHRONIZED)
