"""Checkpoints of a timeline in a database: states and findings as bytes, values read when they are asked for.

msgpack by the types of state.py. What is decoded was written by others: it is checked.

A checkpoint is no copy. Each value is kept with the position from which on it counts, at most once for each stretch
between two checkpoints; the value at a checkpoint is the newest that is not younger. So a state costs what is asked of
it, and the database grows with what happens, not with what stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, Final

import msgspec

from auditor.index import Database
from auditor.parts import Value
from auditor.rules.history import ShardName
from timeagent.units import Instant

from .fold import Working
from .state import BagState, ClockState, DomainState, LogState, SessionState, ShardState

_encoder: Final = msgspec.msgpack.Encoder()


SCHEMA: Final = """
CREATE TABLE known (id INTEGER PRIMARY KEY, kind INTEGER, key, part INTEGER, position INTEGER, value BLOB);
CREATE UNIQUE INDEX known_of ON known (kind, key, part, position);
CREATE TABLE standing (until INTEGER, domain TEXT, since INTEGER, PRIMARY KEY (until, domain)) WITHOUT ROWID;
CREATE TABLE folded (position INTEGER PRIMARY KEY);
"""
"""``folded``: where there are checkpoints; ``part``: the second half of a key that has two, else 0."""
WRITTEN_AT_HAND: Final = 10_000
"""So many values of a kind are not read again while checkpoints are made."""
STILL: Final = 2**62
"""Later than every position."""


_VALUES: Final = (DomainState, SessionState, ShardState, LogState, BagState, ClockState)
_KINDS: Final[dict[type, tuple[int, msgspec.msgpack.Decoder[Any]]]] = {
    kind: (number, msgspec.msgpack.Decoder(kind)) for number, kind in enumerate(_VALUES)
}
_IN_PARTS: Final[set[type]] = {ShardState, BagState}
"""The values whose keys have two halves."""


class Layer[K, V](MutableMapping[K, V]):
    """Values of one kind as of a checkpoint, and those that changed since. A copy goes on by itself."""

    def __init__(self, db: Database, kind: type[V], position: int) -> None:
        self._db = db
        self._type = kind
        self._kind, self._values = _KINDS[kind]
        self._position = position
        self.changed: dict[K, V] = {}
        self._written: dict[K, V] = {}
        """What was written last, at the checkpoint or before: as the database has it."""

    def __copy__(self) -> Layer[K, V]:
        """Return the same values; what is changed in one is not in the other."""
        twin = type(self)(self._db, self._type, self._position)
        twin.changed = self.changed.copy()
        return twin

    def __getitem__(self, name: K) -> V:
        if name in self.changed:
            return self.changed[name]
        if name in self._written:
            return self._written[name]
        sql = (
            "SELECT value FROM known WHERE kind = ? AND key = ? AND part = ? AND position <= ?"
            " ORDER BY position DESC LIMIT 1"
        )
        for (value,) in self._db.execute(sql, (self._kind, *_key(name), self._position)):
            found: V = self._values.decode(value)
            return found
        raise KeyError(name)

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
        sql = "SELECT DISTINCT key, part FROM known WHERE kind = ? AND position <= ?"
        rows: Iterable[Any] = self._db.execute(sql, (self._kind, self._position))
        return [key if self._type in _IN_PARTS else key[0] for key in rows]

    def keep(self, position: int) -> None:
        """Write what changed as of a checkpoint, and go on from there."""
        self._db.executemany(
            "INSERT INTO known (kind, key, part, position, value) VALUES (?, ?, ?, ?, ?)",
            ((self._kind, *_key(name), position, _encoder.encode(value)) for name, value in self.changed.items()),
        )
        self._position = position
        if len(self._written) > WRITTEN_AT_HAND:
            self._written = {}
        self._written |= self.changed
        self.changed = {}


def _key(name: Any) -> tuple[Value, int]:  # noqa: ANN401 - a string, bytes, or a pair that ends in a number
    return name if isinstance(name, tuple) else (name, 0)


class DomainLayer(Layer[str, DomainState]):
    """Domains: of those with leases there is a list of its own."""

    def standing(self) -> list[str]:
        """Return the domains with a lease that is not ended, sorted."""
        sql = "SELECT domain FROM standing WHERE until > ? AND since <= ?"
        found = {domain for (domain,) in self._db.execute(sql, (self._position, self._position))}
        for name, domain in self.changed.items():
            if domain.leases:
                found.add(name)
            else:
                found.discard(name)
        return sorted(found)

    def keep(self, position: int) -> None:
        """Write also which domains have leases from here on, and which have none any more."""
        held = [name for name, domain in self.changed.items() if domain.leases]
        free = [name for name, domain in self.changed.items() if not domain.leases]
        self._db.executemany(
            "INSERT OR IGNORE INTO standing VALUES (?, ?, ?)", [(STILL, name, position) for name in held]
        )
        self._db.executemany(
            "UPDATE standing SET until = ? WHERE until = ? AND domain = ?", [(position, STILL, name) for name in free]
        )
        super().keep(position)


class BagLayer(Layer[tuple[str, "Instant"], BagState]):
    """Bags: those of one log lie together, in order."""

    def bags_of(self, log: str, newest: int | None) -> list[BagState]:
        """Return the bags of a log in order of time, the newest at most."""
        # Of the rows of a group SQLite gives the one that has the maximum.
        sql = (
            "SELECT part, value, max(position) FROM known WHERE kind = ? AND key = ? AND position <= ?"
            " GROUP BY part ORDER BY part DESC"
        )
        values: list[Value] = [self._kind, log, self._position]
        if newest is not None:
            sql, values = f"{sql} LIMIT ?", [*values, newest]
        known = {(log, start): value for start, value, _ in self._db.execute(sql, values)}
        ordered = sorted(known.keys() | {name for name in self.changed if name[0] == log})
        chosen = ordered if newest is None else ordered[max(0, len(ordered) - newest) :]
        return [self.changed[name] if name in self.changed else self._values.decode(known[name]) for name in chosen]


class Marked:
    """Bags with a mark: a collection that is asked in the database."""

    def __init__(self, db: Database, mark: str) -> None:
        self._db = db
        self._mark = mark

    def __contains__(self, name: object) -> bool:
        assert isinstance(name, tuple)
        rows = self._db.execute("SELECT 1 FROM marked WHERE mark = ? AND log = ? AND start = ?", (self._mark, *name))
        return any(True for _ in rows)

    def __iter__(self) -> Iterator[tuple[str, Instant]]:
        yield from self._db.execute("SELECT log, start FROM marked WHERE mark = ?", (self._mark,))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def working_at(db: Database, position: int) -> Working:
    """Return the state at a checkpoint, to be folded on from. Changes nothing that is kept."""
    shards: Layer[ShardName, ShardState] = Layer(db, ShardState, position)
    return Working(
        DomainLayer(db, DomainState, position),
        Layer(db, SessionState, position),
        shards,
        Layer(db, LogState, position),
        BagLayer(db, BagState, position),
        Layer(db, ClockState, position),
        prelocked=Marked(db, "prelock"),
        packed=Marked(db, "pack"),
    )


def keep(db: Database, working: Working, position: int) -> None:
    """Make a checkpoint of a state of ``working_at``: write what changed since the one before."""
    for layer in (working.domains, working.sessions, working.shards, working.logs, working.bags, working.clocks):
        assert isinstance(layer, Layer)
        layer.keep(position)
    db.execute("INSERT INTO folded VALUES (?)", (position,))
