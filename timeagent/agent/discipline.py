"""What a node may say of the time, as one pure state machine, and what each of its sources said last. Reads no clock.

An event is what the sources said together, or how the clocks moved, or only that time passed. ``decide`` never reads a
clock, never sets one, never averages. What is said is an interval for true time minus CLOCK_BOOTTIME, so that setting
CLOCK_REALTIME changes nothing in it; it ages by the drift bound, and by every slew beyond that.

*Clock epoch*: a number that grows whenever what was said before and what is said after may belong to different clocks:
after a step, a suspend, a long stall, and after a contradiction. A boot or a restart begins with a number of its own.

*Disrupted*: a sample that cannot be true together with what was said before, or sources of which more are wrong than
are tolerated. Nothing is said for ``DISRUPTED_NS``; after that the next sample counts, in the epoch that began with the
contradiction.

Sources of one *group* have one origin: the kernel's bound is written by the same chronyd that answers over UDP. So a
group is one voice, that of its first member with something to say; more would make one liar look like two witnesses.

What several sources say *together*: intersection, tolerating liars (Marzullo). Nothing is averaged. Every voice is an
interval for the same instant. With n voices of which at most f lie, true time lies in n - f of them at least: so it
lies in the hull of the points that n - f voices hold. No such point: more than f lie, and nobody here knows which. A
*measure* (the machine's own time service, a peer) is good to milliseconds and makes the interval. A *cross-check* (the
file server's clock, Roughtime) is good to seconds: it would only make the interval wider, so it votes on the result and
never shapes it. More dissent than liars are tolerated: a contradiction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, Literal

import msgspec

from ..clock import DRIFT_PPM, drift_ns
from ..errors import BadTime
from ..signedtime import ClockStatus
from ..sources.port import Source
from ..units import MS, SECOND, Span, TimeInterval


class Weight(Enum):
    """What a voice may do."""

    MEASURE = "measure"
    CROSS_CHECK = "cross-check"
    ASSUMED = "assumed"
    """Stated, not measured: counts only where nothing measures."""


@dataclass(frozen=True, slots=True)
class Voice:
    """What one source says: true time minus CLOCK_BOOTTIME is inside ``ahead``, at the instant asked about."""

    source: str
    ahead: TimeInterval
    weight: Weight = Weight.MEASURE
    cluster_time: bool = False
    """Relative to a named reference of this cluster, not to UTC."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """The interval, who shaped it, and who says otherwise (no more than are tolerated)."""

    ahead: TimeInterval
    voices: tuple[str, ...]
    dissenting: tuple[str, ...]
    assumed: bool
    cluster_time: bool


@dataclass(frozen=True, slots=True)
class Contradicted:
    """More voices are wrong than are tolerated."""

    voices: tuple[Voice, ...]
    tolerated: int


type Verdict = Agreed | Contradicted | None
"""None: no voice that may shape an interval."""


def tolerated(voices: int, liars: int | None) -> int:
    """Return how many of so many voices may lie: fewer than half, and no more than configured."""
    fewer_than_half = (voices - 1) // 2
    return fewer_than_half if liars is None else min(liars, fewer_than_half)


def hull(intervals: Sequence[TimeInterval], liars: int) -> TimeInterval | None:
    """Return the hull of the points that all but ``liars`` intervals hold, or None if there is no such point."""
    need = len(intervals) - liars
    assert need > 0
    # Both ends belong to an interval: at one instant, begin before ending.
    edges = sorted(edge for each in intervals for edge in ((each.earliest, 0), (each.latest, 1)))
    count, earliest, latest = 0, None, None
    for instant, ends in edges:
        if ends:
            if count >= need:
                latest = instant
            count -= 1
        else:
            count += 1
            if count >= need and earliest is None:
                earliest = instant
    if earliest is None or latest is None:
        return None
    return TimeInterval(earliest, latest)


def combine(voices: Sequence[Voice], liars: int | None = None) -> Verdict:
    """Return what the voices say together. ``liars``: how many may be wrong; None: fewer than half."""
    measures = [voice for voice in voices if voice.weight is Weight.MEASURE]
    checks = [voice for voice in voices if voice.weight is Weight.CROSS_CHECK]
    shaping = measures or [voice for voice in voices if voice.weight is Weight.ASSUMED]
    if not shaping:
        return None
    of_shaping = tolerated(len(shaping), liars)
    ahead = hull([voice.ahead for voice in shaping], of_shaping)
    if ahead is None:
        return Contradicted(tuple(shaping), of_shaping)
    asked = [*shaping, *checks]
    dissenting = tuple(voice.source for voice in asked if voice.ahead.intersection(ahead) is None)
    of_all = tolerated(len(asked), liars)
    if len(dissenting) > of_all:
        return Contradicted(tuple(asked), of_all)
    return Agreed(
        ahead,
        tuple(voice.source for voice in shaping if voice.source not in dissenting),
        dissenting,
        assumed=not measures,
        cluster_time=any(voice.cluster_time for voice in shaping),
    )


# ---- one state machine ----

FRESH_NS: Final[Span] = 5 * SECOND
"""How long a measurement keeps a node *synchronized*; after that it is *free-running* on what it knew."""

VOID_AFTER_NS: Final[Span] = 1000 * SECOND
"""How long a node may run free. The interval has grown by 200 ms by then, at 200 ppm; readers refuse by width first."""

DISRUPTED_NS: Final[Span] = 10 * SECOND
"""How long nothing is said after a contradiction: who sets a clock often sets it again."""

SUSPEND_NS: Final[Span] = 10 * MS
STALL_NS: Final[Span] = 5 * SECOND
"""Two turns that are further apart: the agent, or the whole machine, stood still."""
COMBINE_PERIOD_NS: Final[Span] = SECOND


@dataclass(frozen=True, slots=True)
class Rules:
    """The numbers that one clock goes by."""

    radius_ns_max: Span
    """Time that is known less well is refused."""
    liars: int | None = None
    """How many voices may be wrong; None: fewer than half."""
    drift_ppm: int = DRIFT_PPM
    void_after_ns: Span = VOID_AFTER_NS
    stall_ns: Span = STALL_NS
    combine_ns: Span = COMBINE_PERIOD_NS


class ClockMoment(msgspec.Struct, frozen=True, gc=False):
    """An instant on the node's own scale."""

    boot_ns: int
    slewed_ns: Span = 0
    """All slews beyond the drift bound, added up since the agent began: an odometer."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What was said: true time minus CLOCK_BOOTTIME was inside ``ahead`` at a moment."""

    ahead: TimeInterval
    at: ClockMoment
    assumed: bool = False
    cluster_time: bool = False
    source: str = ""
    """Whose word it is, where it was decided upon."""

    def aged(self, now: ClockMoment, drift_ppm: int) -> TimeInterval:
        """Return what can be said of it at a later moment. What was only stated was stated for any moment."""
        if self.assumed:
            return self.ahead
        slewed = now.slewed_ns - self.at.slewed_ns
        return self.ahead.widened(drift_ns(now.boot_ns - self.at.boot_ns, drift_ppm) + slewed)


@dataclass(frozen=True, slots=True)
class AgentState:
    """What may be said of the time, by the status that a signed time carries.

    *Unknown*: nothing can be said now. *Synchronized*: a source measures the clock. *Free-running*: nobody measures it
    now; the bound is an old one, or a stated one. *Disrupted*: what is known contradicts itself, and nothing is said
    until a sample comes after ``until_ns``.
    """

    status: ClockStatus
    epoch: int
    said: Bound | None = None
    """What was said last, to be held against what comes; what is said now, in a usable status."""
    until_ns: int = 0
    """Of CLOCK_BOOTTIME; 0 unless disrupted."""
    apart_ns: Span = 0
    """While disrupted: by how much what was heard contradicts what was said; 0: sources contradict each other."""

    bound: Bound | None = field(init=False, compare=False, repr=False)
    """What is said now."""

    def __post_init__(self) -> None:
        assert self.said is not None or not self.status.usable
        assert (self.until_ns != 0) == (self.status is ClockStatus.DISRUPTED)
        object.__setattr__(self, "bound", self.said if self.status.usable else None)


@dataclass(frozen=True, slots=True)
class ClockMoved:
    """Somebody set the clock, or the machine or the agent stood still. All samples from before are dropped."""

    cause: Literal["step", "suspend", "stall"]
    size_ns: Span


type Event = Agreed | Contradicted | ClockMoved | None
"""None: nothing happened but time."""


@dataclass(frozen=True, slots=True)
class SourcesContradict:
    """To be kept as evidence: what was said before, carried to now, and what was heard."""

    epoch: int
    before: TimeInterval | None
    heard: Agreed | Contradicted


def decide(
    state: AgentState, event: Event, now: ClockMoment, rules: Rules
) -> tuple[AgentState, SourcesContradict | None]:
    """Return the next state, and what there is to tell, if anything. Pure."""
    if isinstance(event, ClockMoved):
        status = state.status if state.status is ClockStatus.DISRUPTED else ClockStatus.UNKNOWN
        return replace(state, epoch=state.epoch + 1, status=status), None
    if event is None:
        return _on_time(state, now, rules), None
    before = state.said.aged(now, rules.drift_ppm) if state.said is not None else None
    said, apart = state.said, 0  # sources that contradict each other leave it as it was
    if isinstance(event, Agreed):
        source = ", ".join(event.voices)
        said = Bound(event.ahead, now, assumed=event.assumed, cluster_time=event.cluster_time, source=source)
        if before is None or before.intersection(event.ahead) is not None:
            return _on_agreed(state, said, now, rules), None
        apart = max(event.ahead.earliest - before.latest, before.earliest - event.ahead.latest)
    epoch = state.epoch + 1
    silent = AgentState(ClockStatus.DISRUPTED, epoch, said, now.boot_ns + DISRUPTED_NS, apart)
    return silent, SourcesContradict(epoch, before, event)


def _on_agreed(state: AgentState, bound: Bound, now: ClockMoment, rules: Rules) -> AgentState:
    if bound.assumed:
        # A measurement is not replaced by a statement that nobody measured, before it is void.
        state = _on_time(state, now, rules)
        if state.bound is not None and not state.bound.assumed:
            return state
    if now.boot_ns < state.until_ns:
        return replace(state, said=bound)
    status = ClockStatus.FREE_RUNNING if bound.assumed else ClockStatus.SYNCHRONIZED
    return AgentState(status, state.epoch, bound)


def _on_time(state: AgentState, now: ClockMoment, rules: Rules) -> AgentState:
    if state.bound is None:
        return state
    age = now.boot_ns - state.bound.at.boot_ns
    if age > rules.void_after_ns:
        return replace(state, status=ClockStatus.UNKNOWN)
    return replace(state, status=ClockStatus.FREE_RUNNING) if age > FRESH_NS else state


OWN_GROUP: Final = "own"
"""The machine's own time service: ClockBound, chrony, the kernel. What a peer is told comes from here alone."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A source as the agent asks it."""

    source: Source
    weight: Weight = Weight.MEASURE
    group: str = ""
    period_ns: Span = SECOND

    @property
    def name(self) -> str:
        """The source's own name: unique among the agent's sources."""
        return self.source.name


class Hearing:
    """The newest answer of each source."""

    def __init__(self, listed: Sequence[Listed], rules: Rules) -> None:
        assert len({each.name for each in listed}) == len(listed), "two sources have one name"
        self.listed = tuple(listed)
        self._rules = rules
        self._heard: dict[str, tuple[Bound | None, str]] = {}
        """By source: its bound, and why it gave none when it was asked last."""
        self.changed = False
        """Whether anything was noted since this was last set to False."""

    def note(self, listed: Listed, said: Bound | BadTime) -> None:
        """Keep what a source says, or why it says nothing: what it said before counts until it is no longer fresh."""
        known, _ = self._heard.get(listed.name, (None, ""))
        self._heard[listed.name] = (known, str(said)) if isinstance(said, BadTime) else (said, "")
        self.changed = True

    def forget(self) -> None:
        """The clocks moved: nothing that was said before counts."""
        self._heard.clear()
        self.changed = True

    def complete(self) -> bool:
        """Whether every source has answered or refused since the last ``forget``."""
        return len(self._heard) == len(self.listed)

    def voices(self, now: ClockMoment, *, own: bool = False) -> list[Voice]:
        """Return what counts now, aged to now: one voice a group, none that is not fresh. ``own``: that group only."""
        found, grouped = [], set()
        for each in self.listed:
            bound = self._fresh(each, now)
            if bound is None or each.group in grouped or (own and each.group != OWN_GROUP):
                continue
            if each.group:
                grouped.add(each.group)
            weight = Weight.ASSUMED if bound.assumed else each.weight
            found.append(Voice(each.name, bound.aged(now, self._rules.drift_ppm), weight, bound.cluster_time))
        return found

    def refusals(self) -> dict[str, str]:
        """Return why each source that was asked and has nothing to say has not, by its name."""
        return {name: reason for name, (_, reason) in self._heard.items() if reason}

    def reasons(self) -> str:
        """Say why no source has a bound."""
        return "; ".join(f"{each.name}: {self._reason(each)}" for each in self.listed) or "there is no source"

    def _reason(self, listed: Listed) -> str:
        if listed.name not in self._heard:
            return "not asked yet"
        return self._heard[listed.name][1] or "its last answer does not count"

    def _fresh(self, listed: Listed, now: ClockMoment) -> Bound | None:
        bound, _ = self._heard.get(listed.name, (None, ""))
        allowed = max(FRESH_NS, 2 * listed.period_ns)
        return bound if bound is not None and now.boot_ns - bound.at.boot_ns <= allowed else None

    def report(self, now: ClockMoment, roles: Callable[[str], str]) -> list[SourceReport]:
        """Return what each source says now, or why it says nothing."""
        counting = {voice.source for voice in self.voices(now)}
        shown = []
        for each in self.listed:
            bound = self._fresh(each, now)
            ahead = bound.aged(now, self._rules.drift_ppm) if bound else None
            shown.append(
                SourceReport(
                    source=each.name,
                    weight=each.weight.value,
                    role="silent" if ahead is None else roles(each.name) if each.name in counting else "spare",
                    earliest_ahead_ns=ahead.earliest if ahead else None,
                    latest_ahead_ns=ahead.latest if ahead else None,
                    age_ns=now.boot_ns - bound.at.boot_ns if bound else None,
                    reason=self.refusals().get(each.name) if bound else self._reason(each),
                )
            )
        return shown


class SourceReport(msgspec.Struct):
    """What a source says of true time minus CLOCK_BOOTTIME, or why it says nothing."""

    source: str
    weight: str
    role: str
    earliest_ahead_ns: int | None
    latest_ahead_ns: int | None
    age_ns: Span | None
    reason: str | None


class Report(msgspec.Struct, kw_only=True):
    """What an agent tells of itself, as JSON."""

    schema: str = "tenure.time.report"
    version: int = 1
    status: str
    clock_epoch: int
    boot_ns: int
    earliest_ahead_ns: int | None
    latest_ahead_ns: int | None
    assumed: bool
    cluster_time: bool
    drift_ppm: int
    silent_until_ns: int | None
    sources: list[SourceReport]
