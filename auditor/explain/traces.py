"""The leases of a timeline: everything that the evidence tells of each, put together from its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from appliance.formats.witness import WitnessKind
from auditor.replay.events import FrameWritten, LeaseEnded, LeaseTold, SessionOver

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from appliance.formats.lease import Ending, Mode
    from appliance.formats.sessionlease import SessionEnded
    from appliance.formats.witness import Witness
    from auditor.replay.events import Event
    from auditor.replay.timeline import Timeline
    from timeagent.units import Instant

DOMAINS_AT_HAND: Final = 32


def leases_of(event: Event) -> Sequence[tuple[str, bytes]]:
    """Return domain and correlation id of each lease that an event is about."""
    match event:
        case LeaseTold():
            return ((event.witness.domain, event.witness.correlation_id),)
        case LeaseEnded():
            return ((event.domain, event.ending.correlation_id),)
        case FrameWritten():
            return event.leases
        case _:
            return ()


@dataclass(slots=True)
class LeaseTrace:
    """Everything that the evidence tells of one lease, in order of time."""

    told: list[LeaseTold] = field(default_factory=list)
    ended: LeaseEnded | None = None
    frames: list[FrameWritten] = field(default_factory=list)
    session: SessionTrace | None = None
    """The session lease that it was taken under, where anything is known of that."""

    @property
    def witness(self) -> Witness:
        """The first that is known: that of the grant, unless it is missing."""
        return self.told[0].witness

    @property
    def granted_ns(self) -> Instant:
        """When its shard first told of it."""
        return self.told[0].instant_ns

    @property
    def renewed_ns(self) -> list[Instant]:
        """When it was renewed, or changed its mode."""
        return [each.instant_ns for each in self.told[1:] if each.witness.kind is not WitnessKind.GRANT]

    @property
    def mode(self) -> Mode:
        """The last one that is known."""
        return self.told[-1].witness.mode

    @property
    def end(self) -> Ending | SessionEnded | None:
        """How it ended: alone, or with its session lease."""
        over = self.session.over if self.session is not None else None
        return self.ended.ending if self.ended is not None else None if over is None else over.ending

    @property
    def expiry_ns(self) -> int:
        """The latest expiry of any of its witnesses; under a session lease, of any of that one's."""
        if self.session is not None:
            return self.session.expiry_ns
        return max(each.witness.expiry_ns for each in self.told)


@dataclass(slots=True)
class SessionTrace:
    """What is known of one session lease."""

    expiry_ns: int = 0
    over: SessionOver | None = None


class Traces(Mapping[str, "Mapping[bytes, LeaseTrace]"]):
    """The leases of a timeline by domain, put together when they are asked for; those that were asked for last stay."""

    def __init__(self, timeline: Timeline) -> None:
        """Put together nothing yet."""
        self._timeline = timeline
        self._whole = lru_cache(DOMAINS_AT_HAND)(self._traced)

    def __getitem__(self, domain: str) -> Mapping[bytes, LeaseTrace]:
        """Return all leases of a domain, with what was written under each. Raises KeyError where no grant is known."""
        found = self._whole(domain)
        if not found:
            raise KeyError(domain)
        return found

    def __iter__(self) -> Iterator[str]:
        """Yield every domain of which a grant is known. Goes over the state at the end."""
        return (domain for domain in self._timeline.state_at().domains if self._whole(domain))

    def __len__(self) -> int:
        """Count them."""
        return sum(1 for _ in self)

    def within(self, domain: str, first: Instant, last: Instant) -> list[LeaseTrace]:
        """Return the leases of a domain that somebody had, or could have had, within [first, last]; without frames."""
        return list(_traces(self._timeline, self._timeline.lease_events(domain, first, last)).values())

    def _traced(self, domain: str) -> dict[bytes, LeaseTrace]:
        timeline = self._timeline
        events = [event for _, event in timeline.between(timeline.start_ns, timeline.end_ns, domain=domain)]
        return _with_frames(timeline, domain, events)


def all_leases(timeline: Timeline) -> Iterator[LeaseTrace]:
    """Yield every lease of a timeline, domain by domain. Goes over its events once."""
    domains: dict[str, list[Event]] = {}
    for event in timeline.events:
        for domain in dict.fromkeys(name for name, _ in leases_of(event)):
            domains.setdefault(domain, []).append(event)
    for domain, events in domains.items():
        yield from _with_frames(timeline, domain, events).values()


def _with_frames(timeline: Timeline, domain: str, events: Sequence[Event]) -> dict[bytes, LeaseTrace]:
    found = _traces(timeline, events)
    for event in events:
        if isinstance(event, FrameWritten):
            for name, identifier in event.leases:
                if name == domain and identifier in found:
                    found[identifier].frames.append(event)
    return found


def _traces(timeline: Timeline, events: Iterable[Event]) -> dict[bytes, LeaseTrace]:
    """Return the leases of one domain by what was said of them: an end may stand before the grant of its instant."""
    found: dict[bytes, LeaseTrace] = {}
    ends: list[LeaseEnded] = []
    for event in events:
        if isinstance(event, LeaseTold):
            found.setdefault(event.witness.correlation_id, LeaseTrace()).told.append(event)
        elif isinstance(event, LeaseEnded):
            ends.append(event)
    for end in ends:
        if end.ending.correlation_id in found:
            found[end.ending.correlation_id].ended = end
    for trace in found.values():
        name = trace.told[0].witness.session_id
        known = None if name is None else timeline.session(trace.told[0].place[1], name)
        trace.session = None if known is None else SessionTrace(*known)
    return found
