"""A timeline into a database: what a walk tells, in order of time. Memory does not grow with the tree.

What columns hold of leases is told here from the columns, when all of them are there: such an event is kept as bytes
of an entry, and its batch. SQLite sorts, and finds everything again by who or what it is about.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from appliance.formats.witness import BatchHead, Ended, Witness
from auditor.columns.layout import ENDED, ENTRIES, OTHER, USES, RowBucket, bytes_of
from auditor.columns.layout import Rows as ColumnRows
from auditor.evidence.records import ClusterRecords
from auditor.index import Database, Index
from auditor.parts import Value
from auditor.report.result import Audit
from auditor.rules.finding import Evidence, Finding
from timeagent.canonical import decode, encode
from timeagent.console import printable
from timeagent.units import INSTANT_MAX, Instant

from .events import (
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
    ceiling_name,
)
from .facts import Gathering, Mark, ended_name, hearsay_names, statement_name
from .fold import SCHEMA as CHECKPOINTS
from .timeline_reader import Timeline

FIRST_RANK: Final = -(2**62)
"""Of ceiling chains: whatever else tells the same comes later."""
LEDGER_RANK: Final = -(2**61)
"""Added to the ranks of ledgers: they count before frames, in the order of their names."""
CHUNK_ROWS: Final = 2_048
HEADS_AT_HAND: Final = 4_096
NAMES_AT_HAND: Final = 10_000
_TOLD: Final = (
    *("name", "unless", "rank", "instant", "kind", "who", "run", "sequence", "place"),
    *("node", "path", "offset", "length"),
    *("domain", "lease", "until", "session", "log", "bag", "newest", "subject", "about", "value", "batch"),
)
"""What is told of an event, as ``EventRows`` has it, and last the batch of an entry that is told by columns."""
_RANK, _LENGTH = _TOLD.index("rank"), len(_TOLD) - 1
_NAMED: Final = tuple(_TOLD.index(each) for each in ("node", "path", "domain", "log", "subject"))
"""What is kept as the number of a name."""
_ABOUT: Final = _TOLD.index("about")
_KEPT: Final = ", ".join(each for each in _TOLD[_TOLD.index("instant") :] if each not in ("who", "run", "sequence"))
_WAITING: Final = """
PRAGMA temp.cache_size = -8192;
DROP TABLE IF EXISTS temp.waiting;
CREATE TEMP TABLE waiting (id INTEGER PRIMARY KEY, base, rows);
"""
_SCHEMA: Final = f"""
DROP TABLE IF EXISTS temp.staged;
CREATE TEMP TABLE staged (id INTEGER PRIMARY KEY, {", ".join(_TOLD)}, UNIQUE (name));
CREATE TABLE event (position INTEGER PRIMARY KEY, {_KEPT});
CREATE TABLE batch (id INTEGER PRIMARY KEY, value BLOB);
CREATE TABLE name (id INTEGER PRIMARY KEY, text TEXT UNIQUE);
CREATE TABLE about (domain INTEGER, position INTEGER, frame INTEGER, PRIMARY KEY (domain, position)) WITHOUT ROWID;
CREATE TABLE lease (
    domain INTEGER, id BLOB, first INTEGER, last INTEGER, until INTEGER, PRIMARY KEY (domain, id)) WITHOUT ROWID;
CREATE TABLE marked (mark TEXT, log TEXT, start INTEGER, PRIMARY KEY (mark, log, start)) WITHOUT ROWID;
CREATE TABLE finding (number INTEGER PRIMARY KEY, instant INTEGER, value BLOB);
CREATE TABLE timeline (name TEXT PRIMARY KEY, value BLOB);
{CHECKPOINTS}
"""
_TABLES: Final = re.findall(r"(?m)^CREATE TABLE (\w+)", _SCHEMA)
_STAGE: Final = (
    f"INSERT INTO staged ({', '.join(_TOLD)}) VALUES ({','.join('?' * len(_TOLD))})"  # noqa: S608 - our own names
    f" ON CONFLICT (name) DO UPDATE SET {', '.join(f'{each} = excluded.{each}' for each in _TOLD)}"
    " WHERE excluded.rank < rank"
)
_MARKS: Final = 3
"""So many values has a row about a bag with a mark."""
_encoder: Final = msgspec.msgpack.Encoder()
_entries: Final = msgspec.msgpack.Decoder(Witness | Ended)
"""Of what the walk has checked: nothing is checked again."""


class EventRows(Gathering):
    """Makes rows of events, as a part of the tree hands them over."""

    def __init__(self) -> None:
        self._names: set[bytes] = set()
        self._rows: list[tuple[Value | list[str], ...]] = []
        self._done: list[bytes] = []

    def knows(self, name: bytes) -> bool:
        """Whether a statement about a lease is known here already."""
        return name in self._names

    def add(self, event: Event, name: bytes | None = None, unless: bytes | None = None) -> None:
        if name is not None:
            self._names.add(name)
        try:
            value = _encoder.encode(event)
        except UnicodeEncodeError:
            event = _shown(event)
            value = _encoder.encode(event)
        node, where = None if event.clock is None else event.clock.node, event.where
        at = (min(event.instant_ns, INSTANT_MAX), RANKS[type(event)], *event.place)
        place = (node, where.path, where.offset, where.length)
        about = list({domain for domain, _ in event.leases}) if isinstance(event, FrameWritten) else []
        self._rows.append((name, unless, self.rank, *at, *place, *_subject(event), about, value))
        if len(self._rows) >= CHUNK_ROWS:
            self._pack()

    def marked(self, mark: Mark) -> None:
        """Take that a bag has a prelock, or a pack."""
        self._rows.append(mark)

    def _pack(self) -> None:
        self._done.append(_encoder.encode(self._rows))
        self._rows = []

    def chunks(self) -> list[bytes]:
        """Return everything, some rows at a time, encoded."""
        if self._rows:
            self._pack()
        return self._done


def _shown(event: Event) -> Event:
    """Return an event with names of files that are no UTF-8 as they are shown."""
    where = Evidence(printable(event.where.path), event.where.offset, event.where.length)
    if isinstance(event, FrameWritten):
        return msgspec.structs.replace(event, where=where, file=printable(event.file))
    return msgspec.structs.replace(event, where=where)


class _Subject(NamedTuple):
    """By what else an event is found."""

    domain: str | None = None
    lease: bytes | None = None
    until: Instant | None = None
    session: bytes | None = None
    log: str | None = None
    bag: Instant | None = None
    newest: Instant | None = None
    subject: str | None = None


def _subject(event: Event) -> _Subject:
    match event:
        case LeaseTold():
            witness, until = event.witness, min(event.witness.expiry_ns, INSTANT_MAX)
            session = None if witness.session_id is None else event.place[1] + witness.session_id
            return _Subject(witness.domain, witness.correlation_id, until, session)
        case LeaseEnded():
            return _Subject(event.domain, event.ending.correlation_id, min(event.instant_ns, INSTANT_MAX))
        case SessionTold():
            until = min(event.witness.expiry_ns, INSTANT_MAX)
            return _Subject(until=until, session=event.place[1] + event.witness.session_id)
        case SessionOver():
            return _Subject(session=event.place[1] + event.ending.session_id)
        case FrameWritten():
            packed = event.file if event.file != event.where.path else None
            newest = min(event.newest_accepted_ns, INSTANT_MAX)
            return _Subject(log=event.log, bag=event.bag_ns, newest=newest, subject=packed)
        case BagClosed():
            return _Subject(log=event.log, bag=event.bag_ns, subject=event.path)
        case CeilingLinked():
            return _Subject(subject=ceiling_name(event.shard, event.record.number))
        case _:
            return _Subject()


class TimelineWriter:
    """Takes what parts of a tree tell, and makes a timeline of it."""

    def __init__(self, db: Database, index: Index | None = None) -> None:
        """Hold nothing yet. ``index``: what columns and heads are in, if there are any."""
        self.db = db
        self._index = index
        db.execute(_WAITING).fetchall()
        self._batch = lru_cache(HEADS_AT_HAND)(self._stated)
        self._name = lru_cache(NAMES_AT_HAND)(self._named)

    def clear(self) -> None:
        """Forget everything."""
        self.db.execute("DELETE FROM waiting").fetchall()

    def take(self, chunks: Iterable[bytes], base: int = 0) -> None:
        """Take what a part tells. ``base``: added to its ranks."""
        self.db.executemany("INSERT INTO waiting (base, rows) VALUES (?, ?)", [(base, each) for each in chunks])

    def write(self) -> None:
        """Make a timeline, without findings, in place of any that is there."""
        for table in _TABLES:
            self.db.execute(f"DROP TABLE IF EXISTS main.{table}").fetchall()
        self.db.execute(_SCHEMA).fetchall()
        if self._index is not None:
            for bucket in self._index.buckets():
                self._columns(self._index.bucket(ENTRIES, bucket, raw=True), self._index.bucket(USES, bucket, raw=True))
        for base, chunk in self.db.execute("SELECT base, rows FROM waiting ORDER BY id"):
            rows = msgspec.msgpack.decode(chunk)
            marks = [row for row in rows if len(row) == _MARKS]
            self.db.executemany("INSERT OR IGNORE INTO marked VALUES (?, ?, ?)", marks)
            self.db.executemany(_STAGE, self._numbered((row for row in rows if len(row) == _LENGTH), base))
        self.clear()
        self._in_order()

    def _in_order(self) -> None:
        """Number what is staged in order of time, and say what events are about."""
        script = f"""
            INSERT INTO event SELECT NULL, {_KEPT} FROM staged AS one
                WHERE unless IS NULL OR NOT EXISTS (SELECT 1 FROM staged AS other WHERE other.name = one.unless)
                ORDER BY instant, kind, who, run, sequence, place, unless IS NOT NULL, rank, id;
            DROP TABLE staged;
            CREATE INDEX event_at ON event (instant);
            CREATE INDEX event_of ON event (kind);
            CREATE INDEX event_by ON event (node);
            CREATE INDEX event_in ON event (path, offset);
            CREATE INDEX event_under ON event (session, kind) WHERE session IS NOT NULL;
            CREATE INDEX event_on ON event (subject) WHERE subject IS NOT NULL;
            CREATE INDEX frame_in ON event (log, bag, newest) WHERE kind = {RANKS[FrameWritten]};
            INSERT INTO about
                SELECT domain, position, 0 FROM event WHERE domain IS NOT NULL
                UNION ALL SELECT each.value, position, 1 FROM event, json_each(about) AS each WHERE about IS NOT NULL
                ORDER BY 1, 2;
            INSERT INTO lease
                SELECT domain, lease, min(position), max(position), max(max(until), coalesce(max(expiry), 0))
                FROM event LEFT JOIN (
                    SELECT session AS held, max(until) AS expiry FROM event
                    WHERE kind = {RANKS[SessionTold]} GROUP BY session
                ) ON held = session WHERE domain IS NOT NULL GROUP BY domain, lease;
        """  # noqa: S608 - constants
        self.db.execute(script).fetchall()

    def _numbered(self, rows: Iterable[list[Any]], base: int) -> Iterator[list[Value]]:
        for row in rows:
            row[_RANK] += base
            for place in _NAMED:
                if row[place] is not None:
                    row[place] = self._name(row[place])
            about = row[_ABOUT]
            row[_ABOUT] = f"[{','.join(str(self._name(each)) for each in about)}]" if about else None
            row.append(None)
            yield row

    def _named(self, text: str) -> int:
        """Return the number of a name."""
        self.db.execute("INSERT OR IGNORE INTO name (text) VALUES (?)", (text,))
        ((number,),) = self.db.execute("SELECT id FROM name WHERE text = ?", (text,))
        return int(number)

    def _stated(self, run: bytes, sequence: int, digest: bytes) -> tuple[int, StatedBatch]:
        """Return a batch and its number in the database."""
        assert self._index is not None
        head = decode(BatchHead, self._index.head(run, sequence, digest))
        batch = StatedBatch.under(head, head.signed_time())
        value = msgspec.msgpack.encode(batch)
        ((number,),) = self.db.execute("INSERT INTO batch (value) VALUES (?) RETURNING id", (value,))
        return number, batch

    # What columns tell of leases.

    def _columns(self, entries: RowBucket, uses: RowBucket) -> None:
        """Take the entries of ledgers, and of the witnesses that frames carry those that no ledger has."""
        rows, carried = entries.rows(), uses.rows()
        rows, carried = rows[rows["kind"] != OTHER], carried[carried["plain"]]  # of others the walk tells
        numbered = {name: number for number, name in enumerate(entries.heads.values)}
        heads = [numbered.setdefault(name, len(numbered)) for name in uses.heads.values]
        known = set(zip(rows["head"].tolist(), rows["position"].tolist(), strict=True))
        chosen: list[int] = []
        for number, (head, position) in enumerate(
            zip(carried["head"].tolist(), carried["position"].tolist(), strict=True)
        ):
            if (heads[head], position) not in known:
                known.add((heads[head], position))
                chosen.append(number)
        gone = set(bytes_of(rows["cid"][rows["kind"] == ENDED]))
        plain, told = rows["plain"], EventRows()
        self.db.executemany(_STAGE, self._plain(entries, rows[plain]))
        rows["rank"] = LEDGER_RANK - rows["rank"]
        self._by_entry(entries, rows, ~plain, _tellers(rows, gone), gone, told)
        every = np.ones(len(chosen), np.bool_)
        self._by_entry(uses, carried[chosen], every, every, gone, told)
        self.take(told.chunks())

    def _plain(self, bucket: RowBucket, rows: ColumnRows) -> Iterator[tuple[Value, ...]]:
        """Return what is staged of entries of which every number is small."""
        raw, domains = bucket.raw(), [(self._name(each), each.encode()) for each in bucket.names.values]
        paths, digests = [self._name(each) for each in bucket.paths.values], [each[2] for each in bucket.heads.values]
        stated = [self._batch(*each) for each in bucket.heads.values]
        ended, places, of = rows["kind"] == ENDED, rows["position"].tolist(), rows["name"].tolist()
        signed = np.array([batch.clock.midpoint_ns for _, batch in stated], np.int64)[rows["head"]]
        batches = [stated[each] for each in rows["head"].tolist()]
        cids, sessions, under = bytes_of(rows["cid"]), bytes_of(rows["session"]), rows["under"].tolist()
        columns: dict[str, Iterable[Value]] = {
            "name": (
                b"e" + cid + domains[name][1] if over else statement_name(digests[head], place)
                for over, cid, name, head, place in zip(
                    ended.tolist(), cids, of, rows["head"].tolist(), places, strict=True
                )
            ),
            "rank": (LEDGER_RANK - rows["rank"]).tolist(),
            "instant": np.where(ended, rows["last_ended"], signed).tolist(),
            "kind": np.where(ended, RANKS[LeaseEnded], RANKS[LeaseTold]).tolist(),
            "who": [batch.who for _, batch in batches],
            "run": [batch.run for _, batch in batches],
            "sequence": [batch.sequence for _, batch in batches],
            "place": places,
            "node": [self._name(batch.clock.node) for _, batch in batches],
            "path": [paths[each] for each in rows["path"].tolist()],
            "offset": rows["offset"].tolist(),
            "length": rows["length"].tolist(),
            "domain": [domains[each][0] for each in of],
            "lease": cids,
            "until": np.where(ended, rows["last_ended"], rows["expiry"]).tolist(),
            "session": [
                batch.run + session if has else None
                for (_, batch), session, has in zip(batches, sessions, under, strict=True)
            ],
            "value": [raw[at : at + size] for at, size in zip(rows["at"].tolist(), rows["size"].tolist(), strict=True)],
            "batch": [number for number, _ in batches],
        }
        return zip(*(columns.get(each, repeat(None)) for each in _TOLD), strict=False)

    def _by_entry(
        self,
        bucket: RowBucket,
        rows: ColumnRows,
        whole: NDArray[np.bool_],
        telling: NDArray[np.bool_],
        gone: AbstractSet[bytes],
        told: EventRows,
    ) -> None:
        """Take what some entries say: all of it, or of the ends that witnesses tell of, those that no ledger has."""
        raw, heads, chosen = bucket.raw(), bucket.heads.listed(), whole | telling
        columns = ("head", "position", "at", "size", "rank")
        each = zip(whole[chosen].tolist(), bucket.each(rows[chosen], *columns), strict=True)
        for itself, (place, number, position, at, size, rank) in each:
            told.rank = rank
            head, where = heads[number], Evidence(*place)
            _, batch = self._batch(*head)
            entry = _entries.decode(raw[at : at + size])
            ended = isinstance(entry, Ended)
            if itself:
                name = ended_name(entry) if ended else statement_name(head[2], position)
                told.add(batch.said(entry, position, where), name)
            for end in () if ended else batch.heard(entry, position, where):
                if end.ending.correlation_id not in gone:
                    told.add(end, *hearsay_names(end))


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
    db, head = writer.db, _head(writer.db)
    if state is None or head.get("state") != state.hex():
        policy = records.newest_policy
        head = {"state": state.hex() if state else "", "policy": encode(policy).hex() if policy is not None else ""}
        written_timeline(writer, ()).state_at()
    keep_findings(db, audited.findings)
    head["audit"] = msgspec.to_builtins(replace(audited, findings=()))
    db.execute("INSERT OR REPLACE INTO timeline VALUES ('head', ?)", (json.dumps(head),))


def _head(db: Database) -> dict[str, Any]:
    if any(True for _ in db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'timeline'")):
        for (value,) in db.execute("SELECT value FROM timeline WHERE name = 'head'"):
            found: dict[str, Any] = json.loads(value)
            return found
    return {}


def keep_findings(db: Database, findings: Iterable[Finding]) -> None:
    """Place each finding at the instant at which the last of what it rests on had happened.

    That is the end of the copy where nothing says when.
    """
    db.execute("DELETE FROM finding")
    ((end,),) = db.execute("SELECT coalesce(max(instant), 0) FROM event")
    sql = "SELECT max(instant) FROM event WHERE path = (SELECT id FROM name WHERE text = ?) AND offset = ?"
    for number, finding in enumerate(findings):
        instants = []
        for each in finding.evidence:
            try:
                rows = list(db.execute(sql, (each.path, each.offset)))
            except UnicodeEncodeError:
                continue  # a name that is no UTF-8 has no events
            instants += [instant for (instant,) in rows if instant is not None]
        named = [each.latest_ns for each in finding.times]
        placed = min(max(instants or named, default=end), end)
        value = json.dumps(msgspec.to_builtins(finding))  # not by msgspec: what it names may be no UTF-8
        db.execute("INSERT INTO finding VALUES (?, ?, ?)", (number, placed, value))
