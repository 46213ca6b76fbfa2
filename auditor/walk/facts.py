"""What the audit's walk reads, as events: who was told what, who wrote which frame, who closed which bag with what.

The walk hands over evidence that verifies; what does not verify makes no event: readers, holders and successors would
have refused it too. Of each frame it is said what readers make of it, by the order of authority: the seal, then the
lock file. Files that no list names are read here, because no rule looks into them.

Each statement counts once, and of several the first: a ledger counts before the frames that carry the same witness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from appliance.formats.birth import LogBirth
from appliance.formats.chains import CeilingRecord
from appliance.formats.closed import LockFile, open_seal
from appliance.formats.framing import PIECE_BYTES_MAX, Kind
from appliance.formats.paths import Bag, Grid, parse_data_name
from appliance.formats.stamped import Stamped
from appliance.formats.witness import BatchHead, Entry, Half
from auditor.columns.frames import JudgedFile
from auditor.evidence.finding import Evidence
from auditor.evidence.signatures import FrameEvidence
from auditor.evidence.tree import BagListing, RackListing
from auditor.rules.bags import lock_of
from auditor.rules.records import stamp_findings
from auditor.rules.timestamps import judge_frame
from timeagent.console import printable
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime
from timeagent.units import Instant

from ..columns.events import (
    AS_IT_WAS,
    BagClosed,
    CeilingLinked,
    ClockReading,
    Event,
    FrameColumns,
    FrameWritten,
    LogBorn,
    RackSealed,
    StatedBatch,
    WhatIf,
    statement_name,
)
from ..columns.parts import EvidenceSource
from ..rules.bags import SealFacts

UNLISTED_RANK: Final = 2**39
"""Files that no list names are read behind all others of their rack."""


type Mark = tuple[str, str, Instant]
"""Which (``prelock`` or ``pack``), and the log and beginning of the bag that the copy has it of."""


class Gathering:
    """Takes what is read; this one takes nothing."""

    rank = 0
    """Set before each call: of what is told at several places, in a ledger or in frames, the lowest counts."""

    def knows(self, name: bytes) -> bool:  # noqa: ARG002 - of a class that takes nothing
        """Whether a statement about a lease is known already, or of no interest."""
        return True

    def add(self, event: Event, name: bytes | None = None) -> None:
        """Take an event. Of several with one name the one of the lowest rank stays, hearsay last of all."""

    def frames(self, columns: FrameColumns) -> None:
        """Take frames that columns judged."""

    def marked(self, mark: Mark) -> None:
        """Take that the copy has the prelock of a bag, or its pack: no event says since when."""


@dataclass(frozen=True, slots=True)
class JudgedFrame:
    """A frame as the lens shows it, with what readers make of it."""

    evidence: FrameEvidence
    event: FrameWritten
    bag: Bag
    closed: SignedTime | None
    """The signed time of the bag's lock file."""
    twice: bool
    """Whether its bag has the same frame already."""


@dataclass(slots=True)
class _ToldBag:
    """A bag, and what its files come to."""

    listing: BagListing
    bag: Bag
    """As the lens shows it."""
    lock: LockFile | None = None
    """The list that it was closed with; with this, who signed that and when."""
    token: SignedTime | None = None
    clock: ClockReading | None = None
    instant: Instant = 0
    where: Evidence = field(default_factory=lambda: Evidence(""))
    files: int = 0
    """How many listed files are what the list says."""
    accepted: int = 0
    rejected: int = 0
    seen: set[bytes] = field(default_factory=set)
    """Digests of frames that count: equal frames within a bag count once."""


class Facts:
    """Tells of chains and ledgers, of logs and racks one after another, and of the witnesses that frames carry."""

    def __init__(
        self,
        reading: EvidenceSource,
        found: Gathering,
        *,
        lens: WhatIf = AS_IT_WAS,
        base: int = 0,
        judged: Callable[[JudgedFrame], None] | None = None,
    ) -> None:
        """Take where events go to. ``base``: added to the ranks of what ledgers tell.

        ``judged``: told of each frame that can be read, of those of no event too.
        """
        self._reading = reading
        self._records = reading.records
        self._found = found
        self._lens = lens
        self._base = base
        self._tell = judged
        self._parts: dict[bytes, tuple[int, Half]] = {}
        """By which map each run goes, and as which half, as it was told last."""
        self._closings: dict[Instant, _ToldBag] = {}
        self._unlisted = UNLISTED_RANK

    # Chains and ledgers.

    def head(self, head: BatchHead, where: Evidence) -> None:
        """Take the head of a ledger's block."""
        part = head.going_by, head.half
        if self._parts.get(head.incarnation, (head.map_number, Half.WHOLE)) != part:
            self._parts[head.incarnation] = part
            self._found.rank = self._base
            name = b"m" + head.incarnation + b"%d %s" % (head.going_by, head.half.encode())
            batch = StatedBatch.under(head, self._lens.token(head.node, head.signed_time()))
            self._found.add(batch.followed(head, where), name)

    def entry(self, head: BatchHead, digest: bytes, position: int, entry: Entry, where: Evidence, rank: int) -> None:
        """Take an entry of a ledger. ``rank``: how many blocks of this part were read before."""
        self._found.rank = self._base + rank
        batch = StatedBatch.under(head, self._lens.token(head.node, head.signed_time()))
        for told in batch.told(entry, digest, position, where, self._lens.shifts.get(head.node, 0)):
            self._found.add(*told)

    def ceiling(self, record: CeilingRecord, data: bytes, where: Evidence) -> None:
        """Take a ceiling record, from its file or a ledger's copy."""
        token = self._lens.token(record.node, SignedTime.decode(record.time, where.path))
        shard = (record.map_number, record.shard)
        place = (f"shard {record.map_number}/{record.shard:04d}", record.incarnation, record.number, 0)
        clock = ClockReading.of(record.node, token)
        self._found.add(CeilingLinked(token.midpoint_ns, place, clock, where, shard, record), b"c" + data)

    def _carried(self, evidence: FrameEvidence) -> None:
        """Take the witnesses of a frame that no ledger has. ``evidence``: as the lens shows it."""
        for held in evidence.witnesses:
            if held.refusal is None:
                batch, place = StatedBatch.under(held.head, held.token), (held.signed.index, evidence.where)
                if not self._found.knows(statement_name(held.head_digest, held.signed.index)):
                    for told in batch.told(held.witness, held.head_digest, *place):
                        self._found.add(*told)

    # Logs and racks.

    def born(self, grid: Grid, birth: LogBirth, stamped: Stamped, where: Evidence) -> None:
        """Take the birth of a log, whether what it was signed with holds or not."""
        _, clock, signed_ns = self._stamp(Kind.BIRTH, stamped, birth.created_by, where, grid.first_ns)
        grace = birth.grace_ns if self._lens.grace_ns is None else self._lens.grace_ns
        # A log is there from the beginning of its first bag, whatever the clock of its maker says.
        instant, place = min(signed_ns, grid.first_ns), (birth.log, b"", 0, 0)
        spans = (birth.span_ns, grace, birth.rack_ns)
        self._found.add(LogBorn(instant, place, clock, where, birth.log, grid.first_ns, *spans, birth.kind.value))

    def closed(self, listing: BagListing, raw: bytes, where: Evidence) -> None:
        """Take the list that counts of a bag, before its files. ``raw``: the bytes of the lock file."""
        try:
            lock, stamped = lock_of(raw, where.path, listing.bag, self._records.cluster_id)
        except Damaged:
            return
        bag = self._lens.bag(listing.bag)
        stamp = self._stamp(Kind.LOCK, stamped, lock.closer, where, bag.due_ns)
        self._closings[bag.start_ns] = _ToldBag(listing, bag, lock, *stamp, where)

    def file(self, bag: Bag) -> None:
        """Take that a listed file is what the list says."""
        self._closings[bag.start_ns].files += 1

    def frame(self, raw: FrameEvidence, file: JudgedFile, *, twice: bool, misplaced: bool, rank: int) -> None:
        """Take a frame of a listed file. ``twice``: the bag has it already; ``rank``: how many were read before."""
        told = self._closings[file.by.bag.start_ns]
        self._found.rank = rank
        twice = raw.frame.digest in told.seen if self._lens.any else twice
        self._frame(raw, told, file.path, listed=True, twice=twice, fits=not misplaced, void="it came too late")

    def clean_frames(self, clean: FrameColumns) -> None:
        """Take frames that columns judged, after the others of their files."""
        table = clean.table()
        messages = np.bincount(table["file"], table["messages"]).astype(np.int64).tolist()
        for each, accepted in zip(clean.files, messages, strict=True):
            self._closings[each.bag_ns].accepted += accepted
        self._found.frames(clean)

    def open_frame(self, raw: FrameEvidence, listing: BagListing, path: str, *, twice: bool) -> None:
        """Take a frame of a bag that is open. ``twice``: the bag has it already."""
        told = _ToldBag(listing, self._lens.bag(listing.bag))
        self._frame(raw, told, path, listed=None, twice=twice, fits=_fits(raw, listing.bag, path))

    def open(self, listing: BagListing) -> None:
        if listing.begun:
            self._found.marked(("prelock", listing.bag.log, listing.bag.start_ns))

    def unread(self, listing: BagListing) -> None:
        """Take a bag whose lock file cannot be read: it is open, by all that is known. Reads its files."""
        self.open(listing)
        self._read(_ToldBag(listing, self._lens.bag(listing.bag)), listing.files, listed=None)

    def finish(self, grid: Grid, listing: RackListing, seal: SealFacts | None) -> None:
        """Tell what the rack comes to, when all frames are judged. Reads the files that came too late."""
        if seal is not None:
            self._sealed(grid, listing, seal)
        for closing in self._closings.values():
            self._close(closing)
        self._closings.clear()
        if seal is not None:
            self._seal(listing, seal)

    def _sealed(self, grid: Grid, listing: RackListing, seal: SealFacts) -> None:
        """Take bags that are gone, or in a pack, or void."""
        there = {each.bag.name: each for each in listing.bags}
        for name, raw in seal.locks.items():
            bag = grid.parse_bag(listing.rack, name)
            if bag is None:
                continue
            if listing.packed:
                self._found.marked(("pack", bag.log, bag.start_ns))
            if bag.start_ns not in self._closings:
                self.closed(there.get(name, BagListing(bag, (), locked=False)), raw, seal.where)
        for name, each in there.items():
            if name not in seal.locks:
                self._read(_ToldBag(each, each.bag), each.files, void="its rack was sealed without its bag")

    def _seal(self, listing: RackListing, seal: SealFacts) -> None:
        sealed, stamped = open_seal(seal.raw, seal.where.path)
        rack = listing.rack
        _, clock, instant = self._stamp(Kind.SEAL, stamped, sealed.sealer, seal.where, rack.end_ns)
        place, span = (rack.log, b"", rack.start_ns, 0), (rack.start_ns, rack.end_ns)
        by, bags = printable(sealed.sealer), len(sealed.entries)
        self._found.add(RackSealed(instant, place, clock, seal.where, by, rack.log, *span, rack.path, bags))

    def _close(self, told: _ToldBag) -> None:
        bag, lock = told.bag, told.lock
        assert lock is not None
        known = lock.by_name()
        late = [name for name in told.listing.files if name not in known]
        self._read(told, late, void="its bag was closed without it")
        self._found.add(
            BagClosed(
                instant_ns=told.instant,
                place=(bag.log, b"", bag.start_ns, 0),
                clock=told.clock,
                where=told.where,
                closer=printable(lock.closer),
                log=bag.log,
                bag_ns=bag.start_ns,
                end_ns=bag.end_ns,
                due_ns=bag.due_ns,
                path=bag.path,
                files=len(lock.entries),
                missing=len(lock.entries) - told.files,
                accepted=told.accepted,
                rejected=told.rejected,
                void_files=len(late),
            )
        )

    def _read(self, told: _ToldBag, names: Iterable[str], *, listed: bool | None = False, void: str = "") -> None:
        """Read files that no list names: evidence, and in the record only by another lens."""
        for name in names:
            path = f"{told.listing.bag.path}/{name}"
            data = self._reading.tree.read(path, PIECE_BYTES_MAX) or b""
            for raw in self._reading.frames.frames(data, path, self._records.keys)[0]:
                self._found.rank = self._unlisted = self._unlisted + 1
                twice, fits = raw.frame.digest in told.seen, _fits(raw, told.bag, path)
                self._frame(raw, told, path, listed=listed, twice=twice, fits=fits, void=void)

    def _stamp(
        self, kind: Kind, stamped: Stamped, node: str, where: Evidence, otherwise_ns: int
    ) -> tuple[SignedTime | None, ClockReading | None, int]:
        """Return the signed time of a stamp, as the lens shows it, if it holds; what it says of the clock; and when.

        One that does not hold is taken at its word for the instant only: what it covers counts for readers all the
        same. ``otherwise_ns``: when, if it is not even a signed time.
        """
        token, _ = stamp_findings(self._reading.signatures, self._records.keys, kind, stamped, node, where)
        if token is not None:
            token = self._lens.token(node, token)
            return token, ClockReading.of(node, token), token.midpoint_ns
        try:
            return None, None, stamped.signed_time(where.path).midpoint_ns
        except Damaged:
            return None, None, otherwise_ns

    def _frame(
        self,
        raw: FrameEvidence,
        told: _ToldBag,
        path: str,
        *,
        listed: bool | None,
        twice: bool,
        fits: bool,
        void: str = "",
    ) -> None:
        """Tell of a frame, as the lens shows it.

        ``listed``: whether its bag's list names its file, None: there is none yet; ``fits``: whether it is of the
        writer and log that its place says; ``void``: why it does not count where no list does.
        """
        evidence, bag, lock = self._lens.frame(raw), told.bag, told.lock
        head, timestamps = evidence.frame.head, evidence.frame.timestamps
        if listed is not None:
            listed = lock is not None and self._lens.listed(bag, evidence.token, listed=listed)
        accepted, span, why = (0, 0), None, void if listed is False else "the bag has the same frame already"
        if listed is not False and not twice:
            policy = self._records.judging(head.policy_number, lock.policy_number if lock else None)
            places = judge_frame(evidence, bag, policy, misplaced=not fits).accepted.nonzero()[0]
            if len(places):  # always one stretch
                accepted = int(places[0]), int(places[-1]) + 1
                span = int(timestamps[accepted[0]]), int(timestamps[accepted[1] - 1])
                told.seen.add(raw.frame.digest)
            refused = len(timestamps) - len(places)
            told.accepted += len(places)
            told.rejected += refused
            why = f"readers drop {refused} of its {len(timestamps)} messages" if refused else ""
        event = FrameWritten(
            instant_ns=evidence.token.midpoint_ns,
            place=(f"writer {head.writer}", head.incarnation, head.sequence, 0),
            clock=ClockReading.of(head.writer, evidence.token),
            where=evidence.where,
            log=bag.log,
            bag_ns=bag.start_ns,
            file=path,
            writer=head.writer,
            incarnation=head.incarnation,
            sequence=head.sequence,
            messages=len(timestamps),
            first_ns=int(timestamps[0]),
            last_ns=int(timestamps[-1]),
            accepted=accepted,
            accepted_ns=span,
            listed=listed,
            void_because=why,
            leases=tuple(
                (held.witness.domain, held.witness.correlation_id)
                for held in evidence.witnesses
                if held.refusal is None
            ),
        )
        if evidence.refusal is None:
            self._found.add(event)
        self._carried(evidence)
        if self._tell is not None:
            self._tell(JudgedFrame(evidence, event, bag, told.token, twice))


def _fits(frame: FrameEvidence, bag: Bag, path: str) -> bool:
    """Whether a frame is of the writer and the log that its place says."""
    name, head = parse_data_name(path.rpartition("/")[2]), frame.frame.head
    return name is not None and name.writer == head.writer and bag.log == head.log
