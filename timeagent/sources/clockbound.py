"""The source *clockbound*: the shared memory segment of Amazon's ClockBound daemon, version 2 of its layout.

Native byte order, 80 bytes: magic 8, size u32, version u16, generation u16 (odd while it is written, 0 before it ever
was), as_of seconds and nanoseconds, void_after seconds and nanoseconds (i64 each, CLOCK_MONOTONIC_COARSE), bound i64
nanoseconds, disruption marker u64, maximum drift u32 parts per billion, status i32, disruption support u8, padding.

The daemon adds up chrony's report as timeagent/sources/chrony.py does, plus what a hardware clock adds to it. What is
refused, by name: ``no-answer`` (no segment), ``clockbound-garbled`` (another magic, version or size; always being
written), ``not-synchronized`` (its status is not synchronized), ``stale`` (older than five seconds, or void).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from timeagent.clock import MachineClock, drift_ns
from timeagent.errors import BadTime
from timeagent.interval import TimeInterval
from timeagent.units import MS, SECOND, Span, span_text

from .port import Sample

MAGIC: Final = bytes.fromhex("414d5a4e43420200")
VERSION: Final = 2
STALE_NS: Final[Span] = 5 * SECOND
SYNCHRONIZED: Final = 1

_SEGMENT: Final = struct.Struct("=8sIHHqqqqqQIiB7x")
SEGMENT_BYTES: Final = 80
assert _SEGMENT.size == SEGMENT_BYTES
_COARSE_NS: Final[Span] = 10 * MS
"""CLOCK_MONOTONIC_COARSE is behind CLOCK_MONOTONIC by up to one tick of the kernel."""
_READS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class Segment:
    """What the daemon says. Instants are CLOCK_MONOTONIC_COARSE."""

    generation: int
    as_of_ns: int
    void_after_ns: int
    bound_ns: Span
    max_drift_ppb: int
    status: int


def parse_segment(data: bytes) -> Segment | None:
    """Read a copy of the segment; None while it is being written. Raises BadTime: it is none, or another layout."""
    if len(data) < SEGMENT_BYTES:
        raise _garbled(f"{len(data)} bytes, not {SEGMENT_BYTES}")
    magic, size, version, generation, as_of, as_of_rest, void, void_rest, bound, _, drift, status, _ = (
        _SEGMENT.unpack_from(data)
    )
    if magic != MAGIC:
        raise _garbled(f"magic {magic.hex()}")
    if version != VERSION or size < SEGMENT_BYTES:
        raise _garbled(f"layout version {version} of {size} bytes; version {VERSION} is read")
    if generation == 0 or generation % 2:
        return None
    return Segment(generation, as_of * SECOND + as_of_rest, void * SECOND + void_rest, bound, drift, status)


class ClockBoundSource:
    """ClockBound's bound, where its daemon runs."""

    name = "clockbound"

    def __init__(self, clock: MachineClock, path: Path) -> None:
        """Take the segment's path: /var/run/clockbound/shm0."""
        self._clock = clock
        self._path = path

    def sample(self) -> Sample:
        """Read the segment. Never blocks. Raises BadTime."""
        boot_ns = self._clock.boot_ns()
        segment = self._read()
        radius = radius_of(segment, self._clock.monotonic_ns())
        return Sample(TimeInterval(-radius, radius), boot_ns)

    def _read(self) -> Segment:
        """Read a whole segment: the same twice, so that none was half written in between."""
        for _ in range(_READS_MAX):
            try:
                data, again = self._path.read_bytes(), self._path.read_bytes()
            except OSError as problem:
                raise BadTime(
                    "no-answer", f"cannot read {self._path}: {problem.strerror}", hint="does clockbound run?"
                ) from None
            segment = parse_segment(data)
            if segment is not None and data == again:
                return segment
        raise _garbled("it is being written all the time")


def radius_of(segment: Segment, monotonic_ns: int) -> Span:
    """Return the half-width, aged to a reading of CLOCK_MONOTONIC. Raises BadTime if the segment is no bound. Pure."""
    if segment.status != SYNCHRONIZED:
        raise BadTime(
            "not-synchronized", f"clockbound says status {segment.status}", hint="wait for chronyd: chronyc tracking"
        )
    age = monotonic_ns - segment.as_of_ns
    if age < -_COARSE_NS or age > STALE_NS or monotonic_ns > segment.void_after_ns:
        raise BadTime(
            "stale",
            f"clockbound wrote its bound {span_text(age)} ago; {span_text(STALE_NS)} are allowed",
            hint="does clockbound run?",
        )
    if segment.bound_ns <= 0:
        raise BadTime("no-bound", f"clockbound claims an error of {segment.bound_ns} ns", hint="see chronyc tracking")
    return segment.bound_ns + drift_ns(age, -(-segment.max_drift_ppb // 1000)) + 1


def _garbled(what: str) -> BadTime:
    return BadTime("clockbound-garbled", f"not a segment of clockbound: {what}", hint="which clockbound is it? 2.x")
