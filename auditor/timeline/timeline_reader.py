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
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, overload

from appliance.formats.policy import Policy
from auditor.index import INDEX_ERRORS, open_index
from auditor.report.result import Audit, Summary
from timeagent.canonical import decode
from timeagent.errors import BadRequest

from .checkpoints import event_of, finding_of, working_at
from .events import RANKS, BagClosed, CeilingLinked, FrameWritten, LeaseEnded, LeaseTold, SessionOver, about_log
from .fold import OF_LOGS
from .state import LogsAt, StateAt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from auditor.parts import Value
    from auditor.rules.finding import Evidence, Finding
    from auditor.rules.history import ShardName
    from timeagent.units import Instant

    from .checkpoints import Database
    from .events import Event
    from .fold import Working

BLOCK_EVENTS: Final = 128
BLOCKS: Final = 64
"""So many events are read at once, and so many times that are at hand."""
LOGS_APART: Final = 64
LOGS_AT_HAND: Final = 64
"""Of logs and bags the state after each so many events that were gone through is at hand, so many times."""
ALL_POSITIONS: Final = 2**62
_FRAME: Final = RANKS[FrameWritten]
_OF_LOGS: Final = f"position > ? AND position <= ? AND +kind IN ({', '.join(str(RANKS[kind]) for kind in OF_LOGS)})"


class StoredEvents(Sequence["Event"]):
    """All events in order of time; those that were asked for last are in memory."""

    def __init__(self, db: Database, count: int) -> None:
        """Read nothing yet."""
        self._db = db
        self._count = count
        self._blocks: OrderedDict[int, list[Event]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return how many there are."""
        return self._count

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        """Return an event, or several."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._count))]
        number = index + self._count if index < 0 else index
        if not 0 <= number < self._count:
            raise IndexError(index)
        return self._block(number // BLOCK_EVENTS)[number % BLOCK_EVENTS]

    def _block(self, block: int) -> list[Event]:
        with self._lock:
            if block in self._blocks:
                self._blocks.move_to_end(block)
                return self._blocks[block]
        first = block * BLOCK_EVENTS
        rows = self._db.execute(
            "SELECT kind, value FROM event WHERE position > ? AND position <= ? ORDER BY position",
            (first, first + BLOCK_EVENTS),
        )
        events = [event_of(kind, value) for kind, value in rows]
        with self._lock:
            self._blocks[block] = events
            if len(self._blocks) > BLOCKS:
                self._blocks.popitem(last=False)
        return events


class Timeline:
    """Events in order of time, states and findings. Safe to use from several threads: one state is made at a time."""

    def __init__(self, db: Database, span: Mapping[str, Any]) -> None:
        """Take a database with a timeline. Reads the findings.

        ``span``: how many ``events`` it has, the first (``start``) and the last (``end``) instant, and how many events
        apart its states are (``checkpoint``).
        """
        self._db = db
        self._spacing = int(span["checkpoint"])
        self.start_ns, self.end_ns = int(span["start"]), int(span["end"])
        """The first and the last instant that the copy tells of; 0 where it tells nothing."""
        self.events: Sequence[Event] = StoredEvents(db, int(span["events"]))
        self.findings: list[tuple[Instant, Finding]] = [
            (instant, finding_of(value))
            for instant, value in db.execute("SELECT instant, value FROM finding ORDER BY instant, number")
        ]
        """Each with the instant at which its evidence was complete, in order of that."""
        self._cursor = (0, working_at(db, 0))
        self._logs: OrderedDict[int, Working] = OrderedDict()
        """States of which logs and bags are up to date, by their positions."""
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
        return StateAt(
            instant,
            self.end_ns,
            working.logs,
            working.bags,
            position,
            working.domains,
            working.sessions,
            working.shards,
            working.clocks,
            self.events[position - 1] if position else None,
            self.findings_until(instant),
        )

    def logs_after(self, position: int, instant: Instant) -> LogsAt:
        """Return what is known of logs and bags after so many events, as of an instant. At most the cost of a state."""
        with self._lock:
            working = self._fold_logs(position)
        return LogsAt(instant, self.end_ns, working.logs, working.bags)

    def findings_until(self, instant: Instant) -> tuple[Finding, ...]:
        """Return the findings whose evidence was complete at an instant."""
        return tuple(finding for _, finding in self.findings[: self.findings_by(instant)])

    def findings_by(self, instant: Instant) -> int:
        """Return of how many findings the evidence was complete at an instant."""
        return bisect_right(self.findings, instant, key=lambda each: each[0])

    # Steps.

    def position(self, instant: Instant) -> int:
        """Return how many events lie at or before an instant."""
        sql = "SELECT position FROM event WHERE instant <= ? ORDER BY instant DESC, position DESC LIMIT 1"
        return self._number(sql, min(instant, ALL_POSITIONS * 2 - 1))

    def position_before(self, instant: Instant) -> int:
        """Return how many events lie before an instant."""
        sql = "SELECT position FROM event WHERE instant < ? ORDER BY instant DESC, position DESC LIMIT 1"
        return self._number(sql, min(instant, ALL_POSITIONS * 2 - 1))

    def between(
        self, first: Instant, last: Instant, *, domain: str | None = None, log: str | None = None
    ) -> Iterator[tuple[int, Event]]:
        """Yield (position after it, event) of those in [first, last]; only what is about a domain, or a log."""
        for position in self._about(self.position_before(first), self.position(last), domain):
            event = self.events[position]
            if log is None or about_log(event, log):
                yield position + 1, event

    def next_event(self, instant: Instant) -> Instant | None:
        """Return when the next event after an instant is, or None."""
        position = self.position(instant)
        return self.events[position].instant_ns if position < len(self.events) else None

    def previous_event(self, instant: Instant) -> Instant | None:
        """Return when the last event before an instant was, or None."""
        position = self.position_before(instant)
        return self.events[position - 1].instant_ns if position else None

    def next_closing(self, instant: Instant, log: str | None = None) -> Instant | None:
        """Return when the next bag after an instant was closed, or None."""
        return self._closing(range(self.position(instant), len(self.events)), log)

    def previous_closing(self, instant: Instant, log: str | None = None) -> Instant | None:
        """Return when the last bag before an instant was closed, or None."""
        return self._closing(range(self.position_before(instant) - 1, -1, -1), log)

    def next_finding(self, instant: Instant) -> tuple[Instant, Finding] | None:
        """Return the next finding after an instant, or None."""
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
        sql = "SELECT position FROM about WHERE domain = (SELECT id FROM name WHERE text = ?) AND position"
        sql += " <= ? ORDER BY position DESC LIMIT 1" if back else " > ? ORDER BY position LIMIT 1"
        found = self._number(sql, domain, position)
        return found - 1 if found else None

    def frames_in(self, log: str, bag_ns: Instant) -> list[FrameWritten]:
        """Return the frames of a bag in order of time."""
        rows = self._db.execute(
            f"SELECT kind, value FROM event WHERE kind = {_FRAME}"  # noqa: S608 - a constant
            " AND log = (SELECT id FROM name WHERE text = ?) AND bag = ? ORDER BY position",
            (log, bag_ns),
        )
        events = [event_of(kind, value) for kind, value in rows]
        return [event for event in events if isinstance(event, FrameWritten)]

    def delivered_backwards(self, log: str, before: Instant) -> Iterator[FrameWritten]:
        """Yield the frames that a reader was given, the newest first. Reads each when it is asked for."""
        sql = (
            f"SELECT kind, value FROM event WHERE kind = {_FRAME}"  # noqa: S608 - a constant
            " AND log = (SELECT id FROM name WHERE text = ?) AND bag < ? AND newest > 0"
            " ORDER BY bag DESC, newest DESC, position"
        )
        for kind, value in self._db.execute(sql, (log, before)):
            event = event_of(kind, value)
            assert isinstance(event, FrameWritten)
            yield event

    def signed_by(self, node: str, position: int) -> Iterator[Event]:
        """Yield what a node signed of the first so many events, the newest first."""
        yield from self._events_of(
            "SELECT position FROM event WHERE node = (SELECT id FROM name WHERE text = ?) AND position <= ?"
            " ORDER BY position DESC",
            node,
            position,
        )

    def resting_on(self, evidence: Iterable[Evidence]) -> Iterator[Event]:
        """Yield the events whose bytes begin where a piece of evidence does, and all frames of its data files."""
        found: dict[int, Event] = {}
        at = "SELECT position FROM event WHERE path = (SELECT id FROM name WHERE text = ?)"
        places = {(each.path, each.offset) for each in evidence}
        for path, offset in places:
            for (position,) in self._db.execute(f"{at} AND offset = ?", (path, offset)):
                found[position] = self.events[position - 1]
        frames = f"{at} AND kind = {_FRAME} UNION SELECT position FROM packed_file WHERE path = ?"  # noqa: S608 - constants
        for path in {path for path, _ in places}:
            for (position,) in self._db.execute(frames, (path, path)):
                event = self.events[position - 1]
                if isinstance(event, FrameWritten) and event.file == path:
                    found[position] = event
        for _, event in sorted(found.items()):
            yield event

    def lease_events(self, domain: str, first: Instant, last: Instant) -> Iterator[LeaseTold | LeaseEnded]:
        """Yield what was said of the leases of a domain that somebody had, or could have had, within [first, last]."""
        sql = (
            "SELECT min(l.first), max(l.last) FROM lease l JOIN event e ON e.position = l.first"
            " WHERE l.domain = (SELECT id FROM name WHERE text = ?) AND l.until >= ? AND e.instant <= ?"
        )
        ((begin, end),) = self._db.execute(sql, (domain, first, last))
        if begin is None:
            return
        rows = self._db.execute(
            "SELECT e.kind, e.value FROM about a JOIN event e ON e.position = a.position"
            " WHERE a.domain = (SELECT id FROM name WHERE text = ?) AND a.position BETWEEN ? AND ? AND NOT a.frame"
            " ORDER BY a.position",
            (domain, begin, end),
        )
        for kind, value in rows:
            event = event_of(kind, value)
            if isinstance(event, LeaseTold | LeaseEnded):
                yield event

    def session(self, run: bytes, identifier: bytes) -> tuple[Instant, SessionOver | None] | None:
        """Return the latest expiry of a session lease, and its end, if either is known."""
        sql = "SELECT expiry, over FROM session WHERE name = ?"
        for expiry, over in self._db.execute(sql, (run + identifier,)):
            event = None if over is None else self.events[over - 1]
            return expiry, event if isinstance(event, SessionOver) else None
        return None

    def ceiling(self, shard: ShardName, number: int) -> CeilingLinked | None:
        """Return a record of a ceiling chain; of two with one number the first."""
        sql = "SELECT min(position) FROM ceiling_record WHERE map = ? AND shard = ? AND number = ?"
        for event in self._events_of(sql, *shard, number):
            return event if isinstance(event, CeilingLinked) else None
        return None

    def closing_of(self, path: str) -> BagClosed | None:
        """Return how the bag at a path was closed."""
        sql = "SELECT min(position) FROM closing WHERE path = ?"
        for event in self._events_of(sql, path):
            return event if isinstance(event, BagClosed) else None
        return None

    def kinds[E: Event](self, kind: type[E]) -> Iterator[E]:
        """Yield the events of one kind, in order."""
        sql = "SELECT value FROM event WHERE kind = ? ORDER BY position"
        for (value,) in self._db.execute(sql, (RANKS[kind],)):
            event = event_of(RANKS[kind], value)
            assert isinstance(event, kind)
            yield event

    def _events_of(self, sql: str, *values: Value) -> Iterator[Event]:
        for (position,) in self._db.execute(sql, values):
            if position is not None:
                yield self.events[position - 1]

    # Inside.

    def _about(self, start: int, end: int, domain: str | None) -> Iterable[int]:
        if domain is None:
            return range(start, end)
        sql = (
            "SELECT position - 1 FROM about WHERE domain = (SELECT id FROM name WHERE text = ?)"
            " AND position > ? AND position <= ? ORDER BY position"
        )
        return (number for (number,) in self._db.execute(sql, (domain, start, end)))

    def _closing(self, positions: range, log: str | None) -> Instant | None:
        back = positions.step < 0
        edge = positions.start + 1 if back else positions.start
        side = "<= ? ORDER BY position DESC" if back else "> ? ORDER BY position"
        logs = [log] if log is not None else [each for (each,) in self._db.execute("SELECT DISTINCT log FROM closing")]
        sql = f"SELECT position FROM closing WHERE log = ? AND position {side} LIMIT 1"  # noqa: S608 - a constant
        found = [position for each in logs if (position := self._number(sql, each, edge))]
        return self.events[(max if back else min)(found) - 1].instant_ns if found else None

    def _fold(self, position: int) -> Working:
        """Go on from the last checkpoint, or from the last answer where that is nearer."""
        end = len(self.events)
        begin = end if position == end else position - position % self._spacing
        if begin < self._cursor[0] <= position:
            begin, working = self._cursor[0], self._cursor[1].copy()
        else:
            working = working_at(self._db, begin)
        for number in range(begin, position):
            working.take(self.events[number])
        self._cursor = position, working
        return working

    def _fold_logs(self, position: int) -> Working:
        """Go on from the nearest state of logs at hand since the last checkpoint, by events about logs alone."""
        end = len(self.events)
        begin = end if position == end else position - position % self._spacing
        near = max((each for each in self._logs if begin <= each <= position), default=None)
        working = working_at(self._db, begin) if near is None else self._logs[near].copy()
        begin = begin if near is None else near
        sql = f"SELECT position, kind, value FROM event WHERE {_OF_LOGS} ORDER BY position"  # noqa: S608 - constants
        for number, kind, value in self._db.execute(sql, (begin, position)):
            if number > begin + LOGS_APART:
                begin = number - 1
                self._keep_logs(begin, working.copy())
            working.take_of_logs(event_of(kind, value))
        self._keep_logs(position, working)
        return working

    def _keep_logs(self, position: int, working: Working) -> None:
        self._logs[position] = working
        self._logs.move_to_end(position)
        if len(self._logs) > LOGS_AT_HAND:
            self._logs.popitem(last=False)

    def _number(self, sql: str, *values: Value) -> int:
        """Return the number that a query finds; 0 where it finds none: positions begin at 1."""
        for (number,) in self._db.execute(sql, values):
            assert isinstance(number, int)
            return number
        return 0


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
    try:
        return _audited(db, heads[0])
    except (*INDEX_ERRORS, ValueError, KeyError, TypeError) as problem:
        raise BadRequest("not-an-index", f"{path} is damaged: {problem}", hint=f"remove it; {way_out}") from None


def _audited(db: Database, head: dict[str, Any]) -> AuditedTree:
    timeline = Timeline(db, head)
    findings = tuple(finding_of(value) for (value,) in db.execute("SELECT value FROM finding ORDER BY number"))
    cluster = bytes.fromhex(head["cluster"])
    audited = Audit(
        Summary(**head["summary"]),
        findings,
        cluster,
        bytes.fromhex(head["root_key"]) if head["root_key"] is not None else None,
        head["pinned"],
        head["hashed"],
    )
    policy = Policy(number=0, cluster_id=cluster)
    if head["policy"]:
        policy = decode(Policy, bytes.fromhex(head["policy"]), "the index")
    return AuditedTree(audited, timeline, policy)
