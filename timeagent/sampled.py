"""The machine's clock with a bound: the sample of one time source, carried forward by the machine's own clocks.

``CLOCK_REALTIME`` and ``CLOCK_BOOTTIME`` run at the same pace, whatever slews them: their difference changes only when
somebody sets the clock. So every look compares it with the look before:

1. read both clocks; a difference that moved by more than ``STEP_NS`` is a *step*: a new clock epoch, and the sample is
   dropped;
2. a sample that is older than a period is replaced, and 1 begins again, because the clock may have been set meanwhile:
   where it stood when the source looked at it lies between the looks before and after. (Who sets it there and back
   while a source is asked is seen by nobody.)
3. the new sample must be able to be true together with what was said before, carried forward by ``CLOCK_BOOTTIME``.
   If not, one of the two was wrong and nobody here knows which: the clock is *disrupted*, and nothing is said for
   ``DISRUPTED_NS``. After that the new reading counts, in a new clock epoch.

Clocks cost liveness only: who meets BadTime waits or gives up, and nothing in the record depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from .clock import MachineClock
from .errors import BadTime
from .interval import TimeInterval
from .sources.port import Sample, Source
from .units import MS, SECOND, Span, span_text

DRIFT_PPM: Final = 200
"""How fast a machine's clock may run away between samples, in parts per million. Measured slews reach 145."""

SAMPLE_PERIOD_NS: Final[Span] = SECOND

STEP_NS: Final[Span] = 50 * MS
"""CLOCK_REALTIME moving against CLOCK_BOOTTIME by more than this between two looks is a step.

What moves by less is taken in by widening the interval by as much."""

DISRUPTED_NS: Final[Span] = 10 * SECOND
"""How long nothing is said after a contradiction: who sets a clock often sets it again."""

_RESAMPLE_NS: Final[Span] = MS
_ROUNDS_MAX: Final = 4


class Look(msgspec.Struct, frozen=True, gc=False):
    """One look at the clock."""

    now: TimeInterval
    sample: Sample
    clock_epoch: int
    boot_ns: int
    """CLOCK_BOOTTIME just before the clock was read: nothing in ``now`` is older than that."""


class _Reading(msgspec.Struct, frozen=True, gc=False):
    before: int
    real: int
    after: int

    def moved_since(self, other: _Reading) -> tuple[int, int]:
        """How far the clock was set between two readings, at least and at most: pauses inside of them hide the rest."""
        low = self.real - self.after - (other.real - other.before)
        high = self.real - self.before - (other.real - other.after)
        return low, high

    def ahead(self) -> TimeInterval:
        """Return the interval that holds CLOCK_REALTIME minus CLOCK_BOOTTIME."""
        return TimeInterval(self.real - self.after, self.real - self.before)

    def surely_moved_since(self, other: _Reading) -> int:
        """How far the clock was surely set: what a pause inside of a reading explains is not counted."""
        low, high = self.moved_since(other)
        return low if low > 0 else min(high, 0)


@dataclass(frozen=True, slots=True)
class _Said:
    """True time minus CLOCK_BOOTTIME, as the sample in use said it at a boot-time instant."""

    ahead: TimeInterval
    boot_ns: int

    def at(self, boot_ns: int) -> TimeInterval:
        return self.ahead.widened(_drift(boot_ns - self.boot_ns))


class SampledClock:
    """An interval that holds true time, from sources in order of preference. Not thread-safe."""

    def __init__(
        self, machine: MachineClock, sources: Sequence[Source], *, radius_ns_max: Span, clock_epoch: int = 0
    ) -> None:
        """Take the sources: the first that has a bound is used. Asks none of them yet."""
        self._machine = machine
        self._sources = sources
        self.radius_ns_max = radius_ns_max
        self._epoch = clock_epoch
        self._sample: Sample | None = None
        self._asked: _Reading | None = None
        self._sampled: TimeInterval | None = None  # holds CLOCK_REALTIME minus CLOCK_BOOTTIME as the source saw them
        self._last: _Reading | None = None
        self._said: _Said | None = None
        self._disrupted_until = 0
        self._disrupted_by = 0
        self.refusals: dict[str, str] = {}
        """Why each source that was asked last had nothing to give, by its name."""

    def look(self) -> Look:
        """Look at the clock. Raises BadTime: no source has a bound, it is too wide, the clock is disrupted."""
        asked = False
        for _ in range(_ROUNDS_MAX):
            reading = self._read()
            if self._note_step(reading):
                asked = False
            if self._sample is None or not (asked or self._fresh(self._sample, reading)):
                self._sample = self._ask()
                # Who sets the clock after the source looked and before we do moves it since this reading.
                self._asked = reading
                asked = True
            else:
                return self._judge(reading, self._sample)
        raise BadTime("clock-unsteady", f"the clock was set {_ROUNDS_MAX} times while it was read", hint="try again")

    def _read(self) -> _Reading:
        """Read both clocks; again, a few times, if this process was paused between them: a pause can hide a step."""
        machine = self._machine
        for _ in range(_ROUNDS_MAX):
            reading = _Reading(machine.boot_ns(), machine.realtime_ns(), machine.boot_ns())
            if reading.after - reading.before <= _RESAMPLE_NS:
                break
        return reading

    def _note_step(self, reading: _Reading) -> bool:
        stepped = self._last is not None and abs(reading.surely_moved_since(self._last)) > STEP_NS
        self._last = reading
        if stepped:
            self._epoch += 1
            self._sample = self._sampled = None
        return stepped

    def _fresh(self, sample: Sample, reading: _Reading) -> bool:
        if reading.before - sample.boot_ns >= SAMPLE_PERIOD_NS:
            return False
        return max(map(abs, self._moved_since_sample(reading))) <= _RESAMPLE_NS

    def _moved_since_sample(self, reading: _Reading) -> tuple[Span, Span]:
        """How far the clock was set since the source looked at it, at least and at most."""
        if self._sampled is None:
            return 0, 0
        then = self._sampled
        return reading.real - reading.after - then.latest, reading.real - reading.before - then.earliest

    def _ask(self) -> Sample:
        self._sampled = None
        refusals: dict[str, str] = {}
        for source in self._sources:
            try:
                sample = source.sample()
            except BadTime as problem:
                refusals[source.name] = str(problem)
            else:
                self.refusals = refusals
                return sample
        self.refusals = refusals
        self._sample = None
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        raise BadTime(
            "no-time",
            f"no time source has a bound ({reasons or 'there is no source'})",
            hint="run chrony; or found the cluster with: tenure init --assume-radius SPAN",
        )

    def _judge(self, reading: _Reading, sample: Sample) -> Look:
        fresh = self._sampled is None
        if fresh and self._asked is not None:
            was, is_now = self._asked.ahead(), reading.ahead()
            self._sampled = TimeInterval(min(was.earliest, is_now.earliest), max(was.latest, is_now.latest))
        now = self._interval(reading, sample)
        if fresh:
            self._compare(reading, now)
        if reading.before < self._disrupted_until:
            raise BadTime(
                "clock-disrupted",
                f"the clock contradicts by {span_text(self._disrupted_by)} what it said before: it was set, or it lied",
                hint=f"wait {span_text(DISRUPTED_NS)}; if it was set on purpose it counts from then on",
            )
        if now.radius > self.radius_ns_max:
            raise BadTime(
                "radius-too-wide",
                f"the clock is known to {span_text(now.radius)} (source {sample.source}); "
                f"the policy allows {span_text(self.radius_ns_max)}",
                hint="wait for the clock to settle, or mend its time service",
            )
        return Look(now, sample, self._epoch, reading.before)

    def _interval(self, reading: _Reading, sample: Sample) -> TimeInterval:
        if sample.assumed:  # a statement about the clock at any instant: nothing in it ages
            return sample.offset.shifted(reading.real)
        aged = sample.offset.widened(_drift(reading.after - sample.boot_ns)).shifted(reading.real)
        low, high = self._moved_since_sample(reading)
        return TimeInterval(aged.earliest - max(high, 0), aged.latest - min(low, 0))

    def _compare(self, reading: _Reading, now: TimeInterval) -> None:
        """Hold a new sample against what was said before, and keep what it says."""
        ahead = TimeInterval(now.earliest - reading.after, now.latest - reading.before)
        before = self._said.at(reading.before) if self._said is not None else ahead
        both = ahead.intersection(before)
        if both is None:
            self._epoch += 1
            self._disrupted_until = reading.before + DISRUPTED_NS
            self._disrupted_by = max(ahead.earliest - before.latest, before.earliest - ahead.latest)
        self._said = _Said(ahead, reading.before)


def _drift(span: Span) -> Span:
    return -(-max(0, span) * DRIFT_PPM // 1_000_000)
