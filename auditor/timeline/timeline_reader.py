"""All events of a tree in order of time, and the state at any instant: the one interface of replay, screens and tests.

Read from a database, that of an audit or one that is gone with the timeline; the tree is not needed.
A state costs at most ``CHECKPOINT_EVENTS`` events to fold, and what is asked of it; memory is what SQLite caches, and
the events that were seen last.

An event's *position* is its number in order of time, from 1 up. It is a row of numbers in a block, which tells it
together with what many share: the bytes of an entry and its batch, the data file and the clock of a frame that columns
judged, or, of any other, all of it as bytes. Of all that events are about there are lists of positions, each one value,
in order; so it costs what is in it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from appliance.formats.policy import Policy
from appliance.formats.witness import Ended, Witness
from auditor.columns.layout import Rows, ShardName
from auditor.evidence.finding import Evidence, Finding
from auditor.rules.result import Audit
from timeagent.canonical import decode
from timeagent.errors import BadRequest, Damaged
from timeagent.units import Instant

from ..columns.audit_file import INDEX_ERRORS, Database, open_index
from ..columns.events import (
    KINDS,
    BagClosed,
    CeilingLinked,
    ClockReading,
    Event,
    FrameFile,
    FrameWritten,
    LeaseEnded,
    LeaseTold,
    LogBorn,
    SessionOver,
    StatedBatch,
    about_log,
    ceiling_name,
)
from .fold import Working
from .state import StateAt

type Numbers = NDArray[np.int64]

SCHEMA: Final = """
CREATE TABLE block (number INTEGER PRIMARY KEY, instant INTEGER, rows BLOB, leases BLOB);
CREATE INDEX block_at ON block (instant);
CREATE TABLE piece (id INTEGER PRIMARY KEY, value BLOB);
CREATE TABLE text (id INTEGER PRIMARY KEY, text TEXT);
CREATE TABLE posting (list INTEGER, key TEXT, part INTEGER, positions BLOB, more BLOB, PRIMARY KEY (list, key, part));
"""
BLOCKS_AT_HAND: Final = 64
PIECES_AT_HAND: Final = 256
NAMES_AT_HAND: Final = 4_096
FILES_AT_HAND: Final = 64


class EventRow(NamedTuple):
    """How an event is kept: a row of numbers."""

    instant: Instant
    kind: int
    path: int
    offset: int
    length: int
    stated: int
    """Of an entry of a ledger the piece with its batch; of a frame that columns judged that with its data file."""
    clock: int
    """Of such a frame the piece with what its clock said."""
    place: int
    """Of an entry its place in the batch; of such a frame its sequence."""
    piece: int
    at: int
    size: int
    """Where the bytes of an entry are, or of an event that no column tells."""
    messages: int
    first: Instant
    """Of a frame its lowest timestamp; of what tells of a lease when that was first told of."""
    last: Instant
    """Of any frame the highest timestamp that readers were given; of what tells of a session lease its expiry; of what
    tells of a lease until when that lasted at most."""
    begins: bool


_SMALL: Final = dict.fromkeys(("path", "stated", "clock", "piece", "at", "size"), "I")
_CODES: Final = dict.fromkeys(EventRow._fields, "q") | {"kind": "B", "begins": "?"} | _SMALL
EVENT: Final = np.dtype([(name, f"<{code}") for name, code in _CODES.items()])
LEASE: Final = np.dtype([("event", "<u4"), ("domain", "<u4"), ("cid", "<u8", (2,))])
"""A lease that an event is about: of what a block holds, its place in the block."""
_LEASE_READ: Final = np.dtype([("event", "<u4"), ("domain", "<u4"), ("cid", "V16")])
WHOLE: Final[tuple[msgspec.msgpack.Decoder[Event], ...]] = tuple(msgspec.msgpack.Decoder(kind) for kind in KINDS)
ENTRY: Final = msgspec.msgpack.Decoder(Witness | Ended)
"""Both read what the walk has checked: nothing is checked again."""


class Posting(IntEnum):
    """The lists of positions, each by a text of its own, and some by a number beside it."""

    KIND = 0
    PATH = 1
    """By the path that its bytes are at."""
    NODE = 2
    """By the node whose clock it is by."""
    ABOUT = 3
    """By the domain that it is about: what is told of its leases, and frames written under them."""
    TOLD = 4
    """The same without frames."""
    BAG = 5
    """Frames, by the log and the beginning of their bag."""
    FILE = 6
    """Frames, by their data file."""
    LISTED = 7
    """Bags that were closed, by path."""
    CEILING = 8
    SESSION = 9
    SESSION_OVER = 10


MORE: Final = {
    Posting.PATH: ("offset",),
    Posting.BAG: ("last",),
    Posting.SESSION: ("last",),
    Posting.TOLD: ("first", "last"),
}
"""What a list holds of each of its events beside the position."""


def session_key(run: bytes, identifier: bytes) -> str:
    """Return by what a session lease is found."""
    return f"{run.hex()}/{identifier.hex()}"


class _Block:
    """Events that lie together, each read when it is asked for."""

    def __init__(self, rows: bytes, leases: bytes) -> None:
        self.rows: Rows = np.frombuffer(rows, EVENT)
        self.leases: Rows = np.frombuffer(leases, _LEASE_READ)
        self.events: list[Event | None] = [None] * len(self.rows)


def _kept[T](db: Database, size: int, sql: str, made: Callable[..., T]) -> Callable[[int], T]:
    """Return what reads a row by its number; those that were asked for last are in memory. It raises an INDEX_ERROR."""

    def asked(number: int) -> T:
        try:
            (row,) = db.execute(sql, (number,))
            return made(*row)
        except (TypeError, ValueError) as problem:
            raise msgspec.DecodeError(f"row {number} is damaged: {problem}") from None

    return lru_cache(size)(asked)


class StoredEvents(Sequence[Event]):
    """All events in order of time; those that were asked for last are in memory."""

    def __init__(self, db: Database) -> None:
        self._count = self._size = 0
        for number, rows in db.execute("SELECT number, length(rows) FROM block ORDER BY number DESC LIMIT 1"):
            ((first,),) = db.execute("SELECT length(rows) FROM block WHERE number = 0")
            self._size = first // EVENT.itemsize
            self._count = number * self._size + rows // EVENT.itemsize
        self._db = db
        self._files: dict[str, tuple[NDArray[np.uint32], Numbers]] = {}
        """Of the files that were asked for last the positions, and where those begin, in order of that."""
        # Of the database, not of this: who lets go of a timeline lets go of the file.
        piece = "SELECT value FROM piece WHERE id = ?"
        self._block = _kept(db, BLOCKS_AT_HAND, "SELECT rows, leases FROM block WHERE number = ?", _Block)
        self._piece = _kept(db, PIECES_AT_HAND, piece, bytes)
        self._text = _kept(db, NAMES_AT_HAND, "SELECT text FROM text WHERE id = ?", str)
        self._batch = _kept(db, NAMES_AT_HAND, piece, msgspec.msgpack.Decoder(StatedBatch).decode)
        self._file = _kept(db, NAMES_AT_HAND, piece, msgspec.msgpack.Decoder(FrameFile).decode)
        self._clock = _kept(db, NAMES_AT_HAND, piece, msgspec.msgpack.Decoder(ClockReading).decode)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Event]:
        """Yield every event, each read when it is asked for."""
        return self.at(range(1, self._count + 1))

    def __getitem__(self, number: int) -> Event:  # type: ignore[override]
        """Return an event by its number in order of time, from 0 up."""
        if not 0 <= number < self._count:
            raise IndexError(number)
        block, place = self._block(number // self._size), number % self._size
        event = block.events[place]
        if event is None:
            event = block.events[place] = self._read(EventRow(*block.rows[place].item()), block, place)
        return event

    def _read(self, row: EventRow, block: _Block, place: int) -> Event:
        if row.clock:
            leases = block.leases[block.leases["event"] == place]
            file, clock, span = self._file(row.stated), self._clock(row.clock), (row.first, row.last)
            return FrameWritten(
                instant_ns=row.instant,
                place=(f"writer {file.writer}", file.incarnation, row.place, 0),
                clock=clock,
                where=Evidence(self._text(row.path), row.offset, row.length),
                log=file.log,
                bag_ns=file.bag_ns,
                file=file.file,
                writer=file.writer,
                incarnation=file.incarnation,
                sequence=row.place,
                messages=row.messages,
                first_ns=row.first,
                last_ns=row.last,
                accepted=(0, row.messages),
                accepted_ns=span,
                listed=True,
                void_because="",
                leases=tuple((self._text(domain), cid) for _, domain, cid in leases.tolist()),
                begins=row.begins,
            )
        raw = self._piece(row.piece)[row.at : row.at + row.size]
        if not row.stated:
            event = WHOLE[row.kind].decode(raw)
            return msgspec.structs.replace(event, begins=True) if row.begins else event
        where = Evidence(self._text(row.path), row.offset, row.length)
        return next(self._batch(row.stated).told(ENTRY.decode(raw), b"", row.place, where))[0]

    # Positions.

    def instant(self, position: int) -> Instant:
        """Return the instant of the event at a position; 0 for 0."""
        number = position - 1
        return int(self._block(number // self._size).rows["instant"][number % self._size]) if position else 0

    def until(self, instant: Instant, *, without: bool = False) -> int:
        """Return how many events lie at or before an instant; ``without``: only before it."""
        at = min(instant, 2**63 - 1)
        sql = f"SELECT number FROM block WHERE instant {'<' if without else '<='} ? ORDER BY instant DESC, number DESC"  # noqa: S608 - ours
        for (number,) in self._db.execute(f"{sql} LIMIT 1", (at,)):
            instants = self._block(number).rows["instant"]
            return int(number) * self._size + int(np.searchsorted(instants, at, "left" if without else "right"))
        return 0

    def at(self, positions: Iterable[int]) -> Iterator[Event]:
        for position in positions:
            yield self[position - 1]

    def listed(self, posting: Posting, key: str, part: int = 0) -> NDArray[np.uint32]:
        return self.listed_with(posting, key, part)[0]

    def listed_with(self, posting: Posting, key: str, part: int = 0) -> tuple[NDArray[np.uint32], Numbers]:
        """Return a list of positions, and the rows of what it holds beside them."""
        nothing = np.zeros(0, np.uint32), np.zeros((len(MORE.get(posting, ())), 0), np.int64)
        return next(self.lists(posting, key, part, part + 1), nothing)

    def lists(self, posting: Posting, key: str, first: int, end: int) -> Iterator[tuple[NDArray[np.uint32], Numbers]]:
        """Yield the lists of one key whose numbers lie within [first, end), the highest first."""
        sql = "SELECT positions, more FROM posting WHERE list = ? AND key = ? AND part >= ? AND part < ?"
        for positions, more in self._db.execute(f"{sql} ORDER BY part DESC", (posting, key, first, end)):
            try:
                found = np.frombuffer(positions, "<u4")
                beside = np.frombuffer(more, "<i8").reshape(len(MORE.get(posting, ())), len(found))
            except (TypeError, ValueError) as problem:
                raise msgspec.DecodeError(f"the list of {key!r} is damaged: {problem}") from None
            if not found.all() or found.max(initial=0) > self._count:
                raise msgspec.DecodeError(f"the list of {key!r} names events that are not there")
            yield found, beside

    def beginning_at(self, where: Evidence) -> list[int]:
        found = self._files.get(where.path)
        if found is None:
            positions, (offsets,) = self.listed_with(Posting.PATH, where.path)
            order = np.argsort(offsets, kind="stable")
            if len(self._files) >= FILES_AT_HAND:
                self._files.clear()
            found = self._files[where.path] = positions[order], offsets[order]
        first, end = (np.searchsorted(found[1], where.offset, side) for side in ("left", "right"))
        return found[0][first:end].tolist()  # type: ignore[no-any-return]


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

    def closing(self, instant: Instant, *, back: bool) -> Instant | None:
        """Return when the next bag after an instant was closed, or the last before it; None: there is none."""
        closed = self.events.listed(Posting.KIND, BagClosed.__name__)
        position = self.position_before(instant) if back else self.position(instant)
        place = int(np.searchsorted(closed, position, "right")) - back
        return self.events.instant(int(closed[place])) if 0 <= place < len(closed) else None

    def finding(self, instant: Instant, *, back: bool) -> tuple[Instant, Finding] | None:
        """Return the next finding after an instant, or the last before it; None: there is none."""
        search = bisect_left if back else bisect_right
        place = search(self.findings, instant, key=lambda each: each[0]) - back
        return self.findings[place] if 0 <= place < len(self.findings) else None

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
        _, until = self.events.listed_with(Posting.SESSION, key)
        over = self._one(SessionOver, Posting.SESSION_OVER, key, last=True)
        return (int(until.max(initial=0)), over) if until.size or over else None

    def ceiling(self, shard: ShardName, number: int) -> CeilingLinked | None:
        """Return a record of a ceiling chain; of two with one number the first."""
        return self._one(CeilingLinked, Posting.CEILING, ceiling_name(shard, number))

    def closing_of(self, path: str) -> BagClosed | None:
        """Return how the bag at a path was closed."""
        return self._one(BagClosed, Posting.LISTED, path)

    @cached_property
    def births(self) -> dict[str, LogBorn]:
        """Return how each log was born."""
        return {event.log: event for event in self.kinds(LogBorn)}

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
        working = Working.at(self._db, begin, self.births.get) if near is None else self._at_hand[near].copy()
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


@contextmanager
def reading_index(path: Path | None) -> Iterator[None]:
    """Read from a database in a block. Raises BadRequest where it is damaged; None: it is gone with its timeline."""
    try:
        yield
    except INDEX_ERRORS as problem:
        if path is None:
            raise
        hint = "remove it, and make it with: tenure audit PATH --db FILE"
        raise BadRequest("not-an-index", f"{path} is damaged: {problem}", hint=hint) from None


def open_audited(path: Path) -> AuditedTree:
    """Open the database of an audit, to read. Raises BadRequest with the way out where it has no timeline."""
    db = open_index(path)
    way_out = "make it with: tenure audit PATH --db FILE, of the whole tree"
    try:
        heads = [value for (value,) in db.execute("SELECT value FROM timeline WHERE name = 'head'")]
    except INDEX_ERRORS:
        heads = []
    if not heads:
        db.close()
        raise BadRequest("no-timeline", f"{path} has no timeline: no whole tree was audited into it", hint=way_out)
    try:
        head = msgspec.json.decode(heads[0], type=dict[str, Any])
        timeline = Timeline(db)
        found = tuple(_finding.decode(value) for (value,) in db.execute("SELECT value FROM finding ORDER BY number"))
        audited = replace(msgspec.convert(head["audit"], Audit), findings=found)
        policy = Policy(number=0, cluster_id=audited.cluster_id)
        if head["policy"]:
            policy = decode(Policy, bytes.fromhex(head["policy"]), "the index")
    except (*INDEX_ERRORS, Damaged, ValueError, KeyError, TypeError) as problem:
        db.close()
        raise BadRequest("not-an-index", f"{path} is damaged: {problem}", hint=f"remove it; {way_out}") from None
    return AuditedTree(audited, timeline, policy)
