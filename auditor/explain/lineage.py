"""What a finding rests on, link by link: message, witness, lease before it, ledger, ceiling record, keys.

Every link has its checks, also those that hold, and says where its bytes are. Reads single pieces of the tree again;
what is in order of time comes from the archive's timeline. Judges nothing that the audit does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from appliance.formats.chains import open_ceiling
from appliance.formats.closed import LockFile, open_lock, open_seal
from appliance.formats.framing import PIECE_BYTES_MAX, Kind, Piece, piece_at
from appliance.formats.lease import Phase, conflicts
from appliance.formats.paths import LOCK
from appliance.formats.policy import Policy
from appliance.formats.stamped import Stamped, open_signed
from appliance.formats.witness import BatchHead, open_block
from auditor.columns.events import (
    BagClosed,
    CeilingLinked,
    ClockReading,
    FrameWritten,
    LeaseEnded,
    LeaseTold,
    SessionOver,
    leases_of,
)
from auditor.evidence.finding import Check, Evidence, Finding, asked, clock, own_words
from auditor.evidence.signatures import FrameEvidence, HeldWitness
from auditor.evidence.tree import SEAL_FILE_BYTES_MAX
from auditor.rules.bags import file_checks, in_list, same_lock
from auditor.rules.endings import ending_checks
from auditor.rules.grants import Before, follow_checks
from auditor.rules.leases import statement_checks
from auditor.rules.timestamps import frame_checks, frame_covered, lease_checks, session_checks
from timeagent.console import counted, printable
from timeagent.errors import Damaged
from timeagent.keys import key_id
from timeagent.units import Instant, Span, rfc3339

from .archive import Archive
from .context import LeaseTrace
from .words import instead_of

WORDS: Final = {True: "ok", False: "NO", None: "?"}
"""Whether a check holds, in a word."""


class LinkKind(StrEnum):
    FINDING = "finding"
    FRAME = "frame"
    FILE = "file"
    LOCK = "lock file"
    WITNESS = "witness"
    LEASE = "lease"
    LEDGER = "ledger"
    CEILING = "ceiling"
    KEY = "key"
    RECORD = "record"
    MISSING = "not there"


@dataclass(frozen=True, slots=True)
class Link:
    """One piece of evidence and what it rests on in turn."""

    kind: LinkKind
    title: str
    checks: tuple[Check, ...] = ()
    under: tuple[Link, ...] = ()
    where: Evidence | None = None
    instant_ns: Instant | None = None
    """When it was signed, for going there in a replay."""
    domain: str | None = None
    node: str | None = None
    """Of a key: whose it is."""

    def walk(self) -> Iterator[Link]:
        yield self
        for each in self.under:
            yield from each.walk()

    def chain(self) -> Iterator[Check]:
        for link in self.walk():
            yield from link.checks

    def fields(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "title": printable(self.title),
            "path": printable(self.where.path) if self.where else None,
            "offset": self.where.offset if self.where else None,
            "length": self.where.length if self.where else None,
            "checks": [
                check.fields() | {"value": printable(check.value), "limit": printable(check.limit)}
                for check in self.checks
            ],
            "under": [link.fields() for link in self.under],
        }


def lineage_lines(link: Link, depth: int = 0) -> Iterator[str]:
    """Yield the chain as text: a line a link, and beneath it its checks with value and limit."""
    indent = "  " * depth
    yield printable(f"{indent}{link.kind}: {link.title}")
    for check in link.checks:
        limit = f"  ({check.limit})" if check.limit else ""
        yield printable(f"{indent}    {WORDS[check.holds]:<3} {check.what}: {check.value}{limit}")
    for each in link.under:
        yield from lineage_lines(each, depth + 1)


FILES_SHOWN: Final = 12
LEASES_SHOWN: Final = 6


def lineage(finding: Finding, archive: Archive) -> Link:
    """Return the chain of evidence beneath a finding. Reads the tree; never raises for what is in it."""
    return _Reading(finding, archive).root()


@dataclass(frozen=True, slots=True)
class _Closed:
    event: BagClosed
    raw: bytes
    lock: LockFile
    stamped: Stamped


def _lock_link(event: BagClosed, checks: tuple[Check, ...] = ()) -> Link:
    bag = f"bag {clock(event.bag_ns)[:12]} of {event.log}"
    title = f"{bag}, closed by {event.closer} at {clock(event.instant_ns)}"
    return Link(LinkKind.LOCK, title, checks, (), event.where, event.instant_ns)


class _Reading:
    def __init__(self, finding: Finding, archive: Archive) -> None:
        self._finding = finding
        self._archive = archive
        self._named = set(re.findall(r"\b[0-9a-f]{32}\b", f"{finding.subject} {finding.explanation}"))
        self._shown: set[tuple[str, bytes]] = set()
        self._places: dict[Evidence, list[LeaseTold | LeaseEnded | FrameWritten]] = {}
        wanted = set(finding.evidence)
        for event in archive.timeline.resting_on(finding.evidence):
            if event.where in wanted and isinstance(event, LeaseTold | LeaseEnded | FrameWritten):
                self._places.setdefault(event.where, []).append(event)

    def root(self) -> Link:
        finding = self._finding
        under = tuple(link for place in finding.evidence for link in self._place(place))
        title = f"{finding.code}: {finding.title}"
        told = any(check.code == finding.code and not check.holds for link in under for check in link.chain())
        return Link(LinkKind.FINDING, title, () if told else (own_words(finding),), under)

    def _place(self, place: Evidence) -> Iterator[Link]:
        tree = self._archive.tree
        data = tree.read_range(place.path, place.offset, min(place.length or PIECE_BYTES_MAX, SEAL_FILE_BYTES_MAX))
        if data is None:
            checks: tuple[Check, ...] = ()
            under: tuple[Link, ...] = ()
            directory, _, name = place.path.rpartition("/")
            closed = self._closed(directory)
            if closed is not None and (entry := closed.lock.by_name().get(name)) is not None:
                readable = place.path not in tree.unreadable
                checks, under = tuple(file_checks(entry, None, readable=readable)), (_lock_link(closed.event),)
            yield Link(LinkKind.MISSING, f"{place.path} {instead_of(place.path, tree)}", checks, under, place)
            return
        piece = piece_at(data, 0)
        if isinstance(piece, str):
            yield Link(LinkKind.FILE, f"{place.path}: no whole record ({piece})", where=place)
            return
        try:
            yield from self._piece(piece, data[piece.offset : piece.end], place)
        except Damaged as problem:
            yield Link(LinkKind.FILE, problem.message, where=place)

    def _piece(self, piece: Piece, data: bytes, place: Evidence) -> Iterator[Link]:
        match piece.kind:
            case Kind.FRAME:
                yield from self._frames(data, place)
            case Kind.LEDGER:
                yield from self._block(piece, place)
            case Kind.LOCK:
                yield self._lock_of_file(data, place)
            case Kind.SEAL:
                seal, stamped = open_seal(data, place.path)
                token = stamped.signed_time(place.path)
                title = f"seal of {seal.rack} by {seal.sealer}, {clock(token.midpoint_ns)}, {len(seal.entries)} bags"
                under = (self._key(token.key_id),)
                yield Link(LinkKind.LOCK, title, (), under, place, token.midpoint_ns)
            case Kind.CEILING:
                record, ceiling_signed = open_ceiling(data, place.path)
                of_shard = f"ceiling record {record.number} ({record.kind}) of shard {record.shard}"
                title = f"{of_shard}, until {clock(record.ceiling_ns)}"
                yield Link(LinkKind.CEILING, title, (), (self._key(ceiling_signed.key_id),), place)
            case Kind.POLICY | Kind.TRUST | Kind.MAP:
                signed = open_signed(piece.kind, data, place.path)
                title = f"{piece.kind.name.lower()} record {place.path}, signed by key {signed.key_id.hex()}"
                yield Link(LinkKind.RECORD, title, where=place)
            case _:
                yield Link(LinkKind.RECORD, f"{piece.kind.name.lower()} {place.path}", where=place)

    # Frames, their bag and its lock file.

    def _frames(self, data: bytes, place: Evidence) -> Iterator[Link]:
        archive = self._archive
        events = [each for each in self._places.get(place, []) if isinstance(each, FrameWritten)]
        path = events[0].file if events else place.path
        closed = self._closed(path.rpartition("/")[0])
        keyring = archive.records.keys if closed is None else archive.records.keyring(closed.lock.trust_number)
        limit = None if closed is None else closed.lock.policy_number
        frames, damage = archive.frames.frames(data, place.path, keyring, place.offset)
        for evidence in frames:
            policy = archive.records.judging(evidence.frame.head.policy_number, limit)
            yield self._frame(evidence, path, closed, policy)
        for where, reason in damage:
            yield Link(LinkKind.FILE, reason, where=where)

    def _frame(self, evidence: FrameEvidence, path: str, closed: _Closed | None, policy: Policy | None) -> Link:
        head, token = evidence.frame.head, evidence.token
        stamps = evidence.frame.timestamps
        span = None if closed is None else (closed.event.bag_ns, closed.event.end_ns)
        count = counted(len(stamps), "message")
        title = f"frame {head.sequence} of {head.writer} in {head.log}: {count} from {clock(int(stamps[0]))}"
        under = [] if closed is None else [self._closing(evidence, path, closed)]
        under += [self._witness(evidence, held) for held in evidence.witnesses]
        for session in evidence.sessions:
            name, expiry = session.witness.session_id.hex()[:8], clock(session.witness.expiry_ns)
            says = f"session lease {name}, expiry {expiry}", tuple(session_checks(evidence, session))
            key = self._key(session.head.key_id)
            under.append(Link(LinkKind.WITNESS, *says, (key,), evidence.where, session.token.midpoint_ns))
        under.append(self._key(token.key_id))
        checks = tuple(frame_checks(evidence, span, policy))
        return Link(LinkKind.FRAME, title, checks, tuple(under), evidence.where, token.midpoint_ns)

    def _closing(self, evidence: FrameEvidence, path: str, closed: _Closed) -> Link:
        entry = closed.lock.by_name().get(path.rpartition("/")[2])
        checks = [in_list(listed=entry is not None)]
        if entry is not None:
            stamp = None if closed.event.clock is None else closed.stamped.signed_time(closed.event.where.path)
            checks += frame_covered(evidence, stamp)
            if evidence.where.path == path:
                checks += file_checks(entry, self._archive.tree.read_range(path, 0, entry.size))
        return _lock_link(closed.event, tuple(checks))

    def _lock_of_file(self, data: bytes, place: Evidence) -> Link:
        lock, stamped = open_lock(data, place.path)
        token = stamped.signed_time(place.path)
        title = f"lock file of {lock.bag}, by {lock.closer} at {clock(token.midpoint_ns)}, {len(lock.entries)} files"
        paths = {each.path for each in self._finding.evidence}
        checks: list[Check] = []
        closed = self._closed(lock.bag)
        if closed is not None and closed.event.where.path != place.path:
            checks.append(same_lock(data, closed.raw))
        for entry in [each for each in lock.entries if f"{lock.bag}/{each.name}" in paths][:FILES_SHOWN]:
            checks += file_checks(entry, self._archive.tree.read(f"{lock.bag}/{entry.name}", entry.size))
        return Link(LinkKind.LOCK, title, tuple(checks), (self._key(token.key_id),), place, token.midpoint_ns)

    def _closed(self, bag: str) -> _Closed | None:
        """Return how a bag was closed, by the lock file that counts: the seal's copy where the rack is sealed."""
        event = self._archive.timeline.closing_of(bag)
        if event is None:
            return None
        path = event.where.path
        data = self._archive.tree.read(path, SEAL_FILE_BYTES_MAX + 1)
        try:
            if data is not None and path.rpartition("/")[2] != LOCK:
                data = open_seal(data, path)[0].lock_of(bag.rpartition("/")[2])
            return None if data is None else _Closed(event, data, *open_lock(data, path))
        except Damaged:  # since it was audited
            return None

    # Witnesses, leases, ledgers.

    def _witness(self, evidence: FrameEvidence, held: HeldWitness) -> Link:
        witness = held.witness
        lease = f"{witness.correlation_id.hex()[-8:]} on {witness.domain!r}"
        title = f"witness ({witness.kind}) of lease {lease}, expiry {clock(witness.expiry_ns)}"
        under: tuple[Link, ...] = ()
        trace = self._archive.leases.of(witness.domain).get(witness.correlation_id)
        if trace is not None and held.refusal is None:
            under = (self._lease(trace),)
        elif held.refusal is not None:
            under = (self._key(held.head.key_id),)
        checks, signed_ns = tuple(lease_checks(evidence, held)), held.token.midpoint_ns
        return Link(LinkKind.WITNESS, title, checks, under, evidence.where, signed_ns, witness.domain)

    def _block(self, piece: Piece, place: Evidence) -> Iterator[Link]:
        """Yield the leases of a ledger block that the finding is about."""
        told = self._places.get(place, [])
        names = dict.fromkeys(name for event in told for name in leases_of(event))
        chosen = [name for name in names if not self._named or name[1].hex() in self._named]
        if not chosen:
            block = open_block(piece, place.path)
            yield self._ledger(block.batch_head(place.path), place)
            return
        for domain, identifier in chosen[:LEASES_SHOWN]:
            trace = self._archive.leases.of(domain).get(identifier)
            if trace is not None and (domain, identifier) not in self._shown:
                self._shown.add((domain, identifier))
                yield self._lease(trace)

    def _lease(self, trace: LeaseTrace, *, deep: bool = True) -> Link:
        """Return a lease: its grant and its end with their checks, the lease before it, ledger, ceiling and key."""
        told = trace.told[0]
        witness, holder = told.witness, told.witness.holder
        name = f"{witness.correlation_id.hex()[-8:]} on {witness.domain!r}"
        span = f"{clock(told.instant_ns)} to {clock(trace.expiry_ns)}"
        title = f"lease {name}: {witness.mode} to {holder.node}:{holder.process}, {span}"
        if trace.ended is not None:
            title += f", {trace.ended.ending.outcome} {clock(trace.ended.instant_ns)}"
        checks: list[Check] = []
        under: list[Link] = []
        head = self._head(told)
        if head is not None:
            records = self._archive.records
            shards, ceiling = records.maps.get(head.going_by), self._ceiling(head)
            checks += statement_checks(witness, head, records.widest, ceiling.record if ceiling else None, shards)
            if deep:
                for earlier in self._before(trace):
                    checks += _after(earlier, told, head.signed_time().staleness_ns)
                    under.append(self._lease(earlier, deep=False))
            under.append(self._ledger(head, told.where))
        checks += _ended(trace)
        return Link(LinkKind.LEASE, title, tuple(checks), tuple(under), told.where, told.instant_ns, witness.domain)

    def _before(self, trace: LeaseTrace) -> list[LeaseTrace]:
        """Return the leases before one that count: its predecessor, and those that the finding names."""
        witness, own = trace.witness, (trace.told[0].instant_ns, trace.told[0].place)
        return [
            other
            for identifier, other in self._archive.leases.of(witness.domain).items()
            if identifier == witness.previous_id or identifier.hex() in self._named
            if other is not trace and (other.told[0].instant_ns, other.told[0].place) < own
        ]

    def _head(self, told: LeaseTold) -> BatchHead | None:
        """Return the head of the batch that a witness is in, from the ledger or from the frame that carries it."""
        where = told.where
        data = self._archive.tree.read_range(where.path, where.offset, where.length)
        piece = piece_at(data or b"", 0)
        if not isinstance(piece, Piece):
            return None
        try:
            if piece.kind is Kind.LEDGER:
                return open_block(piece, where.path).batch_head(where.path)
        except Damaged:
            return None
        frames, _ = self._archive.frames.frames(data or b"", where.path, self._archive.records.keys, where.offset)
        _, incarnation, sequence, _ = told.place
        heads = [held.head for frame in frames for held in frame.witnesses]
        return next((head for head in heads if (head.incarnation, head.sequence) == (incarnation, sequence)), None)

    def _ledger(self, head: BatchHead, place: Evidence) -> Link:
        time = head.signed_time()
        title = f"batch {head.sequence} of shard {head.shard} on {head.node}, {clock(time.midpoint_ns)}"
        linked, under = self._ceiling(head), [self._key(head.key_id)]
        if linked is not None:
            record = linked.record
            words = f"ceiling record {record.number} of shard {record.shard}, until {clock(record.ceiling_ns)}"
            of_node = f"{words}, by {record.node}"
            under.insert(0, Link(LinkKind.CEILING, of_node, where=linked.where, instant_ns=linked.instant_ns))
        return Link(LinkKind.LEDGER, title, (), tuple(under), place, time.midpoint_ns)

    def _ceiling(self, head: BatchHead) -> CeilingLinked | None:
        return self._archive.timeline.ceiling((head.map_number, head.shard), head.ceiling_number)

    def _key(self, identifier: bytes) -> Link:
        records = self._archive.records
        entry = next((each for public, each in records.entries.items() if key_id(public) == identifier), None)
        if entry is None:
            return Link(LinkKind.KEY, f"key {identifier.hex()}, which no trust record names")
        until = f"{rfc3339(entry.valid_from_ns)[:10]} to {rfc3339(entry.valid_until_ns)[:10]}"
        revoked = "" if entry.revoked_from_ns is None else f", revoked from {rfc3339(entry.revoked_from_ns)}"
        title = f"{entry.purpose} key {identifier.hex()[:8]} of {entry.node}, valid {until}{revoked}"
        return Link(LinkKind.KEY, title, node=entry.node)


def _after(earlier: LeaseTrace, told: LeaseTold, staleness: Span) -> Iterator[Check]:
    """Yield the checks of a grant against a lease before it: the fence, and, where they conflict, that it was over.

    None of a lease from another chain: of two that a domain moves between neither follows the other.
    """
    first, witness = earlier.told[0], told.witness
    if first.shard[0] != told.shard[0]:
        return
    yield asked("fence-not-growing", witness.fence, first.witness.fence, str)
    over = None if earlier.session is None else earlier.session[1]
    end = next((each for each in (earlier.ended, over) if each is not None and _said_before(each, told)), None)
    modes = [each.witness.mode for each in earlier.told if each is first or each.instant_ns <= told.instant_ns]
    if end is None and not conflicts(modes[-1], witness.mode):
        return
    before = Before(
        held=any(each.witness.phase is Phase.HELD for each in earlier.told),
        expiry_ns=earlier.expiry_ns,
        same_run=first.place[:2] == told.place[:2],
        outcome=end.ending.outcome if end else None,
        watermark_ns=end.ending.watermark_ns if end else None,
        ended=_signed(end.clock, staleness) if end else None,
    )
    yield from follow_checks(before, witness.floor_ns, witness.settle_to_ns, _signed(told.clock, staleness))


def _signed(reading: ClockReading, staleness: Span) -> tuple[Instant, Instant]:
    return reading.earliest_ns + staleness, reading.latest_ns + staleness


def _said_before(ended: LeaseEnded | SessionOver, told: LeaseTold) -> bool:
    """Whether one was said before the other: by one run of a shard in its own order, whatever its clock showed."""
    same_run = ended.place[:2] == told.place[:2]
    return ended.instant_ns <= told.instant_ns or (same_run and ended.place[2:] < told.place[2:])


def _ended(trace: LeaseTrace) -> Iterator[Check]:
    """Yield the checks of how a lease ended: what its holder said against what is there."""
    ended = trace.ended
    if ended is None:
        return
    late = sum(each.place[:2] == ended.place[:2] and each.place[2:] > ended.place[2:] for each in trace.told)
    accepted = [frame.accepted_ns[1] for frame in trace.frames if frame.accepted_ns is not None and frame.listed]
    there = sum(frame.messages for frame in trace.frames if frame.listed is not False)
    floor, top = max(each.witness.floor_ns for each in trace.told), max(accepted, default=None)
    yield from ending_checks(ended.ending, trace.expiry_ns, floor, late, top, there)
