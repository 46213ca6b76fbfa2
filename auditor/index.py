"""The SQLite index of the evidence: what rules over leases and sequences need, found by domain or writer.

In memory for small trees, in a file for large ones. It holds only what has been verified, or could not be for want of
keys; every row says where in the tree its bytes are. The only module of the auditor that imports apsw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import apsw

from .finding import Evidence, printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

type Value = str | bytes | int | None

_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE head (
    incarnation BLOB, sequence INTEGER, digest BLOB, map INTEGER, shard INTEGER, ceiling INTEGER, in_ledger INTEGER,
    head BLOB, path TEXT, offset INTEGER, length INTEGER, PRIMARY KEY (incarnation, sequence, digest)) WITHOUT ROWID;
CREATE TABLE entry (
    domain TEXT, cid BLOB, incarnation BLOB, sequence INTEGER, position INTEGER, head BLOB, entry BLOB,
    path TEXT, offset INTEGER, length INTEGER, ending INTEGER,
    PRIMARY KEY (domain, incarnation, sequence, position, head)) WITHOUT ROWID;
CREATE TABLE ceiling (
    map INTEGER, shard INTEGER, number INTEGER, record BLOB, path TEXT, offset INTEGER, length INTEGER,
    PRIMARY KEY (map, shard, number, record)) WITHOUT ROWID;
CREATE TABLE use (
    domain TEXT, cid BLOB, path TEXT, offset INTEGER, length INTEGER, messages INTEGER, accepted INTEGER,
    first INTEGER, last INTEGER, proven INTEGER);
CREATE TABLE frame (
    writer TEXT, incarnation BLOB, sequence INTEGER, digest BLOB, path TEXT, offset INTEGER, length INTEGER,
    first INTEGER, last INTEGER);
CREATE TABLE unread (writer TEXT, start INTEGER, end INTEGER, path TEXT, offset INTEGER, length INTEGER);
CREATE TABLE committed (
    writer TEXT, incarnation BLOB, sequence INTEGER, digest BLOB, path TEXT, offset INTEGER, length INTEGER,
    named INTEGER);
CREATE TABLE bag (path TEXT, log TEXT, start INTEGER, end INTEGER, closed INTEGER, blind INTEGER);
"""


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
    """Whether its signatures hold. One that is not proven counts for nothing but as a reason to doubt a count."""


class Index:
    """Evidence by domain, run and writer."""

    def __init__(self, path: Path | None = None) -> None:
        """Make an empty index, in memory or in a new file."""
        self._db = apsw.Connection(":memory:" if path is None else str(path))
        self._closed_to: dict[str, int] = {}
        self._db.execute(_SCHEMA).fetchall()
        self._db.execute("BEGIN")

    def close(self) -> None:
        """Let go of it."""
        self._db.execute("COMMIT")
        self._db.close()

    def ready(self) -> None:
        """Say that all evidence is in: what is asked by name is indexed."""
        self._db.execute("CREATE INDEX use_of ON use (domain, cid)")
        self._db.execute("CREATE INDEX frame_of ON frame (writer, incarnation, sequence)")

    def add(
        self, table: str, *values: Value, where: Evidence, rest: tuple[Value, ...] = (), better: bool = False
    ) -> None:
        """Insert a row: its values, its place, and what follows. What is there stays, unless this is ``better``."""
        row = (*values, printable(where.path), where.offset, where.length, *rest)
        verb = "REPLACE" if better else "IGNORE"
        self._db.execute(f"INSERT OR {verb} INTO {table} VALUES ({','.join('?' * len(row))})", row)  # noqa: S608

    def add_bag(self, path: str, log: str, start_ns: int, end_ns: int, *, closed: bool, blind: bool) -> None:
        """Insert a bag. ``blind``: some of what it was closed with cannot be read."""
        self._db.execute(
            "INSERT INTO bag VALUES (?, ?, ?, ?, ?, ?)",
            (printable(path), printable(log), start_ns, end_ns, closed, blind),
        )

    def closed_to(self, log: str, instant: int) -> None:
        """Say that a log is closed up to an instant, at least."""
        self._closed_to[log] = max(instant, self._closed_to.get(log, 0))

    def witnesses(self) -> int:
        """Return how many different witnesses are known."""
        return self._number("SELECT count(*) FROM entry WHERE NOT ending")

    def domains(self) -> list[str]:
        """Return every domain that an entry names, sorted."""
        return [row[0] for row in self._db.execute("SELECT DISTINCT domain FROM entry ORDER BY 1")]

    def entries(self, domain: str) -> Iterator[tuple[bytes, int, bytes, Evidence]]:
        """Yield (head, position in the batch, entry, where) of a domain."""
        sql = (
            "SELECT h.head, e.position, e.entry, e.path, e.offset, e.length FROM entry e JOIN head h"
            " ON h.incarnation = e.incarnation AND h.sequence = e.sequence AND h.digest = e.head WHERE e.domain = ?"
        )
        for head, position, entry, path, offset, length in self._db.execute(sql, (domain,)):
            yield head, position, entry, Evidence(path, offset, length)

    def uses(self, domain: str) -> Iterator[tuple[bytes, Use]]:
        """Yield (correlation id, use) of a domain, in order of place."""
        sql = (
            "SELECT cid, path, offset, length, messages, accepted, first, last, proven FROM use"
            " WHERE domain = ? ORDER BY path, offset"
        )
        for cid, path, offset, length, *numbers in self._db.execute(sql, (domain,)):
            messages, accepted, first, last, proven = numbers
            yield cid, Use(Evidence(path, offset, length), messages, accepted, first, last, bool(proven))

    def heads(self) -> Iterator[tuple[bytes, int, bytes, bool, bytes, Evidence]]:
        """Yield (incarnation, sequence, digest, in ledger, head, where), run by run, in order of sequence."""
        sql = (
            "SELECT incarnation, sequence, digest, in_ledger, head, path, offset, length FROM head"
            " ORDER BY map, shard, incarnation, sequence, digest"
        )
        for incarnation, sequence, digest, in_ledger, head, path, offset, length in self._db.execute(sql):
            yield incarnation, sequence, digest, bool(in_ledger), head, Evidence(path, offset, length)

    def ceilings(self) -> Iterator[tuple[bytes, Evidence]]:
        """Yield (file bytes, where) of every ceiling record, chain by chain, in order of number."""
        sql = "SELECT record, path, offset, length FROM ceiling ORDER BY map, shard, number, path, offset"
        for record, path, offset, length in self._db.execute(sql):
            yield record, Evidence(path, offset, length)

    def ceilings_signed_under(self) -> set[tuple[bytes, int]]:
        """Return (incarnation, number of the ceiling record) of every batch that is known."""
        return set(self._db.execute("SELECT DISTINCT incarnation, ceiling FROM head"))

    def reused_sequences(self) -> Iterator[tuple[str, bytes, int, list[Evidence]]]:
        """Yield (writer, incarnation, sequence, places) of numbers that stand for several frames."""
        sql = (
            "SELECT writer, incarnation, sequence FROM frame GROUP BY 1, 2, 3 HAVING count(DISTINCT digest) > 1"
            " ORDER BY 1, 2, 3"
        )
        places = (
            "SELECT path, offset, length FROM frame WHERE writer = ? AND incarnation = ? AND sequence = ? ORDER BY 1, 2"
        )
        for writer, incarnation, sequence in self._db.execute(sql).fetchall():
            named = self._db.execute(places, (writer, incarnation, sequence))
            assert isinstance(writer, str)
            assert isinstance(incarnation, bytes)
            assert isinstance(sequence, int)
            yield writer, incarnation, sequence, [Evidence(*row) for row in named]

    def lost_frames(self) -> Iterator[tuple[str, bytes, int, int, list[Evidence]]]:
        """Yield (writer, incarnation, sequence, named when, who names it) of committed frames that are nowhere.

        Not of one that may be in a file that cannot be read: its writer's, of a time between the frames beside it.
        """
        sql = (
            "SELECT c.writer, c.incarnation, c.sequence, c.named, min(c.path), c.offset, c.length FROM committed c"
            " LEFT JOIN frame f ON f.writer = c.writer AND f.incarnation = c.incarnation AND f.sequence = c.sequence"
            " AND f.digest = c.digest"
            " WHERE f.writer IS NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
        )
        for writer, incarnation, sequence, named, path, offset, length in list(self._db.execute(sql)):
            if not self._may_be_unread(writer, incarnation, sequence, named):
                yield writer, incarnation, sequence, named, [Evidence(path, offset, length)]

    def _may_be_unread(self, writer: str, incarnation: bytes, sequence: int, named: int) -> bool:
        """Whether a file that cannot be read may hold a frame: a writer's timestamps increase with its sequence."""
        beside = "FROM frame WHERE writer = ? AND incarnation = ? AND sequence"
        who = (writer, incarnation, sequence)
        above = self._number(f"SELECT coalesce(max(last), 0) {beside} < ?", *who)
        below = self._number(f"SELECT coalesce(min(first), ?) {beside} > ?", named, *who)
        unread = "SELECT count(*) FROM unread WHERE writer = ? AND start <= ? AND end > ?"
        return bool(self._number(unread, writer, below, above))

    def bags_within(self, first_ns: int, last_ns: int) -> tuple[bool, bool]:
        """Return (some bag that holds one of these instants is open, some was closed with what cannot be read)."""
        count = "SELECT count(*) FROM bag WHERE start <= ? AND end > ? AND"
        still_open = self._number(f"{count} NOT closed", last_ns, first_ns)
        return bool(still_open), bool(self._number(f"{count} blind", last_ns, first_ns))

    def closed_until(self) -> int:
        """Return how far every log is closed; 0 where there is no log, or one of which that is not known."""
        return min(self._closed_to.values(), default=0)

    def _number(self, sql: str, *values: Value) -> int:
        for (number,) in self._db.execute(sql, values):
            assert isinstance(number, int)
            return number
        raise AssertionError(sql)
