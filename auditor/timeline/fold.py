"""One event after another into a state. Pure but for the dictionaries of the state that is being built.

Robust against an order that a wrong clock brings about: an older statement about a lease never undoes a newer one, a
frame may stand before its lease, an end before its beginning.
"""

from __future__ import annotations

from collections.abc import Collection, MutableMapping
from copy import copy
from dataclasses import dataclass, field
from dataclasses import replace as copied

from msgspec.structs import replace

from appliance.formats.ceiling import CeilingKind
from appliance.formats.sessionlease import SessionKind
from appliance.formats.witness import WitnessKind
from auditor.rules.history import ShardName
from timeagent.units import Instant

from .events import (
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
from .state import BagState, ClockState, DomainState, LeaseState, LogState, SessionState, ShardState, with_leases


@dataclass(slots=True)
class Working:
    """A state that is being built. Its values are frozen: a copy of the dictionaries is a copy of the state."""

    domains: MutableMapping[str, DomainState] = field(default_factory=dict)
    sessions: MutableMapping[bytes, SessionState] = field(default_factory=dict)
    shards: MutableMapping[ShardName, ShardState] = field(default_factory=dict)
    logs: MutableMapping[str, LogState] = field(default_factory=dict)
    bags: MutableMapping[tuple[str, Instant], BagState] = field(default_factory=dict)
    clocks: MutableMapping[str, ClockState] = field(default_factory=dict)
    prelocked: Collection[tuple[str, Instant]] = frozenset()
    packed: Collection[tuple[str, Instant]] = frozenset()
    """Bags whose prelock, or pack, the copy has: no event says since when."""

    def copy(self) -> Working:
        """Return a state that can go on by itself."""
        return copied(
            self,
            domains=copy(self.domains),
            sessions=copy(self.sessions),
            shards=copy(self.shards),
            logs=copy(self.logs),
            bags=copy(self.bags),
            clocks=copy(self.clocks),
        )

    def take(self, event: Event) -> None:
        if event.clock is not None:
            self._clock(event.clock, event.instant_ns)
        match event:
            case LeaseTold():
                self._told(event)
            case LeaseEnded():
                self._ended(event)
            case FrameWritten():
                self._frame(event)
                self._under_leases(event)
            case SessionTold():
                self._session(event)
            case SessionOver():
                self._session_over(event)
            case CeilingLinked():
                self._ceiling(event)
            case MapFollowed():
                self._followed(event)
            case RunResumed():
                self._resumed(event)
            case BagClosed():
                self._closed(event)
            case RackSealed():
                self._sealed(event)
            case LogBorn():
                first, kind = event.first_ns, event.kind
                self.logs[event.log] = LogState(
                    event.log, kind, first, event.span_ns, event.grace_ns, event.rack_ns, first, 0, 0, 0, 0
                )

    def _clock(self, reading: ClockReading, instant: Instant) -> None:
        known = self.clocks.get(reading.node)
        if known is None:
            self.clocks[reading.node] = ClockState(
                reading, instant, frozenset({reading.clock_epoch}), reading.radius_ns
            )
            return
        if reading == known.reading:
            return
        epochs = known.epochs if reading.clock_epoch in known.epochs else known.epochs | {reading.clock_epoch}
        self.clocks[reading.node] = ClockState(reading, instant, epochs, max(known.widest_ns, reading.radius_ns))

    # Leases.

    def _told(self, event: LeaseTold) -> None:
        witness = event.witness
        domain = self.domains.get(witness.domain)
        if domain is None:
            domain = DomainState(witness.domain, event.shard, 0, 0, 0, (), None, 0)
        known = next((each for each in domain.leases if each.correlation_id == witness.correlation_id), None)
        gone = domain.previous is not None and domain.previous.correlation_id == witness.correlation_id
        lease = LeaseState(
            domain=witness.domain,
            correlation_id=witness.correlation_id,
            shard=event.shard,
            run=event.place[1],
            holder=witness.holder,
            mode=witness.mode,
            granted_phase=witness.phase,
            fence=witness.fence,
            expiry_ns=witness.expiry_ns,
            floor_ns=witness.floor_ns,
            settle_to_ns=witness.settle_to_ns,
            granted_ns=event.instant_ns,
            told_ns=event.instant_ns,
            renewals=int(witness.kind is WitnessKind.RENEWAL),
            where=event.where,
            previous_id=witness.previous_id,
            session_id=witness.session_id,
        )
        if known is not None:
            lease = replace(
                lease,
                granted_ns=known.granted_ns,
                previous_id=known.previous_id if lease.previous_id is None else lease.previous_id,
                renewals=known.renewals + lease.renewals,
                expiry_ns=max(known.expiry_ns, lease.expiry_ns),
                frames=known.frames,
                messages=known.messages,
                newest_ns=known.newest_ns,
                run_over=known.run_over,
            )
        leases = tuple(lease if each is known else each for each in domain.leases)
        if known is None and not gone:
            leases = (*leases, lease)
        self.domains[witness.domain] = replace(
            domain,
            shard=event.shard,
            floor_ns=max(domain.floor_ns, witness.floor_ns),
            settle_to_ns=max(domain.settle_to_ns, witness.settle_to_ns),
            fence=max(domain.fence, witness.fence),
            leases=leases,
            grants=domain.grants + (known is None and not gone),
        )

    def _ended(self, event: LeaseEnded) -> None:
        domain = self.domains.get(event.domain)
        if domain is None:
            return
        ending = event.ending
        known = next((each for each in domain.leases if each.correlation_id == ending.correlation_id), None)
        if known is None:
            return
        over = replace(
            known,
            outcome=ending.outcome,
            ended_ns=ending.ended_ns,
            watermark_ns=ending.watermark_ns,
            messages_claimed=ending.messages if ending.watermark_ns is not None else None,
        )
        self.domains[event.domain] = replace(
            domain,
            floor_ns=max(domain.floor_ns, event.floor_ns or 0),
            settle_to_ns=max(domain.settle_to_ns, event.settle_to_ns or 0),
            leases=tuple(each for each in domain.leases if each is not known),
            previous=over,
        )

    def _session(self, event: SessionTold) -> None:
        witness = event.witness
        known = self.sessions.get(witness.session_id)
        self.sessions[witness.session_id] = SessionState(
            session_id=witness.session_id,
            shard=event.shard,
            run=event.place[1],
            holder=witness.holder,
            expiry_ns=max(witness.expiry_ns, known.expiry_ns if known else 0),
            granted_ns=known.granted_ns if known else event.instant_ns,
            renewals=(known.renewals if known else 0) + (witness.kind is SessionKind.RENEWAL),
            where=event.where,
            outcome=known.outcome if known else None,
            ended_ns=known.ended_ns if known else None,
        )

    def _session_over(self, event: SessionOver) -> None:
        known = self.sessions.get(event.ending.session_id)
        if known is not None:
            ending = event.ending
            over = replace(known, outcome=ending.outcome, ended_ns=ending.ended_ns, expiry_ns=ending.expiry_ns)
            self.sessions[ending.session_id] = over

    def _ceiling(self, event: CeilingLinked) -> None:
        record = event.record
        known = self.shards.get(event.shard)
        if known is not None and known.ceiling_number >= record.number:
            return
        same = known is not None and known.incarnation == record.incarnation
        self.shards[event.shard] = ShardState(
            event.shard,
            record.node,
            record.incarnation,
            record.number,
            record.ceiling_ns,
            record.kind,
            record.floor_ns,
            record.settle_to_ns,
            known.started_ns if known is not None and same else event.instant_ns,
            (known.runs if known else 0) + (not same),
            event.where,
        )
        if known is not None:
            followed = {"going_by": known.going_by, "half": known.half, "half_ns": known.half_ns}
            self.shards[event.shard] = replace(self.shards[event.shard], **followed)
        if known is not None and same:
            self.shards[event.shard] = replace(
                self.shards[event.shard], restarts=known.restarts, paused_ns=known.paused_ns
            )
        if known is not None and not same and record.kind is CeilingKind.RUNNING:
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
        if known is not None and known.incarnation == event.place[1]:
            pause = (event.since_ns, event.instant_ns)
            self.shards[event.shard] = replace(known, restarts=known.restarts + 1, paused_ns=pause)

    def _forget(self, shard: ShardName, run: bytes) -> None:
        """A run began: it knows of none of the leases that the runs before it had out."""
        for name in with_leases(self.domains):
            domain = self.domains[name]
            if any(each.shard == shard and each.run != run and not each.run_over for each in domain.leases):
                leases = tuple(
                    replace(each, run_over=True) if each.shard == shard and each.run != run else each
                    for each in domain.leases
                )
                self.domains[name] = replace(domain, leases=leases)

    def _leave(self, shard: ShardName) -> None:
        """A chain has ended: its half of a lease is over, of which the shard that came has the other."""
        for name in with_leases(self.domains):
            domain = self.domains[name]
            going_on = {each.holder for each in domain.leases if each.shard[0] > shard[0]}
            leases = tuple(each for each in domain.leases if each.shard != shard or each.holder not in going_on)
            if len(leases) < len(domain.leases):
                self.domains[name] = replace(domain, leases=leases)

    # Bags.

    def _frame(self, event: FrameWritten) -> None:
        log = self.logs.get(event.log)
        if log is not None:
            bag = self._bag(event.log, event.bag_ns, log)
            messages = 0 if event.listed is False else event.messages
            written = bag.written + event.begins
            self.bags[event.log, event.bag_ns] = replace(bag, written=written, messages=bag.messages + messages)
            if bag.closed_ns is None:
                self.logs[event.log] = replace(log, pending=log.pending + messages)

    def _under_leases(self, event: FrameWritten) -> None:
        for name, correlation_id in event.leases:
            domain = self.domains.get(name)
            if domain is None:
                continue
            leases = tuple(
                _with_frame(each, event) if each.correlation_id == correlation_id else each for each in domain.leases
            )
            self.domains[name] = replace(domain, leases=leases)

    def _bag(self, log: str, start: Instant, state: LogState) -> BagState:
        known = self.bags.get((log, start))
        if known is not None:
            return known
        end = start + state.span_ns
        prelock, packed = (log, start) in self.prelocked, (log, start) in self.packed
        return BagState(log, start, end, end + state.grace_ns, "", prelock=prelock, packed=packed)

    def _closed(self, event: BagClosed) -> None:
        log = self.logs.get(event.log)
        if log is None:
            return
        before = self._bag(event.log, event.bag_ns, log)
        if before.closed_ns is not None:
            return
        bag = self.bags[event.log, event.bag_ns] = replace(
            before,
            path=event.path,
            closed_ns=event.instant_ns,
            closer=event.closer,
            listed=event.files,
            missing=event.missing,
            void_files=event.void_files,
            accepted=event.accepted,
            rejected=event.rejected,
            where=event.where,
        )
        log = replace(log, pending=max(0, log.pending - before.messages))
        if bag.start_ns < log.horizon_ns:
            log = _delivered(log, bag)
        self.logs[event.log] = self._advance(log, event.bag_ns, over_open=False)

    def _sealed(self, event: RackSealed) -> None:
        log = self.logs.get(event.log)
        if log is None:
            return
        start = max(event.start_ns, log.first_ns)
        for begin in range(start - start % log.span_ns, event.end_ns, log.span_ns):
            bag = self.bags.get((event.log, begin))
            if bag is not None and bag.closed_ns is not None:
                self.bags[event.log, begin] = replace(bag, sealed_ns=event.instant_ns, sealer=event.sealer)
        self.logs[event.log] = self._advance(log, event.end_ns, over_open=True)

    def _advance(self, log: LogState, closed_to: Instant, *, over_open: bool) -> LogState:
        """Move the horizon, and count what is delivered: up to ``closed_to``, then over every bag that is closed.

        What has no directory is passed over: whoever closed a later bag, or read up to it, closed it empty. An open bag
        stops a reader, unless its rack is sealed (``over_open``): then it does not exist.
        """
        while True:
            bag = self.bags.get((log.log, log.horizon_ns))
            if bag is not None and bag.closed_ns is not None:
                log = _delivered(log, bag)
            elif log.horizon_ns >= closed_to or (bag is not None and not over_open):
                return log
            log = replace(log, horizon_ns=log.horizon_ns + log.span_ns)


def _delivered(log: LogState, bag: BagState) -> LogState:
    return replace(
        log,
        delivered=log.delivered + bag.accepted,
        rejected=log.rejected + bag.rejected,
        unread_bags=log.unread_bags + (bag.missing > 0),
    )


def _with_frame(lease: LeaseState, event: FrameWritten) -> LeaseState:
    return replace(
        lease,
        frames=lease.frames + 1,
        messages=lease.messages + event.messages,
        newest_ns=max(lease.newest_ns or 0, event.last_ns),
    )
