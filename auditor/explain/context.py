"""Leases, put together from the events of a timeline, and what lies around a finding in time. Judges nothing.

That is the leases before and after in the witness chain, what was written and closed, restarts, clocks, and what
readers made of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any, Final, NamedTuple

from appliance.formats.chains import CeilingKind
from appliance.formats.lease import Ending, LeaseOutcome, Mode
from appliance.formats.witness import Half, SessionEnded, Witness, WitnessKind
from auditor.columns.events import (
    BagClosed,
    CeilingLinked,
    ClockReading,
    Event,
    FrameWritten,
    LeaseEnded,
    LeaseTold,
    MapFollowed,
    RackSealed,
    RunResumed,
    SessionOver,
    event_fields,
    leases_of,
)
from auditor.evidence.finding import Finding
from auditor.rules.history import GIVEN_BACK
from auditor.timeline.state import StateAt
from auditor.timeline.timeline_reader import Timeline
from timeagent.console import bound_fields, instant_fields, printable
from timeagent.units import INSTANT_MAX, SECOND, Instant, span_text

DOMAINS_AT_HAND: Final = 32
STRETCHES_AT_HAND: Final = 128
"""Of so many domains and stretches of time leases are kept."""
NEIGHBOURS: Final = 2
"""So many leases before the ones concerned, and after, belong to the picture."""
FRAMES_MAX: Final = 200
READINGS_MAX: Final = 400
MARGIN_NS: Final = SECOND
FAR_NS: Final = 3600 * SECOND
"""An instant so far outside the tree's own time is no place in the picture: a floor of zero, a forged time."""


_GIVEN_BACK: Final = GIVEN_BACK | {LeaseOutcome.WITHDRAWN}


@dataclass
class LeaseTrace:
    """Everything that the evidence tells of one lease, in order of time."""

    told: list[LeaseTold] = field(default_factory=list)
    ended: LeaseEnded | None = None
    frames: list[FrameWritten] = field(default_factory=list)
    session: tuple[Instant, SessionOver | None] | None = None
    """Expiry and end of the session lease that it was taken under, where anything is known of that."""

    @property
    def witness(self) -> Witness:
        """The first that is known: that of the grant, unless it is missing."""
        return self.told[0].witness

    @property
    def granted_ns(self) -> Instant:
        return self.told[0].instant_ns

    @property
    def renewed_ns(self) -> list[Instant]:
        return [each.instant_ns for each in self.told[1:] if each.witness.kind is not WitnessKind.GRANT]

    @property
    def mode(self) -> Mode:
        """The last one that is known."""
        return self.told[-1].witness.mode

    @property
    def over(self) -> LeaseEnded | SessionOver | None:
        """What was said of its end: that it ended alone, or with its session lease."""
        return self.ended or (None if self.session is None else self.session[1])

    @property
    def end(self) -> Ending | SessionEnded | None:
        return None if self.over is None else self.over.ending

    @property
    def given_back(self) -> bool:
        """Whether nobody has to wait for its expiry."""
        return self.end is not None and self.end.outcome in _GIVEN_BACK

    @cached_property
    def expiry_ns(self) -> Instant:
        """The latest expiry of any of its witnesses; under a session lease, of any of that one's."""
        return max(each.witness.expiry_ns for each in self.told) if self.session is None else self.session[0]

    @property
    def end_ns(self) -> Instant:
        """When it was ended, or its expiry where nothing tells of an end."""
        return max(self.expiry_ns if self.over is None else self.over.instant_ns, self.granted_ns)

    def touches(self, first: Instant, last: Instant) -> bool:
        """Whether somebody had it, or could have had it, within [first, last]."""
        reached = self.expiry_ns if self.ended is None else max(self.expiry_ns, self.ended.instant_ns)
        return self.granted_ns <= last and reached >= first


class Traces:
    """The leases of a timeline by domain, put together when they are asked for; those that were asked for last stay.

    Safe to use from several threads.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.of = lru_cache(DOMAINS_AT_HAND)(lambda domain: leases_until(timeline, domain, timeline.end_ns))
        """Returns all leases of a domain by correlation id, with what was written under each."""
        self._stretch = lru_cache(STRETCHES_AT_HAND)(partial(_within, timeline))

    def within(self, domain: str, first: Instant, last: Instant) -> list[LeaseTrace]:
        """Return the leases of a domain that touch [first, last], without frames, in the order of their grants.

        They are put together for a longer stretch: one that moves a little has them already.
        """
        step = 1 << max(0, (last - first) // 4).bit_length()
        found = self._stretch(domain, first - first % step, last - last % step + step)
        return [trace for trace in found if trace.touches(first, last)]


def _within(timeline: Timeline, domain: str, first: Instant, last: Instant) -> list[LeaseTrace]:
    found = _traces(timeline, domain, timeline.lease_events(domain, first, last)).values()
    return sorted(found, key=lambda each: (each.granted_ns, each.witness.correlation_id))


def leases_until(timeline: Timeline, domain: str, instant: Instant) -> dict[bytes, LeaseTrace]:
    """Return all leases of a domain as they were known at an instant, in the order of their first witness."""
    events = (event for _, event in timeline.between(timeline.start_ns, instant, domain=domain))
    return _traces(timeline, domain, events, instant)


def all_leases(timeline: Timeline) -> Iterator[LeaseTrace]:
    """Yield every lease of a timeline, domain by domain. Goes over its events once."""
    domains: dict[str, list[Event]] = {}
    for event in timeline.events:
        for domain in dict.fromkeys(name for name, _ in leases_of(event)):
            domains.setdefault(domain, []).append(event)
    for domain, events in domains.items():
        yield from _traces(timeline, domain, events).values()


def _traces(
    timeline: Timeline, domain: str, events: Iterable[Event], until: Instant = INSTANT_MAX
) -> dict[bytes, LeaseTrace]:
    """Return the leases of a domain by what was said of them: an end may stand before the grant of its instant."""
    found: dict[bytes, LeaseTrace] = {}
    later: list[LeaseEnded | FrameWritten] = []
    for event in events:
        if isinstance(event, LeaseTold):
            found.setdefault(event.witness.correlation_id, LeaseTrace()).told.append(event)
        elif isinstance(event, LeaseEnded | FrameWritten):
            later.append(event)
    for each in later:
        for name, identifier in leases_of(each):
            if name == domain and identifier in found and isinstance(each, FrameWritten):
                found[identifier].frames.append(each)
            elif name == domain and identifier in found and isinstance(each, LeaseEnded):
                found[identifier].ended = each
    for trace in found.values():
        session = trace.witness.session_id
        known = None if session is None else timeline.session(trace.told[0].place[1], session)
        if known is not None:
            expiry, over = known
            trace.session = expiry, over if over is None or over.instant_ns <= until else None
    return found


# Around a finding.


class Change(NamedTuple):
    """A run of a shard that begins while another was known, or goes on; or a clock that is otherwise than before."""

    instant_ns: Instant
    words: str
    about: dict[str, Any]
    """What JSON shows of it."""


def _restart(instant: Instant, node: str, shard: int, incarnation: bytes, how: str) -> Change:
    about = {"node": printable(node), "shard": shard, "incarnation": incarnation.hex(), "how": how}
    return Change(instant, f"shard {shard} on {node} {how}", about)


@dataclass(frozen=True, slots=True)
class Context:
    """The surroundings of one finding."""

    complete_ns: Instant
    """When its evidence was complete."""
    first_ns: Instant
    last_ns: Instant
    """The window that all the rest lies in."""
    leases: tuple[LeaseTrace, ...]
    """Those that it rests on, and their neighbours."""
    concerned: frozenset[bytes]
    """The correlation ids of leases that it rests on."""
    frames: tuple[FrameWritten, ...]
    closings: tuple[BagClosed | RackSealed, ...]
    restarts: tuple[Change, ...]
    moves: tuple[MapFollowed, ...]
    """Which shards were leaving or coming, since when; and what they became then."""
    clock_changes: tuple[Change, ...]
    readings: tuple[ClockReading, ...]
    """What the clocks of the nodes concerned said, in order."""
    events: tuple[Event, ...]
    """The statements that the finding rests on."""

    def readers(self) -> tuple[int, int]:
        """Return how many messages of the frames concerned readers accept, and of how many."""
        frames = self.frames
        return sum(each.accepted_count if each.listed else 0 for each in frames), sum(each.messages for each in frames)


def context_of(finding: Finding, timeline: Timeline) -> Context:
    paths = {each.path for each in finding.evidence}
    concerned = list(timeline.resting_on(finding.evidence))
    domains = sorted({name for event in concerned for name, _ in leases_of(event)})
    named = frozenset(identifier for event in concerned for _, identifier in leases_of(event))
    leases: list[LeaseTrace] = []
    for name in domains:  # those that are concerned, and their neighbours in the chain
        chain = list(leases_until(timeline, name, timeline.end_ns).values())
        at = [number for number, lease in enumerate(chain) if lease.witness.correlation_id in named]
        leases += [lease for number, lease in enumerate(chain) if any(abs(number - one) <= NEIGHBOURS for one in at)]
    instants = [event.instant_ns for event in concerned]
    instants += [end for each in finding.times for end in (each.earliest_ns, each.latest_ns)]
    own = [each for each in leases if each.witness.correlation_id in named]
    instants += [end for each in own for end in (each.granted_ns, each.expiry_ns)]
    low, high = timeline.start_ns - FAR_NS, timeline.end_ns + FAR_NS
    instants = [each for each in instants if low <= each <= high] or [timeline.start_ns, timeline.end_ns]
    margin = max(MARGIN_NS, (max(instants) - min(instants)) // 12)
    first, last = min(instants) - margin, max(instants) + margin
    window = [event for _, event in timeline.between(first, last)]
    frames = [
        event
        for event in window
        if isinstance(event, FrameWritten) and (event.file in paths or any(name in named for _, name in event.leases))
    ]
    bags = {(event.log, event.bag_ns) for event in frames}
    nodes = {event.clock.node for event in (*concerned, *frames) if event.clock is not None}
    return Context(
        complete_ns=next((when for when, each in timeline.findings if each.id == finding.id), max(instants)),
        first_ns=first,
        last_ns=last,
        leases=tuple(each for each in leases if each.granted_ns <= last and each.expiry_ns >= first),
        concerned=named,
        frames=tuple(frames[:FRAMES_MAX]),
        closings=tuple(
            event
            for event in window
            if (isinstance(event, BagClosed) and ((event.log, event.bag_ns) in bags or event.where.path in paths))
            or (isinstance(event, RackSealed) and event.where.path in paths)
        ),
        restarts=tuple(each for each in _restarts(timeline) if first <= each.instant_ns <= last),
        moves=tuple(_moves(timeline, first, last)),
        clock_changes=tuple(_clock_changes(timeline.state_at(first - 1), window)),
        readings=tuple(each.clock for each in window if each.clock is not None and each.clock.node in nodes)[
            :READINGS_MAX
        ],
        events=tuple(concerned),
    )


def _moves(timeline: Timeline, first: Instant, last: Instant) -> Iterator[MapFollowed]:
    newest = {event.shard: event for event in timeline.kinds(MapFollowed) if event.instant_ns <= last}
    yield from (each for _, each in sorted(newest.items()) if each.half is not Half.WHOLE or each.instant_ns >= first)


def _restarts(timeline: Timeline) -> Iterator[Change]:
    for again in timeline.kinds(RunResumed):
        how = f"went on after {span_text(again.instant_ns - again.since_ns)}"
        yield _restart(again.instant_ns, again.clock.node, again.shard[1], again.place[1], how)
    last: dict[tuple[int, int], CeilingLinked] = {}
    for event in timeline.kinds(CeilingLinked):
        before = last.get(event.shard)
        record = event.record
        if before is not None and before.record.incarnation != record.incarnation:
            how = "began a new run after " + (
                "a crash" if before.record.kind is CeilingKind.RUNNING else "an orderly stop"
            )
            yield _restart(event.instant_ns, record.node, record.shard, record.incarnation, how)
        last[event.shard] = event


def _clock_changes(state: StateAt, window: list[Event]) -> Iterator[Change]:
    """Yield what clocks said otherwise in a window than before it. ``state``: just before."""
    last: dict[str, ClockReading] = {name: each.reading for name, each in state.clocks.items()}
    epochs: dict[str, set[int]] = {name: set(each.epochs) for name, each in state.clocks.items()}
    for event in window:
        clock = event.clock
        if clock is None:
            continue
        before, changes = last.get(clock.node), list[str]()
        if before is not None and before.status is not clock.status:
            changes.append(f"{clock.state} from here on")
        if before is not None and clock.clock_epoch not in epochs[clock.node]:
            changes.append("a new clock epoch: a step, suspend, boot or stall")
        for what in changes:
            yield Change(
                event.instant_ns, f"clock of {clock.node}: {what}", {"node": printable(clock.node), "what": what}
            )
        epochs.setdefault(clock.node, set()).add(clock.clock_epoch)
        last[clock.node] = clock


# -- JSON --------------------------------------------------------------------------------------------------------------


def context_fields(context: Context) -> dict[str, Any]:
    accepted, written = context.readers()
    return {
        **instant_fields("complete", context.complete_ns),
        **instant_fields("first", context.first_ns),
        **instant_fields("last", context.last_ns),
        "rests_on": [event_fields(event) for event in context.events],
        "leases": [_lease_fields(each, context.concerned) for each in context.leases],
        "frames": [event_fields(event) for event in context.frames],
        "closings": [event_fields(event) for event in context.closings],
        "moves": [event_fields(event) for event in context.moves],
        "restarts": [instant_fields("instant", each.instant_ns) | each.about for each in context.restarts],
        "clock_changes": [instant_fields("instant", each.instant_ns) | each.about for each in context.clock_changes],
        "readers": {"accept": accepted, "of": written},
    }


def _lease_fields(lease: LeaseTrace, concerned: AbstractSet[bytes]) -> dict[str, Any]:
    witness, end = lease.witness, lease.end
    return {
        "domain": printable(witness.domain),
        "correlation_id": witness.correlation_id.hex(),
        "concerned": witness.correlation_id in concerned,
        "node": printable(witness.holder.node),
        "process": witness.holder.process,
        "mode": lease.mode.value,
        "fence": str(witness.fence),
        **instant_fields("granted", lease.granted_ns),
        **instant_fields("expiry", lease.expiry_ns),
        **bound_fields("floor", witness.floor_ns),
        "renewals": len(lease.renewed_ns),
        **instant_fields("ended", end.ended_ns if end else None),
        "outcome": end.outcome.value if end else None,
        **bound_fields("watermark", end.watermark_ns if end else None),
    }
