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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Final, overload

import msgspec

from appliance.formats.policy import Policy
from appliance.formats.witness import Ended, Witness
from auditor.index import INDEX_ERRORS, Database, open_index
from auditor.parts import Value
from auditor.report.result import Audit
from auditor.rules.finding import Evidence, Finding
from auditor.rules.history import ShardName
from timeagent.canonical import decode
from timeagent.errors import BadRequest
from timeagent.units import Instant

from .events import (
    KINDS,
    RANKS,
    BagClosed,
    CeilingLinked,
    Event,
    FrameWritten,
    LeaseEnded,
    LeaseTold,
    SessionOver,
    SessionTold,
    StatedBatch,
    about_log,
    ceiling_name,
)
from .fold import Working
from .state import StateAt

CHECKPOINT_EVENTS: Final = 1_024
"""So many events at most are folded for a state, from the second time on."""
BLOCK_EVENTS: Final = 128
BLOCKS: Final = 64
"""So many events are read at once, and so many times that are at hand."""
STATES_APART: Final = 64
STATES_AT_HAND: Final = 64
"""The state after each so many events that were gone through is at hand, so many times."""
ALL_POSITIONS: Final = 2**62
NAMES_AT_HAND: Final = 4_096
_FRAME: Final = RANKS[FrameWritten]
_WHOLE: Final[tuple[msgspec.msgpack.Decoder[Event], ...]] = tuple(msgspec.msgpack.Decoder(kind) for kind in KINDS)
_entries: Final = msgspec.msgpack.Decoder(Witness | Ended)


class StoredEvents(Sequence["Event"]):
    """All events in order of time; those that were asked for last are in memory."""

    def __init__(self, db: Database) -> None:
        ((count,),) = db.execute("SELECT coalesce(max(position), 0) FROM event")
        self._count = int(count)
        # Of the database, not of this: who lets go of a timeline lets go of the file.
        batch, path = lru_cache(NAMES_AT_HAND)(partial(_stated, db)), lru_cache(NAMES_AT_HAND)(partial(_text, db))
        self.where = partial(_where, db, batch, path)
        """Yields the events of which a condition in SQL holds; each is read when it is asked for."""
        self._block = lru_cache(BLOCKS)(partial(_block, self.where))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._count))]
        number = index + self._count if index < 0 else index
        if not 0 <= number < self._count:
            raise IndexError(index)
        return self._block(number // BLOCK_EVENTS)[number % BLOCK_EVENTS]


def _where(
    db: Database, batch: Callable[[int], StatedBatch], path: Callable[[int], str], condition: str, *values: Value
) -> Iterator[Event]:
    sql = f"SELECT kind, value, batch, place, path, offset, length FROM event WHERE {condition}"  # noqa: S608 - ours
    for kind, value, stated, place, name, offset, length in db.execute(sql, values):
        if stated is None:
            yield _WHOLE[kind].decode(value)
        else:
            yield batch(stated).said(_entries.decode(value), place, Evidence(path(name), offset, length))


def _block(where: Callable[..., Iterator[Event]], block: int) -> list[Event]:
    first = block * BLOCK_EVENTS
    return list(where("position > ? AND position <= ? ORDER BY position", first, first + BLOCK_EVENTS))


def _stated(db: Database, number: int) -> StatedBatch:
    ((value,),) = db.execute("SELECT value FROM batch WHERE id = ?", (number,))
    return msgspec.msgpack.decode(value, type=StatedBatch)


def _text(db: Database, number: int) -> str:
    ((text,),) = db.execute("SELECT text FROM name WHERE id = ?", (number,))
    return str(text)


class Timeline:
    """Events in order of time, states and findings. Safe to use from several threads: one state is made at a time."""

    def __init__(self, db: Database) -> None:
        """Take a database with a timeline. Reads the findings."""
        self._db = db
        self.events = StoredEvents(db)
        self.start_ns, self.end_ns = (self.events[0].instant_ns, self.events[-1].instant_ns) if self.events else (0, 0)
        """The first and the last instant that the copy tells of; 0 where it tells nothing."""
        self.findings: list[tuple[Instant, Finding]] = [
            (instant, _finding(value))
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
        return StateAt(
            instant,
            self.end_ns,
            position,
            self.events[position - 1] if position else None,
            self.findings_until(instant),
            working.domains,
            working.sessions,
            working.shards,
            working.logs,
            working.bags,
            working.clocks,
        )

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

    def next_closing(self, instant: Instant, log: str | None = None) -> Instant | None:
        """Return when the next bag after an instant was closed, or None."""
        return self._closing("> ? ORDER BY position", self.position(instant), log)

    def previous_closing(self, instant: Instant, log: str | None = None) -> Instant | None:
        """Return when the last bag before an instant was closed, or None."""
        return self._closing("<= ? ORDER BY position DESC", self.position_before(instant), log)

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
        sql = "SELECT position FROM about WHERE domain = ? AND position"
        sql += " <= ? ORDER BY position DESC LIMIT 1" if back else " > ? ORDER BY position LIMIT 1"
        found = self._number(sql, self._name(domain), position)
        return found - 1 if found else None

    def frames_in(self, log: str, bag_ns: Instant) -> list[FrameWritten]:
        """Return the frames of a bag in order of time."""
        found = self.events.where(f"kind = {_FRAME} AND log = ? AND bag = ? ORDER BY position", self._name(log), bag_ns)
        return [event for event in found if isinstance(event, FrameWritten)]

    def delivered_backwards(self, log: str, before: Instant) -> Iterator[FrameWritten]:
        """Yield the frames that a reader was given, the newest first. Reads each when it is asked for."""
        given = f"kind = {_FRAME} AND log = ? AND bag < ? AND newest > 0"
        for event in self.events.where(f"{given} ORDER BY bag DESC, newest DESC, position", self._name(log), before):
            assert isinstance(event, FrameWritten)
            yield event

    def signed_by(self, node: str, position: int) -> Iterator[Event]:
        """Yield what a node signed of the first so many events, the newest first."""
        yield from self.events.where("node = ? AND position <= ? ORDER BY position DESC", self._name(node), position)

    def resting_on(self, evidence: Iterable[Evidence]) -> Iterator[Event]:
        """Yield the events whose bytes begin where a piece of evidence does, and all frames of its data files."""
        found: dict[int, Event] = {}
        places = {(each.path, each.offset) for each in evidence}
        for path, offset in places:
            sql = "SELECT position FROM event WHERE path = ? AND offset = ?"
            for (position,) in self._db.execute(sql, (self._name(path), offset)):
                found[position] = self.events[position - 1]
        for path in {path for path, _ in places}:
            sql = f"SELECT position FROM event WHERE (path = ?1 OR subject = ?1) AND +kind = {_FRAME}"  # noqa: S608 - a constant
            for (position,) in self._db.execute(sql, (self._name(path),)):
                event = self.events[position - 1]
                if isinstance(event, FrameWritten) and event.file == path:
                    found[position] = event
        for _, event in sorted(found.items()):
            yield event

    def lease_events(self, domain: str, first: Instant, last: Instant) -> Iterator[LeaseTold | LeaseEnded]:
        """Yield what was said of the leases of a domain that somebody had, or could have had, within [first, last]."""
        sql = (
            "SELECT min(l.first), max(l.last) FROM lease l JOIN event e ON e.position = l.first"
            " WHERE l.domain = ? AND l.until >= ? AND e.instant <= ?"
        )
        number = self._name(domain)
        ((begin, end),) = self._db.execute(sql, (number, first, last))
        if begin is None:
            return
        within = "position IN (SELECT position FROM about WHERE domain = ? AND position BETWEEN ? AND ? AND NOT frame)"
        for event in self.events.where(f"{within} ORDER BY position", number, begin, end):
            if isinstance(event, LeaseTold | LeaseEnded):
                yield event

    def session(self, run: bytes, identifier: bytes) -> tuple[Instant, SessionOver | None] | None:
        """Return the latest expiry of a session lease, and its end, if either is known."""
        sql = f"SELECT coalesce(max(until), 0) FROM event WHERE session = ? AND kind = {RANKS[SessionTold]}"  # noqa: S608 - a constant
        expiry = self._number(sql, run + identifier)
        over = self._first(SessionOver, "session = ?", run + identifier, last=True)
        return (expiry, over) if expiry or over else None

    def ceiling(self, shard: ShardName, number: int) -> CeilingLinked | None:
        """Return a record of a ceiling chain; of two with one number the first."""
        return self._first(CeilingLinked, "subject = ?", self._name(ceiling_name(shard, number)))

    def closing_of(self, path: str) -> BagClosed | None:
        """Return how the bag at a path was closed."""
        return self._first(BagClosed, "subject = ?", self._name(path))

    def kinds[E: Event](self, kind: type[E]) -> Iterator[E]:
        for event in self.events.where("kind = ? ORDER BY position", RANKS[kind]):
            assert isinstance(event, kind)
            yield event

    def _first[E: Event](self, kind: type[E], condition: str, value: Value, *, last: bool = False) -> E | None:
        order = "position DESC" if last else "position"
        for event in self.events.where(f"{condition} AND kind = ? ORDER BY {order} LIMIT 1", value, RANKS[kind]):
            assert isinstance(event, kind)
            return event
        return None

    # Inside.

    def _about(self, start: int, end: int, domain: str | None) -> Iterable[int]:
        if domain is None:
            return range(start, end)
        sql = "SELECT position - 1 FROM about WHERE domain = ? AND position > ? AND position <= ? ORDER BY position"
        return (number for (number,) in self._db.execute(sql, (self._name(domain), start, end)))

    def _closing(self, side: str, edge: int, log: str | None) -> Instant | None:
        of = "" if log is None else f"log = {self._name(log)} AND "
        found = self.events.where(f"{of}kind = ? AND position {side} LIMIT 1", RANKS[BagClosed], edge)
        return next((event.instant_ns for event in found), None)

    def _fold(self, position: int) -> Working:
        """Go on from the nearest state at hand since the last checkpoint. Leaves checkpoints behind."""
        begin = self._number("SELECT position FROM folded WHERE position <= ? ORDER BY position DESC LIMIT 1", position)
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

    def _name(self, text: str) -> int:
        return self._number("SELECT id FROM name WHERE text = ?", text)

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
    head = heads[0]
    try:
        timeline = Timeline(db)
        found = tuple(_finding(value) for (value,) in db.execute("SELECT value FROM finding ORDER BY number"))
        audited = replace(msgspec.convert(head["audit"], Audit), findings=found)
        policy = Policy(number=0, cluster_id=audited.cluster_id)
        if head["policy"]:
            policy = decode(Policy, bytes.fromhex(head["policy"]), "the index")
    except (*INDEX_ERRORS, ValueError, KeyError, TypeError) as problem:
        raise BadRequest("not-an-index", f"{path} is damaged: {problem}", hint=f"remove it; {way_out}") from None
    return AuditedTree(audited, timeline, policy)


def _finding(data: str) -> Finding:
    return msgspec.convert(json.loads(data), Finding)
