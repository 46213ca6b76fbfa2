"""Where events go to as a tree is read: into memory, into rows for a database, or somewhere else; and what-if.

Each statement counts once, and of several the first: a ledger counts before the frames that carry the same witness.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from appliance.formats.paths import Bag
    from auditor.evidence.signatures import FrameEvidence, HeldWitness
    from auditor.rules.history import HeadFact
    from timeagent.signedtime import SignedTime
    from timeagent.units import Instant, Span

    from .events import CeilingLinked, Event, LeaseEnded, LeaseTold

type Statement = tuple[bytes, int]
"""Digest of a batch head, and the place in the batch."""
type Mark = tuple[str, str, Instant]
"""Which (``prelock`` or ``pack``), and the log and beginning of the bag that the copy has it of."""


class Gathering:
    """Takes what is read; this one takes nothing."""

    rank = 0
    """Set before each call: of what is told at several places, in a ledger or in frames, the lowest counts."""

    def head(self, fact: HeadFact) -> None:
        """Take a batch head."""

    def stopped(self, incarnation: bytes) -> None:
        """Take that a run's ledger says that it stopped orderly."""

    def knows(self, name: Statement) -> bool:  # noqa: ARG002 - of a class that takes nothing
        """Whether a statement about a lease is known already, or of no interest."""
        return True

    def told(self, name: Statement, event: LeaseTold) -> None:
        """Take a statement about a lease that is not known yet."""

    def ended(self, event: LeaseEnded, *, hearsay: bool) -> None:
        """Take the end of a lease. ``hearsay``: from a later witness, which counts where nothing else tells of it."""

    def ceiling(self, data: bytes, event: CeilingLinked) -> None:
        """Take a ceiling record. ``data``: its bytes."""

    def happened(self, event: Event) -> None:
        """Take what happened to a log, or to a session lease."""

    def marked(self, mark: Mark) -> None:
        """Take that the copy has the prelock of a bag, or its pack: no event says since when."""


class Gathered(Gathering):
    """All of it in memory, from one process that reads chains and ledgers first."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.statements: dict[Statement, LeaseTold] = {}
        self.heads: dict[bytes, HeadFact] = {}
        """Every batch head by its digest."""
        self.ceilings: dict[bytes, CeilingLinked] = {}
        """Every ceiling record by its bytes."""
        self.stops: set[bytes] = set()
        """Runs whose ledger says that they stopped orderly."""
        self.others: list[Event] = []
        """Of logs and session leases."""
        self.marks: set[Mark] = set()
        self._ends: dict[tuple[str, bytes], LeaseEnded] = {}
        self._hearsay: dict[tuple[str, bytes], LeaseEnded] = {}

    def head(self, fact: HeadFact) -> None:
        """Take a batch head. A ledger's word that it has it stands."""
        if fact.in_ledger or fact.digest not in self.heads:
            self.heads[fact.digest] = fact

    def stopped(self, incarnation: bytes) -> None:
        """Take that a run stopped orderly."""
        self.stops.add(incarnation)

    def knows(self, name: Statement) -> bool:
        """Whether a statement about a lease is known already."""
        return name in self.statements

    def told(self, name: Statement, event: LeaseTold) -> None:
        """Take a statement about a lease."""
        self.statements[name] = event

    def ended(self, event: LeaseEnded, *, hearsay: bool) -> None:
        """Take the end of a lease, once from either."""
        known = self._hearsay if hearsay else self._ends
        known.setdefault((event.domain, event.ending.correlation_id), event)

    def ceiling(self, data: bytes, event: CeilingLinked) -> None:
        """Take a ceiling record."""
        self.ceilings.setdefault(data, event)

    def happened(self, event: Event) -> None:
        """Take what happened to a log, or to a session lease."""
        self.others.append(event)

    def marked(self, mark: Mark) -> None:
        """Take that a bag has a prelock, or a pack."""
        self.marks.add(mark)

    def endings(self) -> list[LeaseEnded]:
        """Return the first word on the end of each lease: its shard's own, or else a later witness's."""
        return [*self._ends.values(), *(end for name, end in self._hearsay.items() if name not in self._ends)]

    def events(self) -> list[Event]:
        """Return all of it, in no order."""
        return [*self.others, *self.statements.values(), *self.endings(), *self.ceilings.values()]


@dataclass(frozen=True)
class WhatIf:
    """What is taken to have been otherwise; nothing by default."""

    shifts: Mapping[str, Span] = field(default_factory=dict)
    """By node: how much more its clock would have shown."""
    grace_ns: Span | None = None
    drop_late: bool = False

    @property
    def any(self) -> bool:
        """Whether anything is otherwise."""
        return bool(self.shifts) or self.grace_ns is not None or self.drop_late

    def token(self, node: str, token: SignedTime) -> SignedTime:
        """Return a node's signed time as it would have been. Its signature does not hold any more."""
        shift = self.shifts.get(node, 0)
        return msgspec.structs.replace(token, midpoint_ns=max(0, token.midpoint_ns + shift)) if shift else token

    def stamp(self, node: str, token: SignedTime | None) -> SignedTime | None:
        """Return the same of a stamp that may not hold."""
        return None if token is None else self.token(node, token)

    def frame(self, evidence: FrameEvidence) -> FrameEvidence:
        """Return a frame with its own and its witnesses' signed times as they would have been."""
        if not self.shifts:
            return evidence
        return replace(
            evidence,
            token=self.token(evidence.frame.head.writer, evidence.token),
            witnesses=tuple(self._witness(held) for held in evidence.witnesses),
            sessions=tuple(
                replace(session, token=self.token(session.head.node, session.token)) for session in evidence.sessions
            ),
        )

    def _witness(self, held: HeldWitness) -> HeldWitness:
        return replace(held, token=self.token(held.head.node, held.token))

    def bag(self, bag: Bag) -> Bag:
        """Return a bag with the instant at which it would have been due."""
        return bag if self.grace_ns is None else msgspec.structs.replace(bag, due_ns=bag.end_ns + self.grace_ns)

    def listed(self, bag: Bag, token: SignedTime, *, listed: bool) -> bool:
        """Whether a frame would have been in its bag. ``bag``: as ``bag()`` returns it."""
        in_time = token.interval.earliest <= bag.due_ns
        if self.grace_ns is None:
            return listed and (in_time or not self.drop_late)
        return in_time and (listed or not self.drop_late)


AS_IT_WAS = WhatIf()
