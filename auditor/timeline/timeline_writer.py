"""A timeline into a database: what a walk tells, put in order of time.

What columns hold of leases and of frames is told here from the columns, when all of them are there: of an entry the
database has the bytes and the batch, of a frame its numbers. Everything else comes as events. Memory holds a row of
numbers for each of them, not what they say. What is written is described where it is read: ``timeline_reader``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from appliance.formats.witness import BatchHead
from auditor.columns.layout import ENDED, ENTRIES, OTHER, USES, Numbering, RowBucket, bytes_of
from auditor.columns.layout import Rows as ColumnRows
from auditor.evidence.finding import Evidence, Finding
from auditor.evidence.records import ClusterRecords
from auditor.rules.result import Audit
from timeagent.canonical import decode, encode
from timeagent.units import INSTANT_MAX, Instant

from ..columns.audit_file import Database, all_or_nothing
from ..columns.events import (
    KINDS,
    RANKS,
    BagClosed,
    CeilingLinked,
    Event,
    FrameColumns,
    FrameWritten,
    LeaseEnded,
    LeaseTold,
    SessionOver,
    SessionTold,
    StatedBatch,
    ceiling_name,
    end_name,
    leases_of,
    statement_name,
)
from ..columns.index import Index
from ..walk.facts import Gathering, Mark
from .state import SCHEMA as CHECKPOINTS
from .timeline_reader import ENTRY, EVENT, LEASE, MORE, WHOLE, Numbers, Posting, StoredEvents, Timeline, session_key
from .timeline_reader import SCHEMA as EVENTS

FIRST_RANK: Final = -(2**62)
"""Of ceiling chains: whatever else tells the same comes later."""
LEDGER_RANK: Final = -(2**61)
"""Added to the ranks of ledgers: they count before frames, in the order of their names."""
HEARSAY_RANK: Final = 2**61
"""Added to the ranks of what later witnesses tell of ends: their shard's own word counts more."""
BLOCK_EVENTS: Final = 128
"""So many events lie together."""
PIECE_BYTES: Final = 32 * 1024
"""So much of what entries and events say is read at once."""
HEADS_AT_HAND: Final = 4_096
_HEAD: Final = "CREATE TABLE IF NOT EXISTS timeline (name TEXT PRIMARY KEY, value BLOB);"
_SCHEMA: Final = f"""
{EVENTS}
CREATE TABLE marked (mark TEXT, log TEXT, start INTEGER, PRIMARY KEY (mark, log, start)) WITHOUT ROWID;
CREATE TABLE finding (number INTEGER PRIMARY KEY, instant INTEGER, value BLOB);
{_HEAD}
{CHECKPOINTS}
"""
_TABLES: Final = re.findall(r"(?m)^CREATE TABLE (?:IF NOT EXISTS )?(\w+)", _SCHEMA)
_encoder: Final = msgspec.msgpack.Encoder()


class Told(msgspec.Struct, array_like=True):
    """What a part of the tree tells."""

    events: list[tuple[bytes | None, int, int, bytes]] = []
    """Name, rank, kind, and the event."""
    frames: list[FrameColumns] = []
    marks: list[Mark] = []


_told: Final = msgspec.msgpack.Decoder(Told)


class EventRows(Gathering):
    """Takes what a part of the tree tells, as it is handed over."""

    def __init__(self) -> None:
        self._names: set[bytes] = set()
        self.told = Told()

    def knows(self, name: bytes) -> bool:
        return name in self._names

    def add(self, event: Event, name: bytes | None = None) -> None:
        if name is not None:
            self._names.add(name)
        rank = self.rank + HEARSAY_RANK if isinstance(event, LeaseEnded) and event.heard else self.rank
        self.told.events.append((name, rank, RANKS[type(event)], _encoder.encode(event)))

    def frames(self, columns: FrameColumns) -> None:
        self.told.frames.append(columns)

    def marked(self, mark: Mark) -> None:
        self.told.marks.append(mark)

    def encoded(self) -> bytes:
        return _encoder.encode(self.told)


class _Waiting(NamedTuple):
    rank: int
    kind: int
    value: bytes


class TimelineWriter:
    """Takes what the parts of a tree tell, and writes it once: blocks of rows, and lists of positions in them.

    Until all are there an event goes by the number with which it came.
    """

    def __init__(self, db: Database, index: Index | None = None) -> None:
        """Hold nothing yet. ``index``: what columns and heads are in, if there are any."""
        self.db = db
        self._index = index
        self._taken: list[tuple[int, bytes]] = []
        self._batch = lru_cache(HEADS_AT_HAND)(self._stated)
        self._events: list[_Waiting] = []
        self._named: dict[bytes, _Waiting] = {}
        """What is no column, without a name and with one."""
        self._until: dict[bytes, Instant] = {}
        """When session leases expire, by run and id."""
        self._rows: list[ColumnRows] = []
        self._order: list[NDArray[np.int64]] = []
        """Of the same events what orders those of one instant and kind: maker, sequence, place and rank."""
        self._count = 0
        self._under: list[ColumnRows] = []
        """What frames that columns judged were written under."""
        self._said: list[ColumnRows] = []
        """The leases of which events tell."""
        self._posted: list[Numbers] = []
        self._keys: Numbering[tuple[str, int]] = Numbering()
        """What events are about: a text and a number beside it."""
        self._makers: Numbering[tuple[str, bytes]] = Numbering()
        """Who signed, and which run of it."""
        self._shared: dict[bytes, int] = {}
        self._pieces = 0

    def clear(self) -> None:
        self._taken.clear()

    def take(self, told: bytes, base: int = 0) -> None:
        """Take what a part tells, if anything. ``base``: added to its ranks."""
        if told:
            self._taken.append((base, told))

    def write(self, findings: Iterable[Finding] = ()) -> Timeline:
        """Make a timeline in place of any that is there. ``findings``: of the audit, to be placed in time."""
        for table in _TABLES:
            self.db.execute(f"DROP TABLE IF EXISTS main.{table}").fetchall()
        self.db.execute(_SCHEMA).fetchall()
        for base, told in self._taken:
            self._part(_told.decode(told), base)
        self.clear()
        if self._index is not None:
            for bucket in self._index.buckets():
                self._columns(*(self._index.bucket(kind, bucket, raw=True) for kind in (ENTRIES, USES)))
        self._whole([*self._events, *self._named.values()])
        self._finish()
        keep_findings(self.db, findings)
        return Timeline(self.db)

    def _part(self, told: Told, base: int) -> None:
        self.db.executemany("INSERT OR IGNORE INTO marked VALUES (?, ?, ?)", told.marks)
        for columns in told.frames:
            self._frames(columns, base)
        for name, rank, kind, value in told.events:
            event = _Waiting(base + rank, kind, value)
            if name is None:
                self._events.append(event)
            elif event.rank < self._named.setdefault(name, event).rank:
                self._named[name] = event
            if KINDS[kind] is SessionTold:
                said = WHOLE[kind].decode(value)
                assert isinstance(said, SessionTold)
                session, until = said.place[1] + said.witness.session_id, min(said.witness.expiry_ns, INSTANT_MAX)
                self._until[session] = max(until, self._until.get(session, 0))

    def _stated(self, run: bytes, sequence: int, digest: bytes) -> StatedBatch:
        assert self._index is not None
        head = decode(BatchHead, self._index.head(run, sequence, digest))
        return StatedBatch.under(head, head.signed_time())

    # What columns tell.

    def _columns(self, entries: RowBucket, uses: RowBucket) -> None:
        """Take the entries of ledgers, and of the witnesses that frames carry those that no ledger has."""
        rows, carried = entries.rows(), uses.rows()
        rows, carried = rows[rows["kind"] != OTHER], carried[carried["plain"]]  # of others the walk tells
        rows["rank"] = LEDGER_RANK - rows["rank"]
        numbered = {name: number for number, name in enumerate(entries.heads.values)}
        heads = np.array([numbered.setdefault(name, len(numbered)) for name in uses.heads.values], np.int64)
        both = (
            np.concatenate([rows["head"], heads[carried["head"]]]),
            np.concatenate([rows["position"], carried["position"]]),
        )
        chosen = _lowest(np.concatenate([rows["rank"], carried["rank"]]), *both)[len(rows) :]
        gone = set(bytes_of(rows["cid"][rows["kind"] == ENDED]))
        plain, told = rows["plain"], EventRows()
        odd = ~plain | _tellers(rows, gone)
        self._by_entry(entries, rows[odd], ~plain[odd], gone, told)
        self._by_entry(uses, carried[chosen], chosen[chosen], gone, told)
        self._part(told.told, 0)
        self._plain(entries, rows[plain])

    def _plain(self, bucket: RowBucket, rows: ColumnRows) -> None:
        """Take entries of which every number is small."""
        ended = rows["kind"] == ENDED
        ids = [
            np.where(ended, rows["cid"][:, 0], rows["head"]),
            np.where(ended, rows["cid"][:, 1], rows["position"].view(np.uint64)),
        ]
        rows = rows[_lowest(rows["rank"], *ids, ended, rows["name"])]
        rows = rows[self._not_known(bucket, rows)]
        if not len(rows):
            return
        ended, head, under = rows["kind"] == ENDED, rows["head"], rows["under"]
        stated = [self._batch(*each) for each in bucket.heads.values]
        signed, sequences = np.array([(each.clock.midpoint_ns, each.sequence) for each in stated], np.int64).T
        makers = self._makers.all_of((each.who, each.run) for each in stated)
        until = np.where(ended, rows["last_ended"], rows["expiry"])
        runs = [stated[each].run for each in head[under].tolist()]
        sessions = (run + each for run, each in zip(runs, bytes_of(rows["session"][under]), strict=True))
        until[under] = np.maximum(until[under], [self._until.get(each, 0) for each in sessions])
        piece, at = self._cut(bucket.raw(), rows["at"])
        events = self._add(
            (makers[head], sequences[head], rows["position"], rows["rank"]),
            self._texts(each.clock.node for each in stated)[head],
            instant=np.where(ended, rows["last_ended"], signed[head]),
            kind=np.where(ended, RANKS[LeaseEnded], RANKS[LeaseTold]),
            path=self._texts(bucket.paths.values)[rows["path"]],
            stated=self._shared_pieces(stated)[head],
            place=rows["position"],
            piece=piece,
            at=at,
            last=until,
            **{each: rows[each] for each in ("offset", "length", "size")},
        )
        self._of_leases(events, self._texts(bucket.names.values)[rows["name"]], rows["cid"], told=True)

    def _not_known(self, bucket: RowBucket, rows: ColumnRows) -> NDArray[np.bool_]:
        """Say which entries no event tells that counts rather; such events do not count where it is the other way."""
        fresh = np.ones(len(rows), np.bool_)
        if all(name[:1] not in b"te" for name in self._named):
            return fresh
        domains, digests = bucket.names.listed(), [each[2] for each in bucket.heads.values]
        columns = (rows["kind"] == ENDED, rows["name"], rows["head"], rows["position"], rows["rank"])
        values = zip(bytes_of(rows["cid"]), *(each.tolist() for each in columns), strict=True)
        for number, (cid, ended, domain, head, position, rank) in enumerate(values):
            name = end_name(cid, domains[domain]) if ended else statement_name(digests[head], position)
            if name in self._named:
                fresh[number] = rank < self._named[name].rank
                if fresh[number]:
                    del self._named[name]
        return fresh

    def _by_entry(
        self, bucket: RowBucket, rows: ColumnRows, whole: NDArray[np.bool_], gone: AbstractSet[bytes], told: EventRows
    ) -> None:
        """Take what entries say: all of it, or of the ends that witnesses tell of, those that no ledger has."""
        raw, heads = bucket.raw(), bucket.heads.listed()
        columns = ("head", "position", "at", "size", "rank")
        for itself, row in zip(whole.tolist(), bucket.each(rows, *columns), strict=True):
            place, head, position, at, size, told.rank = row
            entry, batch = ENTRY.decode(raw[at : at + size]), self._batch(*heads[head])
            for event, name in batch.told(entry, heads[head][2], position, Evidence(*place)):
                if isinstance(event, LeaseEnded) and event.heard:
                    wanted = event.ending.correlation_id not in gone
                else:
                    wanted = itself
                if wanted:
                    told.add(event, name)

    def _frames(self, columns: FrameColumns, base: int) -> None:
        """Take frames that columns judged. ``base``: added to their ranks."""
        table, files = columns.table(), columns.files
        file, clock, sequence = table["file"], table["clock"], table["sequence"]
        makers = self._makers.all_of((f"writer {each.writer}", each.incarnation) for each in files)
        events = self._add(
            (makers[file], sequence, np.int64(0), table["rank"] + base),
            self._texts(each.writer for each in files)[file],
            instant=np.array([each.midpoint_ns for each in columns.clocks], np.int64)[clock],
            kind=RANKS[FrameWritten],
            path=self._texts(each.path for each in files)[file],
            stated=self._shared_pieces(files)[file],
            clock=self._shared_pieces(columns.clocks)[clock],
            place=sequence,
            **{each: table[each] for each in ("offset", "length", "messages", "first", "last")},
        )
        under, domains = np.frombuffer(columns.under, "<u4"), self._texts(domain for domain, _ in columns.leases)
        cids = _numbers(cid for _, cid in columns.leases)[under]
        self._of_leases(np.repeat(events, table["under"]), domains[under], cids, told=False)
        self._post(Posting.BAG, np.array([self._keys.of((each.log, each.bag_ns)) for each in files])[file], events)
        self._post(Posting.FILE, self._texts(each.file for each in files)[file], events)

    # What is in no column.

    def _whole(self, waiting: Sequence[_Waiting]) -> None:
        events = [WHOLE[each.kind].decode(each.value) for each in waiting]
        if not events:
            return
        sizes = np.array([len(each.value) for each in waiting])
        piece, at = self._cut(b"".join([each.value for each in waiting]), np.cumsum(sizes) - sizes)
        makers = self._makers.all_of(each.place[:2] for each in events)
        sequences, places = (np.array([each.place[n] for each in events], np.int64) for n in (2, 3))
        nodes = [-1 if each.clock is None else self._keys.of((each.clock.node, 0)) for each in events]
        numbers = self._add(
            (makers, sequences, places, np.array([each.rank for each in waiting], np.int64)),
            np.array(nodes),
            instant=[min(each.instant_ns, INSTANT_MAX) for each in events],
            kind=[each.kind for each in waiting],
            path=self._texts(each.where.path for each in events),
            offset=[each.where.offset for each in events],
            length=[each.where.length for each in events],
            piece=piece,
            at=at,
            size=sizes,
            last=[self._last(each) for each in events],
        )
        posted: dict[Posting, list[tuple[int, int]]] = {}
        said: list[tuple[int, str, bytes]] = []
        for number, event in zip(numbers.tolist(), events, strict=True):
            for posting, key, part in _postings(event):
                posted.setdefault(posting, []).append((self._keys.of((key, part)), number))
            if isinstance(event, LeaseTold | LeaseEnded):
                said += [(number, *lease) for lease in leases_of(event)]
        for posting, found in posted.items():
            self._post(posting, *np.array(found).T)
        domains, cids = self._texts(domain for _, domain, _ in said), _numbers(cid for *_, cid in said)
        self._of_leases(np.array([number for number, *_ in said], np.int64), domains, cids, told=True)

    def _last(self, event: Event) -> Instant:
        """Return the instant that an event is found with beside its own: see ``EventRow``."""
        found = 0
        match event:
            case FrameWritten():
                found = event.newest_accepted_ns
            case SessionTold():
                found = event.witness.expiry_ns
            case LeaseTold():
                session = event.witness.session_id
                under = 0 if session is None else self._until.get(event.place[1] + session, 0)
                found = max(event.witness.expiry_ns, under)
            case LeaseEnded():
                found = event.instant_ns
        return min(found, INSTANT_MAX)

    # Rows, and what they are found by.

    def _add(self, by: Sequence[Any], nodes: Numbers, **columns: Any) -> Numbers:  # noqa: ANN401 - any column, or scalar
        """Take events, by the columns of ``EventRow``; all others are zeros. Returns the events' numbers.

        ``by``: maker, sequence, place and rank; ``nodes``: the key of whose clock each is by, -1 for none.
        """
        rows = np.zeros(len(nodes), EVENT)
        for name, values in columns.items():
            rows[name] = values
        events = np.arange(self._count, self._count + len(rows))
        self._count += len(rows)
        self._rows.append(rows)
        self._order.append(np.array(np.broadcast_arrays(*by), np.int64))
        self._post(Posting.KIND, self._texts(kind.__name__ for kind in KINDS)[rows["kind"]], events)
        self._post(Posting.PATH, rows["path"], events)
        self._post(Posting.NODE, nodes[nodes >= 0], events[nodes >= 0])
        return events

    def _post(self, posting: Posting, keys: NDArray[Any], events: Numbers) -> None:
        """Take what events are about."""
        self._posted.append((np.int64(posting) << 58) | (keys.astype(np.int64) << 32) | events)

    def _of_leases(self, events: Numbers, domains: Numbers, cids: NDArray[np.uint64], *, told: bool) -> None:
        """Take which leases events are about. ``told``: they say something of them; ``last``: until when they last."""
        self._post(Posting.ABOUT, domains, events)
        if told:
            self._post(Posting.TOLD, domains, events)
        leases = np.zeros(len(events), LEASE)
        leases["event"], leases["domain"], leases["cid"] = events, domains, cids
        (self._said if told else self._under).append(leases)

    def _texts(self, texts: Iterable[str]) -> Numbers:
        return np.array([self._keys.of((text, 0)) for text in texts], np.int64)

    def _piece(self, value: bytes) -> int:
        """Write bytes; return their number, from 1 up."""
        self._pieces += 1
        self.db.execute("INSERT INTO piece VALUES (?, ?)", (self._pieces, value))
        return self._pieces

    def _shared_pieces(self, values: Iterable[msgspec.Struct]) -> Numbers:
        """Return the pieces with values that many events share; each is written once."""
        found = []
        for raw in map(_encoder.encode, values):
            if raw not in self._shared:
                self._shared[raw] = self._piece(raw)
            found.append(self._shared[raw])
        return np.array(found, np.int64)

    def _cut(self, raw: bytes, at: Numbers) -> tuple[Numbers, Numbers]:
        """Write bytes in pieces. Returns in which of them is what began there, and where in it."""
        begins = np.sort(at)
        cuts = [0, *begins[_beginnings(begins // PIECE_BYTES)][1:].tolist()]
        pieces = np.array([self._piece(raw[first:end]) for first, end in pairwise([*cuts, len(raw)])])
        which = np.searchsorted(cuts, at, "right") - 1
        return pieces[which], at - np.array(cuts)[which]

    # All of it, in order.

    def _finish(self) -> None:
        self.db.executemany("INSERT INTO text VALUES (?, ?)", enumerate(text for text, _ in self._keys.values))
        if not self._count:
            return
        rows, (maker, sequence, place, rank) = np.concatenate(self._rows), np.concatenate(self._order, axis=1)
        makers = self._makers.listed()
        names = np.empty(len(makers), np.int64)
        names[sorted(range(len(makers)), key=makers.__getitem__)] = np.arange(len(makers))
        chosen = np.lexsort((rank, place, sequence, names[maker], rows["kind"], rows["instant"]))
        rows = rows[chosen]
        positions = np.empty(len(rows), np.int64)
        positions[chosen] = np.arange(1, len(rows) + 1)
        self._span(rows, positions)
        self._write_postings(rows, positions)
        self._write_blocks(rows, positions)

    def _span(self, rows: ColumnRows, positions: Numbers) -> None:
        """Say in all that tells of a lease since when and until when that lasted."""
        told = np.concatenate([*self._said, np.zeros(0, LEASE)])
        names = told["domain"], told["cid"][:, 0], told["cid"][:, 1]
        at = positions[told["event"]] - 1
        order = np.lexsort((at, *names))
        at, begins = at[order], _beginnings(*(each[order] for each in names))
        if len(at):
            lease, firsts = np.cumsum(begins) - 1, np.flatnonzero(begins)
            rows["last"][at] = np.maximum.reduceat(rows["last"][at], firsts)[lease]
            rows["first"][at] = rows["instant"][at[firsts]][lease]

    def _write_postings(self, rows: ColumnRows, positions: Numbers) -> None:
        posted = np.concatenate(self._posted)
        posted = np.sort((posted >> 32 << 32) | positions[posted & 0xFFFFFFFF])
        posted = posted[_beginnings(posted)]
        found = (posted & 0xFFFFFFFF).astype("<u4")
        keys, cuts = self._keys.listed(), np.flatnonzero(_beginnings(posted >> 32)).tolist()
        for first, end in pairwise([*cuts, len(posted)]):
            key, part = int(posted[first] >> 32), found[first:end]
            posting, (text, number) = Posting(key >> 26), keys[key & 0x3FFFFFF]
            if posting is Posting.FILE:
                rows["begins"][found[first] - 1] = True
            more = b"".join(rows[column][part - 1].tobytes() for column in MORE.get(posting, ()))
            values = (posting, text, number, part.tobytes(), more)
            self.db.execute("INSERT INTO posting VALUES (?, ?, ?, ?, ?)", values)

    def _write_blocks(self, rows: ColumnRows, positions: Numbers) -> None:
        leases = np.concatenate([*self._under, np.zeros(0, LEASE)])
        at = positions[leases["event"]] - 1
        order = np.argsort(at, kind="stable")
        leases, at = leases[order], at[order]
        leases["event"] = at % BLOCK_EVENTS
        for number, first in enumerate(range(0, len(rows), BLOCK_EVENTS)):
            end = first + BLOCK_EVENTS
            part, under = rows[first:end], leases[slice(*np.searchsorted(at, (first, end)))]
            values = (number, int(part["instant"][0]), part.tobytes(), under.tobytes())
            self.db.execute("INSERT INTO block VALUES (?, ?, ?, ?)", values)


def _postings(event: Event) -> Iterator[tuple[Posting, str, int]]:
    """Yield by what else an event is found, that is no lease of which it tells itself."""
    match event:
        case FrameWritten():
            yield Posting.BAG, event.log, event.bag_ns
            yield Posting.FILE, event.file, 0
            for domain, _ in event.leases:
                yield Posting.ABOUT, domain, 0
        case BagClosed():
            yield Posting.LISTED, event.path, 0
        case CeilingLinked():
            yield Posting.CEILING, ceiling_name(event.shard, event.record.number), 0
        case SessionTold():
            yield Posting.SESSION, session_key(event.place[1], event.witness.session_id), 0
        case SessionOver():
            yield Posting.SESSION_OVER, session_key(event.place[1], event.ending.session_id), 0


def _numbers(cids: Iterable[bytes]) -> NDArray[np.uint64]:
    """Return correlation ids as columns have them."""
    return np.frombuffer(b"".join(cids), "<u8").reshape(-1, 2)


def _beginnings(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Say of each of some sorted rows whether it differs from the one before it."""
    found = np.zeros(len(columns[0]), np.bool_)
    found[:1] = True
    for each in columns:
        found[1:] |= each[1:] != each[:-1]
    return found


def _lowest(rank: NDArray[np.int64], *names: NDArray[Any]) -> NDArray[np.bool_]:
    """Say which of the rows of one name has the lowest rank."""
    order = np.lexsort((rank, *names))
    found = np.zeros(len(order), np.bool_)
    found[order[_beginnings(*(each[order] for each in names))]] = True
    return found


def _tellers(rows: ColumnRows, gone: AbstractSet[bytes]) -> NDArray[np.bool_]:
    """Say which entries may tell of an end that no ledger has. ``gone``: the leases whose end one has."""
    found = np.zeros(len(rows), np.bool_)
    for told, which in (("last_told", "last_cid"), ("set_by_told", "set_by_cid")):
        found |= rows[told] & np.array([each not in gone for each in bytes_of(rows[which])], np.bool_)
    found &= rows["kind"] != ENDED
    return found


def keep_timeline(writer: TimelineWriter, audited: Audit, records: ClusterRecords, *, state: bytes | None) -> None:
    """Keep the timeline of a tree with its states, and what its audit came to, in the audit's index.

    ``state``: a digest of all that it depends on; where the database has a timeline of that state, only the findings
    are written again. ``None``: it is not known.
    """
    db = writer.db
    db.execute(_HEAD)
    head: dict[str, Any] = {}
    for (value,) in db.execute("SELECT value FROM timeline"):
        head = msgspec.json.decode(value, type=dict[str, Any])
    if state is None or head.get("state") != state.hex():
        policy = records.newest_policy
        head = {"state": state.hex() if state else "", "policy": encode(policy).hex() if policy is not None else ""}
        writer.write().state_at()
    with all_or_nothing(db):  # where this is interrupted, what was there is kept
        keep_findings(db, audited.findings)
        head["audit"] = msgspec.to_builtins(replace(audited, findings=()))
        db.execute("INSERT OR REPLACE INTO timeline VALUES ('head', ?)", (msgspec.json.encode(head),))


def keep_findings(db: Database, findings: Iterable[Finding]) -> None:
    """Place each finding at the instant at which the last of what it rests on had happened.

    That is the end of the copy where nothing says when.
    """
    db.execute("DELETE FROM finding")
    events = StoredEvents(db)
    end = events.instant(len(events))
    for number, finding in enumerate(findings):
        rests_on = [position for each in finding.evidence for position in events.beginning_at(each)]
        instants = [events.instant(position) for position in rests_on]
        named = [each.latest_ns for each in finding.times]
        placed = min(max(instants or named, default=end), end)
        db.execute("INSERT INTO finding VALUES (?, ?, ?)", (number, placed, msgspec.json.encode(finding)))
