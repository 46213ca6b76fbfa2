"""The SQLite index of the evidence: what rules over leases and sequences need, in columns by domain or writer.

In memory for small trees, in a file for large ones. It holds only what has been verified, or could not be for want of
keys; every row says where in the tree its bytes are. The only module of the auditor that imports apsw.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import apsw
import msgspec

from appliance.formats.policy import Policy
from timeagent.console import printable
from timeagent.errors import BadRequest, Environment
from timeagent.signedtime import SignedTime
from timeagent.units import SECOND

from .columns.layout import (
    ENTRIES,
    FRAMES,
    STATED,
    USES,
    ColumnPlace,
    HeadName,
    RowBucket,
    Spool,
    names_in,
)
from .evidence.records import take_latest
from .parts import Part, Value
from .rules.finding import Evidence, Verdict

_APPLICATION: Final = 0x544E5552
"""Names a file as an index of ours."""
INDEX_FORMAT: Final = 12
"""What is in such a file. Another format is never read; the next audit into the file begins it anew."""

_SCHEMA = """
PRAGMA synchronous = OFF;
PRAGMA cache_size = -65536;
CREATE TABLE head (
    incarnation BLOB, sequence INTEGER, digest BLOB, map INTEGER, shard INTEGER, ceiling INTEGER, in_ledger INTEGER,
    head BLOB, path TEXT, offset INTEGER, length INTEGER, rank INTEGER,
    PRIMARY KEY (incarnation, sequence, digest)) WITHOUT ROWID;
CREATE TABLE ceiling (
    map INTEGER, shard INTEGER, number INTEGER, record BLOB, path TEXT, offset INTEGER, length INTEGER,
    PRIMARY KEY (map, shard, number, record)) WITHOUT ROWID;
CREATE TABLE unread (writer TEXT, start INTEGER, end INTEGER, path TEXT, offset INTEGER, length INTEGER);
CREATE TABLE bag (path TEXT, log TEXT, start INTEGER, end INTEGER, closed INTEGER, blind INTEGER,
    closed_at INTEGER);
CREATE TABLE whole (log TEXT, start INTEGER, end INTEGER);
CREATE TABLE chunk (
    kind TEXT, bucket INTEGER, part INTEGER, base INTEGER, names BLOB, rows BLOB, raw BLOB,
    process INTEGER, at INTEGER, row_bytes INTEGER, raw_bytes INTEGER);
CREATE INDEX chunk_of ON chunk (kind, bucket, part);
"""
type Database = apsw.Connection
READ_CACHE_KIB: Final = 8 * 1024
"""What a file that is only read may take of memory."""
INDEX_ERRORS: Final = (apsw.Error, msgspec.DecodeError)
"""What a damaged index file, or a full disk, raises."""
_ALL_TABLES: Final = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
_TABLES: Final = ("head", "ceiling", "unread", "bag", "whole", "chunk")
_FIGURES: Final = ("messages", "accepted", "first", "last", "proven", "settle_to", "signed", "sequence", "staying")
"""Of a use, beside its place and digest."""
_STATED: Final = ("head", "position", "rank", "at", "size")
_INSERT_HEAD: Final = """
INSERT INTO head VALUES ({} + {}) ON CONFLICT (incarnation, sequence, digest) DO UPDATE SET path = excluded.path,
    offset = excluded.offset, length = excluded.length, rank = excluded.rank, in_ledger = in_ledger + excluded.in_ledger
    WHERE excluded.rank < rank
"""
"""Of a batch that is told of at several places, the place with the lowest rank stays."""
PART_RANKS: Final = 2**40
"""More than there are ranks in a part."""


def _numbers(place: ColumnPlace) -> tuple[int, int, int, int]:
    return place.process, place.at, place.rows, place.raw


def open_index(path: Path) -> Database:
    """Open the file of an audit to read, as it is now: who writes to it waits until this is closed.

    Raises BadRequest with the way out for what is none, is of another format, or is being written.
    """
    again = "make it with: tenure audit PATH --db FILE"
    if not path.is_file():
        raise BadRequest("no-index", f"{path} is not there", hint=again)
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        ((ours,),) = db.execute("PRAGMA application_id")
        ((stated,),) = db.execute("PRAGMA user_version")
        if ours != _APPLICATION:
            raise BadRequest("not-an-index", f"{path} is no index of an audit", hint=again)
        if stated != INDEX_FORMAT:
            what = f"{path} is an index of format {stated}; this version reads format {INDEX_FORMAT}"
            raise BadRequest("other-index-format", what, hint=again)
        db.execute(f"PRAGMA cache_size = -{READ_CACHE_KIB}")
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except (apsw.NotADBError, apsw.CorruptError):
        raise BadRequest("not-an-index", f"{path} is no index of an audit", hint=again) from None
    except (apsw.BusyError, apsw.ReadOnlyError, apsw.CantOpenError) as problem:
        raise BadRequest(
            "index-in-use", f"{path} cannot be read: {problem}", hint="wait for the audit that writes it"
        ) from None
    return db


def temporary_database() -> Database:
    """Open a database in memory, which spills over to a file without name, and is gone when it is closed."""
    db = apsw.Connection("")
    db.execute("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; PRAGMA cache_size = -65536; BEGIN").fetchall()
    return db


def _passing_directory() -> TemporaryDirectory[str] | None:
    """Return a directory for an index that others read; None where none can be made: then nobody else reads it."""
    try:
        return TemporaryDirectory(prefix="tenure-audit-")
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Use:
    """One frame written under one lease."""

    where: Evidence
    messages: int
    accepted: int
    """How many of them readers accept."""
    first_ns: int
    last_ns: int
    """The lowest and the highest timestamp that is accepted; of all of them where none is."""
    proven: bool
    """Whether its signatures hold, and its bag's list counts. Else it is nothing but a reason to doubt a count."""
    settle_to_ns: int
    """What the witness that the frame carries asks its holder to settle a log to."""
    signed_ns: int
    """The latest instant at which the frame can have been stamped, by its signed time."""
    sequence: int = 0
    """The frame's, in its writer's run."""
    staying: bool = True
    """Whether the lease counts there without a half from a chain that comes later."""
    digest: bytes | None = None
    """The frame's; None where it is not known."""

    @property
    def log(self) -> str:
        """The log that it was written to."""
        return self.where.path.split("/")[1]


class StatedEntry(NamedTuple):
    """An entry as it was signed, from the one of several places that counts."""

    head: HeadName
    position: int
    raw: bytes
    where: Evidence


class DomainRows(NamedTuple):
    """What is known of one domain: each entry once, by batch and place in it; and its uses with their leases' ids."""

    domain: str
    entries: Sequence[StatedEntry]
    uses: Sequence[tuple[bytes, Use]] = ()


class Index:
    """Evidence by domain, run and writer."""

    def __init__(self, path: Path | None = None, *, shared: bool = False, spooling: bool = False) -> None:
        """Make an empty index: in a file, whose parts are kept, or in memory, which spills over to a file without name.

        ``shared``: other processes can read it; without a file of its own, in one that is gone with it. ``spooling``:
        columns wait in files beside it. Raises
        BadRequest for a file that is no index, or that another audit has.
        """
        self._closed_to: dict[str, int] = {}
        self._passing = _passing_directory() if shared and path is None else None
        self._file = Path(self._passing.name) / "index" if self._passing else path
        try:
            self.db = apsw.Connection("" if self._file is None else str(self._file))
        except apsw.Error as problem:
            what = f"{self._file} cannot be made: {problem}"
            hint = "name a file in a directory that you may write to"
            raise Environment("index-failed", what, hint=hint) from None
        try:
            if path is not None:
                self._claim(path)
            self.db.execute(_SCHEMA).fetchall()
            self.db.execute("BEGIN IMMEDIATE")
        except (apsw.NotADBError, apsw.CorruptError):
            raise BadRequest("not-an-index", f"{path} is no index of an audit", hint="name another file") from None
        except (apsw.BusyError, apsw.ReadOnlyError, apsw.CantOpenError) as problem:
            raise BadRequest(
                "index-in-use",
                f"{path} cannot be written: {problem}",
                hint="end the audit, replay or screen that has it open, or name another",
            ) from None
        except apsw.Error as problem:
            what = f"{self._file or 'the index'} cannot be written: {problem}"
            raise Environment("index-failed", what, hint="make room, or name a plain file on another disk") from None
        self._spooling = (self._passing or _passing_directory()) if spooling else None
        self.spool = Spool(Path(self._spooling.name)) if self._spooling else None
        """Where columns wait; None where no directory was made: then they are in the index."""

    def _claim(self, path: Path) -> None:
        """Make sure that a file is new, or an index of ours; forget what an earlier audit concluded from its parts."""
        ours = self.number("PRAGMA application_id")
        if ours not in (0, _APPLICATION) or (ours == 0 and self.number("SELECT count(*) FROM sqlite_schema")):
            raise BadRequest("not-an-index", f"{path} is no index of an audit", hint="name another file")
        old = () if self.number("PRAGMA user_version") == INDEX_FORMAT else self.db.execute(_ALL_TABLES).fetchall()
        self.db.execute(f"PRAGMA application_id = {_APPLICATION}")
        for table in (*_TABLES, *(name for (name,) in old)):
            self.db.execute(f"DROP TABLE IF EXISTS {table}")
        self.db.execute(f"PRAGMA user_version = {INDEX_FORMAT}")

    def clear(self) -> None:
        self._closed_to.clear()
        for table in _TABLES:
            self.db.execute(f"DELETE FROM {table}")  # noqa: S608 - the names of tables and columns are ours

    def take(self, part: Part, number: int, base: int) -> None:
        """Take what was gathered of a part. ``number``: of the part, in order; ``base``: added to its ranks."""
        for table, rows in part.rows.items():
            marks = ",".join("?" * len(rows[0]))
            sql = f"INSERT OR IGNORE INTO {table} VALUES ({marks})"  # noqa: S608 - the names of tables are ours
            self.db.executemany(_INSERT_HEAD.format(marks, base) if table == "head" else sql, rows)
        take_latest(self._closed_to, part.closed_to)
        kept = self.spool.keep(part.columns) if self.spool else part.columns
        places = ((each, each.place or ColumnPlace(0, 0, len(each.rows), len(each.raw))) for each in kept)
        self.db.executemany(
            "INSERT INTO chunk VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            (
                (each.kind, each.bucket, number, base, each.names, each.rows, each.raw, *_numbers(place))
                for each, place in places
            ),
        )

    def bucket(self, kind: str, number: int, *, raw: bool = False) -> RowBucket:
        """Return all rows of one kind in one bucket. ``raw``: with the bytes of their entries."""
        found = RowBucket(kind)
        inline = "rows, raw" if raw else "rows, x''"
        sql = (
            f"SELECT base, names, {inline}, process, at, row_bytes, raw_bytes FROM chunk"  # noqa: S608 - the names of tables and columns are ours
            " WHERE kind = ? AND bucket = ? ORDER BY part, rowid"
        )
        for base, names, rows, entries, *place in self.db.execute(sql, (kind, number)):
            if not place[0]:
                found.take(base, names, rows, entries)
                continue
            assert self.spool is not None
            found.take(base, names, *self.spool.read(ColumnPlace(*place), raw=raw))
        return found

    def rows_of(self, bucket: int, domains: Collection[str]) -> Iterator[DomainRows]:
        """Yield what is known of some domains of a bucket, in order of their names. Session leases are of none: ""."""
        kinds = [self.bucket(kind, bucket, raw=True) for kind in (ENTRIES, STATED, USES)]
        told = [(each, each.by_name(domains), each.raw(), each.heads.listed()) for each in kinds]
        for domain in sorted({name for _, rows_of, *_ in told for name in rows_of}):
            entries: dict[tuple[Value, ...], tuple[int, StatedEntry]] = {}
            uses: list[tuple[bytes, Use]] = []
            for of_kind, rows_of, raw, heads in told:
                rows = rows_of.get(domain)
                if rows is not None and of_kind.kind == USES:
                    for where, lease, digest, *figures in of_kind.each(rows, "cid", "digest", *_FIGURES):
                        use = Evidence(*where), *figures, digest if any(digest) else None
                        uses.append((lease, Use(*use)))
                    rows = rows[rows["plain"]]
                for where, number, position, rank, at, size in () if rows is None else of_kind.each(rows, *_STATED):
                    head = heads[number]
                    name = *head[:2], position, head[2]
                    if name not in entries or rank < entries[name][0]:
                        entries[name] = rank, StatedEntry(head, position, raw[at : at + size], Evidence(*where))
            uses.sort(key=lambda each: (each[1].where.path, each[1].where.offset))
            yield DomainRows(domain, [entry for _, (_, entry) in sorted(entries.items())], uses)

    def buckets(self) -> list[int]:
        """Return the buckets of which columns hold anything, in order."""
        return [number for (number,) in self.db.execute("SELECT DISTINCT bucket FROM chunk ORDER BY bucket")]

    def column_bytes(self) -> int:
        return self.number("SELECT coalesce(sum(row_bytes), 0) FROM chunk")

    @property
    def shared(self) -> bool:
        """Whether other processes can read it."""
        return self._file is not None

    def publish(self) -> None:
        """Let other processes see what is in it."""
        if self.db.in_transaction:
            self.db.execute("COMMIT")

    def resume(self) -> None:
        """Write again, after it was published: all at once, when it is closed."""
        if not self.db.in_transaction:
            self.db.execute("BEGIN IMMEDIATE")

    def view(self) -> Index:
        """Return the same index by a connection of its own, in another process: to read, once it is published."""
        view = object.__new__(Index)
        view._closed_to = self._closed_to
        view._file, view._passing, view._spooling, view.spool = self._file, None, None, self.spool
        view.db = apsw.Connection(str(self._file), flags=apsw.SQLITE_OPEN_READONLY)
        return view

    def close(self) -> None:
        """Let go of it. What cannot be written any more is lost, and nothing is said: it was, where it failed."""
        with suppress(apsw.Error):
            self.publish()
        self.db.close()
        if self.spool:
            self.spool.close()
        for directory in (self._passing, self._spooling):
            if directory:
                directory.cleanup()

    def all_domains(self) -> set[str]:
        """Return every domain that a frame or a ledger names."""
        found: set[str] = set()
        for (names,) in self.db.execute("SELECT names FROM chunk WHERE kind <> ?", (FRAMES,)):
            found.update(names_in(names))
        return found - {""}

    def head(self, incarnation: bytes, sequence: int, digest: bytes) -> bytes:
        """Return a head by its name. Raises KeyError."""
        sql = "SELECT head FROM head WHERE incarnation = ? AND sequence = ? AND digest = ?"
        for (raw,) in self.db.execute(sql, (incarnation, sequence, digest)):
            assert isinstance(raw, bytes)
            return raw
        raise KeyError(digest)

    def heads(self) -> Iterator[tuple[HeadName, int, bytes, Evidence]]:
        """Yield (name, how often in the ledger, head, where), by run and sequence."""
        sql = (
            "SELECT incarnation, sequence, digest, in_ledger, head, path, offset, length FROM head"
            " ORDER BY map, shard, incarnation, sequence, digest"
        )
        for *name, in_ledger, head, path, offset, length in self.db.execute(sql):
            yield (name[0], name[1], name[2]), in_ledger, head, Evidence(path, offset, length)

    def ceilings(self) -> Iterator[tuple[bytes, Evidence]]:
        """Yield (file bytes, where) of every ceiling record, chain by chain, in order of number."""
        sql = "SELECT record, path, offset, length FROM ceiling ORDER BY map, shard, number, path, offset"
        for record, path, offset, length in self.db.execute(sql):
            yield record, Evidence(path, offset, length)

    def ceilings_signed_under(self) -> set[tuple[bytes, int]]:
        """Return (incarnation, number of the ceiling record) of every batch that is known."""
        return set(self.db.execute("SELECT DISTINCT incarnation, ceiling FROM head"))

    def closings(self) -> Iterator[tuple[str, int, int]]:
        """Yield (log, start of a bag, the instant before which it surely was not closed), in order."""
        yield from self.db.execute("SELECT log, start, closed_at FROM bag WHERE closed_at > 0 ORDER BY log, start")

    def bags_within(self, first_ns: int, last_ns: int) -> tuple[bool, bool]:
        """Return (some bag that holds one of these instants is open, some was closed with what cannot be read)."""
        count = "SELECT count(*) FROM bag WHERE start <= ? AND end > ? AND"
        still_open = self.number(f"{count} NOT closed", last_ns, first_ns)
        return bool(still_open), bool(self.number(f"{count} blind", last_ns, first_ns))

    def all_closed(self, first_ns: int, last_ns: int) -> bool:
        """Whether in every log each bag that may hold one of these instants is in the copy, and closed.

        A bag that is not there proves nothing in a rack without its seal: it may have been made after the copy had
        listed the rack, though bags after it, copied later, are closed.
        """
        sql = (
            "SELECT start, end FROM bag WHERE log = :log AND closed AND start <= :last AND end > :first"
            " UNION ALL SELECT start, end FROM whole WHERE log = :log AND start <= :last AND end > :first ORDER BY 1"
        )
        for log in self._closed_to:
            reached = first_ns
            spans = self.db.execute(sql, {"log": printable(log), "first": first_ns, "last": last_ns})
            for start, end in list(spans):
                if start > reached:
                    break
                reached = max(reached, end)
            if reached <= last_ns:
                return False
        return bool(self._closed_to)

    def number(self, sql: str, *values: Value) -> int:
        for (number,) in self.db.execute(sql, values):
            assert isinstance(number, int)
            return number
        raise AssertionError(sql)


SLACK_NS: Final = 2 * SECOND
"""For whoever closes bags: so late it may look at one that is due."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What of a span of time is in the copy."""

    index: Index
    settled_ns: int
    """What is not older than this had perhaps not been closed, when the last was signed that is in the copy."""

    @classmethod
    def of(cls, index: Index, policy: Policy | None, newest: SignedTime | None) -> Coverage:
        """Take what is known when all files are read. ``newest``: the latest signed time that holds."""
        if newest is None:
            return cls(index, 0)
        bag_ns = policy.span_ns + policy.grace_ns if policy else 0
        return cls(index, newest.interval.earliest - bag_ns - 4 * newest.radius_ns - SLACK_NS)

    def missing_frame(self, first_ns: int, last_ns: int) -> Verdict | None:
        """Return what it means that a frame with timestamps in [first, last] is in no bag; None: nothing yet."""
        _, blind = self.index.bags_within(first_ns, last_ns)
        closed = not blind and self.index.all_closed(first_ns, last_ns)
        return Verdict.INDETERMINATE if closed or last_ns < self.settled_ns else None

    def missing_within(self, first_ns: int, last_ns: int) -> Verdict | None:
        """The same of a message, of which nothing is said either where a bag that is there may hold it unseen."""
        still_open, blind = self.index.bags_within(first_ns, last_ns)
        return None if still_open or blind else self.missing_frame(first_ns, last_ns)
