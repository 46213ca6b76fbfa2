"""Where events go to as a tree is read: rows for a database, or elsewhere; and what-if.

Each statement counts once, and of several the first: a ledger counts before the frames that carry the same witness.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import msgspec

from appliance.formats.paths import Bag
from appliance.formats.witness import Ended
from auditor.evidence.signatures import FrameEvidence
from auditor.parts import Value
from auditor.rules.finding import Evidence
from auditor.rules.history import HeadFact
from timeagent.console import printable
from timeagent.signedtime import SignedTime
from timeagent.units import INSTANT_MAX, Instant, Span

from .events import (
    RANKS,
    BagClosed,
    CeilingLinked,
    Event,
    FrameWritten,
    LeaseEnded,
    LeaseTold,
    SessionOver,
    SessionTold,
    ceiling_name,
)

type Mark = tuple[str, str, Instant]
"""Which (``prelock`` or ``pack``), and the log and beginning of the bag that the copy has it of."""

CHUNK_ROWS: Final = 2_048
_encoder: Final = msgspec.msgpack.Encoder()


def statement_name(digest: bytes, position: int) -> bytes:
    """Return the name of a statement about a lease: the digest of its batch's head, and the place in the batch."""
    return b"t" + digest + position.to_bytes(8)


def ended_name(entry: Ended) -> bytes:
    """Return the name of what a shard says of the end of a lease."""
    return b"e" + entry.ending.correlation_id + entry.domain.encode()


def hearsay_names(end: LeaseEnded) -> tuple[bytes, bytes]:
    """Return the name of what a later witness tells of an end, and that of its shard's own word, which counts more."""
    lease = end.ending.correlation_id + end.domain.encode()
    return b"h" + lease, b"e" + lease


class Gathering:
    """Takes what is read; this one takes nothing."""

    rank = 0
    """Set before each call: of what is told at several places, in a ledger or in frames, the lowest counts."""

    def head(self, fact: HeadFact) -> None:
        """Take a batch head."""

    def knows(self, name: bytes) -> bool:  # noqa: ARG002 - of a class that takes nothing
        """Whether a statement about a lease is known already, or of no interest."""
        return True

    def add(self, event: Event, name: bytes | None = None, unless: bytes | None = None) -> None:
        """Take an event. Of several with one name the one of the lowest rank stays.

        ``unless``: it does not count where there is another of this name.
        """

    def marked(self, mark: Mark) -> None:
        """Take that the copy has the prelock of a bag, or its pack: no event says since when."""


class EventRows(Gathering):
    """Makes rows of events, as a part of the tree hands them over."""

    def __init__(self) -> None:
        self._names: set[bytes] = set()
        self._rows: list[tuple[Value | list[str], ...]] = []
        self._done: list[bytes] = []

    def knows(self, name: bytes) -> bool:
        """Whether a statement about a lease is known here already."""
        return name in self._names

    def add(self, event: Event, name: bytes | None = None, unless: bytes | None = None) -> None:
        if name is not None:
            self._names.add(name)
        try:
            value = _encoder.encode(event)
        except UnicodeEncodeError:
            event = _shown(event)
            value = _encoder.encode(event)
        node, where = None if event.clock is None else event.clock.node, event.where
        at = (min(event.instant_ns, INSTANT_MAX), RANKS[type(event)], *event.place)
        place = (node, where.path, where.offset, where.length)
        about = list({domain for domain, _ in event.leases}) if isinstance(event, FrameWritten) else []
        self._rows.append((name, unless, self.rank, *at, *place, *_subject(event), about, value))
        if len(self._rows) >= CHUNK_ROWS:
            self._pack()

    def marked(self, mark: Mark) -> None:
        """Take that a bag has a prelock, or a pack."""
        self._rows.append(mark)

    def _pack(self) -> None:
        self._done.append(_encoder.encode(self._rows))
        self._rows = []

    def chunks(self) -> list[bytes]:
        """Return everything, some rows at a time, encoded."""
        if self._rows:
            self._pack()
        return self._done


def _shown(event: Event) -> Event:
    """Return an event with names of files that are no UTF-8 as they are shown."""
    where = Evidence(printable(event.where.path), event.where.offset, event.where.length)
    if isinstance(event, FrameWritten):
        return msgspec.structs.replace(event, where=where, file=printable(event.file))
    return msgspec.structs.replace(event, where=where)


class _Subject(NamedTuple):
    """By what else an event is found."""

    domain: str | None = None
    lease: bytes | None = None
    until: Instant | None = None
    session: bytes | None = None
    log: str | None = None
    bag: Instant | None = None
    newest: Instant | None = None
    subject: str | None = None


def _subject(event: Event) -> _Subject:
    match event:
        case LeaseTold():
            witness, until = event.witness, min(event.witness.expiry_ns, INSTANT_MAX)
            session = None if witness.session_id is None else event.place[1] + witness.session_id
            return _Subject(witness.domain, witness.correlation_id, until, session)
        case LeaseEnded():
            return _Subject(event.domain, event.ending.correlation_id, min(event.instant_ns, INSTANT_MAX))
        case SessionTold():
            until = min(event.witness.expiry_ns, INSTANT_MAX)
            return _Subject(until=until, session=event.place[1] + event.witness.session_id)
        case SessionOver():
            return _Subject(session=event.place[1] + event.ending.session_id)
        case FrameWritten():
            packed = event.file if event.file != event.where.path else None
            newest = min(event.newest_accepted_ns, INSTANT_MAX)
            return _Subject(log=event.log, bag=event.bag_ns, newest=newest, subject=packed)
        case BagClosed():
            return _Subject(log=event.log, bag=event.bag_ns, subject=event.path)
        case CeilingLinked():
            return _Subject(subject=ceiling_name(event.shard, event.record.number))
        case _:
            return _Subject()


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

    def frame(self, evidence: FrameEvidence) -> FrameEvidence:
        """Return a frame with its own and its witnesses' signed times as they would have been."""
        if not self.shifts:
            return evidence
        return replace(
            evidence,
            token=self.token(evidence.frame.head.writer, evidence.token),
            witnesses=tuple(replace(each, token=self.token(each.head.node, each.token)) for each in evidence.witnesses),
            sessions=tuple(replace(each, token=self.token(each.head.node, each.token)) for each in evidence.sessions),
        )

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
