"""The source *chrony*: the tracking report of a chronyd on this machine, over UDP, as any user.

True time minus CLOCK_REALTIME is within ``root delay / 2 + root dispersion + |remaining correction|``, and stays there
while chronyd slews the correction away. No single one of the three is a bound.

What it refuses, by name:

- ``not-synchronized``: no reference (id 0), leap status 3, or stratum 0 or above 15;
- ``local-reference``: chronyd serves its own clock and claims no error at all. Taken only where the agent's settings
  name a *cluster time*. A client of such a server cannot tell, so there every sample is labelled: relative to that
  machine, good for leases, not UTC;
- ``stale``: the last update is older than eight intervals between updates. chronyd says "synchronised" for very long
  after its servers died; what is known by then is for the agent's own drift bound to say;
- ``no-bound``: zero delay and zero dispersion from another reference than the local one.

The source *clockbound*: the shared memory segment of Amazon's ClockBound daemon, version 2 of its layout. The daemon
adds up chrony's report as is done here, plus what a hardware clock adds to it. Native byte order, 80 bytes: magic 8,
size u32, version u16, generation u16 (odd while it is written, 0 before it ever was), as_of seconds and nanoseconds,
void_after seconds and nanoseconds (i64 each, CLOCK_MONOTONIC_COARSE), bound i64 nanoseconds, disruption marker u64,
maximum drift u32 parts per billion, status i32, disruption support u8, padding.

What it refuses: ``no-answer`` (no segment), ``clockbound-garbled`` (another magic, version or size; always being
written), ``not-synchronized`` (its status is not synchronized), ``stale`` (older than five seconds, void, or from
before the machine was suspended).
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from ..clock import MachineClock, drift_ns
from ..errors import BadTime
from ..units import MS, SECOND, Instant, Span, TimeInterval, span_text
from .port import Exchange, Sample

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


TIMEOUT_NS: Final[Span] = 300 * MS
"""chronyd on the same machine answers in well under a millisecond."""

STALE_UPDATES: Final = 8
INTERVAL_NS_MAX: Final[Span] = 1024 * SECOND
"""The longest poll of NTP: a larger interval between updates is a gap, not a habit."""
_BLUR_NS: Final[Span] = SECOND
_STRATUM_MAX: Final = 15


class ChronySource:
    """chronyd's own error bound."""

    name = "chrony"

    def __init__(
        self, machine: MachineClock, exchange: Exchange, chance: random.Random, *, cluster_time: str = ""
    ) -> None:
        """Take the way to chronyd. ``cluster_time``: the name by which a local reference is accepted."""
        self._machine = machine
        self._exchange = exchange
        self._chance = chance
        self._cluster_time = cluster_time

    def sample(self) -> Sample:
        """Ask once. Blocks at most for the exchange's time-out. Raises BadTime."""
        sequence = self._chance.getrandbits(32)
        boot_ns = self._machine.boot_ns()  # before the answer: a pause in between must age it
        answer = self._exchange(tracking_request(sequence), lambda data: data[16:20] == sequence.to_bytes(4, "big"))
        report = parse_tracking(answer, sequence)
        refuse_tracking(report, self._machine.realtime_ns(), self._cluster_time)
        radius = radius_of(report)
        return Sample(
            TimeInterval(-radius, radius),
            boot_ns,
            cluster_time=bool(self._cluster_time),
        )


def radius_of(report: Tracking) -> Span:
    """Return the half-width, rounded up."""
    return (report.root_delay_ns + 1) // 2 + report.root_dispersion_ns + abs(report.correction_ns)


def refuse_tracking(report: Tracking, realtime_ns: Instant, cluster_time: str) -> None:
    """Raise BadTime if the report is no bound. Pure."""
    if report.reference == 0 or report.leap == LEAP_UNSYNCHRONISED or not 1 <= report.stratum <= _STRATUM_MAX:
        raise BadTime(
            "not-synchronized",
            f"chronyd is not synchronised (reference {report.reference:08X}, stratum {report.stratum}, "
            f"leap {report.leap})",
            hint="wait for its servers: chronyc sources",
        )
    local = report.reference == LOCAL_REFERENCE
    if local and not cluster_time:
        raise BadTime(
            "local-reference",
            "chronyd serves its own clock (reference 7F7F0101) and claims no error: that is no bound",
            hint="give it a server, or name it: cluster_time in time.toml",
        )
    if report.root_delay_ns < 0 or report.root_dispersion_ns < 0:
        raise BadTime("no-bound", "chronyd reports a negative delay or dispersion", hint="see chronyc tracking")
    if local:
        return  # its own clock needs no update, and is right by definition
    if report.root_delay_ns == report.root_dispersion_ns == 0:
        raise BadTime(
            "no-bound",
            f"chronyd claims no delay and no dispersion from reference {report.reference:08X}: that is no bound",
            hint="see chronyc tracking",
        )
    age = realtime_ns + report.correction_ns - report.updated_ns - _BLUR_NS
    allowed = STALE_UPDATES * min(max(report.interval_ns, SECOND), INTERVAL_NS_MAX)
    if age > allowed:
        raise BadTime(
            "stale",
            f"chronyd last updated the clock {span_text(age)} ago; {span_text(allowed)} are allowed",
            hint="have its servers died? chronyc sources",
        )


# ---- clockbound ----

SEGMENT_MAGIC: Final = bytes.fromhex("414d5a4e43420200")
SEGMENT_VERSION: Final = 2
SEGMENT_STALE_NS: Final[Span] = 5 * SECOND
SEGMENT_SYNCHRONIZED: Final = 1

_SEGMENT: Final = struct.Struct("=8sIHHqqqqqQIiB7x")
SEGMENT_BYTES: Final = 80
assert _SEGMENT.size == SEGMENT_BYTES
_COARSE_NS: Final[Span] = 10 * MS
"""CLOCK_MONOTONIC_COARSE is behind CLOCK_MONOTONIC by up to one tick of the kernel."""
_READS_MAX: Final = 4


class ClockBoundSource:
    """ClockBound's bound, where its daemon runs."""

    name = "clockbound"

    def __init__(self, clock: MachineClock, path: Path) -> None:
        """Take the segment's path: /var/run/clockbound/shm0."""
        self._clock = clock
        self._path = path
        self._suspended_ns = clock.boot_ns() - clock.monotonic_ns()
        self._awake_ns = 0
        """CLOCK_MONOTONIC when it was seen last that the machine had been suspended."""

    def sample(self) -> Sample:
        """Read the segment: the same twice, so that none was half written in between. Never blocks. Raises BadTime."""
        for _ in range(_READS_MAX):
            boot_ns = self._clock.boot_ns()
            awake_ns = self._clock.monotonic_ns()
            if boot_ns - awake_ns > self._suspended_ns + _COARSE_NS:
                self._suspended_ns, self._awake_ns = boot_ns - awake_ns, awake_ns
            try:
                data, again = self._path.read_bytes(), self._path.read_bytes()
            except OSError as problem:
                raise BadTime(
                    "no-answer", f"cannot read {self._path}: {problem.strerror}", hint="does clockbound run?"
                ) from None
            radius = self._radius(data) if data == again else None
            if radius is not None:
                return Sample(TimeInterval(-radius, radius), boot_ns)
        raise _garbled("it is being written all the time")

    def _radius(self, data: bytes) -> Span | None:
        return segment_radius(data, self._clock.monotonic_ns(), self._awake_ns)


def segment_radius(data: bytes, monotonic_ns: int, awake_ns: int = 0) -> Span | None:
    """Return what a segment says, aged to a reading of CLOCK_MONOTONIC, rounded up; None while it is being written.

    ``awake_ns``: since when, by that clock, the machine was not suspended: while it was, that clock stood still.

    Raises BadTime: it is none, has another layout, or is no bound. Pure.
    """
    if len(data) < SEGMENT_BYTES:
        raise _garbled(f"{len(data)} bytes, not {SEGMENT_BYTES}")
    magic, size, version, generation, as_of, as_of_rest, void, void_rest, bound, _, drift_ppb, status, _ = (
        _SEGMENT.unpack_from(data)
    )
    if magic != SEGMENT_MAGIC:
        raise _garbled(f"magic {magic.hex()}")
    if version != SEGMENT_VERSION or size < SEGMENT_BYTES:
        raise _garbled(f"layout version {version} of {size} bytes; version {SEGMENT_VERSION} is read")
    if generation == 0 or generation % 2:
        return None
    if status != SEGMENT_SYNCHRONIZED:
        raise BadTime("not-synchronized", f"clockbound says status {status}", hint="wait for chronyd: chronyc tracking")
    age = monotonic_ns - as_of * SECOND - as_of_rest
    if age < -_COARSE_NS or age > SEGMENT_STALE_NS or monotonic_ns > void * SECOND + void_rest:
        raise BadTime(
            "stale",
            f"clockbound wrote its bound {span_text(age)} ago; {span_text(SEGMENT_STALE_NS)} are allowed",
            hint="does clockbound run?",
        )
    if age > monotonic_ns - awake_ns:
        what = "clockbound wrote its bound before this machine was suspended"
        raise BadTime("stale", what, hint="wait: it writes every second")
    if bound <= 0:
        raise BadTime("no-bound", f"clockbound claims an error of {bound} ns", hint="see chronyc tracking")
    return int(bound) + drift_ns(age, -(-drift_ppb // 1000)) + 1


def _garbled(what: str) -> BadTime:
    return BadTime("clockbound-garbled", f"not a segment of clockbound: {what}", hint="which clockbound is it? 2.x")
