"""A timeline into a database: read once, put in order there, folded once. Memory does not grow with the tree.

What is read waits in a table that is gone with the connection; SQLite sorts it. The fold then goes over all events in
order, and leaves a checkpoint every so many (``checkpoints.py``). Everything is found again by who or what it is about.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from auditor.evidence.records import load_records
from timeagent.canonical import encode
from timeagent.units import INSTANT_MAX

from .checkpoints import SCHEMA as LAYERS
from .checkpoints import event_bytes, event_of, finding_bytes, keep, rank_of, working_at
from .events import BagClosed, CeilingLinked, FrameWritten, LeaseEnded, LeaseTold, SessionOver, SessionTold
from .gathering import AS_IT_WAS
from .reading import read_frames
from .timeline import newest_accepted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from auditor.chains import HeadFact
    from auditor.evidence.signatures import Signatures
    from auditor.evidence.tree import Tree
    from auditor.report.result import Audit
    from auditor.rows import Value
    from auditor.rules.finding import Finding
    from timeagent.units import Instant

    from .checkpoints import Database
    from .events import Event
    from .gathering import LogEvent, Statement

CHECKPOINT_EVENTS: Final = 1_024
"""So many events at most are folded for a state."""
_BATCH: Final = 2_000
_TABLES: Final = (
    "event",
    "name",
    "about",
    "lease",
    "ceiling_record",
    "closing",
    "frame_in",
    "place",
    "signed",
    "session",
    "marked",
)
_OTHERS: Final = ("known", "standing", "finding", "timeline")

_SUMMED: Final = {
    "lease": "ON CONFLICT (domain, id) DO UPDATE SET last = excluded.last, until = max(until, excluded.until),"
    " session = coalesce(session, excluded.session)",
    "session": "ON CONFLICT (name) DO UPDATE SET expiry = max(expiry, excluded.expiry),"
    " over = coalesce(excluded.over, over)",
}
"""Tables with one row for what several events tell."""
_STAGED: Final = """
CREATE TEMP TABLE staged (
    id INTEGER PRIMARY KEY, name BLOB UNIQUE, unless BLOB, instant INTEGER, kind INTEGER, who TEXT, run BLOB,
    sequence INTEGER, place INTEGER, value BLOB);
"""
_SCHEMA: Final = f"""
CREATE TABLE event (position INTEGER PRIMARY KEY, instant INTEGER, kind INTEGER, value BLOB);
CREATE TABLE name (id INTEGER PRIMARY KEY, text TEXT UNIQUE);
CREATE TABLE about (domain INTEGER, position INTEGER, frame INTEGER, PRIMARY KEY (domain, position)) WITHOUT ROWID;
CREATE TABLE lease (
    domain INTEGER, id BLOB, first INTEGER, last INTEGER, until INTEGER, session BLOB,
    PRIMARY KEY (domain, id)) WITHOUT ROWID;
CREATE TABLE ceiling_record (
    map INTEGER, shard INTEGER, number INTEGER, position INTEGER,
    PRIMARY KEY (map, shard, number, position)) WITHOUT ROWID;
CREATE TABLE closing (log INTEGER, position INTEGER, path INTEGER, PRIMARY KEY (log, position)) WITHOUT ROWID;
CREATE TABLE frame_in (
    log INTEGER, bag INTEGER, newest INTEGER, position INTEGER, PRIMARY KEY (log, bag, newest, position)) WITHOUT ROWID;
CREATE TABLE place (path INTEGER, offset INTEGER, position INTEGER, PRIMARY KEY (path, offset, position)) WITHOUT ROWID;
CREATE TABLE signed (node INTEGER, position INTEGER, PRIMARY KEY (node, position)) WITHOUT ROWID;
CREATE TABLE session (name BLOB PRIMARY KEY, expiry INTEGER, over INTEGER) WITHOUT ROWID;
CREATE TABLE marked (mark TEXT, log TEXT, start INTEGER, PRIMARY KEY (mark, log, start)) WITHOUT ROWID;
CREATE TABLE finding (number INTEGER PRIMARY KEY, instant INTEGER, value BLOB);
CREATE TABLE timeline (name TEXT PRIMARY KEY, value BLOB);
{LAYERS}
"""
IN_PACK: Final = -1
"""Stands in ``place`` with the path that a frame's data file had, where its bytes are in a pack."""


class Keeping:
    """Takes what is read into a table (``Gathering``), and makes a timeline of it."""

    def __init__(self, db: Database) -> None:
        """Begin an empty timeline in place of any that is there."""
        self._db = db
        for table in (*_TABLES, *_OTHERS, "temp.staged"):
            db.execute(f"DROP TABLE IF EXISTS {table}")
        db.execute(_STAGED)
        for _ in db.execute(_SCHEMA):
            pass
        self._rows: dict[str, list[tuple[Value, ...]]] = {}
        self._waiting: set[bytes] = set()
        self._names: dict[str, int] = {}

    # What is read.

    def head(self, fact: HeadFact) -> None:
        """Heads are the audit's."""

    def stopped(self, incarnation: bytes) -> None:
        """So is what was stopped."""

    def knows(self, name: Statement) -> bool:
        """Whether a statement about a lease is known already."""
        key = _statement(name)
        return key in self._waiting or _any(self._db, "SELECT 1 FROM staged WHERE name = ?", key)

    def told(self, name: Statement, event: LeaseTold) -> None:
        """Take a statement about a lease."""
        self._stage(event, _statement(name))

    def ended(self, event: LeaseEnded, *, hearsay: bool) -> None:
        """Take the end of a lease, once from either."""
        lease = event.ending.correlation_id + event.domain.encode()
        self._stage(event, (b"h" if hearsay else b"e") + lease, b"e" + lease if hearsay else None)

    def session(self, event: SessionTold | SessionOver) -> None:
        """Take a statement about a session lease."""
        self._stage(event)

    def ceiling(self, data: bytes, event: CeilingLinked) -> None:
        """Take a ceiling record."""
        self._stage(event, b"c" + data)

    def written(self, event: LogEvent) -> None:
        """Take what happened to a log."""
        self._stage(event)

    def prelocked(self, log: str, start_ns: Instant) -> None:
        """Take that a bag has a prelock."""
        self._add("marked", "prelock", log, start_ns)

    def packed(self, log: str, start_ns: Instant) -> None:
        """Take that a bag is in a pack."""
        self._add("marked", "pack", log, start_ns)

    def _stage(self, event: Event, name: bytes | None = None, unless: bytes | None = None) -> None:
        """Of several with one name the first stays: they are inserted in the order in which they come.

        ``unless``: it does not count where there is another of this name.
        """
        if name is not None:
            self._waiting.add(name)
        instant = min(event.instant_ns, INSTANT_MAX)
        self._add("staged", None, name, unless, instant, rank_of(event), *event.place, event_bytes(event))

    # What is made of it.

    def finish(self) -> tuple[int, Instant, Instant]:
        """Put all in order and fold it. Returns how many events there are, and the first and the last instant."""
        self._flush("staged")
        self._db.execute("DELETE FROM staged WHERE unless IN (SELECT name FROM staged)")
        self._db.execute(
            "INSERT INTO event (instant, kind, value) SELECT instant, kind, value FROM staged"
            " ORDER BY instant, kind, who, run, sequence, place, unless IS NOT NULL, id"
        )
        self._db.execute("DROP TABLE temp.staged")
        self._db.execute("CREATE INDEX event_at ON event (instant)")
        self._db.execute("CREATE INDEX event_of ON event (kind, position)")
        self._flush("marked")
        position, first, last = 0, 0, 0
        working = working_at(self._db, 0)
        for position, kind, value in self._db.execute("SELECT position, kind, value FROM event ORDER BY position"):
            event = event_of(kind, value)
            first, last = first or event.instant_ns, event.instant_ns
            self._find_again(position, event)
            working.take(event)
            if position % CHECKPOINT_EVENTS == 0:
                keep(working, position)
        keep(working, position)
        for table in list(self._rows):
            self._flush(table)
        expiry = "SELECT expiry FROM session WHERE name = lease.session"
        self._db.execute(f"UPDATE lease SET until = max(until, ({expiry})) WHERE EXISTS ({expiry})")  # noqa: S608
        return position, first, last

    def _find_again(self, position: int, event: Event) -> None:
        """Say what an event is about."""
        name = self._name
        self._add("place", name(event.where.path), event.where.offset, position)
        if event.clock is not None:
            self._add("signed", name(event.clock.node), position)
        match event:
            case LeaseTold():
                witness = event.witness
                session = None if witness.session_id is None else event.place[1] + witness.session_id
                self._add("about", name(witness.domain), position, 0)
                until = min(witness.expiry_ns, INSTANT_MAX)
                self._add("lease", name(witness.domain), witness.correlation_id, position, position, until, session)
            case LeaseEnded():
                self._add("about", name(event.domain), position, 0)
                until = min(event.instant_ns, INSTANT_MAX)
                self._add("lease", name(event.domain), event.ending.correlation_id, position, position, until, None)
            case CeilingLinked():
                self._add("ceiling_record", *event.shard, event.record.number, position)
            case FrameWritten():
                for domain in {domain for domain, _ in event.leases}:
                    self._add("about", name(domain), position, 1)
                newest = min(newest_accepted(event), INSTANT_MAX)
                self._add("frame_in", name(event.log), event.bag_ns, newest, position)
                if event.file != event.where.path:
                    self._add("place", name(event.file), IN_PACK, position)
            case BagClosed():
                self._add("closing", name(event.log), position, name(event.path))
            case SessionTold():
                expiry = min(event.witness.expiry_ns, INSTANT_MAX)
                self._add("session", event.place[1] + event.witness.session_id, expiry, None)
            case SessionOver():
                self._add("session", event.place[1] + event.ending.session_id, 0, position)
            case _:
                pass

    def _name(self, text: str) -> int:
        """Return the number of a name; those that were met last are at hand."""
        number = self._names.get(text)
        if number is None:
            self._db.execute("INSERT OR IGNORE INTO name (text) VALUES (?)", (text,))
            ((number,),) = self._db.execute("SELECT id FROM name WHERE text = ?", (text,))
            assert isinstance(number, int)
            if len(self._names) >= _BATCH * 5:
                self._names.clear()
            self._names[text] = number
        return number

    def _add(self, table: str, *row: Value) -> None:
        rows = self._rows.setdefault(table, [])
        rows.append(row)
        if len(rows) >= _BATCH:
            self._flush(table)

    def _flush(self, table: str) -> None:
        rows = self._rows.pop(table, [])
        if rows:
            marks = ",".join("?" * len(rows[0]))
            sql = f"INSERT OR IGNORE INTO {table} VALUES ({marks})"  # noqa: S608 - our own names
            if table in _SUMMED:
                sql = f"INSERT INTO {table} VALUES ({marks}) {_SUMMED[table]}"  # noqa: S608 - our own names
            self._db.executemany(sql, rows)
        if table == "staged":
            self._waiting.clear()


def _statement(name: Statement) -> bytes:
    digest, position = name
    return b"t" + digest + position.to_bytes(8)


def keep_timeline(
    db: Database,
    tree: Tree,
    audited: Audit,
    signatures: Signatures,
    *,
    state: bytes | None,
    root_key: bytes | None = None,
    progress: Callable[[int, str], None] | None = None,
) -> bool:
    """Keep the timeline of a tree, and what its audit came to, in the audit's index; return whether it was read.

    ``state``: a digest of all that it depends on; where the database has a timeline of that state, only the findings
    are written again. ``None``: it is not known. Costs a reading of the tree by one process.
    """
    kept = _head(db)
    if state is not None and kept.get("state") == state.hex():
        _keep_findings(db, audited.findings, kept["end"])
        _keep_head(db, {**kept, **_outcome(audited)})
        return False
    keeping = Keeping(db)
    records, _ = load_records(tree, signatures, root_key)
    for _ in read_frames(tree, records, signatures, AS_IT_WAS, keeping, progress or _silent):
        pass
    count, first, last = keeping.finish()
    _keep_findings(db, audited.findings, last)
    policy = records.newest_policy
    head = {
        "state": state.hex() if state is not None else "",
        "events": count,
        "start": first,
        "end": last,
        "checkpoint": CHECKPOINT_EVENTS,
        "policy": encode(policy).hex() if policy is not None else "",
        **_outcome(audited),
    }
    _keep_head(db, head)
    return True


def _head(db: Database) -> dict[str, Any]:
    if not _any(db, "SELECT 1 FROM sqlite_schema WHERE name = ?", "timeline"):
        return {}
    for (value,) in db.execute("SELECT value FROM timeline WHERE name = 'head'"):
        found: dict[str, Any] = json.loads(value)
        return found
    return {}


def _keep_head(db: Database, head: dict[str, Any]) -> None:
    db.execute("INSERT OR REPLACE INTO timeline VALUES ('head', ?)", (json.dumps(head),))


def _outcome(audited: Audit) -> dict[str, Any]:
    return {
        "summary": asdict(audited.summary),
        "cluster": audited.cluster_id.hex(),
        "root_key": audited.root_key.hex() if audited.root_key is not None else None,
        "pinned": audited.pinned,
        "hashed": audited.hashed,
    }


def _keep_findings(db: Database, findings: Iterable[Finding], end: Instant) -> None:
    """Place each finding at the instant at which the last of what it rests on had happened; see ``Timeline``."""
    db.execute("DELETE FROM finding")
    sql = (
        "SELECT max(e.instant) FROM place p JOIN event e ON e.position = p.position"
        " WHERE p.path = (SELECT id FROM name WHERE text = ?) AND p.offset = ?"
    )
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
        db.execute("INSERT INTO finding VALUES (?, ?, ?)", (number, placed, finding_bytes(finding)))


def _any(db: Database, sql: str, value: Value) -> bool:
    return any(True for _ in db.execute(sql, (value,)))


def _silent(_done: int, _what: str) -> None:
    pass
