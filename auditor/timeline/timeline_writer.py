"""A timeline into a database: what a walk tells, in order of time.

What columns hold of leases and of frames is told here from the columns, when all of them are there: of an entry the
database has the bytes and the batch, of a frame its numbers. Everything else comes as events. Memory holds a row of
numbers for each of them, not what they say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from appliance.formats.witness import BatchHead, Ended, Witness
from auditor.columns.layout import ENDED, ENTRIES, OTHER, USES, RowBucket, bytes_of
from auditor.columns.layout import Rows as ColumnRows
from auditor.evidence.finding import Evidence, Finding
from auditor.evidence.records import ClusterRecords
from auditor.rules.result import Audit
from timeagent.canonical import decode, encode
from timeagent.units import INSTANT_MAX, Instant

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
from ..columns.index import Database, Index
from ..walk.facts import Gathering, Mark
from .event_store import EVENT, ORDER, WHOLE, EventStore, Posting, StoredEvents, beginnings, session_key
from .event_store import SCHEMA as EVENTS
from .state import SCHEMA as CHECKPOINTS
from .timeline_reader import Timeline

FIRST_RANK: Final = -(2**62)
"""Of ceiling chains: whatever else tells the same comes later."""
LEDGER_RANK: Final = -(2**61)
"""Added to the ranks of ledgers: they count before frames, in the order of their names."""
HEARSAY_RANK: Final = 2**61
"""Added to the ranks of what later witnesses tell of ends: their shard's own word counts more."""
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
_entries: Final = msgspec.msgpack.Decoder(Witness | Ended)
"""Of what the walk has checked: nothing is checked again."""


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

    def chunks(self) -> list[bytes]:
        """Return everything, encoded."""
        return [_encoder.encode(self.told)]


class _Waiting(NamedTuple):
    rank: int
    kind: int
    value: bytes


class TimelineWriter:
    """Takes what parts of a tree tell, and makes a timeline of it."""

    def __init__(self, db: Database, index: Index | None = None) -> None:
        """Hold nothing yet. ``index``: what columns and heads are in, if there are any."""
        self.db = db
        self._index = index
        self._taken: list[tuple[int, bytes]] = []
        self._batch = lru_cache(HEADS_AT_HAND)(self._stated)

    def clear(self) -> None:
        self._taken.clear()

    def take(self, chunks: Iterable[bytes], base: int = 0) -> None:
        """Take what a part tells. ``base``: added to its ranks."""
        self._taken += [(base, each) for each in chunks]

    def write(self) -> None:
        """Make a timeline, without findings, in place of any that is there."""
        for table in _TABLES:
            self.db.execute(f"DROP TABLE IF EXISTS main.{table}").fetchall()
        self.db.execute(_SCHEMA).fetchall()
        self._store = EventStore(self.db)
        self._events: list[_Waiting] = []
        self._named: dict[bytes, _Waiting] = {}
        """What is no column, without a name and with one."""
        self._until: dict[bytes, Instant] = {}
        """When session leases expire, by run and id."""
        for base, chunk in self._taken:
            self._part(_told.decode(chunk), base)
        self.clear()
        if self._index is not None:
            for bucket in self._index.buckets():
                self._columns(self._index.bucket(ENTRIES, bucket, raw=True), self._index.bucket(USES, bucket, raw=True))
        self._write_events([*self._events, *self._named.values()])
        self._store.finish()
        del self._store, self._events, self._named, self._until

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

    # What columns tell of leases.

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
        store, ended = self._store, rows["kind"] == ENDED
        stated = [self._batch(*each) for each in bucket.heads.values]
        told, order, head = np.zeros(len(rows), EVENT), np.zeros(len(rows), ORDER), rows["head"]
        signed = np.array([batch.clock.midpoint_ns for batch in stated], np.int64)
        told["instant"] = np.where(ended, rows["last_ended"], signed[head])
        told["kind"] = np.where(ended, RANKS[LeaseEnded], RANKS[LeaseTold])
        told["stated"] = store.shared(stated)[head]
        told["place"], told["offset"], told["length"] = rows["position"], rows["offset"], rows["length"]
        told["path"], told["size"] = store.keys(bucket.paths.values)[rows["path"]], rows["size"]
        store.cut(told, bucket.raw(), rows["at"])
        order["maker"] = store.makers((batch.who, batch.run) for batch in stated)[head]
        order["sequence"] = np.array([batch.sequence for batch in stated], np.int64)[head]
        order["place"], order["rank"] = rows["position"], rows["rank"]
        until, under = np.where(ended, rows["last_ended"], rows["expiry"]), rows["under"]
        runs = [stated[each].run for each in head[under].tolist()]
        sessions = (run + each for run, each in zip(runs, bytes_of(rows["session"][under]), strict=True))
        until[under] = np.maximum(until[under], [self._until.get(each, 0) for each in sessions])
        told["last"] = until
        events = store.add(told, order, store.keys(batch.clock.node for batch in stated)[head])
        store.of_leases(events, store.keys(bucket.names.values)[rows["name"]], rows["cid"], told=True)

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
            entry, batch = _entries.decode(raw[at : at + size]), self._batch(*heads[head])
            for event, name in batch.told(entry, heads[head][2], position, Evidence(*place)):
                if isinstance(event, LeaseEnded) and event.heard:
                    wanted = event.ending.correlation_id not in gone
                else:
                    wanted = itself
                if wanted:
                    told.add(event, name)

    # Frames, and what is in no column.

    def _frames(self, columns: FrameColumns, base: int) -> None:
        """Take frames that columns judged. ``base``: added to their ranks."""
        store, table, files = self._store, columns.table(), columns.files
        file, clock = table["file"], table["clock"]
        rows, order = np.zeros(len(table), EVENT), np.zeros(len(table), ORDER)
        rows["kind"], rows["place"] = RANKS[FrameWritten], table["sequence"]
        rows["instant"] = np.array([each.midpoint_ns for each in columns.clocks], np.int64)[clock]
        rows["stated"], rows["clock"] = store.shared(files)[file], store.shared(columns.clocks)[clock]
        rows["path"] = store.keys(each.path for each in files)[file]
        for each in ("offset", "length", "messages", "first", "last"):
            rows[each] = table[each]
        order["maker"] = store.makers((f"writer {each.writer}", each.incarnation) for each in files)[file]
        order["sequence"], order["rank"] = table["sequence"], table["rank"] + base
        events = store.add(rows, order, store.keys(each.writer for each in files)[file])
        under, domains = np.frombuffer(columns.under, "<u4"), store.keys(domain for domain, _ in columns.leases)
        cids = _numbers(cid for _, cid in columns.leases)[under]
        store.of_leases(np.repeat(events, table["under"]), domains[under], cids, told=False)
        bags = np.array([store.key(each.log, each.bag_ns) for each in files], np.int64)
        store.post(Posting.BAG, bags[file], events)
        store.post(Posting.FILE, store.keys(each.file for each in files)[file], events)

    def _write_events(self, waiting: Sequence[_Waiting]) -> None:
        store, events = self._store, [WHOLE[each.kind].decode(each.value) for each in waiting]
        if not events:
            return
        rows, order = np.zeros(len(events), EVENT), np.zeros(len(events), ORDER)
        rows["kind"], order["rank"] = [each.kind for each in waiting], [each.rank for each in waiting]
        rows["instant"] = [min(each.instant_ns, INSTANT_MAX) for each in events]
        rows["path"] = store.keys(each.where.path for each in events)
        rows["offset"], rows["length"] = [each.where.offset for each in events], [each.where.length for each in events]
        rows["last"] = [self._last(each) for each in events]
        sizes = np.array([len(each.value) for each in waiting])
        rows["size"] = sizes
        store.cut(rows, b"".join([each.value for each in waiting]), np.cumsum(sizes) - sizes)
        order["maker"] = store.makers(each.place[:2] for each in events)
        order["sequence"], order["place"] = [each.place[2] for each in events], [each.place[3] for each in events]
        nodes = [-1 if each.clock is None else store.key(each.clock.node) for each in events]
        first = int(store.add(rows, order, np.array(nodes))[0])
        posted: dict[Posting, list[tuple[int, int]]] = {}
        for number, event in enumerate(events, first):
            for posting, key, part in _postings(event):
                posted.setdefault(posting, []).append((store.key(key, part), number))
        for posting, found in posted.items():
            store.post(posting, *np.array(found).T)
        said = [(n, each) for n, each in enumerate(events, first) if isinstance(each, LeaseTold | LeaseEnded)]
        told = [(n, *lease) for n, each in said for lease in leases_of(each)]
        numbers, domains = np.array([n for n, *_ in told], np.int64), store.keys(domain for _, domain, _ in told)
        store.of_leases(numbers, domains, _numbers(cid for _, _, cid in told), told=True)

    def _last(self, event: Event) -> Instant:
        """Return the instant that an event is found with beside its own: see ``EventRow``."""
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
            case _:
                found = 0
        return min(found, INSTANT_MAX)


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


def _lowest(rank: NDArray[np.int64], *names: NDArray[Any]) -> NDArray[np.bool_]:
    """Say which of the rows of one name has the lowest rank."""
    order = np.lexsort((rank, *names))
    found = np.zeros(len(order), np.bool_)
    found[order[beginnings(*(each[order] for each in names))]] = True
    return found


def _tellers(rows: ColumnRows, gone: AbstractSet[bytes]) -> NDArray[np.bool_]:
    """Say which entries may tell of an end that no ledger has. ``gone``: the leases whose end one has."""
    found = np.zeros(len(rows), np.bool_)
    for told, which in (("last_told", "last_cid"), ("set_by_told", "set_by_cid")):
        found |= rows[told] & np.array([each not in gone for each in bytes_of(rows[which])], np.bool_)
    found &= rows["kind"] != ENDED
    return found


def written_timeline(writer: TimelineWriter, findings: Iterable[Finding]) -> Timeline:
    """Return the timeline of what a writer took, in its database. ``findings``: of the audit, to be placed in time."""
    writer.write()
    keep_findings(writer.db, findings)
    return Timeline(writer.db)


def keep_timeline(writer: TimelineWriter, audited: Audit, records: ClusterRecords, *, state: bytes | None) -> None:
    """Keep the timeline of a tree with its states, and what its audit came to, in the audit's index.

    ``state``: a digest of all that it depends on; where the database has a timeline of that state, only the findings
    are written again. ``None``: it is not known.
    """
    db = writer.db
    db.execute(_HEAD)
    known = [json.loads(value) for (value,) in db.execute("SELECT value FROM timeline")]
    head: dict[str, Any] = known[0] if known else {}
    if state is None or head.get("state") != state.hex():
        policy = records.newest_policy
        head = {"state": state.hex() if state else "", "policy": encode(policy).hex() if policy is not None else ""}
        written_timeline(writer, ()).state_at()
    keep_findings(db, audited.findings)
    head["audit"] = msgspec.to_builtins(replace(audited, findings=()))
    db.execute("INSERT OR REPLACE INTO timeline VALUES ('head', ?)", (json.dumps(head),))


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
