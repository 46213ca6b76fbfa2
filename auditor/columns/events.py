"""What happened, as far as the evidence tells: one value per signed statement in a tree, with the instant it names.

An event's instant is the midpoint of the signed time that its maker put into it (of an ended lease: what its shard
said). It is no more exact than that node's clock: ``clock`` has the bounds. Two events of different nodes may be shown
in the wrong order by as much as their bounds overlap; nothing here decides anything by such an order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from appliance.formats.chains import CeilingRecord
from appliance.formats.lease import Ending
from appliance.formats.paths import Bag
from appliance.formats.witness import BatchHead, Ended, Entry, Half, Resumed, SessionEnded, SessionWitness, Witness
from auditor.evidence.finding import Evidence
from auditor.evidence.signatures import FrameEvidence
from timeagent.console import counted, instant_fields, printable
from timeagent.signedtime import ClockStatus, SignedTime, TimeFlags
from timeagent.units import Instant, Span, rfc3339, span_text

from .layout import ShardName

type Place = tuple[str, bytes, int, int]
"""Orders events of one maker that name the same instant: who, which run of it, sequence, place in the batch."""


class ClockReading(msgspec.Struct, frozen=True, array_like=True):
    """What a node's clock said when it signed."""

    node: str
    midpoint_ns: Instant
    radius_ns: Span
    status: ClockStatus
    clock_epoch: int
    sequence: int
    assumed: bool
    """The radius is a statement of the policy, not a measurement."""

    @classmethod
    def of(cls, node: str, token: SignedTime) -> ClockReading:
        bounds, assumed = (token.midpoint_ns, token.radius_ns), bool(token.flags & TimeFlags.ASSUMED)
        return cls(node, *bounds, token.status, token.clock_epoch, token.sequence, assumed)

    @property
    def state(self) -> str:
        return self.status.name.lower().replace("_", "-")

    @property
    def earliest_ns(self) -> Instant:
        return self.midpoint_ns - self.radius_ns

    @property
    def latest_ns(self) -> Instant:
        return self.midpoint_ns + self.radius_ns


class _Signed(msgspec.Struct, frozen=True, array_like=True):
    instant_ns: Instant
    place: Place
    clock: ClockReading
    where: Evidence


class _OfShard(_Signed, frozen=True):
    shard: ShardName


class _Stamped(msgspec.Struct, frozen=True, array_like=True):
    instant_ns: Instant
    place: Place
    clock: ClockReading | None
    """None: its signed time does not verify. What is stamped counts nevertheless."""
    where: Evidence


class LeaseTold(_OfShard, frozen=True):
    """A shard granted, renewed or upgraded a lease: ``witness.kind`` says which."""

    witness: Witness


class LeaseEnded(_OfShard, frozen=True):
    """A shard ended a lease, in the way that ``ending.outcome`` says."""

    domain: str
    ending: Ending
    floor_ns: Instant | None
    """The domain's floor since; None where only a later witness tells of the end."""
    settle_to_ns: Instant | None

    @property
    def heard(self) -> bool:
        """Whether only a later witness tells of the end: their shard's own word counts more."""
        return self.floor_ns is None


class SessionTold(_OfShard, frozen=True):
    """A shard granted or renewed a session lease."""

    witness: SessionWitness


class SessionOver(_OfShard, frozen=True):
    """A shard ended a session lease, and every lease under it that was out."""

    ending: SessionEnded


class CeilingLinked(_OfShard, frozen=True):
    """A node linked a record of a ceiling chain: a run of a shard began, goes on, or ended."""

    record: CeilingRecord


class MapFollowed(_OfShard, frozen=True):
    """A run of a shard began to go by another map, or as another half: not told of the map of its chain."""

    going_by: int
    half: Half


class RunResumed(_OfShard, frozen=True):
    """A run of a shard goes on after a restart: it had signed nothing since then."""

    since_ns: Instant


class FrameWritten(_Signed, frozen=True):
    """A writer signed the time of a frame. Whether it counts is decided by the bag's lock file: ``listed``."""

    log: str
    bag_ns: Instant
    file: str
    """The path of the data file under the root, also where a pack holds its bytes."""
    writer: str
    incarnation: bytes
    sequence: int
    messages: int
    first_ns: Instant
    last_ns: Instant
    """Lowest and highest timestamp."""
    accepted: tuple[int, int]
    """The messages that readers accept: from this index up to and without that one."""
    accepted_ns: tuple[Instant, Instant] | None
    """The lowest and the highest timestamp among those."""
    listed: bool | None
    """Whether the bag was closed with it; None: the bag is open in this copy."""
    void_because: str
    """Why readers do not see it though it is there; empty where they do."""
    leases: tuple[tuple[str, bytes], ...]
    """Domain and correlation id of each lease that it was written under."""
    begins: bool = False
    """Whether it is the first of its data file that can be read: known when all are in order."""

    @property
    def accepted_count(self) -> int:
        return self.accepted[1] - self.accepted[0]

    @property
    def newest_accepted_ns(self) -> Instant:
        """The highest timestamp that readers were given; 0 where they were given none of it."""
        return self.accepted_ns[1] if self.listed and self.accepted_ns is not None else 0


class FrameFile(msgspec.Struct, frozen=True, array_like=True):
    """What is the same of all frames of a data file."""

    log: str
    bag_ns: Instant
    file: str
    path: str
    """Where its bytes are: of a pack, where one holds them."""
    writer: str
    incarnation: bytes


FRAME: Final = np.dtype(
    [
        *(("file", "<u4"), ("clock", "<u4"), ("rank", "<i8"), ("offset", "<i8"), ("length", "<i8")),
        *(("sequence", "<i8"), ("messages", "<i8"), ("first", "<i8"), ("last", "<i8"), ("under", "<u4")),
    ]
)
"""A frame of ``FrameColumns``. ``under``: how many leases it was written under; the others: see ``FrameWritten``."""


class FrameColumns(msgspec.Struct, array_like=True):
    """Frames that columns judged, in order of rank: of each every message is accepted, and every signature good."""

    files: list[FrameFile]
    clocks: list[ClockReading]
    leases: list[tuple[str, bytes]]
    """Domain and correlation id."""
    rows: bytes
    """By the numbers of files and clocks."""
    under: bytes
    """Which of the leases, frame by frame: numbers of four bytes."""

    def table(self) -> NDArray[np.void]:
        return np.frombuffer(self.rows, FRAME)


class BagClosed(_Stamped, frozen=True):
    """A closer signed the list of a bag's contents: from then on nothing else is in it."""

    closer: str
    """Who signed the list."""
    log: str
    bag_ns: Instant
    end_ns: Instant
    due_ns: Instant
    path: str
    files: int
    missing: int
    """How many of them cannot be read in this copy, or are not what the list says."""
    accepted: int
    rejected: int
    """Messages in listed files, by what readers make of them."""
    void_files: int
    """Data files in the directory that the list does not name."""


class RackSealed(_Stamped, frozen=True):
    """A sealer signed the list of a rack's bags: no other bag of that stretch of time exists."""

    sealer: str
    log: str
    start_ns: Instant
    end_ns: Instant
    path: str
    bags: int


class LogBorn(_Stamped, frozen=True):
    """A log was made."""

    log: str
    first_ns: Instant
    """Its first bag begins here."""
    span_ns: Span
    grace_ns: Span
    rack_ns: Span
    kind: str


def statement_name(digest: bytes, position: int) -> bytes:
    """Return the name of a statement about a lease: the digest of its batch's head, and the place in the batch."""
    return b"t" + digest + position.to_bytes(8)


def end_name(correlation_id: bytes, domain: str) -> bytes:
    """Return the name of what is said of the end of a lease."""
    return b"e" + correlation_id + domain.encode()


class StatedBatch(msgspec.Struct, frozen=True, array_like=True):
    """By whom, and when, a batch of statements was signed."""

    who: str
    run: bytes
    sequence: int
    clock: ClockReading
    shard: ShardName

    @classmethod
    def under(cls, head: BatchHead, token: SignedTime) -> StatedBatch:
        who, shard = f"shard {head.map_number}/{head.shard:04d}", (head.map_number, head.shard)
        return cls(who, head.incarnation, head.sequence, ClockReading.of(head.node, token), shard)

    def told(
        self, entry: Entry, digest: bytes, position: int, where: Evidence, shift: Span = 0
    ) -> Iterator[tuple[LeaseTold | LeaseEnded | SessionTold | SessionOver | RunResumed, bytes | None]]:
        """Yield what one of its entries says, and then the ends that a witness tells of, each with its name.

        ``digest``: of the batch's head; ``shift``: how much more its clock would have shown of ends.
        """
        signed = self._signed(position, where)
        match entry:
            case Witness():
                yield LeaseTold(*signed, entry), statement_name(digest, position)
                for end in (entry.last_ended, entry.floor_set_by):
                    if end is not None:
                        heard = LeaseEnded(end.ended_ns, *signed[1:], entry.domain, end, None, None)
                        yield heard, end_name(end.correlation_id, entry.domain)
            case Ended():
                end, numbers = entry.ending, (entry.floor_ns, entry.settle_to_ns)
                own = LeaseEnded(end.ended_ns + shift, *signed[1:], entry.domain, end, *numbers)
                yield own, end_name(end.correlation_id, entry.domain)
            case SessionWitness():
                yield SessionTold(*signed, entry), None
            case SessionEnded():
                yield SessionOver(entry.ended_ns + shift, *signed[1:], entry), None
            case Resumed():
                yield RunResumed(*signed, entry.since_ns), None
            case _:
                pass

    def followed(self, head: BatchHead, where: Evidence) -> MapFollowed:
        return MapFollowed(*self._signed(0, where), head.going_by, head.half)

    def _signed(self, position: int, where: Evidence) -> tuple[Instant, Place, ClockReading, Evidence, ShardName]:
        return self.clock.midpoint_ns, (self.who, self.run, self.sequence, position), self.clock, where, self.shard


type Event = (
    LogBorn
    | CeilingLinked
    | MapFollowed
    | RunResumed
    | SessionOver
    | LeaseEnded
    | SessionTold
    | LeaseTold
    | FrameWritten
    | BagClosed
    | RackSealed
)
"""Cause before effect: the order of kinds within one instant."""
KINDS: Final[tuple[type[Event], ...]] = get_args(Event.__value__)
RANKS: Final[dict[type, int]] = {kind: rank for rank, kind in enumerate(KINDS)}


def ceiling_name(shard: ShardName, number: int) -> str:
    """Return by what a record of a ceiling chain is found."""
    return f"{shard[0]}/{shard[1]}/{number}"


def leases_of(event: Event) -> Sequence[tuple[str, bytes]]:
    """Return domain and correlation id of each lease that an event is about."""
    match event:
        case LeaseTold():
            return ((event.witness.domain, event.witness.correlation_id),)
        case LeaseEnded():
            return ((event.domain, event.ending.correlation_id),)
        case FrameWritten():
            return event.leases
        case _:
            return ()


def about_domain(event: Event, domain: str) -> bool:
    """Whether an event is about a domain: its leases, or a frame written under one of them."""
    return any(name == domain for name, _ in leases_of(event))


def about_log(event: Event, log: str) -> bool:
    """Whether an event is about a log. Leases and shards are about none."""
    return isinstance(event, FrameWritten | BagClosed | RackSealed | LogBorn) and event.log == log


NEEDS_TREE: Final = "needs-tree"
NAME_THE_COPY: Final = "name the copy too: --offline COPY --db FILE"
"""What helps where there is only the index of a tree, and bytes are asked for."""


def event_words(event: Event) -> str:
    """Return what happened, without when."""
    return printable(_words(event))


def event_fields(event: Event) -> dict[str, Any]:
    clock = event.clock
    return {
        **instant_fields("instant", event.instant_ns),
        "event": kind_of(event),
        "node": clock.node if clock else None,
        "radius_ns": clock.radius_ns if clock else None,
        "what": event_words(event),
        "path": printable(event.where.path),
        "offset": event.where.offset,
        "length": event.where.length,
    }


def kind_of(event: Event) -> str:
    """Return a stable word for the kind of an event."""
    match event:
        case LeaseTold():
            return event.witness.kind.value
        case LeaseEnded():
            return f"lease-{event.ending.outcome}"
        case SessionTold():
            return f"session-{event.witness.kind}"
        case SessionOver():
            return f"session-{event.ending.outcome}"
        case CeilingLinked():
            return f"ceiling-{event.record.kind}"
        case RunResumed():
            return "shard-resumed"
        case MapFollowed():
            return f"shard-{event.half}"
        case FrameWritten():
            return "frame"
        case BagClosed():
            return "bag-closed"
        case RackSealed():
            return "rack-sealed"
        case LogBorn():
            return "log-born"


def clock(instant: Instant | None) -> str:
    """Return the time of day of an instant, to the millisecond; a dash where it is not known.

    ``none`` for 0: a floor that nothing moved.
    """
    return "-" if instant is None else rfc3339(instant)[11:23] if instant else "none"


def _words(event: Event) -> str:
    match event:
        case LeaseTold():
            witness = event.witness
            return (
                f"shard {event.shard[1]} {witness.kind} of {witness.domain!r} to {witness.holder.node}:"
                f"{witness.holder.process}: {witness.mode} {witness.phase}, expiry {clock(witness.expiry_ns)}, "
                f"floor {clock(witness.floor_ns)}, fence {witness.fence}"
            )
        case LeaseEnded():
            ending = event.ending
            watermark = "" if ending.watermark_ns is None else f", watermark {clock(ending.watermark_ns)}"
            return f"lease on {event.domain!r} {ending.outcome}{watermark}, {counted(ending.messages, 'message')}"
        case SessionTold():
            witness_of = event.witness
            return f"session {witness_of.session_id.hex()} {witness_of.kind} until {clock(witness_of.expiry_ns)}"
        case SessionOver():
            over = event.ending
            return f"session {over.session_id.hex()} {over.outcome}, {counted(over.leases, 'lease')} with it"
        case CeilingLinked():
            record = event.record
            return (
                f"shard {record.shard} ceiling {record.number} ({record.kind}) by {record.node}, run "
                f"{record.incarnation.hex()}, until {clock(record.ceiling_ns)}"
            )
        case RunResumed():
            pause = span_text(event.instant_ns - event.since_ns)
            return f"shard {event.shard[1]} goes on as run {event.place[1].hex()} after a restart of {pause}"
        case MapFollowed():
            return f"shard {event.shard[1]}, chain {event.shard[0]}, goes by map {event.going_by}: {event.half}"
        case FrameWritten():
            under = ", ".join(repr(name) for name, _ in event.leases) or "no lease"
            void = f"; {event.void_because}" if event.void_because else ""
            wrote = f"{event.writer} wrote frame {event.sequence} to {event.log}: {counted(event.messages, 'message')}"
            return f"{wrote} under {under}{void}"
        case BagClosed():
            there = f"{counted(event.accepted, 'message')} accepted, {event.rejected} rejected"
            if event.missing:
                there += f" in {event.files - event.missing} of them, the others are not here as they were listed"
            what = f"{event.closer} closed bag {clock(event.bag_ns)} of {event.log} with {counted(event.files, 'file')}"
            return f"{what}, {there}, {counted(event.void_files, 'file')} void"
        case RackSealed():
            return (
                f"{event.sealer} sealed rack {clock(event.start_ns)} of {event.log} with {counted(event.bags, 'bag')}"
            )
        case LogBorn():
            return f"log {event.log} ({event.kind}) was made: bags of {span_text(event.span_ns)}"


# What if.


@dataclass(frozen=True)
class WhatIf:
    """What is taken to have been otherwise; nothing by default."""

    shifts: Mapping[str, Span] = field(default_factory=dict)
    """By node: how much more its clock would have shown."""
    grace_ns: Span | None = None
    drop_late: bool = False

    @property
    def any(self) -> bool:
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
