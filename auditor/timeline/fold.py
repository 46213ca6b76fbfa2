"""A timeline folded into states, one event after another.

Robust against an order that a wrong clock brings about: an older statement about a lease never undoes a newer one, a
frame may stand before its lease or its log, an end before its beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

from msgspec.structs import replace

from appliance.formats.chains import CeilingKind
from appliance.formats.witness import WitnessKind
from auditor.columns.layout import ShardName
from timeagent.units import Instant

from ..columns.audit_file import Database
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
from ..columns.parts import Value
from .state import (
    BagLayer,
    BagState,
    ClockState,
    DomainLayer,
    DomainState,
    Layer,
    LeaseState,
    LogState,
    SessionState,
    ShardState,
)


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
    births: Callable[[str], LogBorn | None]
    """Returns how a log was born, be it told later than what is in it."""

    @classmethod
    def at(cls, db: Database, position: int, births: Callable[[str], LogBorn | None]) -> Working:
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
            births,
        )

    def layers(self) -> tuple[Any, ...]:
        """Return the mappings, as ``StateAt`` has them."""
        return self.domains, self.sessions, self.shards, self.logs, self.bags, self.clocks

    def copy(self) -> Working:
        return Working(*map(copy, (*self.layers(), self.marked, self.births)))

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
            lease, grants = LeaseState(event, witness.expiry_ns, event.instant_ns, renewals), grants + 1
            if domain.early is not None and domain.early.correlation_id == name:
                domain = replace(domain, previous=replace(lease, ending=domain.early))
            else:
                leases = (*leases, lease)
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
            domain = DomainState(event.domain, event.shard, 0, 0, 0, (), None, 0)
        name = event.ending.correlation_id
        known = next((each for each in domain.leases if each.correlation_id == name), None)
        domain = replace(
            domain,
            floor_ns=max(domain.floor_ns, event.floor_ns or 0),
            settle_to_ns=max(domain.settle_to_ns, event.settle_to_ns or 0),
            leases=tuple(each for each in domain.leases if each is not known),
        )
        if known is not None:
            domain = replace(domain, previous=replace(known, ending=event.ending))
        elif domain.previous is None or domain.previous.correlation_id != name:
            domain = replace(domain, early=event.ending)
        self.domains[event.domain] = domain

    def _session(self, event: SessionTold) -> None:
        name = event.place[1] + event.witness.session_id
        known = self.sessions.get(name, SessionState(0))
        self.sessions[name] = replace(known, expiry_ns=max(known.expiry_ns, event.witness.expiry_ns))

    def _session_over(self, event: SessionOver) -> None:
        ending = event.ending
        name = event.place[1] + ending.session_id
        known = self.sessions.get(name)
        if known is not None:
            self.sessions[name] = replace(known, ending=ending, expiry_ns=ending.expiry_ns)

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
        if event.log not in self.logs:
            self.logs[event.log] = LogState(event, event.first_ns)

    def _log(self, name: str) -> LogState | None:
        """Return a log, also where a clock says that what is in it was there before it."""
        log = self.logs.get(name)
        if log is None and (born := self.births(name)) is not None:
            log = self.logs[name] = LogState(born, born.first_ns)
        return log

    def _frame(self, event: FrameWritten) -> None:
        log = self._log(event.log)
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
        log = self._log(event.log)
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
        log = self._log(event.log)
        if log is None:
            return
        for begin in self.bags.starts(event.log, event.start_ns, event.end_ns):
            bag = self.bags[event.log, begin]
            if bag.closed is not None:
                self.bags[event.log, begin] = replace(bag, sealed_ns=event.instant_ns, sealer=event.sealer)
        self.logs[event.log] = self._advance(log, event.end_ns, over_open=True)

    def _advance(self, log: LogState, closed_to: Instant, *, over_open: bool) -> LogState:
        """Move the horizon, and count what is delivered: up to ``closed_to``, then over every bag that is closed.

        What has no directory is passed over: whoever closed a later bag, or read up to it, closed it empty. An open bag
        stops a reader, unless its rack is sealed (``over_open``): then it does not exist.
        """
        while True:
            name, horizon = log.born.log, log.horizon_ns
            bag = self.bags.get((name, horizon))
            if bag is not None and bag.closed is not None:
                log = _delivered(log, bag.closed)
            elif horizon >= closed_to or (bag is not None and not over_open):
                return log
            after = next(self.bags.starts(name, horizon, closed_to), closed_to) if bag is None else bag.end_ns
            log = replace(log, horizon_ns=after)

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
