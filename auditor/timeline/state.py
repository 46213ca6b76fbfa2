"""The state of a cluster at one instant, as values in a database, and how one event after another changes it.

What live view, replay, screens and tests read. Everything is what the evidence tells, and no more: what is not known is
``None``, never zero. Structs rather than dataclasses where a fold makes one per event: ten times as fast to replace.

Folding is robust against an order that a wrong clock brings about: an older statement about a lease never undoes a
newer one, a frame may stand before its lease, an end before its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final

import msgspec
from msgspec.structs import replace

from appliance.formats.chains import CeilingKind, CeilingRecord
from appliance.formats.lease import Ending, LeaseOutcome, Phase
from appliance.formats.witness import Half, SessionEnded, Witness, WitnessKind
from auditor.columns.audit_file import Database
from auditor.columns.layout import ShardName
from auditor.columns.parts import Value
from auditor.evidence.finding import Finding
from timeagent.units import Instant, Span

from ..columns.events import (
    BagClosed,
    CeilingLinked,
    ClockReading,
    Event,
    FrameWritten,
    LeaseEnded,
    LeaseTold,
    LogBorn,
    MapFollowed,
    RackSealed,
    RunResumed,
    SessionOver,
    SessionTold,
)


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
        """Change a value here only."""
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
    shards: Mapping[ShardName, ShardState]
    logs: Mapping[str, LogState]
    bags: BagLayer
    clocks: Mapping[str, ClockState]

    def bag_phase(self, bag: BagState) -> BagPhase:
        """Return how far the closing of a bag had come."""
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
        return None if name is None else self.sessions.get(name)

    def expiry(self, lease: LeaseState) -> Instant:
        """Return when a lease expires: under a session, when that does."""
        session = self.session_of(lease)
        return lease.expiry_ns if session is None else session.expiry_ns


@dataclass(slots=True)
class Working:
    """A state that is being built. Its values are frozen: a copy of the mappings is a copy of the state."""

    domains: DomainLayer
    sessions: Layer[bytes, SessionState]
    shards: Layer[ShardName, ShardState]
    logs: Layer[str, LogState]
    bags: BagLayer
    clocks: Layer[str, ClockState]
    marked: Callable[[str, str, Instant], bool]
    """Whether the copy has the ``prelock`` of a bag (log, beginning), or its ``pack``: no event says since when."""

    @classmethod
    def at(cls, db: Database, position: int) -> Working:
        """Return the state at a checkpoint, to be folded on from. Changes nothing that is kept."""

        def marked(*mark: Value) -> bool:
            return any(db.execute("SELECT 1 FROM marked WHERE mark = ? AND log = ? AND start = ?", mark))

        return cls(
            DomainLayer(db, DomainState, position),
            Layer(db, SessionState, position),
            Layer(db, ShardState, position),
            Layer(db, LogState, position),
            BagLayer(db, BagState, position),
            Layer(db, ClockState, position),
            marked,
        )

    def layers(self) -> tuple[Any, ...]:
        """Return the mappings, as ``StateAt`` has them."""
        return self.domains, self.sessions, self.shards, self.logs, self.bags, self.clocks

    def copy(self) -> Working:
        """Return a state that can go on by itself."""
        return Working(*map(copy, (*self.layers(), self.marked)))

    def keep(self, db: Database, position: int) -> None:
        """Make a checkpoint: write what changed since the one before."""
        for layer in self.layers():
            layer.keep(position)
        db.execute("INSERT INTO folded VALUES (?)", (position,))

    def take(self, event: Event) -> None:
        if event.clock is not None:
            self._clock(event.clock, event.instant_ns)
        self._folds[type(event)](self, event)

    def _clock(self, reading: ClockReading, instant: Instant) -> None:
        known = self.clocks.get(reading.node)
        if known is None:
            known = ClockState(reading, instant, frozenset({reading.clock_epoch}), reading.radius_ns)
        elif reading == known.reading:
            return
        epochs = known.epochs if reading.clock_epoch in known.epochs else known.epochs | {reading.clock_epoch}
        self.clocks[reading.node] = ClockState(reading, instant, epochs, max(known.widest_ns, reading.radius_ns))

    # Leases.

    def _told(self, event: LeaseTold) -> None:
        witness = event.witness
        name, renewals = witness.correlation_id, int(witness.kind is WitnessKind.RENEWAL)
        domain = self.domains.get(witness.domain)
        if domain is None:
            domain = DomainState(witness.domain, event.shard, 0, 0, 0, (), None, 0)
        known = next((each for each in domain.leases if each.correlation_id == name), None)
        leases, grants = domain.leases, domain.grants
        if known is not None:
            expiry, count = max(known.expiry_ns, witness.expiry_ns), known.renewals + renewals
            lease = replace(known, told=event, expiry_ns=expiry, renewals=count)
            leases = tuple(lease if each is known else each for each in leases)
        elif domain.previous is None or domain.previous.correlation_id != name:
            leases = (*leases, LeaseState(event, witness.expiry_ns, event.instant_ns, renewals))
            grants += 1
        self.domains[witness.domain] = replace(
            domain,
            shard=event.shard,
            floor_ns=max(domain.floor_ns, witness.floor_ns),
            settle_to_ns=max(domain.settle_to_ns, witness.settle_to_ns),
            fence=max(domain.fence, witness.fence),
            leases=leases,
            grants=grants,
        )

    def _ended(self, event: LeaseEnded) -> None:
        domain = self.domains.get(event.domain)
        if domain is None:
            return
        name = event.ending.correlation_id
        known = next((each for each in domain.leases if each.correlation_id == name), None)
        if known is not None:
            self.domains[event.domain] = replace(
                domain,
                floor_ns=max(domain.floor_ns, event.floor_ns or 0),
                settle_to_ns=max(domain.settle_to_ns, event.settle_to_ns or 0),
                leases=tuple(each for each in domain.leases if each is not known),
                previous=replace(known, ending=event.ending),
            )

    def _session(self, event: SessionTold) -> None:
        witness = event.witness
        known = self.sessions.get(witness.session_id, SessionState(0))
        expiry = max(known.expiry_ns, witness.expiry_ns)
        self.sessions[witness.session_id] = replace(known, expiry_ns=expiry)

    def _session_over(self, event: SessionOver) -> None:
        ending = event.ending
        known = self.sessions.get(ending.session_id)
        if known is not None:
            self.sessions[ending.session_id] = replace(known, ending=ending, expiry_ns=ending.expiry_ns)

    def _ceiling(self, event: CeilingLinked) -> None:
        record, known = event.record, self.shards.get(event.shard)
        if known is None:
            self.shards[event.shard] = ShardState(event, event.instant_ns)
        elif known.record.number >= record.number:
            return
        elif known.record.incarnation == record.incarnation:
            self.shards[event.shard] = replace(known, linked=event)
        else:
            begun = {"started_ns": event.instant_ns, "runs": known.runs + 1, "restarts": 0, "paused_ns": None}
            self.shards[event.shard] = replace(known, linked=event, **begun)
            if record.kind is CeilingKind.RUNNING:
                self._forget(event.shard, record.incarnation)
        if record.kind is CeilingKind.TERMINAL:
            self._leave(event.shard)

    def _followed(self, event: MapFollowed) -> None:
        known = self.shards.get(event.shard)
        if known is not None and event.going_by >= known.going_by:
            since = known.half_ns if known.half is event.half else event.instant_ns
            self.shards[event.shard] = replace(known, going_by=event.going_by, half=event.half, half_ns=since)

    def _resumed(self, event: RunResumed) -> None:
        known = self.shards.get(event.shard)
        if known is not None and known.record.incarnation == event.place[1]:
            pause = (event.since_ns, event.instant_ns)
            self.shards[event.shard] = replace(known, restarts=known.restarts + 1, paused_ns=pause)

    def _forget(self, shard: ShardName, run: bytes) -> None:
        """A run began: it knows of none of the leases that the runs before it had out."""

        def is_over(lease: LeaseState) -> bool:
            return lease.told.shard == shard and lease.told.place[1] != run

        for name in self.domains.standing():
            domain = self.domains[name]
            if any(is_over(each) and not each.run_over for each in domain.leases):
                leases = (replace(each, run_over=True) if is_over(each) else each for each in domain.leases)
                self.domains[name] = replace(domain, leases=tuple(leases))

    def _leave(self, shard: ShardName) -> None:
        """A chain has ended: its half of a lease is over, of which the shard that came has the other."""
        for name in self.domains.standing():
            domain = self.domains[name]
            going_on = {each.witness.holder for each in domain.leases if each.told.shard[0] > shard[0]}
            leases = tuple(
                each for each in domain.leases if each.told.shard != shard or each.witness.holder not in going_on
            )
            if len(leases) < len(domain.leases):
                self.domains[name] = replace(domain, leases=leases)

    # Bags.

    def _born(self, event: LogBorn) -> None:
        self.logs[event.log] = LogState(event, event.first_ns)

    def _frame(self, event: FrameWritten) -> None:
        log = self.logs.get(event.log)
        if log is not None:
            bag = self._bag(event.log, event.bag_ns, log)
            messages = 0 if event.listed is False else event.messages
            written = bag.written + event.begins
            self.bags[event.log, event.bag_ns] = replace(bag, written=written, messages=bag.messages + messages)
            if bag.closed is None:
                self.logs[event.log] = replace(log, pending=log.pending + messages)
        for name, correlation_id in event.leases:
            domain = self.domains.get(name)
            if domain is None:
                continue
            for place, each in enumerate(domain.leases):
                if each.told.witness.correlation_id == correlation_id:
                    frames, messages = each.frames + 1, each.messages + event.messages
                    newest = max(each.newest_ns or 0, event.last_ns)
                    lease = replace(each, frames=frames, messages=messages, newest_ns=newest)
                    leases = (*domain.leases[:place], lease, *domain.leases[place + 1 :])
                    self.domains[name] = replace(domain, leases=leases)

    def _bag(self, log: str, start: Instant, state: LogState) -> BagState:
        known = self.bags.get((log, start))
        if known is not None:
            return known
        end = start + state.born.span_ns
        prelock, packed = self.marked("prelock", log, start), self.marked("pack", log, start)
        return BagState(start, end, end + state.born.grace_ns, prelock=prelock, packed=packed)

    def _closed(self, event: BagClosed) -> None:
        log = self.logs.get(event.log)
        if log is None:
            return
        before = self._bag(event.log, event.bag_ns, log)
        if before.closed is not None:
            return
        self.bags[event.log, event.bag_ns] = replace(before, closed=event)
        log = replace(log, pending=max(0, log.pending - before.messages))
        if event.bag_ns < log.horizon_ns:
            log = _delivered(log, event)
        self.logs[event.log] = self._advance(log, event.bag_ns, over_open=False)

    def _sealed(self, event: RackSealed) -> None:
        log = self.logs.get(event.log)
        if log is None:
            return
        start, span = max(event.start_ns, log.born.first_ns), log.born.span_ns
        for begin in range(start - start % span, event.end_ns, span):
            bag = self.bags.get((event.log, begin))
            if bag is not None and bag.closed is not None:
                self.bags[event.log, begin] = replace(bag, sealed_ns=event.instant_ns, sealer=event.sealer)
        self.logs[event.log] = self._advance(log, event.end_ns, over_open=True)

    def _advance(self, log: LogState, closed_to: Instant, *, over_open: bool) -> LogState:
        """Move the horizon, and count what is delivered: up to ``closed_to``, then over every bag that is closed.

        What has no directory is passed over: whoever closed a later bag, or read up to it, closed it empty. An open bag
        stops a reader, unless its rack is sealed (``over_open``): then it does not exist.
        """
        while True:
            bag = self.bags.get((log.born.log, log.horizon_ns))
            if bag is not None and bag.closed is not None:
                log = _delivered(log, bag.closed)
            elif log.horizon_ns >= closed_to or (bag is not None and not over_open):
                return log
            log = replace(log, horizon_ns=log.horizon_ns + log.born.span_ns)

    _folds: ClassVar[dict[type, Callable[[Working, Any], None]]] = {
        LogBorn: _born,
        CeilingLinked: _ceiling,
        MapFollowed: _followed,
        RunResumed: _resumed,
        SessionOver: _session_over,
        LeaseEnded: _ended,
        SessionTold: _session,
        LeaseTold: _told,
        FrameWritten: _frame,
        BagClosed: _closed,
        RackSealed: _sealed,
    }


def _delivered(log: LogState, bag: BagClosed) -> LogState:
    return replace(
        log,
        delivered=log.delivered + bag.accepted,
        rejected=log.rejected + bag.rejected,
        unread_bags=log.unread_bags + (bag.missing > 0),
    )
