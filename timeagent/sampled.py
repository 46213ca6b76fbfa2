"""The machine's clock with a bound: one sample carried forward by the machine's own clocks, and signed in this process.

``CLOCK_REALTIME`` and ``CLOCK_BOOTTIME`` run at the same pace, whatever slews them, so their difference changes only
when somebody sets the clock. ``CLOCK_BOOTTIME`` and ``CLOCK_MONOTONIC`` differ by the time that the machine was
suspended. ``CLOCK_MONOTONIC_RAW`` is not slewed: what it and ``CLOCK_BOOTTIME`` disagree about is a slew, and chrony
slews by up to 83,333 ppm, far beyond any drift bound. A machine whose clocks all stood still shows nothing here; only
others can tell: timeagent/sources/peer.py. So every look compares the clocks with the look before:

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

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

import msgspec

from .clock import AgentClock, MachineClock, boot_id
from .errors import BadTime
from .interval import TimeInterval
from .keys import KeyInUse, Signer
from .signedtime import SignedTime, TimeFlags, sign_time
from .sources.port import Sample, Source
from .units import MS, SECOND, Span, span_text

PAUSE_NS: Final[Span] = MS
"""A reading that took longer than this is repeated: a pause inside of it can hide a step."""

_ROUNDS_MAX: Final = 4


class TimedReading(msgspec.Struct, frozen=True, gc=False):
    """CLOCK_REALTIME, with CLOCK_BOOTTIME before and after it."""

    boot_ns: int
    real_ns: int
    boot_after_ns: int

    def ahead(self) -> TimeInterval:
        """Return the interval that holds CLOCK_REALTIME minus CLOCK_BOOTTIME."""
        return TimeInterval(self.real_ns - self.boot_after_ns, self.real_ns - self.boot_ns)

    def stepped_since(self, before: TimedReading) -> Span:
        """Return how far CLOCK_REALTIME was surely set: what a pause inside of a reading explains is not counted."""
        low = self.real_ns - self.boot_after_ns - (before.real_ns - before.boot_ns)
        high = self.real_ns - self.boot_ns - (before.real_ns - before.boot_after_ns)
        return low if low > 0 else min(high, 0)


class ClockSample(TimedReading, frozen=True, gc=False):
    """All clocks: the other two are read between CLOCK_REALTIME and the second look at CLOCK_BOOTTIME."""

    monotonic_ns: int
    raw_ns: int


def read_clocks(clock: AgentClock) -> ClockSample:
    """Read all clocks; again, a few times, if this process was paused in between."""
    for _ in range(_ROUNDS_MAX):
        boot, real, mono, raw = clock.boot_ns(), clock.realtime_ns(), clock.monotonic_ns(), clock.raw_ns()
        reading = ClockSample(boot, real, clock.boot_ns(), mono, raw)
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
    suspended = (after.boot_ns - after.monotonic_ns) - (before.boot_after_ns - before.monotonic_ns)
    suspended_max = (after.boot_after_ns - after.monotonic_ns) - (before.boot_ns - before.monotonic_ns)
    raw = after.raw_ns - before.raw_ns
    slow = after.boot_ns - before.boot_after_ns - max(0, suspended_max) - raw
    fast = after.boot_after_ns - before.boot_ns - max(0, suspended) - raw
    return Movement(
        elapsed_ns=after.boot_after_ns - before.boot_ns,
        stepped_ns=after.stepped_since(before),
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


DRIFT_PPM: Final = 200
"""How fast a machine's clock may run away between samples, in parts per million. Measured slews reach 145."""

SAMPLE_PERIOD_NS: Final[Span] = SECOND

STEP_NS: Final[Span] = 50 * MS
"""CLOCK_REALTIME moving against CLOCK_BOOTTIME by more than this between two looks is a step.

What moves by less is taken in by widening the interval by as much."""

DISRUPTED_NS: Final[Span] = 10 * SECOND
"""How long nothing is said after a contradiction: who sets a clock often sets it again."""

_RESAMPLE_NS: Final[Span] = MS


class Look(msgspec.Struct, frozen=True, gc=False):
    now: TimeInterval
    sample: Sample
    clock_epoch: int
    boot_ns: int
    """CLOCK_BOOTTIME just before the clock was read: nothing in ``now`` is older than that."""


@dataclass(frozen=True, slots=True)
class _Said:
    """True time minus CLOCK_BOOTTIME, as the sample in use said it at a boot-time instant."""

    ahead: TimeInterval
    boot_ns: int

    def at(self, boot_ns: int) -> TimeInterval:
        return self.ahead.widened(drift_ns(boot_ns - self.boot_ns, DRIFT_PPM))


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
        self._asked: TimedReading | None = None
        self._sampled: TimeInterval | None = None  # holds CLOCK_REALTIME minus CLOCK_BOOTTIME as the source saw them
        self._last: TimedReading | None = None
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

    def _read(self) -> TimedReading:
        """Read both clocks; again, a few times, if this process was paused between them: a pause can hide a step."""
        machine = self._machine
        for _ in range(_ROUNDS_MAX):
            reading = TimedReading(machine.boot_ns(), machine.realtime_ns(), machine.boot_ns())
            if reading.boot_after_ns - reading.boot_ns <= _RESAMPLE_NS:
                break
        return reading

    def _note_step(self, reading: TimedReading) -> bool:
        stepped = self._last is not None and abs(reading.stepped_since(self._last)) > STEP_NS
        self._last = reading
        if stepped:
            self._epoch += 1
            self._sample = self._sampled = None
        return stepped

    def _fresh(self, sample: Sample, reading: TimedReading) -> bool:
        if reading.boot_ns - sample.boot_ns >= SAMPLE_PERIOD_NS:
            return False
        return max(map(abs, self._moved_since_sample(reading))) <= _RESAMPLE_NS

    def _moved_since_sample(self, reading: TimedReading) -> tuple[Span, Span]:
        """How far the clock was set since the source looked at it, at least and at most."""
        if self._sampled is None:
            return 0, 0
        then = self._sampled
        return reading.real_ns - reading.boot_after_ns - then.latest, reading.real_ns - reading.boot_ns - then.earliest

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

    def _judge(self, reading: TimedReading, sample: Sample) -> Look:
        fresh = self._sampled is None
        if fresh and self._asked is not None:
            was, is_now = self._asked.ahead(), reading.ahead()
            self._sampled = TimeInterval(min(was.earliest, is_now.earliest), max(was.latest, is_now.latest))
        now = self._interval(reading, sample)
        if fresh:
            self._compare(reading, now)
        if reading.boot_ns < self._disrupted_until:
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
        return Look(now, sample, self._epoch, reading.boot_ns)

    def _interval(self, reading: TimedReading, sample: Sample) -> TimeInterval:
        if sample.assumed:  # a statement about the clock at any instant: nothing in it ages
            return sample.offset.shifted(reading.real_ns)
        drifted = drift_ns(reading.boot_after_ns - sample.boot_ns, DRIFT_PPM)
        aged = sample.offset.widened(drifted).shifted(reading.real_ns)
        low, high = self._moved_since_sample(reading)
        return TimeInterval(aged.earliest - max(high, 0), aged.latest - min(low, 0))

    def _compare(self, reading: TimedReading, now: TimeInterval) -> None:
        """Hold a new sample against what was said before, and keep what it says."""
        ahead = TimeInterval(now.earliest - reading.boot_after_ns, now.latest - reading.boot_ns)
        before = self._said.at(reading.boot_ns) if self._said is not None else ahead
        both = ahead.intersection(before)
        if both is None:
            self._epoch += 1
            self._disrupted_until = reading.boot_ns + DISRUPTED_NS
            self._disrupted_by = max(ahead.earliest - before.latest, before.earliest - ahead.latest)
        self._said = _Said(ahead, reading.boot_ns)


TOKEN_PERIOD_NS: Final[Span] = 50 * MS
STALENESS_NS: Final[Span] = 250 * MS
"""How old a token of the page door may be when it is used; stated in the token."""

_SIGNINGS_MAX: Final = 3


class EmbeddedTime:
    """A NodeTime without an agent.

    The stand-in for a node's time agent where none runs. ``now`` and ``token`` keep the same rules as the agent's: a
    sample ages by the drift bound, a token is signed at most once per period and handed out until the next, a step of
    the clock starts a new clock epoch. Thread-safe.
    """

    def __init__(
        self,
        machine: MachineClock,
        sources: Sequence[Source],
        signer: Signer | KeyInUse,
        *,
        radius_ns_max: Span,
        clock_epoch: int | None = None,
    ) -> None:
        """Take the sources in order of preference: the first that has a bound is used. Asks none of them yet.

        ``clock_epoch`` is the first epoch's name; without it, one that no other process of this node has.
        """
        self._machine = machine
        self._signer = signer
        self._lock = Lock()
        first = _epoch_of_process(machine) if clock_epoch is None else clock_epoch
        self._clock = SampledClock(machine, sources, radius_ns_max=radius_ns_max, clock_epoch=first)
        self._token: SignedTime | None = None
        self._token_boot_ns = 0
        self._sequence = 0

    def limit_radius(self, radius_ns_max: Span) -> None:
        """Refuse, from now on, time that is known less well than this."""
        with self._lock:
            self._clock.radius_ns_max = radius_ns_max

    def boot_ns(self) -> int:
        return self._machine.boot_ns()

    def sleep(self, span: Span) -> None:
        self._machine.sleep(span)

    def look(self) -> Look:
        """Return the time and where it is from. Raises BadTime: no source, too wide for the policy, disrupted."""
        with self._lock:
            return self._clock.look()

    def now(self) -> TimeInterval:
        """Return the interval that holds true time. Raises BadTime as ``look`` does."""
        return self.look().now

    def token(self) -> SignedTime:
        """Return the current signed time, at most one period old when it is looked up. Raises BadTime."""
        return self.now_and_token()[1]

    def now_and_token(self) -> tuple[TimeInterval, SignedTime]:
        """Return both, by one look at the clock. Raises BadTime."""
        with self._lock:
            for _ in range(_SIGNINGS_MAX):
                look = self._clock.look()
                token = self._token
                if (
                    token is None
                    or token.clock_epoch != look.clock_epoch
                    or look.boot_ns - self._token_boot_ns >= TOKEN_PERIOD_NS
                ):
                    token = self._token = self._sign(look, None)
                    self._token_boot_ns = look.boot_ns
                # A process can be stopped between any two lines, also while it signs.
                age = self._machine.boot_ns() - self._token_boot_ns
                if age <= STALENESS_NS:
                    return look.now, token
        raise BadTime(
            "stalled",
            f"a signed time was {span_text(age)} old when it was ready; {span_text(STALENESS_NS)} are allowed",
            hint="this machine is overloaded or was paused; try again",
        )

    def token_over(self, digest: bytes) -> SignedTime:
        """Return a signed time over 32 bytes, made now. Raises BadTime."""
        with self._lock:
            return self._sign(self._clock.look(), digest)

    def _sign(self, look: Look, digest: bytes | None) -> SignedTime:
        self._sequence += 1
        return sign_time(
            self._signer.signer_at(look.now.midpoint),
            look.now,
            status=look.sample.status,
            flags=TimeFlags.ASSUMED if look.sample.assumed else TimeFlags.NONE,
            staleness_ns=STALENESS_NS,
            sequence=self._sequence,
            clock_epoch=look.clock_epoch,
            digest=digest,
        )


def _epoch_of_process(machine: MachineClock) -> int:
    """Name the epoch for this boot, process and instant: sequence numbers begin anew in each."""
    names = f"{boot_id()} {os.getpid()} {machine.boot_ns()}"
    return int.from_bytes(hashlib.sha256(names.encode()).digest()[:7], "big")
