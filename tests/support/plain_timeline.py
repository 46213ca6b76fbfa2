"""All events of a tree in a list, and the state after each: what the timeline is held to."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, cast

import msgspec

from auditor.columns.events import (
    RANKS,
    BagClosed,
    CeilingLinked,
    FrameWritten,
    LeaseEnded,
    LeaseTold,
    LogBorn,
    SessionOver,
    SessionTold,
    about_domain,
)
from auditor.timeline.fold import Working
from auditor.timeline.state import BagState, DomainState
from auditor.timeline.timeline_reader import Timeline
from auditor.walk.facts import Gathering

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from auditor.columns.events import Event, Place
    from auditor.columns.layout import ShardName
    from auditor.evidence.finding import Evidence, Finding
    from auditor.timeline.timeline_reader import StoredEvents
    from auditor.walk.facts import Mark
    from timeagent.units import Instant


def order(event: Event) -> tuple[Instant, int, Place]:
    """Return by what events are sorted: the instant, then cause before effect, then each maker's own order."""
    return event.instant_ns, RANKS[type(event)], event.place


def _beginning(events: list[Event]) -> Iterator[Event]:
    """Yield events in order; the first of each data file says that it is."""
    begun: set[str] = set()
    for event in events:
        if isinstance(event, FrameWritten) and event.file not in begun:
            begun.add(event.file)
            yield msgspec.structs.replace(event, begins=True)
        else:
            yield event


class PlainDomains(dict[str, DomainState]):
    def standing(self) -> list[str]:
        return sorted(name for name, domain in self.items() if domain.leases)


class PlainBags(dict[tuple[str, "Instant"], BagState]):
    def bags_of(self, log: str, newest: int | None = None) -> list[BagState]:
        chosen = sorted((start for name, start in self if name == log), reverse=True)
        return [self[log, start] for start in reversed(chosen[:newest])]

    def starts(self, log: str, first: Instant, end: Instant) -> Iterator[Instant]:
        return iter(sorted(start for name, start in self if name == log and first <= start < end))


def plain_working(marks: Collection[Mark] = (), events: Iterable[Event] = ()) -> Working:
    """Return a state of nothing, in plain dictionaries."""
    births = {each.log: each for each in events if isinstance(each, LogBorn)}
    plain: list[Any] = [PlainDomains(), {}, {}, {}, PlainBags(), {}, lambda *mark: mark in marks, births.get]
    return Working(*plain)


class Gathered(Gathering):
    """All that is read one by one, in memory: of several events with one name the first counts."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.marks: set[Mark] = set()
        self._named: dict[tuple[bytes, bool], Event] = {}
        """Those that are hearsay apart."""
        self._others: list[Event] = []

    def knows(self, name: bytes) -> bool:
        """Whether a statement about a lease is known already."""
        return (name, False) in self._named

    def add(self, event: Event, name: bytes | None = None) -> None:
        """Take an event."""
        if name is None:
            self._others.append(event)
        else:
            self._named.setdefault((name, isinstance(event, LeaseEnded) and event.heard), event)

    def marked(self, mark: Mark) -> None:
        """Take that a bag has a prelock, or a pack."""
        self.marks.add(mark)

    def events(self) -> list[Event]:
        """Return all of it, in no order."""
        chosen = (each for (name, heard), each in self._named.items() if not heard or (name, False) not in self._named)
        return [*self._others, *chosen]


class PlainTimeline(Timeline):
    """A timeline without a database: what that one looks up, this one looks for among all events."""

    def __init__(
        self,
        events: Iterable[Event],
        *,
        findings: Iterable[Finding] = (),
        marks: Collection[Mark] = (),
    ) -> None:
        """Sort the events."""
        self._sorted: list[Event] = list(_beginning(sorted(events, key=order)))
        self.events = cast("StoredEvents", self._sorted)
        self._instants = [event.instant_ns for event in self.events]
        self.start_ns, self.end_ns = (self._instants[0], self._instants[-1]) if self._instants else (0, 0)
        working = plain_working(marks, self._sorted)
        self._states = [working.copy()]
        """After so many events: the events of a tree of a test are few."""
        for event in self.events:
            working.take(event)
            self._states.append(working.copy())
        self._lock = threading.Lock()
        self.findings = self._placed(list(findings))

    def _fold(self, position: int) -> Working:
        return self._states[position]

    def position(self, instant: Instant) -> int:
        """Return how many events lie at or before an instant."""
        return bisect_right(self._instants, instant)

    def position_before(self, instant: Instant) -> int:
        """Return how many events lie before an instant."""
        return bisect_left(self._instants, instant)

    def closing(self, instant: Instant, *, back: bool) -> Instant | None:
        """Return when the next bag after an instant was closed, or the last before it; None: there is none."""
        after, before = range(self.position(instant), len(self.events)), range(self.position_before(instant))
        numbers = reversed(before) if back else after
        closed = (event for event in map(self.events.__getitem__, numbers) if isinstance(event, BagClosed))
        return next((event.instant_ns for event in closed), None)

    # What is about something.

    def next_about(self, position: int, domain: str, *, back: bool) -> int | None:
        """Return the number of the first event about a domain from this one on; ``back``: of the last before it."""
        numbers = range(position - 1, -1, -1) if back else range(position, len(self.events))
        return next((number for number in numbers if about_domain(self.events[number], domain)), None)

    def frames_in(self, log: str, bag_ns: Instant) -> list[FrameWritten]:
        """Return the frames of a bag in order of time."""
        return [each for each in self.kinds(FrameWritten) if (each.log, each.bag_ns) == (log, bag_ns)]

    def delivered_backwards(self, log: str, before: Instant) -> Iterator[FrameWritten]:
        """Yield the listed frames with accepted messages in bags of a log that begin before an instant.

        The newest bag first, and in a bag the frame with the highest accepted timestamp.
        """
        given = [e for e in self.kinds(FrameWritten) if e.log == log and e.bag_ns < before and e.newest_accepted_ns]
        yield from sorted(given, key=lambda each: (-each.bag_ns, -each.newest_accepted_ns))

    def signed_by(self, node: str, position: int) -> Iterator[Event]:
        """Yield what a node signed of the first so many events, the newest first."""
        for number in range(position - 1, -1, -1):
            clock = self.events[number].clock
            if clock is not None and clock.node == node:
                yield self.events[number]

    def resting_on(self, evidence: Iterable[Evidence]) -> Iterator[Event]:
        """Yield the events whose bytes begin where a piece of evidence does, and all frames of its data files."""
        places = {(each.path, each.offset) for each in evidence}
        paths = {path for path, _ in places}
        for event in self.events:
            in_file = isinstance(event, FrameWritten) and event.file in paths
            if in_file or (event.where.path, event.where.offset) in places:
                yield event

    def lease_events(self, domain: str, first: Instant, last: Instant) -> Iterator[LeaseTold | LeaseEnded]:
        """Yield what was said of the leases of a domain that somebody had, or could have had, within [first, last].

        In order. May be more: of other leases of the domain too.
        """
        del first, last
        for number in self._about(0, len(self.events), domain):
            event = self.events[number]
            if isinstance(event, LeaseTold | LeaseEnded):
                yield event

    def session(self, run: bytes, identifier: bytes) -> tuple[Instant, SessionOver | None] | None:
        """Return the latest expiry of a session lease, and its end, if either is known."""
        told = [
            e.witness.expiry_ns
            for e in self.kinds(SessionTold)
            if (e.place[1], e.witness.session_id) == (run, identifier)
        ]
        over = [e for e in self.kinds(SessionOver) if (e.place[1], e.ending.session_id) == (run, identifier)]
        return (max(told, default=0), over[-1] if over else None) if told or over else None

    def ceiling(self, shard: ShardName, number: int) -> CeilingLinked | None:
        """Return a record of a ceiling chain; of two with one number the first."""
        return next((e for e in self.kinds(CeilingLinked) if (e.shard, e.record.number) == (shard, number)), None)

    def closing_of(self, path: str) -> BagClosed | None:
        """Return how the bag at a path was closed."""
        return next((each for each in self.kinds(BagClosed) if each.path == path), None)

    def kinds[E: Event](self, kind: type[E]) -> Iterator[E]:
        """Yield the events of one kind, in order."""
        for event in self.events:
            if isinstance(event, kind):
                yield event

    # Inside.

    def _about(self, start: int, end: int, domain: str | None) -> Iterable[int]:
        """Return the numbers of the events from one to another that are about a domain; of all, if None."""
        numbers = range(start, end)
        return numbers if domain is None else (n for n in numbers if about_domain(self.events[n], domain))

    def _placed(self, findings: list[Finding]) -> list[tuple[Instant, Finding]]:
        """Return the findings with the instant at which the last of what each rests on had happened, in that order."""
        if not findings:
            return []
        places: dict[tuple[str, int], Instant] = {}
        for event in self.events:
            name = (event.where.path, event.where.offset)
            places[name] = max(event.instant_ns, places.get(name, 0))
        placed = [(self._complete_at(finding, places), finding) for finding in findings]
        return sorted(placed, key=lambda each: each[0])

    def _complete_at(self, finding: Finding, places: Mapping[tuple[str, int], Instant]) -> Instant:
        """The end of the copy where nothing says when."""
        instants = [places[name] for each in finding.evidence if (name := (each.path, each.offset)) in places]
        named = [each.latest_ns for each in finding.times]
        return min(max(instants or named, default=self.end_ns), self.end_ns)
