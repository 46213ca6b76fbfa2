"""A timeline into a database: put in order there, folded once. Memory does not grow with the tree.

What is read waits in a table that is gone with the connection; SQLite sorts it. The fold then goes over all events in
order, and leaves a checkpoint every so many (``checkpoints.py``). Everything is found again by who or what it is about.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from auditor.index import temporary_database
from auditor.records import load_records
from auditor.verification import Signatures
from timeagent.canonical import encode
from timeagent.units import INSTANT_MAX

from .checkpoints import SCHEMA as CHECKPOINTS
from .checkpoints import event_bytes, event_of, finding_bytes, keep, working_at
from .events import RANKS, BagClosed, CeilingLinked, FrameWritten, LeaseEnded, LeaseTold, SessionOver, SessionTold
from .gathering import AS_IT_WAS
from .reading import read_frames
from .timeline_reader import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from auditor.chains import HeadFact
    from auditor.finding import Finding
    from auditor.load import Tree
    from auditor.result import Audit
    from auditor.rows import Value
    from timeagent.units import Instant

    from .checkpoints import Database
    from .events import Event
    from .gathering import Gathered, LogEvent, Statement

CHECKPOINT_EVENTS: Final = 1_024
"""So many events at most are folded for a state."""
_BATCH: Final = 2_000
_TABLES: Final = (
    *("event", "name", "about", "lease", "ceiling_record", "closing", "packed_file", "session", "marked"),
    *("known", "standing", "finding", "timeline", "temp.staged"),
)
_STAGED: Final = """
CREATE TEMP TABLE staged (
    id INTEGER PRIMARY KEY, name BLOB UNIQUE, unless BLOB, instant INTEGER, kind INTEGER, who TEXT, run BLOB,
    sequence INTEGER, place INTEGER, node TEXT, path TEXT, offset INTEGER, domain TEXT, lease BLOB, until INTEGER,
    session BLOB, log TEXT, bag INTEGER, newest INTEGER, value BLOB);
"""
_SCHEMA: Final = f"""
CREATE TABLE event (
    position INTEGER PRIMARY KEY, instant INTEGER, kind INTEGER, node INTEGER, path INTEGER, offset INTEGER,
    domain INTEGER, lease BLOB, until INTEGER, session BLOB, log INTEGER, bag INTEGER, newest INTEGER, value BLOB);
CREATE TABLE name (id INTEGER PRIMARY KEY, text TEXT UNIQUE);
CREATE TABLE about (domain INTEGER, position INTEGER, frame INTEGER, PRIMARY KEY (domain, position)) WITHOUT ROWID;
CREATE TABLE lease (
    domain INTEGER, id BLOB, first INTEGER, last INTEGER, until INTEGER, PRIMARY KEY (domain, id)) WITHOUT ROWID;
CREATE TABLE ceiling_record (
    map INTEGER, shard INTEGER, number INTEGER, position INTEGER,
    PRIMARY KEY (map, shard, number, position)) WITHOUT ROWID;
CREATE TABLE closing (log TEXT, position INTEGER, path TEXT, PRIMARY KEY (log, position)) WITHOUT ROWID;
CREATE INDEX closing_of ON closing (path);
CREATE TABLE packed_file (path TEXT, position INTEGER, PRIMARY KEY (path, position)) WITHOUT ROWID;
CREATE TABLE session (name BLOB PRIMARY KEY, expiry INTEGER, over INTEGER) WITHOUT ROWID;
CREATE TABLE marked (mark TEXT, log TEXT, start INTEGER, PRIMARY KEY (mark, log, start)) WITHOUT ROWID;
CREATE TABLE finding (number INTEGER PRIMARY KEY, instant INTEGER, value BLOB);
CREATE TABLE timeline (name TEXT PRIMARY KEY, value BLOB);
{CHECKPOINTS}
"""
_FRAME: Final = RANKS[FrameWritten]
_LEASES: Final = f"({RANKS[LeaseTold]}, {RANKS[LeaseEnded]})"
_INSERTIONS: Final = {
    "frame_under": "INSERT OR IGNORE INTO about VALUES ((SELECT id FROM name WHERE text = ?), ?, 1)",
    "session": "INSERT INTO session VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
    " expiry = max(expiry, excluded.expiry), over = coalesce(excluded.over, over)",
}
"""How rows are inserted, where one stands for what several events tell, or for something else."""


class TimelineWriter:
    """Takes what is read into a table (``Gathering``), and makes a timeline of it."""

    def __init__(self, db: Database) -> None:
        """Begin an empty timeline in place of any that is there."""
        self._db = db
        for table in _TABLES:
            db.execute(f"DROP TABLE IF EXISTS {table}")
        _run(db, _STAGED + _SCHEMA)
        self._rows: dict[str, list[tuple[Value, ...]]] = {}
        self._waiting: set[bytes] = set()

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
        self.stage(event, _statement(name))

    def ended(self, event: LeaseEnded, *, hearsay: bool) -> None:
        """Take the end of a lease, once from either."""
        lease = event.ending.correlation_id + event.domain.encode()
        self.stage(event, (b"h" if hearsay else b"e") + lease, b"e" + lease if hearsay else None)

    def session(self, event: SessionTold | SessionOver) -> None:
        """Take a statement about a session lease."""
        self.stage(event)

    def ceiling(self, data: bytes, event: CeilingLinked) -> None:
        """Take a ceiling record."""
        self.stage(event, b"c" + data)

    def written(self, event: LogEvent) -> None:
        """Take what happened to a log."""
        self.stage(event)

    def prelocked(self, log: str, start_ns: Instant) -> None:
        """Take that a bag has a prelock."""
        self._add("marked", "prelock", log, start_ns)

    def packed(self, log: str, start_ns: Instant) -> None:
        """Take that a bag is in a pack."""
        self._add("marked", "pack", log, start_ns)

    def stage(self, event: Event, name: bytes | None = None, unless: bytes | None = None) -> None:
        """Take an event. Of several with one name the first stays: they are inserted in the order in which they come.

        ``unless``: it does not count where there is another of this name.
        """
        if name is not None:
            self._waiting.add(name)
        event, value = event_bytes(event)
        domain = lease = until = session = log = bag = newest = None
        match event:
            case LeaseTold():
                witness = event.witness
                domain, lease, until = witness.domain, witness.correlation_id, min(witness.expiry_ns, INSTANT_MAX)
                session = None if witness.session_id is None else event.place[1] + witness.session_id
            case LeaseEnded():
                domain, lease, until = event.domain, event.ending.correlation_id, min(event.instant_ns, INSTANT_MAX)
            case FrameWritten():
                log, bag, newest = event.log, event.bag_ns, min(event.newest_accepted_ns, INSTANT_MAX)
            case _:
                pass
        self._add(
            "staged",
            *(None, name, unless, min(event.instant_ns, INSTANT_MAX), RANKS[type(event)], *event.place),
            *(event.clock.node if event.clock else None, event.where.path, event.where.offset),
            *(domain, lease, until, session, log, bag, newest, value),
        )

    # What is made of it.

    def finish(self) -> tuple[int, Instant, Instant]:
        """Put all in order and fold it. Returns how many events there are, and the first and the last instant."""
        self._flush("staged")
        self._flush("marked")
        self._sort()
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
        self._index()
        return position, first, last

    def _sort(self) -> None:
        """Number what was read in order of time, and let go of what does not count."""
        script = """
            DELETE FROM staged WHERE unless IN (SELECT name FROM staged);
            INSERT OR IGNORE INTO name (text) SELECT DISTINCT node FROM staged;
            INSERT OR IGNORE INTO name (text) SELECT DISTINCT path FROM staged;
            INSERT OR IGNORE INTO name (text) SELECT DISTINCT domain FROM staged;
            INSERT OR IGNORE INTO name (text) SELECT DISTINCT log FROM staged;
            INSERT INTO event (
                instant, kind, node, path, offset, domain, lease, until, session, log, bag, newest, value)
            SELECT instant, kind, (SELECT id FROM name WHERE text = node), (SELECT id FROM name WHERE text = path),
                offset, (SELECT id FROM name WHERE text = domain), lease, until, session,
                (SELECT id FROM name WHERE text = log), bag, newest, value
            FROM staged ORDER BY instant, kind, who, run, sequence, place, unless IS NOT NULL, id;
            DROP TABLE temp.staged;
        """
        _run(self._db, script)

    def _index(self) -> None:
        """Say what events are about, as far as that is in their rows."""
        script = f"""
            CREATE INDEX event_at ON event (instant);
            CREATE INDEX event_of ON event (kind, position);
            CREATE INDEX event_by ON event (node, position);
            CREATE INDEX event_in ON event (path, offset);
            CREATE INDEX frame_in ON event (log, bag, newest) WHERE kind = {_FRAME};
            INSERT INTO about SELECT domain, position, 0 FROM event WHERE kind IN {_LEASES} ORDER BY domain, position;
            INSERT INTO lease SELECT domain, lease, min(position), max(position),
                max(max(until), coalesce(max((SELECT expiry FROM session WHERE session.name = event.session)), 0))
                FROM event WHERE kind IN {_LEASES} GROUP BY domain, lease;
        """  # noqa: S608 - constants
        _run(self._db, script)

    def _find_again(self, position: int, event: Event) -> None:
        """Say what an event is about, where that is not in its row."""
        match event:
            case FrameWritten():
                for domain in {domain for domain, _ in event.leases}:
                    self._add("frame_under", domain, position)
                if event.file != event.where.path:
                    self._add("packed_file", event.file, position)
            case CeilingLinked():
                self._add("ceiling_record", *event.shard, event.record.number, position)
            case BagClosed():
                self._add("closing", event.log, position, event.path)
            case SessionTold():
                expiry = min(event.witness.expiry_ns, INSTANT_MAX)
                self._add("session", event.place[1] + event.witness.session_id, expiry, None)
            case SessionOver():
                self._add("session", event.place[1] + event.ending.session_id, 0, position)
            case _:
                pass

    def _add(self, table: str, *row: Value) -> None:
        rows = self._rows.setdefault(table, [])
        rows.append(row)
        if len(rows) >= _BATCH:
            self._flush(table)

    def _flush(self, table: str) -> None:
        rows = self._rows.pop(table, [])
        if rows:
            marks = ",".join("?" * len(rows[0]))
            self._db.executemany(_INSERTIONS.get(table, f"INSERT OR IGNORE INTO {table} VALUES ({marks})"), rows)  # noqa: S608 - our own names
        if table == "staged":
            self._waiting.clear()


def _statement(name: Statement) -> bytes:
    digest, position = name
    return b"t" + digest + position.to_bytes(8)


def timeline_of(gathered: Gathered, findings: Iterable[Finding] = ()) -> Timeline:
    """Return the timeline of what is in memory, in a database that is gone with it."""
    db = temporary_database()
    writer = TimelineWriter(db)
    for event in gathered.events():
        writer.stage(event)
    for log, start in gathered.prelocks:
        writer.prelocked(log, start)
    for log, start in gathered.packs:
        writer.packed(log, start)
    return _finished(writer, db, findings)


def read_timeline(
    tree: Tree,
    *,
    root_key: bytes | None = None,
    signatures: Signatures | None = None,
    findings: Iterable[Finding] = (),
    progress: Callable[[int, str], None] | None = None,
) -> Timeline:
    """Read a whole tree into a database that is gone with the timeline. Never raises for what is in the tree.

    ``findings``: of the tree's audit, to be placed in time. ``signatures``: shared with that audit, each is checked
    once.
    """
    signatures = signatures or Signatures()
    records, _ = load_records(tree, signatures, root_key)
    db = temporary_database()
    writer = TimelineWriter(db)
    for _ in read_frames(tree, records, signatures, AS_IT_WAS, writer, progress or _silent):
        pass
    return _finished(writer, db, findings)


def _finished(writer: TimelineWriter, db: Database, findings: Iterable[Finding]) -> Timeline:
    span = _span(*writer.finish())
    _keep_findings(db, findings, span["end"])
    return Timeline(db, span)


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
    writer = TimelineWriter(db)
    records, _ = load_records(tree, signatures, root_key)
    for _ in read_frames(tree, records, signatures, AS_IT_WAS, writer, progress or _silent):
        pass
    span = _span(*writer.finish())
    _keep_findings(db, audited.findings, span["end"])
    policy = records.newest_policy
    head = {
        "state": state.hex() if state is not None else "",
        **span,
        "policy": encode(policy).hex() if policy is not None else "",
        **_outcome(audited),
    }
    _keep_head(db, head)
    return True


def _span(events: int, start: Instant, end: Instant) -> dict[str, int]:
    return {"events": events, "start": start, "end": end, "checkpoint": CHECKPOINT_EVENTS}


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
    """Place each finding at the instant at which the last of what it rests on had happened.

    That is the end of the copy where nothing says when.
    """
    db.execute("DELETE FROM finding")
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
        db.execute("INSERT INTO finding VALUES (?, ?, ?)", (number, placed, finding_bytes(finding)))


def _any(db: Database, sql: str, value: Value) -> bool:
    return any(True for _ in db.execute(sql, (value,)))


def _run(db: Database, script: str) -> None:
    """Run several statements."""
    for _ in db.execute(script):
        pass


def _silent(_done: int, _what: str) -> None:
    pass
