"""Checkpoints of a timeline in a database: events, states and findings as bytes, values read when they are asked for.

msgpack by the types of events.py and state.py. What is decoded was written by others: it is checked. Names of files
that are no UTF-8 are kept as they are shown.

A checkpoint is no copy. Each value is kept with the position from which on it counts, at most once for each stretch
between two checkpoints; the value at a checkpoint is the newest that is not younger. So a state costs what is asked of
it, and the database grows with what happens, not with what stands.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, overload

import msgspec

from auditor.rules.finding import Evidence, Finding, NamedInterval, Severity, Verdict
from timeagent.console import printable

from .events import KINDS, FrameWritten
from .fold import Working
from .state import BagState, ClockState, DomainState, LogState, SessionState, ShardState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from auditor.parts import Value
    from auditor.rules.history import ShardName
    from timeagent.units import Instant

    from .events import Event

_encoder: Final = msgspec.msgpack.Encoder()
_events: Final = tuple(msgspec.msgpack.Decoder(kind) for kind in KINDS)


def event_bytes(event: Event) -> bytes:
    """Return an event as it is kept."""
    try:
        return _encoder.encode(event)
    except UnicodeEncodeError:
        return _encoder.encode(_shown(event))


def event_of(rank: int, data: bytes) -> Event:
    """Return an event. Raises msgspec.DecodeError for what is none, IndexError for a rank that no kind has."""
    return cast("Event", _events[rank].decode(data))


def _shown(event: Event) -> Event:
    where = Evidence(printable(event.where.path), event.where.offset, event.where.length)
    if isinstance(event, FrameWritten):
        return msgspec.structs.replace(event, where=where, file=printable(event.file))
    return msgspec.structs.replace(event, where=where)


class Coding[K, V]:
    """How one kind of a state's values is kept: its keys, in their order, and its values."""

    def __init__(self, kind: int, value: type[V]) -> None:
        """Name a kind by a number."""
        self.kind = kind
        self._values = msgspec.msgpack.Decoder(value)

    def key(self, name: K) -> bytes:
        """Return a key as bytes that sort as keys do."""
        raise NotImplementedError

    def name(self, key: bytes) -> K:
        """Return the key."""
        raise NotImplementedError

    def encode(self, value: V) -> bytes:
        """Return a value as bytes."""
        return _encoder.encode(value)

    def decode(self, data: bytes) -> V:
        """Return the value. Raises msgspec.DecodeError."""
        return self._values.decode(data)


class _Named[V](Coding[str, V]):
    def key(self, name: str) -> bytes:
        return name.encode()

    def name(self, key: bytes) -> str:
        return key.decode()


class _Identified[V](Coding[bytes, V]):
    def key(self, name: bytes) -> bytes:
        return name

    def name(self, key: bytes) -> bytes:
        return key


class _Shards(Coding["ShardName", ShardState]):
    def key(self, name: ShardName) -> bytes:
        return name[0].to_bytes(8) + name[1].to_bytes(8)

    def name(self, key: bytes) -> ShardName:
        return int.from_bytes(key[:8]), int.from_bytes(key[8:])


class _Bags(Coding[tuple[str, "Instant"], BagState]):
    def key(self, name: tuple[str, Instant]) -> bytes:
        return log_prefix(name[0]) + name[1].to_bytes(8)

    def name(self, key: bytes) -> tuple[str, Instant]:
        return key[:-9].decode(), int.from_bytes(key[-8:])


def log_prefix(log: str) -> bytes:
    """Return what the keys of a log's bags begin with."""
    return log.encode() + b"\0"


DOMAINS: Final = _Named(0, DomainState)
SESSIONS: Final = _Identified(1, SessionState)
SHARDS: Final = _Shards(2, ShardState)
LOGS: Final = _Named(3, LogState)
BAGS: Final = _Bags(4, BagState)
CLOCKS: Final = _Named(5, ClockState)


def finding_bytes(finding: Finding) -> bytes:
    """Return a finding as JSON: what it names may be no UTF-8, and its id is a digest of just that."""
    fields = {
        "code": finding.code,
        "verdict": finding.verdict.value,
        "severity": finding.severity.value,
        "title": finding.title,
        "subject": finding.subject,
        "explanation": finding.explanation,
        "evidence": [[each.path, each.offset, each.length] for each in finding.evidence],
        "times": [astuple(each) for each in finding.times],
        "clocks": finding.clocks,
    }
    return json.dumps(fields, ensure_ascii=True).encode("ascii")


def finding_of(data: bytes) -> Finding:
    """Return the finding. Raises ValueError, KeyError or TypeError for what is none."""
    fields: dict[str, Any] = json.loads(data)
    return Finding(
        fields["code"],
        Verdict(fields["verdict"]),
        Severity(fields["severity"]),
        fields["title"],
        fields["subject"],
        fields["explanation"],
        tuple(Evidence(*each) for each in fields["evidence"]),
        tuple(NamedInterval(*each) for each in fields["times"]),
        tuple(fields["clocks"]),
    )


SCHEMA: Final = """
CREATE TABLE known (id INTEGER PRIMARY KEY, kind INTEGER, key BLOB, position INTEGER, value BLOB);
CREATE UNIQUE INDEX known_of ON known (kind, key, position);
CREATE TABLE standing (until INTEGER, domain BLOB, since INTEGER, PRIMARY KEY (until, domain)) WITHOUT ROWID;
"""
WRITTEN_AT_HAND: Final = 10_000
"""So many values of a kind are not read again while checkpoints are made."""
STILL: Final = 2**62
"""Later than every position."""


class Database(Protocol):
    """A connection to SQLite: values that it gives are checked where they are decoded."""

    def execute(self, sql: str, bindings: Sequence[Value] = ..., /) -> Iterator[tuple[Any, ...]]:
        """Run one statement; return its rows."""
        ...

    def executemany(self, sql: str, bindings: Iterable[Sequence[Value]], /) -> Iterator[tuple[Any, ...]]:
        """Run it again and again."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Layer[K, V](MutableMapping[K, V]):
    """Values of one kind as of a checkpoint, and those that changed since. A copy goes on by itself."""

    def __init__(self, db: Database, coding: Coding[K, V], position: int) -> None:
        """Take a checkpoint by its position."""
        self._db = db
        self._coding = coding
        self._position = position
        self.changed: dict[K, V] = {}
        self._written: dict[K, V] = {}
        """What was written last, at the checkpoint or before: as the database has it."""

    def __copy__(self) -> Layer[K, V]:
        """Return the same values; what is changed in one is not in the other."""
        twin = type(self)(self._db, self._coding, self._position)
        twin.changed = self.changed.copy()
        return twin

    def __getitem__(self, name: K) -> V:
        """Return a value. Raises KeyError."""
        if name in self.changed:
            return self.changed[name]
        if name in self._written:
            return self._written[name]
        sql = "SELECT value FROM known WHERE kind = ? AND key = ? AND position <= ? ORDER BY position DESC LIMIT 1"
        for (value,) in self._db.execute(sql, (self._coding.kind, self._coding.key(name), self._position)):
            return self._coding.decode(value)
        raise KeyError(name)

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get[T](self, key: K, /, default: T) -> V | T: ...
    def get[T](self, key: K, default: T | None = None) -> V | T | None:
        """Return a value, or what stands for none."""
        found = self.changed.get(key) or self._written.get(key)
        if found is not None:
            return found
        try:
            return self[key]
        except KeyError:
            return default

    def __setitem__(self, name: K, value: V) -> None:
        """Change a value here only."""
        self.changed[name] = value

    def __delitem__(self, name: K) -> None:
        """Nothing that was known is ever not known again."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[K]:
        """Yield every key: those of the checkpoint, then the new ones."""
        yield from (found := self._keys())
        known = set(found)
        yield from (name for name in self.changed if name not in known)

    def __len__(self) -> int:
        """Count the keys; costs as much as going over them."""
        return sum(1 for _ in self)

    def _keys(self) -> list[K]:
        sql = "SELECT DISTINCT key FROM known WHERE kind = ? AND position <= ?"
        return [self._coding.name(key) for (key,) in self._db.execute(sql, (self._coding.kind, self._position))]

    def keep(self, position: int) -> None:
        """Write what changed as of a checkpoint, and go on from there."""
        kind, coding = self._coding.kind, self._coding
        self._db.executemany(
            "INSERT INTO known (kind, key, position, value) VALUES (?, ?, ?, ?)",
            ((kind, coding.key(name), position, coding.encode(value)) for name, value in self.changed.items()),
        )
        self._position = position
        if len(self._written) > WRITTEN_AT_HAND:
            self._written = {}
        self._written |= self.changed
        self.changed = {}


class DomainLayer(Layer[str, DomainState]):
    """Domains: of those with leases there is a list of its own."""

    def standing(self) -> list[str]:
        """Return the domains with a lease that is not ended, sorted."""
        sql = "SELECT domain FROM standing WHERE until > ? AND since <= ?"
        rows = self._db.execute(sql, (self._position, self._position))
        found = {DOMAINS.name(key) for (key,) in rows}
        for name, domain in self.changed.items():
            if domain.leases:
                found.add(name)
            else:
                found.discard(name)
        return sorted(found)

    def keep(self, position: int) -> None:
        """Write also which domains have leases from here on, and which have none any more."""
        held = [(DOMAINS.key(name), bool(domain.leases)) for name, domain in self.changed.items()]
        self._db.executemany(
            "INSERT OR IGNORE INTO standing VALUES (?, ?, ?)", [(STILL, key, position) for key, has in held if has]
        )
        self._db.executemany(
            "UPDATE standing SET until = ? WHERE until = ? AND domain = ?",
            [(position, STILL, key) for key, has in held if not has],
        )
        super().keep(position)


class BagLayer(Layer[tuple[str, "Instant"], BagState]):
    """Bags: those of one log lie together, in order."""

    def bags_of(self, log: str, newest: int | None) -> list[BagState]:
        """Return the bags of a log in order of time, the newest at most."""
        prefix = log_prefix(log)
        # Of the rows of a group SQLite gives the one that has the maximum.
        sql = (
            "SELECT key, value, max(position) FROM known WHERE kind = ? AND key > ? AND key < ? AND position <= ?"
            " GROUP BY key ORDER BY key DESC"
        )
        values: list[Value] = [BAGS.kind, prefix, prefix[:-1] + b"\1", self._position]
        if newest is not None:
            sql, values = f"{sql} LIMIT ?", [*values, newest]
        known = {BAGS.name(key): value for key, value, _ in self._db.execute(sql, values)}
        ordered = sorted(known.keys() | {name for name in self.changed if name[0] == log})
        chosen = ordered if newest is None else ordered[max(0, len(ordered) - newest) :]
        return [self.changed[name] if name in self.changed else BAGS.decode(known[name]) for name in chosen]


class Marked:
    """Bags with a mark: a collection that is asked in the database."""

    def __init__(self, db: Database, mark: str) -> None:
        """Take which mark."""
        self._db = db
        self._mark = mark

    def __contains__(self, name: object) -> bool:
        """Whether a bag has it."""
        assert isinstance(name, tuple)
        rows = self._db.execute("SELECT 1 FROM marked WHERE mark = ? AND log = ? AND start = ?", (self._mark, *name))
        return any(True for _ in rows)

    def __iter__(self) -> Iterator[tuple[str, Instant]]:
        """Yield every bag that has it."""
        yield from self._db.execute("SELECT log, start FROM marked WHERE mark = ?", (self._mark,))

    def __len__(self) -> int:
        """Count them."""
        return sum(1 for _ in self)


def working_at(db: Database, position: int) -> Working:
    """Return the state at a checkpoint, to be folded on from. Changes nothing that is kept."""
    prelocked: Collection[tuple[str, Instant]] = Marked(db, "prelock")
    return Working(
        DomainLayer(db, DOMAINS, position),
        Layer(db, SESSIONS, position),
        Layer(db, SHARDS, position),
        Layer(db, LOGS, position),
        BagLayer(db, BAGS, position),
        Layer(db, CLOCKS, position),
        prelocked=prelocked,
        packed=Marked(db, "pack"),
    )


def keep(working: Working, position: int) -> None:
    """Make a checkpoint of a state of ``working_at``: write what changed since the one before."""
    for layer in (working.domains, working.sessions, working.shards, working.logs, working.bags, working.clocks):
        assert isinstance(layer, Layer)
        layer.keep(position)
