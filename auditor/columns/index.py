"""The evidence that rules over leases and sequences need, in columns by domain or writer; and what an audit keeps.

The index holds only what has been verified, or could not be for want of keys; every row says where in the tree its
bytes are. Columns wait in files, all else is in memory. The file of an audit keeps the parts that were read, so that
the next one reads again only what changed. The only module of the auditor that imports apsw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import apsw
import msgspec
import numpy as np
from numpy.typing import NDArray

from appliance.formats.paths import LOCK, MARKER, SEAL
from appliance.formats.policy import Policy
from timeagent.errors import BadRequest, Environment
from timeagent.signedtime import SignedTime
from timeagent.units import SECOND

from ..evidence.finding import Evidence, Verdict
from ..evidence.tree import LedgerFile, Tree
from .layout import ENTRIES, FRAMES, NAMES, USES, Chunk, HeadName, Numbering, RowBucket, Spool
from .parts import HeadRow, Part, Unit, decode_part

_APPLICATION: Final = 0x544E5552
"""Names a file as an index of ours."""
INDEX_FORMAT: Final = 16
"""What is in such a file. Another format is never read; the next audit into the file begins it anew."""
type Database = apsw.Connection
READ_CACHE_KIB: Final = 8 * 1024
"""What a file that is only read may take of memory."""
INDEX_ERRORS: Final = (apsw.Error, msgspec.DecodeError)
"""What a damaged index file, or a full disk, raises."""
_ALL_TABLES: Final = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
_FIGURES: Final = ("messages", "accepted", "first", "last", "proven", "settle_to", "signed", "sequence", "staying")
"""Of a use, beside its place and digest."""
_STATED: Final = ("head", "position", "rank", "at", "size")
PART_RANKS: Final = 2**40
"""More than there are ranks in a part."""


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


def write_index(path: Path) -> Database:
    """Open the file of an audit to write, in a transaction; make it where there is none.

    Raises BadRequest for a file that is no index, or that another audit has; Environment where nothing can be written.
    """
    try:
        db = apsw.Connection(str(path))
    except apsw.Error as problem:
        hint = "name a file in a directory that you may write to"
        raise Environment("index-failed", f"{path} cannot be made: {problem}", hint=hint) from None
    try:
        _claim(db, path)
        db.execute("PRAGMA synchronous = OFF; PRAGMA cache_size = -65536; BEGIN IMMEDIATE").fetchall()
    except (apsw.NotADBError, apsw.CorruptError):
        raise BadRequest("not-an-index", f"{path} is no index of an audit", hint="name another file") from None
    except (apsw.BusyError, apsw.ReadOnlyError, apsw.CantOpenError) as problem:
        raise BadRequest(
            "index-in-use",
            f"{path} cannot be written: {problem}",
            hint="end the audit, replay or screen that has it open, or name another",
        ) from None
    except apsw.Error as problem:
        what = f"{path} cannot be written: {problem}"
        raise Environment("index-failed", what, hint="make room, or name a plain file on another disk") from None
    return db


def _claim(db: Database, path: Path) -> None:
    """Make sure that a file is new, or an index of ours; forget what is in it where that has another format."""
    ((ours,),) = db.execute("PRAGMA application_id")
    ((stated,),) = db.execute("PRAGMA user_version")
    tables = db.execute(_ALL_TABLES).fetchall()
    if ours not in (0, _APPLICATION) or (ours == 0 and tables):
        raise BadRequest("not-an-index", f"{path} is no index of an audit", hint="name another file")
    for (table,) in tables if stated != INDEX_FORMAT else ():
        db.execute(f"DROP TABLE {table}")
    db.execute(f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {INDEX_FORMAT}").fetchall()


def close_index(db: Database) -> None:
    """Let go of a file. What cannot be written any more is lost, and nothing is said: it was, where it failed."""
    with suppress(apsw.Error):
        if db.in_transaction:
            db.execute("COMMIT")
    db.close()


def temporary_database() -> Database:
    """Open a database in memory, which spills over to a file without name, and is gone when it is closed."""
    db = apsw.Connection("")
    db.execute("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; PRAGMA cache_size = -65536; BEGIN").fetchall()
    return db


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


_BAG: Final = np.dtype(
    [("log", "<u4"), ("start", "<i8"), ("end", "<i8"), ("closed", "?"), ("blind", "?"), ("closed_ns", "<i8")]
)
"""As ``PartMaker.add_bag`` takes it."""


class Index:
    """Evidence by domain, run and writer. Processes that are forked have it too."""

    def __init__(self, *, spooling: bool = False) -> None:
        """Hold nothing. ``spooling``: columns wait in files."""
        self._directory: TemporaryDirectory[str] | None = None
        with suppress(OSError):
            self._directory = TemporaryDirectory(prefix="tenure-audit-") if spooling else None
        self.spool = Spool(Path(self._directory.name)) if self._directory else None
        """Where columns wait; None where no directory can be made: then they are in memory."""
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._heads: dict[HeadName, HeadRow] = {}
        self._ceilings: dict[tuple[tuple[int, int], int, bytes], Evidence] = {}
        self._unread: dict[str, set[tuple[int, int]]] = {}
        self._logs: Numbering[str] = Numbering()
        self._bags = [np.zeros(0, _BAG)]
        self._chunks: dict[tuple[str, int], list[tuple[int, Chunk]]] = {}

    def take(self, part: Part, base: int = 0) -> None:
        """Take what was gathered of the next part. ``base``: added to its ranks."""
        for head in part.heads:
            before, rank = self._heads.get(head.name), head.rank + base
            if before is None or rank < before.rank:
                in_ledger = head.in_ledger + (before.in_ledger if before else 0)
                self._heads[head.name] = head._replace(rank=rank, in_ledger=in_ledger)
        for shard, number, record, where in part.ceilings:
            self._ceilings.setdefault((shard, number, record), Evidence(*where))
        for writer, start_ns, end_ns in part.unread:
            self._unread.setdefault(writer, set()).add((start_ns, end_ns))
        if part.bags:
            self._bags.append(np.array([(self._logs.of(log), *rest) for log, *rest in part.bags], _BAG))
        for chunk in self.spool.keep(part.columns) if self.spool else part.columns:
            self._chunks.setdefault((chunk.kind, chunk.bucket), []).append((base, chunk))

    def _data(self, chunk: Chunk, *, raw: bool = False) -> bytes:
        return self.spool.read(chunk, raw=raw) if self.spool else chunk.data

    def bucket(self, kind: str, number: int, *, raw: bool = False) -> RowBucket:
        """Return all rows of one kind in one bucket. ``raw``: with the bytes of their entries."""
        found = RowBucket(kind)
        for base, chunk in self._chunks.get((kind, number), ()):
            found.take(base, chunk, self._data(chunk, raw=raw))
        return found

    def rows_of(self, bucket: int, domains: Collection[str]) -> Iterator[DomainRows]:
        """Yield what is known of some domains of a bucket, in order of their names. Session leases are of none: ""."""
        kinds = [self.bucket(kind, bucket, raw=True) for kind in (ENTRIES, USES)]
        told = [(each, each.by_name(domains), each.raw(), each.heads.listed()) for each in kinds]
        for domain in sorted({name for _, rows_of, *_ in told for name in rows_of}):
            entries: dict[tuple[bytes, int, int, bytes], tuple[int, StatedEntry]] = {}
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
                    name = head[0], head[1], position, head[2]
                    if name not in entries or rank < entries[name][0]:
                        entries[name] = rank, StatedEntry(head, position, raw[at : at + size], Evidence(*where))
            uses.sort(key=lambda each: (each[1].where.path, each[1].where.offset))
            yield DomainRows(domain, [entry for _, (_, entry) in sorted(entries.items())], uses)

    def buckets(self) -> list[int]:
        """Return the buckets of which columns hold anything, in order."""
        return sorted({bucket for _, bucket in self._chunks})

    def column_bytes(self) -> int:
        return sum(chunk.sizes[1] for chunks in self._chunks.values() for _, chunk in chunks)

    def all_domains(self) -> set[str]:
        """Return every domain that a frame or a ledger names."""
        found: set[str] = set()
        for (kind, _), chunks in self._chunks.items():
            for _, chunk in chunks if kind != FRAMES else ():
                found.update(NAMES.decode(self._data(chunk)[: chunk.sizes[0]]).names)
        return found - {""}

    def close(self) -> None:
        """Let go of the files that columns wait in."""
        if self.spool:
            self.spool.close()
        if self._directory:
            self._directory.cleanup()

    def head(self, incarnation: bytes, sequence: int, digest: bytes) -> bytes:
        """Return a head by its name. Raises KeyError."""
        return self._heads[incarnation, sequence, digest].raw

    def heads(self) -> list[HeadRow]:
        """Return every head once, by run and sequence."""
        return sorted(self._heads.values(), key=lambda head: (head.shard, head.name))

    def ceilings(self) -> Iterator[tuple[bytes, Evidence]]:
        """Yield (file bytes, where) of every ceiling record, chain by chain, in order of number."""
        for (_, _, record), where in sorted(self._ceilings.items(), key=lambda each: (*each[0][:2], each[1])):
            yield record, where

    def ceilings_signed_under(self) -> set[tuple[bytes, int]]:
        """Return (incarnation, number of the ceiling record) of every batch that is known."""
        return {(head.name[0], head.ceiling) for head in self._heads.values()}

    def _all_bags(self) -> NDArray[np.void]:
        """Return all bags, log by log, in order."""
        if len(self._bags) > 1:
            bags = np.concatenate(self._bags)
            self._bags = [bags[np.lexsort((bags["start"], bags["log"]))]]
        return self._bags[0]

    def closings(self) -> Iterator[tuple[str, int, int]]:
        """Yield (log, start of a bag, the instant before which it surely was not closed), those of a log in order."""
        bags, logs = self._all_bags(), self._logs.listed()
        bags = bags[bags["closed_ns"] > 0]
        for log, start, closed in zip(*(bags[each].tolist() for each in ("log", "start", "closed_ns")), strict=True):
            yield logs[log], start, closed

    def _within(self, first_ns: int, last_ns: int) -> NDArray[np.void]:
        """Return the bags that hold one of some instants."""
        bags = self._all_bags()
        return bags[(bags["start"] <= last_ns) & (bags["end"] > first_ns)]

    def bags_within(self, first_ns: int, last_ns: int) -> tuple[bool, bool]:
        """Return (some bag that holds one of these instants is open, some was closed with what cannot be read)."""
        bags = self._within(first_ns, last_ns)
        return not bags["closed"].all(), bool(bags["blind"].any())

    def all_closed(self, first_ns: int, last_ns: int) -> bool:
        """Whether in every log each bag that may hold one of these instants is in the copy, and closed.

        A bag that is not there proves nothing in a rack without its seal: it may have been made after the copy had
        listed the rack, though bags after it, copied later, are closed.
        """
        bags = self._within(first_ns, last_ns)
        bags = bags[bags["closed"]]
        for number in range(len(self._logs.values)):
            reached, of_log = first_ns, bags[bags["log"] == number]
            for start, end in zip(of_log["start"].tolist(), of_log["end"].tolist(), strict=True):
                if start > reached:
                    break
                reached = max(reached, end)
            if reached <= last_ns:
                return False
        return bool(self._logs.values)

    def is_unread(self, writer: str, first_ns: int, last_ns: int) -> bool:
        """Whether a frame of a writer with a timestamp in [first, last] may be in a file that cannot be read.

        In one of its own, or in a directory of which nobody knows whose files it holds.
        """
        spans = self._unread.get(writer, set()) | self._unread.get("", set())
        return any(start <= last_ns and end > first_ns for start, end in spans)


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


COMMIT_BYTES: Final = 32 * 1024 * 1024
"""So much may be lost when the audit is killed; an interrupt loses nothing."""
_SMALL_BYTES: Final = 64 * 1024 * 1024
_PACKAGES: Final = ("auditor", "appliance/formats", "timeagent")
CHECKSUM_BYTES: Final = 16


class PartStore:
    """The parts in an index file.

    What a part was read from is named by what is below its directory: name, size, identity, times of change of each
    file, the names of directories, and the contents of lock files and seals. Copying a file, or writing to it, changes
    that; whoever can change a file's contents and hide it from the file system deceives a second run, so that
    ``--reread`` reads everything. All parts are forgotten when the cluster's records are others, or the judge itself.
    """

    def __init__(self, db: Database, environment: bytes, *, reread: bool = False) -> None:
        """Take the file of an audit. ``environment``: what every part depends on; ``reread``: believe no part."""
        self._db = db
        self._db.execute("CREATE TABLE IF NOT EXISTS part (unit TEXT PRIMARY KEY, state BLOB, part BLOB)")
        self._db.execute("CREATE TABLE IF NOT EXISTS environment (digest BLOB)")
        known = [row[0] for row in self._db.execute("SELECT digest FROM environment")]
        if reread or known != [environment]:
            self._db.execute("DELETE FROM part")
            self._db.execute("DELETE FROM environment")
            self._db.execute("INSERT INTO environment VALUES (?)", (environment,))
        self._states = dict(self._db.execute("SELECT unit, state FROM part"))
        self._waiting = 0
        self._environment = environment
        self._asked: dict[str, bytes] = {}
        self.taken = 0
        """How many parts were not read again."""

    @staticmethod
    def state(tree: Tree, unit: Unit) -> bytes:
        """Return a digest of what the unit is read from."""
        paths = [unit.path] if isinstance(unit, LedgerFile) else sorted(tree.below(unit.path))
        state = hashlib.sha256()
        for path in paths:
            known = "" if path.endswith("/") else tree.identity(path)  # a directory is what is in it
            state.update(f"{path}\0{known}\0".encode())
            if path.endswith((f"/{LOCK}", f"/{SEAL}")):
                state.update(hashlib.sha256(tree.read(path, _SMALL_BYTES) or b"").digest())
        return state.digest()

    def has(self, name: str, state: bytes) -> bool:
        """Whether a unit was read in this state."""
        self._asked[name] = state
        return self._states.get(name) == state

    def digest(self, tree: Tree) -> bytes:
        """Return a digest of all that was asked for, of what it depends on, and of the ceiling chains."""
        whole = hashlib.sha256(self._environment)
        for name, state in sorted(self._asked.items()):
            whole.update(f"{name}\0".encode() + state)
        for file in tree.chains():
            whole.update(f"{file.path}\0{tree.identity(file.path)}\0".encode())
        return whole.digest()

    def get(self, name: str) -> Part:
        """Return a part that it has. Raises BadRequest where the file was damaged."""
        self.taken += 1
        try:
            ((raw,),) = self._db.execute("SELECT part FROM part WHERE unit = ?", (name,))
            assert isinstance(raw, bytes)
            if _checksum(raw[CHECKSUM_BYTES:]) != raw[:CHECKSUM_BYTES]:
                raise ValueError("its checksum does not match")  # noqa: TRY301 - caught with all that is wrong with a part
            return decode_part(raw[CHECKSUM_BYTES:])
        except ValueError as problem:
            raise BadRequest(
                "not-an-index", f"the index holds no part {name}: {problem}", hint="remove it, and audit again"
            ) from None

    def keep(self, name: str, state: bytes, part: bytes) -> None:
        """Keep a part. Whatever is kept survives an interrupt."""
        self._db.execute("INSERT OR REPLACE INTO part VALUES (?, ?, ?)", (name, state, _checksum(part) + part))
        self._waiting += len(part)
        if self._waiting >= COMMIT_BYTES:
            self.commit()

    def commit(self) -> None:
        """Make sure that what is kept is in the file."""
        self._db.execute("COMMIT")
        self._db.execute("BEGIN IMMEDIATE")
        self._waiting = 0

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget parts of what is not in the tree any more."""
        for name in self._states.keys() - set(names):
            self._db.execute("DELETE FROM part WHERE unit = ?", (name,))


def _checksum(part: bytes) -> bytes:
    """Return what a part begins with in the file: bits of a database change, and it does not say so."""
    return hashlib.sha256(part).digest()[:CHECKSUM_BYTES]


def environment(tree: Tree, root_key: bytes | None, *, hashed: bool = True, timeline: bool = False) -> bytes:
    """Return a digest of what every part depends on: the cluster's records, the pinned root key, and the judge.

    ``hashed``: whether every byte was hashed; ``timeline``: whether parts hold events.
    """
    state = hashlib.sha256((root_key or b"none") + (b"" if hashed else b" unhashed"))
    state.update(b" timeline" if timeline else b"")
    place = Path(__file__).parents[2]
    for package in _PACKAGES:
        for file in sorted((place / package).rglob("*.py")):
            state.update(hashlib.sha256(file.read_bytes()).digest())
    for path in (MARKER, *sorted(path for each in ("policy", "trust", "map") for path in tree.files_below(each))):
        state.update(path.encode() + b"\0")
        state.update(hashlib.sha256(tree.read(path, _SMALL_BYTES) or b"").digest())
    for log in tree.logs():
        state.update(hashlib.sha256(tree.read(f"logs/{log}/log", _SMALL_BYTES) or b"").digest())
    return state.digest()
