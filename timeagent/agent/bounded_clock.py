"""One machine's clock with a bound: what its sources said, held against its clocks, decided upon, and signed.

What the node's agent (timeagent/agent/agent.py) and a process without one (``EmbeddedTime``) have in common.
What is known is true time minus CLOCK_BOOTTIME. Every look compares the clocks with the look before:

1. clocks that moved against each other by more than is borne (``STEP_NS``, ``SUSPEND_NS``, ``STALL_NS``) drop every
   answer and begin a new clock epoch; what CLOCK_REALTIME is set by less changes nothing in what is known;
2. a source's answer counts from between the readings before and after it was asked, wherever CLOCK_REALTIME stood then.
   (Who sets it there and back while a source is asked is seen by nobody.)
3. what the sources say together is decided upon by ``discipline.decide``: it must be able to be true together with what
   was said before.

Clocks cost liveness only: who meets BadTime waits or gives up, and nothing in the record depends on it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Final

import msgspec

from ..clock import PAUSE_NS, ClockSample, MachineClock, boot_id, excess_slew_ns, movement, read_clocks
from ..errors import BadTime
from ..keys import KeyInUse, Signer
from ..signedtime import STALENESS_NS, ClockStatus, SignedTime, TimeFlags, sign_time
from ..sources.port import Sample, Source
from ..units import DAY, INSTANT_MAX, MS, SECOND, Span, TimeInterval, span_text
from .discipline import (
    OWN_GROUP,
    SUSPEND_NS,
    AgentState,
    Bound,
    ClockMoment,
    ClockMoved,
    Hearing,
    Listed,
    Rules,
    SourcesContradict,
    Verdict,
    combine,
    decide,
)

PERIOD_NS: Final[Span] = 50 * MS
"""How often a time is signed ahead of its use."""

STEP_NS: Final[Span] = 50 * MS
"""CLOCK_REALTIME moving against CLOCK_BOOTTIME by more than this between two looks is a step."""


type Answer = tuple[ClockSample, Sample | BadTime, ClockSample]


def ask(clock: MachineClock, source: Source) -> Answer:
    """Return what a source says, or why it says nothing, and the clocks before and after. Blocks as long as it does."""
    before = read_clocks(clock)
    said: Sample | BadTime
    try:
        said = source.sample()
    except BadTime as problem:
        said = problem.with_traceback(None)
    return before, said, read_clocks(clock)


class BoundedClock:
    """Not thread-safe: its owner has the lock."""

    def __init__(
        self,
        clock: MachineClock,
        signer: Signer | KeyInUse,
        listed: Sequence[Listed],
        rules: Rules,
        clock_epoch: int | None = None,
    ) -> None:
        """``clock_epoch``: the first epoch's name; without it, one that no other process of this node has."""
        self._clock = clock
        self._signer = signer
        self._rules = rules
        self._hearing = Hearing(listed, rules)
        if clock_epoch is None:  # sequence numbers begin anew in each
            names = f"{boot_id().hex()} {os.getpid()} {clock.boot_ns()}"
            clock_epoch = int.from_bytes(hashlib.sha256(names.encode()).digest()[:7], "big")
        self._state = AgentState(ClockStatus.UNKNOWN, clock_epoch)
        self._last: ClockSample | None = None
        self._slewed_ns = 0
        self._moves = 0
        self._combine_at = 0
        self._verdict: Verdict = None
        self._sequence = 0

    def limit_radius(self, radius_ns_max: Span) -> None:
        """Refuse, from now on, time that is known less well than this."""
        self._rules = replace(self._rules, radius_ns_max=radius_ns_max)

    def _note(self, listed: Listed, asking: tuple[int, Span], answer: Answer) -> Bound | BadTime:
        """Keep what a source says, or why it says nothing; return that. ``asking``: moves and slews before."""
        bound = self._judged(asking, answer)
        self._hearing.note(listed, bound)
        return bound

    def _judged(self, asking: tuple[int, Span], answer: Answer) -> Bound | BadTime:
        (moves, slewed), (before, said, after) = asking, answer
        if isinstance(said, BadTime):
            return said
        moved = movement(before, after)
        if (
            moves != self._moves
            or abs(moved.stepped_ns) > PAUSE_NS
            or moved.suspended_ns > SUSPEND_NS
            or (said.assumed and after.paused)
        ):
            what = "the clock was set while the source was asked, or could not be read"
            return BadTime("clock-unsteady", what, hint="wait")
        there = said.offset.shifted(after.real_ns)
        if there.earliest < 0 or there.latest > INSTANT_MAX:
            what = f"it has true time within {span_text(there.radius)} of {there.midpoint} ns since 1970: no instant"
            return BadTime("no-bound", what, hint="look at what it asks")
        # CLOCK_REALTIME minus CLOCK_BOOTTIME at the sample's instant lies between what it was before and after.
        was, now = before.ahead(), after.ahead()
        if said.assumed:  # a statement about CLOCK_REALTIME: not to be widened by how it was read
            ahead = said.offset.shifted(now.midpoint)
        else:
            low, high = min(was.earliest, now.earliest), max(was.latest, now.latest)
            ahead = TimeInterval(said.offset.earliest + low, said.offset.latest + high)
        return Bound(ahead, ClockMoment(said.boot_ns, slewed), assumed=said.assumed, cluster_time=said.cluster_time)

    def _decide(self) -> tuple[ClockSample, ClockMoved | None, SourcesContradict | None]:
        """Look at the clocks and decide: return the reading, how the clocks moved, and what there is to tell."""
        reading = read_clocks(self._clock)
        moved, now = self._since(reading)
        if self._last is None or moved is not None:
            self._combine_at = reading.boot_ns + self._rules.combine_ns
        self._last, self._slewed_ns = reading, now.slewed_ns
        if moved is not None:
            self._hearing.forget()
            self._moves += 1
            self._state, _ = decide(self._state, moved, now, self._rules)
        self._state, told = decide(self._state, self._heard(now), now, self._rules)
        return reading, moved, told

    def _since(self, reading: ClockSample) -> tuple[ClockMoved | None, ClockMoment]:
        """Return how the clocks moved since the last decision, and the moment of a reading.

        Keeps nothing: if each look took the place of the one before, what each cannot tell from a slew would add up.
        """
        moved, slewed = None, self._slewed_ns
        if self._last is not None:
            by = movement(self._last, reading)
            slewed += excess_slew_ns(by, self._rules.drift_ppm)
            if abs(by.stepped_ns) > STEP_NS:
                moved = ClockMoved("step", by.stepped_ns)
            elif by.suspended_ns > SUSPEND_NS:
                moved = ClockMoved("suspend", by.suspended_ns)
            elif by.elapsed_ns > self._rules.stall_ns:
                moved = ClockMoved("stall", by.elapsed_ns)
        return moved, ClockMoment(reading.boot_after_ns, slewed)

    def _heard(self, now: ClockMoment) -> Verdict:
        """Combine once a period; at once when all sources have answered and nothing can be said without them."""
        waiting = not self._state.status.usable
        if now.boot_ns < self._combine_at and not (waiting and self._hearing.complete() and self._hearing.changed):
            return None
        self._combine_at = now.boot_ns + self._rules.combine_ns
        if not self._hearing.changed:
            return None
        self._hearing.changed = False
        self._verdict = combine(self._hearing.voices(now), self._rules.liars)
        return self._verdict

    def _interval(self, bound: Bound, reading: ClockSample, now: ClockMoment) -> TimeInterval:
        if bound.assumed:  # a statement for any instant: no reading, and no age, makes it wider
            return bound.ahead.shifted(reading.boot_ns)
        ahead = bound.aged(now, self._rules.drift_ppm)
        return TimeInterval(reading.boot_ns + ahead.earliest, reading.boot_after_ns + ahead.latest)

    def _said(self, reading: ClockSample, now: ClockMoment) -> tuple[TimeInterval, Bound]:
        """Return what may be said at a reading. Raises BadTime: nothing, or it is too wide."""
        bound = self._state.bound
        if bound is None:
            raise self._silence(reading)
        interval = self._interval(bound, reading, now)
        if interval.radius > self._rules.radius_ns_max:
            raise BadTime(
                "radius-too-wide",
                f"the clock is known to {span_text(interval.radius)} (source {bound.source}); "
                f"the policy allows {span_text(self._rules.radius_ns_max)}",
                hint="wait for the clock to settle, or mend its time service; "
                "tenure time sources says what each source knows",
            )
        return interval, bound

    def _silence(self, reading: ClockSample) -> BadTime:
        state = self._state
        left = state.until_ns - reading.boot_ns
        if left > 0:
            what, hint = "what is known of the time contradicts itself", "tenure time sources names who disagrees"
            if state.apart_ns:
                what = (
                    f"the clock contradicts by {span_text(state.apart_ns)} what it said before: it was set, or it lied"
                )
                hint += "; if it was set on purpose it counts from then on"
            return BadTime("clock-disrupted", f"{what}; nothing is said for another {span_text(left)}", hint=hint)
        return BadTime(
            "no-time",
            f"no time source has a bound ({self._hearing.reasons()})",
            hint="run chrony; or found the cluster with: tenure init --assume-radius SPAN; "
            "tenure time sources says what each source knows",
        )

    def _sign(
        self,
        interval: TimeInterval,
        bound: Bound,
        covered: bytes | None,
        status: ClockStatus | None = None,
        signer: Signer | None = None,
    ) -> SignedTime:
        """Return a signed time. Raises BadTime where the key has ended."""
        signer = signer or self._signer.signer_at(interval.midpoint)
        self._sequence += 1
        flags = TimeFlags.ASSUMED if bound.assumed else TimeFlags.NONE
        if bound.cluster_time:
            flags |= TimeFlags.CLUSTER
        return sign_time(
            signer,
            interval,
            status=self._state.status if status is None else status,
            flags=flags,
            staleness_ns=STALENESS_NS,
            sequence=self._sequence,
            clock_epoch=self._state.epoch,
            digest=covered,
        )


SAMPLE_PERIOD_NS: Final[Span] = SECOND
"""How long what the sources said counts: then they are asked again."""

_ROUNDS_MAX: Final = 4
_SIGNINGS_MAX: Final = 3


class Look(msgspec.Struct, frozen=True, gc=False):
    """What a look at the clock says, and where it is from."""

    now: TimeInterval
    source: str
    status: ClockStatus
    assumed: bool
    cluster_time: bool
    clock_epoch: int
    boot_ns: int
    """CLOCK_BOOTTIME just before the clock was read: nothing in ``now`` is older than that."""


class EmbeddedTime(BoundedClock):
    """A NodeTime for where no agent runs, by the agent's rules. Thread-safe.

    What a source said ages by the drift bound, a token is signed at most once per period and handed out until the next,
    a step of the clock starts a new clock epoch.
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
        """Take the sources in order of preference: the first that has a bound is used. Asks none of them yet."""
        listed = [Listed(source, group=OWN_GROUP) for source in sources]
        # Decided when a source was asked; who does not look for hours has not stalled.
        rules = Rules(radius_ns_max, void_after_ns=SAMPLE_PERIOD_NS - 1, stall_ns=1000 * DAY, combine_ns=0)
        super().__init__(machine, signer, listed, rules, clock_epoch)
        self._lock = Lock()
        self._ask_at = 0
        self._token: SignedTime | None = None
        self._token_boot_ns = 0

    def boot_ns(self) -> int:
        return self._clock.boot_ns()

    def sleep(self, span: Span) -> None:
        self._clock.sleep(span)

    def refusals(self) -> dict[str, str]:
        """Return why each source that was asked last has nothing to give, by its name."""
        with self._lock:
            return self._hearing.refusals()

    def look(self) -> Look:
        """Return the time and where it is from. Raises BadTime: no source, too wide for the policy, disrupted."""
        with self._lock:
            now, bound, reading = self._look()
            state = self._state
            return Look(
                now, bound.source, state.status, bound.assumed, bound.cluster_time, state.epoch, reading.boot_ns
            )

    def now(self) -> TimeInterval:
        """Return the interval that holds true time. Raises BadTime as ``look`` does."""
        with self._lock:
            return self._look()[0]

    def token(self) -> SignedTime:
        """Return the current signed time, at most one period old when it is looked up. Raises BadTime."""
        return self.now_and_token()[1]

    def now_and_token(self) -> tuple[TimeInterval, SignedTime]:
        """Return both, by one look at the clock. Raises BadTime."""
        with self._lock:
            for _ in range(_SIGNINGS_MAX):
                now, bound, reading = self._look()
                token = self._token
                if (
                    token is None
                    or token.clock_epoch != self._state.epoch
                    or reading.boot_ns - self._token_boot_ns >= PERIOD_NS
                ):
                    token = self._token = self._sign(now, bound, None)
                    self._token_boot_ns = reading.boot_ns
                # A process can be stopped between any two lines, also while it signs.
                age = self._clock.boot_ns() - self._token_boot_ns
                if age <= STALENESS_NS:
                    return now, token
        raise BadTime(
            "stalled",
            f"a signed time was {span_text(age)} old when it was ready; {span_text(STALENESS_NS)} are allowed",
            hint="this machine is overloaded or was paused; try again",
        )

    def token_over(self, digest: bytes) -> SignedTime:
        """Return a signed time over 32 bytes, made now. Raises BadTime."""
        with self._lock:
            now, bound, _ = self._look()
            return self._sign(now, bound, digest)

    def _look(self) -> tuple[TimeInterval, Bound, ClockSample]:
        reading = read_clocks(self._clock)
        moved, now = self._since(reading)
        if moved is not None or reading.boot_after_ns >= self._ask_at:
            reading = self._decide_anew()
            now = ClockMoment(reading.boot_after_ns, self._slewed_ns)
        return *self._said(reading, now), reading

    def _interval(self, bound: Bound, reading: ClockSample, now: ClockMoment) -> TimeInterval:
        """As the agent has it; what is stated about CLOCK_REALTIME is about this look's: a pause in another is not."""
        if bound.assumed:
            return TimeInterval.around(reading.real_ns, bound.ahead.radius)
        return super()._interval(bound, reading, now)

    def _decide_anew(self) -> ClockSample:
        """Ask the sources, in their order, until one has a bound; again, a few times, if the clocks moved meanwhile."""
        self._ask_at = 0  # whatever comes between, who looks next asks again
        _, moved, _ = self._decide()
        for _ in range(_ROUNDS_MAX):
            self._hearing.forget()
            said: Bound | BadTime | None = None
            for each in self._hearing.listed:
                said = self._note(each, (self._moves, self._slewed_ns), ask(self._clock, each.source))
                if isinstance(said, Bound) or said.code == "clock-unsteady":
                    break
            unsteady = isinstance(said, BadTime) and said.code == "clock-unsteady"
            reading, moved, _ = self._decide()
            if not (moved or unsteady):
                # A pause in this reading hides a step from the next look: that one asks as well.
                if (self._state.bound or self._state.until_ns) and not reading.paused:
                    again_ns = reading.boot_after_ns + SAMPLE_PERIOD_NS
                    self._ask_at = min(again_ns, self._state.until_ns or again_ns)
                return reading
        raise BadTime("clock-unsteady", f"the clock was set {_ROUNDS_MAX} times while it was read", hint="try again")
