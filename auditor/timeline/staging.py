"""Events on their way into a timeline: rows that a part of the tree tells, and where these wait to be put in order.

What columns hold of leases is no row of a part: it is told here from the columns, when all of them are there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from appliance.formats.witness import BatchHead, Ended, Witness
from auditor.columns.layout import ENDED, ENTRIES, GRANT, USES
from auditor.parts import encode_rows
from auditor.rules.finding import Evidence
from timeagent.canonical import decode
from timeagent.units import INSTANT_MAX

from .checkpoints import event_bytes, event_of
from .events import RANKS, LeaseEnded, LeaseTold
from .facts import StatedBatch
from .gathering import Gathering

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from auditor.columns.layout import Bucket
    from auditor.columns.layout import Rows as ColumnRows
    from auditor.index import Index
    from auditor.parts import Value
    from timeagent.units import Instant

    from .checkpoints import Database
    from .events import CeilingLinked, Event
    from .gathering import Gathered, Mark, Statement

FIRST_RANK: Final = -(2**62)
"""Of ceiling chains: whatever else tells the same comes later."""
LEDGER_RANK: Final = -(2**61)
"""Added to the ranks of ledgers: they count before frames, in the order of their names."""
CHUNK_ROWS: Final = 2_048
HEADS_AT_HAND: Final = 4_096
_COLUMNS: Final = (
    *("name", "unless", "rank", "instant", "kind", "who", "run", "sequence", "place"),
    *("head", "path", "offset", "length", "value"),
)
_STAGED: Final = """
PRAGMA temp.cache_size = -8192;
DROP TABLE IF EXISTS temp.waiting;
DROP TABLE IF EXISTS temp.staged;
CREATE TEMP TABLE waiting (id INTEGER PRIMARY KEY, base INTEGER, rows BLOB);
CREATE TEMP TABLE staged (
    id INTEGER PRIMARY KEY, name BLOB UNIQUE, unless BLOB, rank INTEGER, instant INTEGER, kind INTEGER, who TEXT,
    run BLOB, sequence INTEGER, place INTEGER, head BLOB, path TEXT, offset INTEGER, length INTEGER, value BLOB);
"""
_STAGE: Final = (
    f"INSERT INTO staged ({', '.join(_COLUMNS)}) VALUES ({','.join('?' * len(_COLUMNS))})"  # noqa: S608 - our own names
    f" ON CONFLICT (name) DO UPDATE SET {', '.join(f'{each} = excluded.{each}' for each in _COLUMNS)}"
    " WHERE excluded.rank < rank"
)
_RANK: Final = _COLUMNS.index("rank")
_TOLD, _ENDED = RANKS[LeaseTold], RANKS[LeaseEnded]
_ID_BYTES: Final = 16
_MARKS: Final = 3
"""So many values has a row about a bag with a mark."""
_entries: Final = msgspec.msgpack.Decoder(Witness | Ended)
"""Of what the walk has checked: nothing is checked again."""


class EventRows(Gathering):
    """Makes rows of events."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._names: set[bytes] = set()
        self._rows: list[tuple[Value, ...]] = []
        self._done: list[bytes] = []

    def knows(self, name: Statement) -> bool:
        """Whether a statement about a lease is known here already."""
        return _statement(name) in self._names

    def told(self, name: Statement, event: LeaseTold) -> None:
        """Take a statement about a lease."""
        self._names.add(_statement(name))
        self.add(event, _statement(name))

    def ended(self, event: LeaseEnded, *, hearsay: bool) -> None:
        """Take the end of a lease, once from either."""
        lease = event.ending.correlation_id + event.domain.encode()
        self.add(event, (b"h" if hearsay else b"e") + lease, b"e" + lease if hearsay else None)

    def ceiling(self, data: bytes, event: CeilingLinked) -> None:
        """Take a ceiling record."""
        self.add(event, b"c" + data)

    def happened(self, event: Event) -> None:
        """Take what happened to a log, or to a session lease."""
        self.add(event)

    def marked(self, mark: Mark) -> None:
        """Take that a bag has a prelock, or a pack."""
        self._rows.append(mark)

    def add(self, event: Event, name: bytes | None = None, unless: bytes | None = None) -> None:
        """Take an event. Of several with one name the one of the lowest rank stays.

        ``unless``: it does not count where there is another of this name.
        """
        instant, value = min(event.instant_ns, INSTANT_MAX), event_bytes(event)
        place = (None, None, None, None)
        self._rows.append((name, unless, self.rank, instant, RANKS[type(event)], *event.place, *place, value))
        if len(self._rows) >= CHUNK_ROWS:
            self._pack()

    def _pack(self) -> None:
        self._done.append(encode_rows(self._rows))
        self._rows = []

    def chunks(self) -> list[bytes]:
        """Return everything, some rows at a time, encoded."""
        if self._rows:
            self._pack()
        return self._done


def _statement(name: Statement) -> bytes:
    digest, position = name
    return b"t" + digest + position.to_bytes(8)


class StagedEvent(NamedTuple):
    """What is read of a staged row, in order of time."""

    instant: Instant
    kind: int
    who: str
    run: bytes
    sequence: int
    place: int
    head: bytes | None
    """The digest of the head that it is an entry under; None: it is a whole event."""
    path: str
    offset: int
    length: int
    value: bytes


class StagedEvents:
    """Rows of events in a table that is gone with the connection; SQLite sorts them."""

    def __init__(self, db: Database, index: Index | None = None) -> None:
        """Hold nothing yet. ``index``: what columns and heads are in, if there are any."""
        self.db = db
        self._index = index
        self._run(_STAGED)
        self._known = lru_cache(HEADS_AT_HAND)(self._head)

    def clear(self) -> None:
        """Forget everything."""
        self._run("DELETE FROM waiting; DELETE FROM staged")

    def take(self, chunks: Iterable[bytes], base: int = 0) -> None:
        """Take what a part tells. ``base``: added to its ranks."""
        self.db.executemany("INSERT INTO waiting (base, rows) VALUES (?, ?)", [(base, each) for each in chunks])

    def take_all(self, gathered: Gathered) -> None:
        """Take what is in memory, of which every event counts."""
        rows = EventRows()
        for event in gathered.events():
            rows.add(event)
        for mark in gathered.marks:
            rows.marked(mark)
        self.take(rows.chunks())

    def spread(self) -> list[tuple[Value, ...]]:
        """Spread what waits, and what columns tell. Returns the bags with marks: mark, log, beginning."""
        marks: list[tuple[Value, ...]] = []
        if self._index is not None:
            for bucket in self._index.buckets():
                self._columns(self._index.bucket(ENTRIES, bucket, raw=True), self._index.bucket(USES, bucket, raw=True))
        for base, chunk in self.db.execute("SELECT base, rows FROM waiting ORDER BY id"):
            rows = msgspec.msgpack.decode(chunk)
            marks += [row for row in rows if len(row) == _MARKS]
            self.db.executemany(_STAGE, _ranked((row for row in rows if len(row) != _MARKS), base))
        self._run("DELETE FROM waiting")
        return marks

    def in_order(self) -> Iterator[tuple[Event, bytes]]:
        """Yield every event that counts, in order of time, and as it is kept."""
        sql = (
            "SELECT instant, kind, who, run, sequence, place, head, path, offset, length, value FROM staged AS one"
            " WHERE unless IS NULL OR NOT EXISTS (SELECT 1 FROM staged AS other WHERE other.name = one.unless)"
            " ORDER BY instant, kind, who, run, sequence, place, unless IS NOT NULL, rank, id"
        )
        for row in self.db.execute(sql):
            yield self._event(StagedEvent(*row))
        self._run("DELETE FROM staged")

    def _event(self, row: StagedEvent) -> tuple[Event, bytes]:
        if row.head is None:
            return event_of(row.kind, row.value), row.value
        batch = self._known(row.run, row.sequence, row.head)
        said = batch.said(row.place, Evidence(row.path, row.offset, row.length))
        entry = _entries.decode(row.value)
        event = said.ended(entry) if isinstance(entry, Ended) else said.told(entry)
        return event, event_bytes(event)

    def _head(self, run: bytes, sequence: int, digest: bytes) -> StatedBatch:
        assert self._index is not None
        head = decode(BatchHead, self._index.head(run, sequence, digest))
        return StatedBatch.under(head, head.signed_time())

    # What columns tell of leases.

    def _columns(self, entries: Bucket, uses: Bucket) -> None:
        """Take the entries of ledgers, and of the witnesses that frames carry those that no ledger has."""
        rows = entries.rows()
        numbered = {name: number for number, name in enumerate(entries.heads.values)}
        known = set(zip(rows["head"].tolist(), rows["position"].tolist(), strict=True))
        carried = uses.rows()
        heads = [numbered.setdefault(name, len(numbered)) for name in uses.heads.values]
        chosen: list[int] = []
        for number, (head, position) in enumerate(
            zip(carried["head"].tolist(), carried["position"].tolist(), strict=True)
        ):
            if (heads[head], position) not in known:
                known.add((heads[head], position))
                chosen.append(number)
        gone = set(_identifiers(rows["cid"][rows["kind"] == ENDED]))
        told = EventRows()
        for bucket, some, raw, kinds, ranks in (
            (entries, rows, entries.raw(), rows["kind"].tolist(), (LEDGER_RANK - rows["rank"]).tolist()),
            (uses, carried[chosen], uses.raw(), [GRANT] * len(chosen), carried["rank"][chosen].tolist()),
        ):
            ended = rows["last_ended"].tolist() if bucket is entries else [0] * len(chosen)
            self.db.executemany(_STAGE, self._told(bucket, some, raw, zip(kinds, ended, ranks, strict=True)))
            self._heard(bucket, some, raw, ranks, gone, told)
        self.take(told.chunks())

    def _told(
        self, bucket: Bucket, rows: ColumnRows, raw: bytes, others: Iterable[tuple[int, int, int]]
    ) -> Iterator[tuple[Value, ...]]:
        """Yield a staged row for each of some rows. ``others``: of each what it tells, when it ended, and its rank."""
        paths, names = list(bucket.paths.values), [each.encode() for each in bucket.names.values]
        heads = [(*name, self._known(*name)) for name in bucket.heads.values]
        wanted = ("name", "head", "position", "path", "offset", "length", "at", "size")
        columns = (rows[each].tolist() for each in wanted)
        cids = _identifiers(rows["cid"])
        for (kind, ended, rank), cid, name, of, position, path, offset, length, at, size in zip(
            others, cids, *columns, strict=True
        ):
            run, sequence, digest, batch = heads[of]
            if kind == ENDED:
                called, rank_of, instant = b"e" + cid + names[name], _ENDED, ended if ended >= 0 else INSTANT_MAX
            else:
                called, rank_of, instant = _statement((digest, position)), _TOLD, batch.clock.midpoint_ns
            place = (min(instant, INSTANT_MAX), rank_of, batch.who, run, sequence, position)
            yield called, None, rank, *place, digest, paths[path], offset, length, raw[at : at + size]

    def _heard(
        self,
        bucket: Bucket,
        rows: ColumnRows,
        raw: bytes,
        ranks: list[int],
        gone: AbstractSet[bytes],
        told: EventRows,
    ) -> None:
        """Take the ends that witnesses tell of, but of leases whose end a ledger has."""
        paths, heads = list(bucket.paths.values), list(bucket.heads.values)
        for number in _tellers(rows, gone).tolist():
            row = rows[number]
            batch = self._known(*heads[row["head"]])
            where = Evidence(paths[row["path"]], int(row["offset"]), int(row["length"]))
            witness = _entries.decode(raw[row["at"] : row["at"] + row["size"]])
            told.rank = ranks[number]
            for end in batch.said(int(row["position"]), where).heard(witness):
                if end.ending.correlation_id not in gone:
                    told.ended(end, hearsay=True)

    def _run(self, script: str) -> None:
        for _ in self.db.execute(script):
            pass


def _ranked(rows: Iterable[list[Value]], base: int) -> Iterator[list[Value]]:
    for row in rows:
        row[_RANK] += base  # type: ignore[operator]
        yield row


def _tellers(rows: ColumnRows, gone: AbstractSet[bytes]) -> NDArray[np.int64]:
    """Return which rows may tell of an end that no ledger has. ``gone``: the leases whose end one has."""
    if "last_told" not in (rows.dtype.names or ()):
        return np.arange(len(rows))
    found = np.zeros(len(rows), np.bool_)
    for told, which in (("last_told", "last_cid"), ("set_by_told", "set_by_cid")):
        unknown = np.array([each not in gone for each in _identifiers(rows[which])], np.bool_)
        found |= rows[told] & unknown
    return np.flatnonzero(found & (rows["kind"] != ENDED))


def _identifiers(column: NDArray[np.uint64]) -> list[bytes]:
    """Return each row of a column of identifiers as bytes."""
    whole = column.tobytes()
    return [whole[at : at + _ID_BYTES] for at in range(0, len(whole), _ID_BYTES)]
