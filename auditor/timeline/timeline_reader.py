"""All events of a tree in order of time, and the state at any instant: the one interface of replay, screens and tests.

Read from a database, that of an audit or one that is gone with the timeline; the tree is not needed.
A state costs at most ``CHECKPOINT_EVENTS`` events to fold, and what is asked of it; memory is what SQLite caches, and
the events that were seen last.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from appliance.formats.policy import Policy
from auditor.columns.layout import ShardName
from auditor.evidence.finding import Evidence, Finding
from auditor.rules.result import Audit
from timeagent.canonical import decode
from timeagent.errors import BadRequest
from timeagent.units import Instant

from ..columns.events import (
    BagClosed,
    CeilingLinked,
    Event,
    FrameWritten,
    LeaseEnded,
    LeaseTold,
    SessionOver,
    about_log,
    ceiling_name,
)
from ..columns.index import INDEX_ERRORS, Database, open_index
from .event_store import Posting, StoredEvents, session_key
from .fold import Working
from .state import StateAt

_finding: Final = msgspec.json.Decoder(Finding)
CHECKPOINT_EVENTS: Final = 1_024
"""So many events at most are folded for a state, from the second time on."""
STATES_APART: Final = 64
STATES_AT_HAND: Final = 64
"""The state after each so many events that were gone through is at hand, so many times."""


class Timeline:
    """Events in order of time, states and findings. Safe to use from several threads: one state is made at a time."""

    def __init__(self, db: Database) -> None:
        """Take a database with a timeline. Reads the findings."""
        self._db = db
        self.events = StoredEvents(db)
        count = len(self.events)
        self.start_ns, self.end_ns = self.events.instant(min(1, count)), self.events.instant(count)
        """The first and the last instant that the copy tells of; 0 where it tells nothing."""
        self.findings: list[tuple[Instant, Finding]] = [
            (instant, _finding.decode(value))
            for instant, value in db.execute("SELECT instant, value FROM finding ORDER BY instant, number")
        ]
        """Each with the instant at which its evidence was complete, in order of that."""
        self._at_hand: OrderedDict[int, Working] = OrderedDict()
        """States by their positions."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let go of the database. Nothing can be asked any more."""
        self._db.close()

    def state_at(self, instant: Instant | None = None) -> StateAt:
        """Return what is known of an instant: every event at or before it. None: all there is."""
        at = self.end_ns if instant is None else instant
        return self.state_after(self.position(at), at)

    def state_after(self, position: int, instant: Instant | None = None) -> StateAt:
        """Return the state after so many events. ``instant``: as of when; that of the newest of them if None."""
        position = max(0, min(position, len(self.events)))
        if instant is None:
            instant = self.events[position - 1].instant_ns if position else self.start_ns
        with self._lock:
            working = self._fold(position)
        return StateAt(instant, self.end_ns, position, self.findings_until(instant), *working.layers())

    def findings_until(self, instant: Instant) -> tuple[Finding, ...]:
        """Return the findings whose evidence was complete at an instant."""
        return tuple(finding for _, finding in self.findings[: self.findings_by(instant)])

    def findings_by(self, instant: Instant) -> int:
        """Return of how many findings the evidence was complete at an instant."""
        return bisect_right(self.findings, instant, key=lambda each: each[0])

    # Steps.

    def position(self, instant: Instant) -> int:
        """Return how many events lie at or before an instant."""
        return self.events.until(instant)

    def position_before(self, instant: Instant) -> int:
        """Return how many events lie before an instant."""
        return self.events.until(instant, without=True)

    def between(
        self, first: Instant, last: Instant, *, domain: str | None = None, log: str | None = None
    ) -> Iterator[tuple[int, Event]]:
        """Yield (position after it, event) of those in [first, last]; only what is about a domain, or a log."""
        for position in self._about(self.position_before(first), self.position(last), domain):
            event = self.events[position]
            if log is None or about_log(event, log):
                yield position + 1, event

    def next_closing(self, instant: Instant) -> Instant | None:
        """Return when the next bag after an instant was closed, or None."""
        closed = self.events.listed(Posting.KIND, BagClosed.__name__)
        after = closed[np.searchsorted(closed, self.position(instant), "right") :]
        return self.events.instant(int(after[0])) if len(after) else None

    def previous_closing(self, instant: Instant) -> Instant | None:
        """Return when the last bag before an instant was closed, or None."""
        closed = self.events.listed(Posting.KIND, BagClosed.__name__)
        before = closed[: np.searchsorted(closed, self.position_before(instant), "right")]
        return self.events.instant(int(before[-1])) if len(before) else None

    def next_finding(self, instant: Instant) -> tuple[Instant, Finding] | None:
        place = bisect_right(self.findings, instant, key=lambda each: each[0])
        return self.findings[place] if place < len(self.findings) else None

    def previous_finding(self, instant: Instant) -> tuple[Instant, Finding] | None:
        """Return the last finding before an instant, or None."""
        place = bisect_left(self.findings, instant, key=lambda each: each[0])
        return self.findings[place - 1] if place else None

    def density(self, first: Instant, last: Instant, cells: int) -> list[int]:
        """Return how many events lie in each of so many equal parts of [first, last]."""
        edges = [first + (last - first) * cell // cells for cell in range(cells)]
        places = [self.position_before(edge) for edge in edges] + [self.position(last)]
        return [after - before for before, after in pairwise(places)]

    # What is about something.

    def next_about(self, position: int, domain: str, *, back: bool) -> int | None:
        """Return the number of the first event from a position on, or before it, that is about a domain."""
        found = self.events.listed(Posting.ABOUT, domain)
        place = int(np.searchsorted(found, position, "right")) - back
        return int(found[place]) - 1 if 0 <= place < len(found) else None

    def frames_in(self, log: str, bag_ns: Instant) -> list[FrameWritten]:
        """Return the frames of a bag in order of time."""
        return list(self._frames(self.events.listed(Posting.BAG, log, bag_ns)))

    def delivered_backwards(self, log: str, before: Instant) -> Iterator[FrameWritten]:
        """Yield the frames that a reader was given, the newest first. Reads each when it is asked for."""
        for positions, (newest,) in self.events.lists(Posting.BAG, log, 0, before):
            order = np.lexsort((positions, -newest))
            yield from self._frames(positions[order[newest[order] > 0]])

    def _frames(self, positions: NDArray[np.uint32]) -> Iterator[FrameWritten]:
        for event in self.events.at(positions.tolist()):
            assert isinstance(event, FrameWritten)
            yield event

    def signed_by(self, node: str, position: int) -> Iterator[Event]:
        """Yield what a node signed of the first so many events, the newest first."""
        found = self.events.listed(Posting.NODE, node)
        yield from self.events.at(found[found <= position][::-1].tolist())

    def resting_on(self, evidence: Iterable[Evidence]) -> Iterator[Event]:
        """Yield the events whose bytes begin where a piece of evidence does, and all frames of its data files."""
        found: set[int] = set()
        for each in set(evidence):
            found.update(self.events.beginning_at(each), self.events.listed(Posting.FILE, each.path).tolist())
        yield from self.events.at(sorted(found))

    def lease_events(self, domain: str, first: Instant, last: Instant) -> Iterator[LeaseTold | LeaseEnded]:
        """Yield what was said of the leases of a domain that somebody had, or could have had, within [first, last]."""
        told, (since, until) = self.events.listed_with(Posting.TOLD, domain)
        for event in self.events.at(told[(until >= first) & (since <= last)].tolist()):
            assert isinstance(event, LeaseTold | LeaseEnded)
            yield event

    def session(self, run: bytes, identifier: bytes) -> tuple[Instant, SessionOver | None] | None:
        """Return the latest expiry of a session lease, and its end, if either is known."""
        key = session_key(run, identifier)
        expiry = int(self.events.listed_with(Posting.SESSION, key)[1].max(initial=0))
        over = self._one(SessionOver, Posting.SESSION_OVER, key, last=True)
        return (expiry, over) if expiry or over else None

    def ceiling(self, shard: ShardName, number: int) -> CeilingLinked | None:
        """Return a record of a ceiling chain; of two with one number the first."""
        return self._one(CeilingLinked, Posting.CEILING, ceiling_name(shard, number))

    def closing_of(self, path: str) -> BagClosed | None:
        """Return how the bag at a path was closed."""
        return self._one(BagClosed, Posting.LISTED, path)

    def kinds[E: Event](self, kind: type[E]) -> Iterator[E]:
        for event in self.events.at(self.events.listed(Posting.KIND, kind.__name__).tolist()):
            assert isinstance(event, kind)
            yield event

    def _one[E: Event](self, kind: type[E], posting: Posting, key: str, *, last: bool = False) -> E | None:
        found = self.events.listed(posting, key)
        event = self.events[int(found[-last]) - 1] if len(found) else None
        assert event is None or isinstance(event, kind)
        return event

    # Inside.

    def _about(self, start: int, end: int, domain: str | None) -> Iterable[int]:
        if domain is None:
            return range(start, end)
        found = self.events.listed(Posting.ABOUT, domain)
        return (found[(found > start) & (found <= end)] - 1).tolist()  # type: ignore[no-any-return]

    def _fold(self, position: int) -> Working:
        """Go on from the nearest state at hand since the last checkpoint. Leaves checkpoints behind."""
        ((begin,),) = self._db.execute("SELECT coalesce(max(position), 0) FROM folded WHERE position <= ?", (position,))
        near = max((each for each in self._at_hand if begin <= each <= position), default=None)
        working = Working.at(self._db, begin) if near is None else self._at_hand[near].copy()
        begin = begin if near is None else near
        for number in range(begin + 1, position + 1):
            working.take(self.events[number - 1])
            if number % CHECKPOINT_EVENTS == 0 or number == len(self.events):
                working.keep(self._db, number)
            if (number - begin) % STATES_APART == 0:
                self._remember(number, working.copy())
        self._remember(position, working)
        return working

    def _remember(self, position: int, working: Working) -> None:
        self._at_hand[position] = working
        self._at_hand.move_to_end(position)
        if len(self._at_hand) > STATES_AT_HAND:
            self._at_hand.popitem(last=False)


@dataclass(frozen=True, slots=True)
class AuditedTree:
    """What a database tells of a tree that was audited."""

    audit: Audit
    timeline: Timeline
    policy: Policy
    """The newest; the defaults where the tree had none."""

    def close(self) -> None:
        """Let go of the file: others may write to it again. Nothing can be asked any more."""
        self.timeline.close()


def open_audited(path: Path) -> AuditedTree:
    """Open the database of an audit, to read. Raises BadRequest with the way out where it has no timeline."""
    db = open_index(path)
    way_out = "make it with: tenure audit PATH --db FILE, of the whole tree"
    try:
        heads = [json.loads(value) for (value,) in db.execute("SELECT value FROM timeline WHERE name = 'head'")]
    except INDEX_ERRORS:
        heads = []
    if not heads:
        raise BadRequest("no-timeline", f"{path} has no timeline: no whole tree was audited into it", hint=way_out)
    head = heads[0]
    try:
        timeline = Timeline(db)
        found = tuple(_finding.decode(value) for (value,) in db.execute("SELECT value FROM finding ORDER BY number"))
        audited = replace(msgspec.convert(head["audit"], Audit), findings=found)
        policy = Policy(number=0, cluster_id=audited.cluster_id)
        if head["policy"]:
            policy = decode(Policy, bytes.fromhex(head["policy"]), "the index")
    except (*INDEX_ERRORS, ValueError, KeyError, TypeError) as problem:
        raise BadRequest("not-an-index", f"{path} is damaged: {problem}", hint=f"remove it; {way_out}") from None
    return AuditedTree(audited, timeline, policy)
