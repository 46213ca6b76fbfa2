"""A timeline into a database: events in order of time, folded once. Memory does not grow with the tree.

The fold goes over all events that were staged (``staging.py``), and leaves a checkpoint every so many
(``checkpoints.py``). Everything is found again by who or what it is about.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from auditor.index import temporary_database
from timeagent.canonical import encode
from timeagent.units import INSTANT_MAX

from .checkpoints import SCHEMA as CHECKPOINTS
from .checkpoints import finding_bytes, keep, working_at
from .events import RANKS, BagClosed, CeilingLinked, FrameWritten, LeaseEnded, LeaseTold, SessionOver, SessionTold
from .staging import StagedEvents
from .timeline_reader import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from auditor.evidence.records import ClusterRecords
    from auditor.parts import Value
    from auditor.report.result import Audit
    from auditor.rules.finding import Finding
    from timeagent.units import Instant

    from .checkpoints import Database
    from .events import Event
    from .gathering import Gathered

CHECKPOINT_EVENTS: Final = 1_024
"""So many events at most are folded for a state."""
_BATCH: Final = 2_000
_NAMES_AT_HAND: Final = 10_000
_TABLES: Final = (
    *("event", "name", "about", "lease", "ceiling_record", "closing", "packed_file", "session", "marked"),
    *("known", "standing", "finding", "timeline"),
)
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
    "session": "INSERT INTO session VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
    " expiry = max(expiry, excluded.expiry), over = coalesce(excluded.over, over)",
}
"""How rows are inserted, where one stands for what several events tell, or for something else."""


class TimelineWriter:
    """Makes a timeline of what was staged."""

    def __init__(self, db: Database) -> None:
        """Begin an empty timeline in place of any that is there."""
        self._db = db
        for table in _TABLES:
            db.execute(f"DROP TABLE IF EXISTS {table}")
        _run(db, _SCHEMA)
        self._rows: dict[str, list[tuple[Value, ...]]] = {}
        self._names: dict[str, int] = {}

    def write(self, staged: StagedEvents) -> dict[str, int]:
        """Number what was staged in order of time, and fold it. Returns what a timeline is opened with."""
        position, first, last = 0, 0, 0
        working = working_at(self._db, 0)
        for mark in staged.spread():
            self._add("marked", *mark)
        self._flush("marked")  # no event says which bags have a prelock, or a pack, and the fold asks
        for position, (event, value) in enumerate(staged.in_order(), 1):
            first, last = first or event.instant_ns, event.instant_ns
            self._put(position, event, value)
            working.take(event)
            if position % CHECKPOINT_EVENTS == 0:
                keep(working, position)
        keep(working, position)
        for table in list(self._rows):
            self._flush(table)
        self._index()
        return {"events": position, "start": first, "end": last, "checkpoint": CHECKPOINT_EVENTS}

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

    def _put(self, position: int, event: Event, value: bytes) -> None:
        """Write an event, and what it is about."""
        domain = lease = until = session = log = bag = newest = None
        match event:
            case LeaseTold():
                witness = event.witness
                domain, lease = self._name(witness.domain), witness.correlation_id
                until = min(witness.expiry_ns, INSTANT_MAX)
                session = None if witness.session_id is None else event.place[1] + witness.session_id
            case LeaseEnded():
                domain, lease = self._name(event.domain), event.ending.correlation_id
                until = min(event.instant_ns, INSTANT_MAX)
            case FrameWritten():
                log, bag, newest = self._name(event.log), event.bag_ns, min(event.newest_accepted_ns, INSTANT_MAX)
                for name in {name for name, _ in event.leases}:
                    self._add("about", self._name(name), position, 1)
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
        node = None if event.clock is None else self._name(event.clock.node)
        place = (node, self._name(event.where.path), event.where.offset)
        instant, kind = min(event.instant_ns, INSTANT_MAX), RANKS[type(event)]
        self._add("event", position, instant, kind, *place, domain, lease, until, session, log, bag, newest, value)

    def _name(self, text: str) -> int:
        """Return the number of a name; those that were met last are at hand."""
        number = self._names.get(text)
        if number is None:
            self._db.execute("INSERT OR IGNORE INTO name (text) VALUES (?)", (text,))
            ((number,),) = self._db.execute("SELECT id FROM name WHERE text = ?", (text,))
            assert isinstance(number, int)
            if len(self._names) >= _NAMES_AT_HAND:
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
            self._db.executemany(_INSERTIONS.get(table, f"INSERT OR IGNORE INTO {table} VALUES ({marks})"), rows)  # noqa: S608 - our own names


def timeline_of(gathered: Gathered, findings: Iterable[Finding] = ()) -> Timeline:
    """Return the timeline of what is in memory, in a database that is gone with it."""
    staged = StagedEvents(temporary_database())
    staged.take_all(gathered)
    return written_timeline(staged, findings)


def written_timeline(staged: StagedEvents, findings: Iterable[Finding]) -> Timeline:
    """Return the timeline of what is staged, in the same database. ``findings``: of the audit, to be placed in time."""
    span = TimelineWriter(staged.db).write(staged)
    _keep_findings(staged.db, findings, span["end"])
    return Timeline(staged.db, span)


def keep_timeline(staged: StagedEvents, audited: Audit, records: ClusterRecords, *, state: bytes | None) -> None:
    """Keep the timeline of a tree, and what its audit came to, in the audit's index.

    ``state``: a digest of all that it depends on; where the database has a timeline of that state, only the findings
    are written again. ``None``: it is not known.
    """
    db, head = staged.db, _head(staged.db)
    if state is None or head.get("state") != state.hex():
        policy = records.newest_policy
        head = {
            "state": state.hex() if state is not None else "",
            **TimelineWriter(db).write(staged),
            "policy": encode(policy).hex() if policy is not None else "",
        }
    _keep_findings(db, audited.findings, head["end"])
    _keep_head(db, {**head, **_outcome(audited)})


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
