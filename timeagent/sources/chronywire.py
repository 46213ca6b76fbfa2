"""The two packets of chrony's command protocol that are needed: the request for its tracking report, and the report.

Version 6, as chronyd 2.2 and later speak it on UDP port 323, to any local user. Numbers are big-endian. Pure.

| reply offset | field |
|---|---|
| 0 | version u8 = 6, type u8 = 2, two reserved |
| 4 | command u16 = 33, reply u16 = 5, status u16 = 0 |
| 16 | sequence u32, echoed |
| 28 | reference id u32, its address 20 bytes, stratum u16, leap u16 |
| 56 | time of the last update: seconds u32 high, u32 low, nanoseconds u32 |
| 68 | floats: correction, last offset, rms, frequency, residual, skew, root delay, root dispersion, update interval |

A float is 32 bits: 7 of signed exponent, 25 of signed coefficient; it is ``coefficient * 2 ** (exponent - 25)``. A
request is as long as the reply, so that nobody is flooded in another's name.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from timeagent.errors import BadTime
from timeagent.units import SECOND

if TYPE_CHECKING:
    from timeagent.units import Instant, Span

PORT: Final = 323
LOCAL_REFERENCE: Final = 0x7F7F0101
"""127.127.1.1: chronyd serves its own clock (``local``) and claims no error at all."""
LEAP_UNSYNCHRONISED: Final = 3

_VERSION: Final = 6
_REQUEST_TYPE: Final = 1
_REPLY_TYPE: Final = 2
_TRACKING: Final = 33
_TRACKING_REPLY: Final = 5
_NO_HIGH_SECONDS: Final = 0x7FFFFFFF
_REQUEST: Final = struct.Struct(">BBxxHHIxxxxxxxx")
_HEAD: Final = struct.Struct(">BBxxHHHxxxxxxIxxxxxxxx")
_BODY: Final = struct.Struct(">I20xHHIII9i")
TRACKING_BYTES: Final = _HEAD.size + _BODY.size
assert (_REQUEST.size, _HEAD.size, TRACKING_BYTES) == (20, 28, 104)


@dataclass(frozen=True, slots=True)
class Tracking:
    """What chronyd knows of the clock. Spans are rounded away from zero: never better than said."""

    reference: int
    stratum: int
    leap: int
    updated_ns: Instant
    """When the clock was last updated, as chronyd's corrected clock had it; blurred by up to a second on purpose."""
    correction_ns: Span
    """What is still to be slewed: true time is about CLOCK_REALTIME plus this."""
    root_delay_ns: Span
    root_dispersion_ns: Span
    interval_ns: Span
    """Between the last two updates."""


def tracking_request(sequence: int) -> bytes:
    """Return the request, padded to the reply's length."""
    return _REQUEST.pack(_VERSION, _REQUEST_TYPE, _TRACKING, 0, sequence).ljust(TRACKING_BYTES, b"\0")


def parse_tracking(data: bytes, sequence: int) -> Tracking:
    """Read a reply. Raises BadTime: not the reply to this request, or chronyd refused it."""
    if len(data) < _HEAD.size:
        raise _bad(f"{len(data)} bytes are no reply")
    version, kind, command, reply, status, echoed = _HEAD.unpack_from(data)
    if (version, kind, command, echoed) != (_VERSION, _REPLY_TYPE, _TRACKING, sequence):
        raise _bad(
            f"version {version}, type {kind}, command {command}, sequence {echoed}: another reply than asked for"
        )
    if status or reply != _TRACKING_REPLY:
        raise BadTime(
            "chrony-refused",
            f"chronyd refused with status {status}, reply {reply}",
            hint="chronyd 2.2 or later answers",
        )
    if len(data) != TRACKING_BYTES:
        raise _bad(f"a tracking report of {len(data)} bytes, not {TRACKING_BYTES}")
    reference, stratum, leap, high, low, nanoseconds, *floats = _BODY.unpack_from(data, _HEAD.size)
    correction, _, _, _, _, _, delay, dispersion, interval = (_nanoseconds(each) for each in floats)
    seconds = low if high == _NO_HIGH_SECONDS else high << 32 | low
    return Tracking(reference, stratum, leap, seconds * SECOND + nanoseconds, correction, delay, dispersion, interval)


def _nanoseconds(packed: int) -> Span:
    """Return a packed float of seconds as whole nanoseconds, rounded away from zero."""
    exponent, coefficient = packed >> 25, packed & 0x1FFFFFF
    if coefficient >= 1 << 24:
        coefficient -= 1 << 25
    exact = Fraction(coefficient) * Fraction(2) ** (exponent - 25) * SECOND
    size = -(-abs(exact.numerator) // exact.denominator)
    return size if exact >= 0 else -size


def _bad(what: str) -> BadTime:
    return BadTime("chrony-garbled", f"not an answer of chronyd: {what}", hint="what else listens on that port?")
