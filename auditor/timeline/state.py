"""The state of a cluster at one instant, as values in a database: what live view, replay, screens and tests read.

Everything is what the evidence tells, and no more: what is not known is ``None``, never zero. Structs rather than
dataclasses where a fold makes one per event: ten times as fast to replace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from heapq import merge
from typing import Any, Final

import msgspec

from appliance.formats.chains import CeilingRecord
from appliance.formats.lease import Ending, LeaseOutcome, Phase
from appliance.formats.witness import Half, SessionEnded, Witness
from auditor.columns.audit_file import Database
from auditor.columns.layout import ShardName
from auditor.columns.parts import Value
from auditor.evidence.finding import Finding
from timeagent.units import Instant, Span

from ..columns.events import BagClosed, CeilingLinked, ClockReading, LeaseTold, LogBorn


class LeasePhase(StrEnum):
    """How a lease stands at an instant."""

    TENTATIVE = "tentative"
    HELD = "held"
    OVER = "over"
    """Past its expiry, and its shard has not ended it: the holder must not write any more."""
    RELINQUISHED = "relinquished"
    BROKEN = "broken"
    """Ended by its shard after the expiry: floor and settle_to are the expiry."""
    REVOKED = "revoked"
    WITHDRAWN = "withdrawn"
    DROPPED = "dropped"
    """Given back with the whole session that it was taken under."""
    ABANDONED = "abandoned"
    """Given up by its holder, which cannot say what it wrote."""
    UNKNOWN = "unknown"
    """Its shard had forgotten it: how it ended is not known."""
    FORGOTTEN = "forgotten"
    """A later run of its shard began, which knows of no lease: its domain waits for the ceiling to be settled."""


_ENDED: Final = {
    each: LeasePhase.BROKEN if each is LeaseOutcome.EXPIRED else LeasePhase(each.value) for each in LeaseOutcome
}


class LeaseState(msgspec.Struct, frozen=True, array_like=True):
    """One lease. Instants are those its shard stated."""

    told: LeaseTold
    """Its newest witness."""
    expiry_ns: Instant
    """The latest of any of its witnesses. Under a session lease that one's counts: ``StateAt.expiry``."""
    granted_ns: Instant
    """When its first witness that is known was signed."""
    renewals: int
    ending: Ending | None = None
    frames: int = 0
    messages: int = 0
    """Written under it until now, as far as frames are there; accepted by readers or not."""
    newest_ns: Instant | None = None
    """The highest timestamp among them."""
    run_over: bool = False
    """A later run of its shard has begun."""

    @property
    def witness(self) -> Witness:
        return self.told.witness

    @property
    def correlation_id(self) -> bytes:
        return self.told.witness.correlation_id


class SessionState(msgspec.Struct, frozen=True, array_like=True):
    """One session lease: a holder's standing with one shard."""

    expiry_ns: Instant
    """The latest of any of its witnesses: until then every lease under it may be written under."""
    ending: SessionEnded | None = None


class DomainState(msgspec.Struct, frozen=True, array_like=True):
    """One domain: who has it, and what the next holder must respect."""

    domain: str
    shard: ShardName
    floor_ns: Instant
    settle_to_ns: Instant
    fence: int
    """The highest that is known."""
    leases: tuple[LeaseState, ...]
    """Those that are not ended, in the order in which they were granted; several only in compatible modes."""
    previous: LeaseState | None
    """The one that ended last."""
    grants: int
    """How many leases it had until now."""
    early: Ending | None = None
    """The last end of a lease that nothing had told of: of one within a tick of its grant, which comes next."""


class ShardState(msgspec.Struct, frozen=True, array_like=True):
    """One shard of one map: its present run, and until when that may grant."""

    linked: CeilingLinked
    """The newest record of its chain, which says who runs it, up to when, and with which floor and settle_to."""
    started_ns: Instant
    """When the run linked its first record that is known."""
    runs: int = 1
    """How many runs are known until now."""
    going_by: int = 0
    """The newest map that it said it goes by; 0: it said of none but that of its chain."""
    half: Half = Half.WHOLE
    half_ns: Instant | None = None
    """Since when it is that, as far as it said so."""
    restarts: int = 0
    """How often the present run went on after a restart."""
    paused_ns: tuple[Instant, Instant] | None = None
    """From when until when it paused for the newest of them."""

    @property
    def record(self) -> CeilingRecord:
        return self.linked.record


class BagPhase(StrEnum):
    """How far the closing of a bag had come."""

    OPEN = "open"
    DUE = "due"
    """Its span and grace are past, and no lock file is known yet."""
    CLOSING = "closing"
    """The same, and its prelock is in the copy. When that was made leaves no evidence."""
    CLOSED = "closed"
    SEALED = "sealed"
    PACKED = "packed"
    """Sealed, and the copy has its pack. When that was made leaves no evidence: said of the end of the copy only."""


class BagState(msgspec.Struct, frozen=True, array_like=True):
    """One bag that somebody wrote to, or that was closed."""

    start_ns: Instant
    end_ns: Instant
    due_ns: Instant
    written: int = 0
    """Data files that a frame had been written to until now, listed later or not."""
    messages: int = 0
    """In those frames, without what came too late for the list."""
    closed: BagClosed | None = None
    """By the list that counts. Others may have helped with closing: that leaves no evidence."""
    sealed_ns: Instant | None = None
    sealer: str | None = None
    prelock: bool = False
    """Whether the copy has its prelock."""
    packed: bool = False
    """Whether the copy has it in a pack."""


class LogState(msgspec.Struct, frozen=True, array_like=True):
    """One log, and what a reader of settled messages would have had from it."""

    born: LogBorn
    horizon_ns: Instant
    """Every bag before this is closed: what is older is final."""
    delivered: int = 0
    """Messages that a reader of settled messages had been given: all that are accepted below the horizon."""
    rejected: int = 0
    """Messages below the horizon that it dropped."""
    unread_bags: int = 0
    """Bags below the horizon of which some listed file cannot be read in this copy."""
    pending: int = 0
    """Messages of frames that were written, in bags that were not closed yet."""


class ClockState(msgspec.Struct, frozen=True, array_like=True):
    """What a node's clock last said of itself."""

    reading: ClockReading
    as_of_ns: Instant
    epochs: frozenset[int]
    """The clock epochs that are known until now: a new one is a step, a suspend, a boot, a long stall or another clock
    that signs for the node."""
    widest_ns: Span
    """The largest radius until now."""


_encoder: Final = msgspec.msgpack.Encoder()
_VALUES: Final = (DomainState, SessionState, ShardState, LogState, BagState, ClockState)
_KINDS: Final[dict[type, tuple[int, msgspec.msgpack.Decoder[Any]]]] = {
    kind: (number, msgspec.msgpack.Decoder(kind)) for number, kind in enumerate(_VALUES)
}
SCHEMA: Final = """
CREATE TABLE known (id INTEGER PRIMARY KEY, kind INTEGER, key, part INTEGER, position INTEGER, value BLOB);
CREATE UNIQUE INDEX known_of ON known (kind, key, part, position);
CREATE TABLE standing (until INTEGER, domain TEXT, since INTEGER, PRIMARY KEY (until, domain)) WITHOUT ROWID;
CREATE TABLE folded (position INTEGER PRIMARY KEY);
"""
"""``folded``: where there are checkpoints; ``part``: the second half of a key that has two."""
WRITTEN_AT_HAND: Final = 10_000
"""So many values of a kind are not read again while checkpoints are made."""
STILL: Final = 2**62
"""Later than every position."""


class Layer[K, V](Mapping[K, V]):
    """Values of one kind as of a checkpoint, and those that changed since. A copy goes on by itself.

    A checkpoint is no copy. Each value is kept with the position from which on it counts, at most once for each stretch
    between two checkpoints; the value at a checkpoint is the newest that is not younger. So a state costs what is asked
    of it, and the database grows with what happens, not with what stands. Values are msgpack, read when they are asked
    for; what is decoded was written by others: it is checked.
    """

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
        for known in (self.changed, self._written):
            if name in known:
                return known[name]
        sql = (
            "SELECT value FROM known WHERE kind = ? AND key = ? AND part IS ? AND position <= ?"
            " ORDER BY position DESC LIMIT 1"
        )
        for (value,) in self._db.execute(sql, (self._kind, *_key(name), self._position)):
            found: V = self._values.decode(value)
            return found
        raise KeyError(name)

    def __setitem__(self, name: K, value: V) -> None:
        self.changed[name] = value

    def __iter__(self) -> Iterator[K]:
        """Yield every key: those of the checkpoint, then the new ones."""
        sql = "SELECT DISTINCT key, part FROM known WHERE kind = ? AND position <= ?"
        rows: Iterable[Any] = self._db.execute(sql, (self._kind, self._position))
        known: list[Any] = [key if part is None else (key, part) for key, part in rows]
        return iter(dict.fromkeys([*known, *self.changed]))

    def __len__(self) -> int:
        """Count the keys; costs as much as going over them."""
        return sum(1 for _ in self)

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


def _key(name: Any) -> tuple[Value, int | None]:  # noqa: ANN401 - a string, bytes, or a pair that ends in a number
    return name if isinstance(name, tuple) else (name, None)


class DomainLayer(Layer[str, DomainState]):
    """Domains by name. Of those with leases there is a list of its own."""

    def standing(self) -> list[str]:
        """Return the domains with a lease that is not ended, sorted."""
        sql = "SELECT domain FROM standing WHERE until > ? AND since <= ?"
        found = {domain for (domain,) in self._db.execute(sql, (self._position, self._position))}
        return sorted((found - self.changed.keys()) | set(self._changed(held=True)))

    def _changed(self, *, held: bool) -> list[str]:
        return [name for name, domain in self.changed.items() if bool(domain.leases) is held]

    def keep(self, position: int) -> None:
        """Write also which domains have leases from here on, and which have none any more."""
        began = [(STILL, name, position) for name in self._changed(held=True)]
        self._db.executemany("INSERT OR IGNORE INTO standing VALUES (?, ?, ?)", began)
        ended = [(position, STILL, name) for name in self._changed(held=False)]
        self._db.executemany("UPDATE standing SET until = ? WHERE until = ? AND domain = ?", ended)
        super().keep(position)


class BagLayer(Layer[tuple[str, Instant], BagState]):
    """Bags by log and beginning; those of one log lie together."""

    def starts(self, log: str, first: Instant, end: Instant) -> Iterator[Instant]:
        """Yield where the bags of a log begin that are known within [first, end), in order; some more than once."""
        sql = (
            "SELECT DISTINCT part FROM known WHERE kind = ? AND key = ? AND part >= ? AND part < ? AND position <= ?"
            " ORDER BY part"
        )
        kept = (start for (start,) in self._db.execute(sql, (self._kind, log, first, end, self._position)))
        return merge(kept, sorted(start for name, start in self.changed if name == log and first <= start < end))

    def bags_of(self, log: str, newest: int | None = None) -> list[BagState]:
        """Return the bags of a log in order of time; ``newest``: only so many of the last."""
        # Of the rows of a group SQLite gives the one that has the maximum.
        sql = (
            "SELECT part, value, max(position) FROM known WHERE kind = ? AND key = ? AND position <= ?"
            " GROUP BY part ORDER BY part DESC LIMIT ?"
        )
        every = self._db.execute(sql, (self._kind, log, self._position, -1 if newest is None else newest))
        known = {(log, start): value for start, value, _ in every}
        ordered = sorted(known.keys() | {name for name in self.changed if name[0] == log})
        chosen = ordered if newest is None else ordered[max(0, len(ordered) - newest) :]
        return [self.changed[name] if name in self.changed else self._values.decode(known[name]) for name in chosen]


@dataclass(frozen=True, slots=True)
class StateAt:
    """Everything that is known of one instant. The mappings are not to be changed."""

    instant_ns: Instant
    end_ns: Instant
    """The last instant that the copy tells of."""
    position: int
    """How many events lie at or before the instant."""
    findings: tuple[Finding, ...]
    """Those whose evidence was complete by then."""
    domains: DomainLayer
    sessions: Mapping[bytes, SessionState]
    """By the run of the shard, and the id behind it: who runs another may choose the same."""
    shards: Mapping[ShardName, ShardState]
    logs: Mapping[str, LogState]
    bags: BagLayer
    clocks: Mapping[str, ClockState]

    def bag_phase(self, bag: BagState) -> BagPhase:
        if bag.sealed_ns is not None:
            return BagPhase.PACKED if bag.packed and self.instant_ns >= self.end_ns else BagPhase.SEALED
        if bag.closed is not None:
            return BagPhase.CLOSED
        if self.instant_ns < bag.due_ns:
            return BagPhase.OPEN
        return BagPhase.CLOSING if bag.prelock else BagPhase.DUE

    def phase(self, lease: LeaseState) -> LeasePhase:
        """Return how a lease stands, as far as the events until then tell."""
        session = self.session_of(lease)
        if lease.ending is not None:
            return _ENDED[lease.ending.outcome]
        if lease.run_over:
            return LeasePhase.FORGOTTEN
        if session is not None and session.ending is not None:
            return _ENDED[session.ending.outcome]
        if self.instant_ns >= self.expiry(lease):
            return LeasePhase.OVER
        return LeasePhase.TENTATIVE if lease.witness.phase is Phase.TENTATIVE else LeasePhase.HELD

    def session_of(self, lease: LeaseState) -> SessionState | None:
        """Return the session lease that a lease was taken under, if there is one that is known."""
        name = lease.witness.session_id
        return None if name is None else self.sessions.get(lease.told.place[1] + name)

    def expiry(self, lease: LeaseState) -> Instant:
        """Return when a lease expires: under a session, when that does."""
        session = self.session_of(lease)
        return lease.expiry_ns if session is None else session.expiry_ns
