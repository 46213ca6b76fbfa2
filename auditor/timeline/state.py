"""The state of a cluster at one instant, as values: what live view, replay, screens and tests read.

Everything is what the evidence tells, and no more: what is not known is ``None``, never zero. Nothing here reads a
file or a clock. Structs rather than dataclasses where a fold makes one per event: ten times as fast to replace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

import msgspec

from appliance.formats.ceiling import CeilingKind
from appliance.formats.lease import Holder, LeaseOutcome, Mode, Phase
from appliance.formats.witness import Half
from auditor.rules.finding import Evidence, Finding
from auditor.rules.history import ShardName
from timeagent.units import Instant, Span

from .events import ClockReading, Event


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


_ENDED = {
    LeaseOutcome.RELINQUISHED: LeasePhase.RELINQUISHED,
    LeaseOutcome.EXPIRED: LeasePhase.BROKEN,
    LeaseOutcome.REVOKED: LeasePhase.REVOKED,
    LeaseOutcome.WITHDRAWN: LeasePhase.WITHDRAWN,
    LeaseOutcome.DROPPED: LeasePhase.DROPPED,
    LeaseOutcome.ABANDONED: LeasePhase.ABANDONED,
    LeaseOutcome.UNKNOWN: LeasePhase.UNKNOWN,
}


class LeaseState(msgspec.Struct, frozen=True, array_like=True):
    """One lease. Instants are those its shard stated."""

    domain: str
    correlation_id: bytes
    shard: ShardName
    run: bytes
    """The incarnation of the shard that granted it."""
    holder: Holder
    mode: Mode
    granted_phase: Phase
    """Tentative or held, by the newest witness."""
    fence: int
    expiry_ns: Instant
    floor_ns: Instant
    settle_to_ns: Instant
    granted_ns: Instant
    """When its first witness that is known was signed."""
    told_ns: Instant
    """When its newest witness was signed."""
    renewals: int
    where: Evidence
    """Of its newest witness."""
    previous_id: bytes | None = None
    session_id: bytes | None = None
    """The session lease that it was taken under: then that one's expiry counts (``StateAt.expiry``)."""
    outcome: LeaseOutcome | None = None
    ended_ns: Instant | None = None
    watermark_ns: Instant | None = None
    messages_claimed: int | None = None
    """By its holder, when it relinquished."""
    frames: int = 0
    messages: int = 0
    """Written under it until now, as far as frames are there; accepted by readers or not."""
    newest_ns: Instant | None = None
    """The highest timestamp among them."""
    run_over: bool = False
    """A later run of its shard has begun."""

    def phase_at(self, instant: Instant, session: SessionState | None = None) -> LeasePhase:
        """Return how it stands at an instant, as far as this state's events tell. ``session``: its own, if any."""
        if self.outcome is not None:
            return _ENDED[self.outcome]
        if self.run_over:
            return LeasePhase.FORGOTTEN
        if session is not None and session.outcome is not None:
            return _ENDED[session.outcome]
        if instant >= (self.expiry_ns if session is None else session.expiry_ns):
            return LeasePhase.OVER
        return LeasePhase.TENTATIVE if self.granted_phase is Phase.TENTATIVE else LeasePhase.HELD


class SessionState(msgspec.Struct, frozen=True, array_like=True):
    """One session lease: a holder's standing with one shard."""

    session_id: bytes
    shard: ShardName
    run: bytes
    holder: Holder
    expiry_ns: Instant
    """Of its newest witness: until then every lease under it may be written under."""
    granted_ns: Instant
    renewals: int
    where: Evidence
    outcome: LeaseOutcome | None = None
    ended_ns: Instant | None = None


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

    shard: ShardName
    node: str
    incarnation: bytes
    ceiling_number: int
    ceiling_ns: Instant
    kind: CeilingKind
    floor_ns: Instant
    """The shard floor: of every domain that it has no entry for."""
    settle_to_ns: Instant
    started_ns: Instant
    """When the run linked its first record that is known."""
    runs: int
    """How many runs are known until now."""
    where: Evidence
    going_by: int = 0
    """The newest map that it said it goes by; 0: it said of none but that of its chain."""
    half: Half = Half.WHOLE
    half_ns: Instant | None = None
    """Since when it is that, as far as it said so."""
    restarts: int = 0
    """How often the present run went on after a restart."""
    paused_ns: tuple[Instant, Instant] | None = None
    """From when until when it paused for the newest of them."""


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

    log: str
    start_ns: Instant
    end_ns: Instant
    due_ns: Instant
    path: str
    written: int = 0
    """Data files that a frame had been written to until now, listed later or not."""
    messages: int = 0
    """In those frames, without what came too late for the list."""
    closed_ns: Instant | None = None
    closer: str | None = None
    """The node that signed the list that counts. Others may have helped: that leaves no evidence."""
    listed: int | None = None
    """How many files the list names; None: it is not closed yet."""
    missing: int = 0
    """How many of those cannot be read, or are not what the list says."""
    void_files: int = 0
    """Data files beside the list: too late, and in the record of nobody."""
    accepted: int = 0
    rejected: int = 0
    """Messages of listed files."""
    sealed_ns: Instant | None = None
    sealer: str | None = None
    prelock: bool = False
    """Whether the copy has its prelock."""
    packed: bool = False
    """Whether the copy has it in a pack."""
    where: Evidence | None = None
    """Of its lock file."""

    def phase_at(self, instant: Instant, end_ns: Instant) -> BagPhase:
        """Return how far its closing had come. ``end_ns``: of the copy."""
        if self.sealed_ns is not None:
            return BagPhase.PACKED if self.packed and instant >= end_ns else BagPhase.SEALED
        if self.closed_ns is not None:
            return BagPhase.CLOSED
        if instant < self.due_ns:
            return BagPhase.OPEN
        return BagPhase.CLOSING if self.prelock else BagPhase.DUE


class LogState(msgspec.Struct, frozen=True, array_like=True):
    """One log, and what a reader of settled messages would have had from it."""

    log: str
    kind: str
    first_ns: Instant
    span_ns: Span
    grace_ns: Span
    rack_ns: Span
    horizon_ns: Instant
    """Every bag before this is closed: what is older is final."""
    delivered: int
    """Messages that a reader of settled messages had been given: all that are accepted below the horizon."""
    rejected: int
    """Messages below the horizon that it dropped."""
    unread_bags: int
    """Bags below the horizon of which some listed file cannot be read in this copy."""
    pending: int
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


@dataclass(frozen=True, slots=True)
class StateAt:
    """Everything that is known of one instant. The mappings are not to be changed."""

    instant_ns: Instant
    end_ns: Instant
    """The last instant that the copy tells of."""
    position: int
    """How many events lie at or before the instant."""
    last: Event | None
    findings: tuple[Finding, ...]
    """Those whose evidence was complete by then."""
    domains: Mapping[str, DomainState]
    sessions: Mapping[bytes, SessionState]
    shards: Mapping[ShardName, ShardState]
    logs: Mapping[str, LogState]
    bags: Mapping[tuple[str, Instant], BagState]
    """By log and beginning."""
    clocks: Mapping[str, ClockState]

    def bag_phase(self, bag: BagState) -> BagPhase:
        """Return how far the closing of a bag had come."""
        return bag.phase_at(self.instant_ns, self.end_ns)

    def bags_of(self, log: str, *, newest: int | None = None) -> list[BagState]:
        """Return the bags of a log in order of time; ``newest``: only so many of the last."""
        if isinstance(self.bags, InOrder):
            return self.bags.bags_of(log, newest)
        chosen = sorted((start for name, start in self.bags if name == log), reverse=True)
        return [self.bags[log, start] for start in reversed(chosen[:newest])]

    def leases(self) -> Iterator[LeaseState]:
        """Yield every lease that is not ended, in order of domain."""
        for domain in with_leases(self.domains):
            yield from self.domains[domain].leases

    def phase(self, lease: LeaseState) -> LeasePhase:
        return lease.phase_at(self.instant_ns, self.session_of(lease))

    def session_of(self, lease: LeaseState) -> SessionState | None:
        """Return the session lease that a lease was taken under, if there is one that is known."""
        return None if lease.session_id is None else self.sessions.get(lease.session_id)

    def expiry(self, lease: LeaseState) -> Instant:
        """Return when a lease expires: under a session, when that does."""
        session = self.session_of(lease)
        return lease.expiry_ns if session is None else session.expiry_ns


@runtime_checkable
class Standing(Protocol):
    """Domains that know by themselves which of them have leases."""

    def standing(self) -> list[str]:
        """Return the domains with a lease that is not ended, sorted."""
        ...


@runtime_checkable
class InOrder(Protocol):
    """Bags that are found by their log."""

    def bags_of(self, log: str, newest: int | None) -> list[BagState]:
        """Return the bags of a log in order of time, the newest at most."""
        ...


def with_leases(domains: Mapping[str, DomainState]) -> list[str]:
    """Return the domains with a lease that is not ended, sorted."""
    if isinstance(domains, Standing):
        return domains.standing()
    return sorted(name for name, domain in domains.items() if domain.leases)
