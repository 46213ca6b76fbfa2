"""Logs, racks and bags as events: who wrote which frame, who closed which bag with what, who sealed which rack.

Says of each frame what readers make of it, by the order of authority: the seal, then the lock file.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from appliance.formats.framing import Kind
from appliance.formats.lockfile import LockFile, open_lock, open_seal
from appliance.formats.paths import BIRTH, LOCK, LOGS, PRELOCK, SEAL, Grid
from auditor.evidence.records import RECORD_BYTES_MAX, open_birth
from auditor.evidence.tree import PIECE_BYTES_MAX, SEAL_FILE_BYTES_MAX, BagListing, RackListing
from auditor.rules.bags import misplaced_lock, misplaced_seal
from auditor.rules.finding import Evidence
from auditor.rules.records import stamp_findings
from auditor.rules.time import judge_frame
from auditor.seals import RackPack
from timeagent.errors import Damaged, TenureError

from .events import BagClosed, ClockReading, FrameWritten, LogBorn, RackSealed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.formats.lockfile import LockEntry
    from appliance.formats.paths import Bag
    from appliance.formats.stamped import Stamped
    from auditor.evidence.records import ClusterRecords
    from auditor.evidence.signatures import Signatures
    from auditor.evidence.tree import Tree
    from auditor.frames import FrameEvidence, FrameReader
    from timeagent.signedtime import SignedTime

    from .gathering import Gathering, WhatIf

_VOID: Final = "its bag was closed without it"


@dataclass(slots=True)
class _Tally:
    """What the files of one bag come to."""

    accepted: int = 0
    rejected: int = 0
    missing: int = 0
    seen: set[bytes] = field(default_factory=set)
    """Digests of frames that count: equal frames within a bag count once."""


@dataclass(frozen=True, slots=True)
class JudgedFrame:
    """A frame as the lens shows it, with what readers make of it."""

    evidence: FrameEvidence
    event: FrameWritten
    bag: Bag
    closed: SignedTime | None
    """The signed time of the bag's lock file."""


class BagReading:
    """Reads every log of a tree."""

    def __init__(
        self,
        tree: Tree,
        records: ClusterRecords,
        signatures: Signatures,
        frames: FrameReader,
        lens: WhatIf,
        found: Gathering,
    ) -> None:
        """Take where evidence comes from, and where what it says goes to."""
        self._tree = tree
        self._records = records
        self._signatures = signatures
        self._frames = frames
        self._lens = lens
        self._found = found
        self._begun = ""
        """The data file that the last event was made of."""

    def read(self, log: str) -> Iterator[JudgedFrame | str]:
        """Read a log; yield each frame that is decoded, and the path of each rack when it is done."""
        grid = self._grid(log)
        if grid is None:
            return
        for listing in self._tree.racks(grid):
            if isinstance(listing, RackListing):
                yield from self._rack(grid, listing)
                yield listing.rack.path

    def _grid(self, log: str) -> Grid | None:
        path = f"{LOGS}/{log}/{BIRTH}"
        data = self._tree.read(path, RECORD_BYTES_MAX)
        try:
            if data is None:
                return None
            birth, stamped = open_birth(data, log, self._records.cluster_id)
            token = stamped.signed_time(path)
        except TenureError:
            return None
        grid, where = Grid(birth), Evidence(path, 0, len(data))
        clock = ClockReading.of(birth.created_by, self._lens.token(birth.created_by, token))
        grace = birth.grace_ns if self._lens.grace_ns is None else self._lens.grace_ns
        # A log is there from the beginning of its first bag, whatever the clock of its maker says.
        instant = min(clock.midpoint_ns, grid.first_ns)
        kind, place = birth.kind.value, (log, b"", 0, 0)
        self._found.written(
            LogBorn(instant, place, clock, where, log, grid.first_ns, birth.span_ns, grace, birth.rack_ns, kind)
        )
        return grid

    def _stamp(
        self, kind: Kind, stamped: Stamped, node: str, where: Evidence, otherwise_ns: int
    ) -> tuple[SignedTime | None, ClockReading | None, int]:
        """Return the signed time of a stamp, as the lens shows it, if it holds; what it says of the clock; and when.

        One that does not hold is taken at its word for the instant only: what it covers counts for readers all the
        same. ``otherwise_ns``: when, if it is not even a signed time.
        """
        token, _ = stamp_findings(self._signatures, self._records.keys, kind, stamped, node, where)
        token = self._lens.stamp(node, token)
        if token is not None:
            return token, ClockReading.of(node, token), token.midpoint_ns
        try:
            return None, None, stamped.signed_time(where.path).midpoint_ns
        except Damaged:
            return None, None, otherwise_ns

    def _rack(self, grid: Grid, listing: RackListing) -> Iterator[JudgedFrame]:
        path = f"{listing.rack.path}/{SEAL}"
        data = self._tree.read(path, SEAL_FILE_BYTES_MAX + 1) if listing.sealed else None
        there = {each.bag.name: each for each in listing.bags}
        try:
            if data is None:
                raise Damaged("no-seal", f"{path} is not there")  # noqa: TRY301 - caught with all that is wrong with a seal
            seal, stamped = open_seal(data, path)
            if misplaced_seal(seal, listing.rack, self._records.cluster_id):
                raise Damaged("misplaced", f"{path} is of another rack")  # noqa: TRY301 - caught with all that is wrong with a seal
        except Damaged:
            for each in listing.bags:
                yield from self._bag(grid, each, None, None, None)
            return
        where = Evidence(path, 0, len(data))
        pack = RackPack(self._tree, listing, data) if listing.packed else None
        if pack is not None and pack.misplaced() is not None:
            pack = None
        for entry in seal.entries:
            bag = grid.parse_bag(listing.rack, entry.bag)
            if bag is None:
                continue
            if listing.packed:
                self._found.packed(bag.log, bag.start_ns)
            each = there.get(entry.bag, BagListing(bag, (), locked=False))
            yield from self._bag(grid, each, entry.lock, where, pack)
        for name, each in there.items():
            if seal.lock_of(name) is None:
                yield from self._void(grid, each, "its rack was sealed without its bag")
        rack = listing.rack
        _, clock, instant = self._stamp(Kind.SEAL, stamped, seal.sealer, where, rack.end_ns)
        self._found.written(
            RackSealed(
                instant_ns=instant,
                place=(rack.log, b"", rack.start_ns, 0),
                clock=clock,
                where=where,
                sealer=seal.sealer,
                log=rack.log,
                start_ns=rack.start_ns,
                end_ns=rack.end_ns,
                path=rack.path,
                bags=len(seal.entries),
            )
        )

    def _bag(
        self, grid: Grid, listing: BagListing, sealed: bytes | None, seal: Evidence | None, pack: RackPack | None
    ) -> Iterator[JudgedFrame]:
        bag = self._lens.bag(listing.bag)
        path = f"{bag.path}/{LOCK}"
        raw, where = sealed, seal or Evidence(path)
        if raw is None and listing.locked:
            raw = self._tree.read(path, PIECE_BYTES_MAX + 1)
            where = Evidence(path, 0, len(raw or b""))
        if raw is None:
            yield from self._open(grid, listing)
            return
        try:
            lock, stamped = open_lock(raw, where.path)
        except Damaged:
            return
        if misplaced_lock(lock, listing.bag, self._records.cluster_id):
            return
        if self._records.missing(Kind.TRUST, lock.trust_number):
            self._records.doubt_keys()
        token, clock, instant = self._stamp(Kind.LOCK, stamped, lock.closer, where, bag.due_ns)
        tally, known = _Tally(), lock.by_name()
        for entry in lock.entries:
            yield from self._file(grid, bag, lock, entry, token, pack, tally)
        late = [name for name in listing.files if name not in known]
        for name in late:
            yield from self._late(grid, bag, name, token, tally)
        self._found.written(
            BagClosed(
                instant_ns=instant,
                place=(bag.log, b"", bag.start_ns, 0),
                clock=clock,
                where=where,
                closer=lock.closer,
                log=bag.log,
                bag_ns=bag.start_ns,
                end_ns=bag.end_ns,
                due_ns=bag.due_ns,
                path=bag.path,
                files=len(lock.entries),
                missing=tally.missing,
                accepted=tally.accepted,
                rejected=tally.rejected,
                void_files=len(late),
            )
        )

    def _file(
        self,
        grid: Grid,
        bag: Bag,
        lock: LockFile,
        entry: LockEntry,
        closed: SignedTime | None,
        pack: RackPack | None,
        tally: _Tally,
    ) -> Iterator[JudgedFrame]:
        path = f"{bag.path}/{entry.name}"
        place, begins_at = path, 0
        if pack is not None:
            place = pack.path
            begins_at, data = pack.file(bag.name, entry)
        else:
            data = self._tree.read(path, entry.size) or b""
        if len(data) != entry.size or hashlib.sha256(data).digest() != entry.digest:
            tally.missing += 1
            return
        name = grid.data_name(entry.name)
        keyring = self._records.keyring(lock.trust_number)
        for raw in self._frames.frames(data, place, keyring, begins_at)[0]:
            head = raw.frame.head
            evidence = self._lens.frame(raw)
            fits = name is not None and (head.cluster_id, head.log, head.writer) == (
                self._records.cluster_id,
                bag.log,
                name.writer,
            )
            twice = raw.frame.digest in tally.seen
            accepted = (0, 0) if twice else self._accepted(evidence, bag, lock.policy_number, fits=fits)
            why = "the bag has the same frame already" if twice else ""
            if not self._lens.listed(bag, evidence.token, listed=True):
                accepted, why = (0, 0), "it came too late"
            elif not twice:
                tally.accepted += accepted[1] - accepted[0]
                tally.rejected += len(raw.frame.timestamps) - (accepted[1] - accepted[0])
            if accepted[1]:
                tally.seen.add(raw.frame.digest)
            yield self._judged(evidence, bag, path, accepted, listed=not why or twice, why=why, closed=closed)

    def _late(self, grid: Grid, bag: Bag, name: str, closed: SignedTime | None, tally: _Tally) -> Iterator[JudgedFrame]:
        """Read a file that the list does not name: evidence, and in the record only by another lens."""
        path = f"{bag.path}/{name}"
        parsed = grid.data_name(name)
        data = self._tree.read(path, PIECE_BYTES_MAX) or b""
        for raw in self._frames.frames(data, path, self._records.keys)[0]:
            evidence = self._lens.frame(raw)
            would = self._lens.listed(bag, evidence.token, listed=False) and raw.frame.digest not in tally.seen
            fits = parsed is not None and parsed.writer == raw.frame.head.writer and raw.frame.head.log == bag.log
            accepted = self._accepted(evidence, bag, None, fits=fits) if would else (0, 0)
            if would:
                tally.accepted += accepted[1] - accepted[0]
                tally.rejected += len(raw.frame.timestamps) - (accepted[1] - accepted[0])
                tally.seen.add(raw.frame.digest)
            yield self._judged(evidence, bag, path, accepted, listed=would, why="" if would else _VOID, closed=closed)

    def _open(self, grid: Grid, listing: BagListing) -> Iterator[JudgedFrame]:
        bag = self._lens.bag(listing.bag)
        if any(name == PRELOCK for name, _ in self._tree.names(bag.path)):
            self._found.prelocked(bag.log, bag.start_ns)
        seen: set[bytes] = set()
        for name in listing.files:
            path, parsed = f"{bag.path}/{name}", grid.data_name(name)
            data = self._tree.read(path, PIECE_BYTES_MAX) or b""
            for raw in self._frames.frames(data, path, self._records.keys)[0]:
                evidence = self._lens.frame(raw)
                twice = raw.frame.digest in seen
                seen.add(raw.frame.digest)
                fits = parsed is not None and parsed.writer == raw.frame.head.writer and raw.frame.head.log == bag.log
                accepted = (0, 0) if twice else self._accepted(evidence, bag, None, fits=fits)
                why = "the bag has the same frame already" if twice else ""
                yield self._judged(evidence, bag, path, accepted, listed=None, why=why, closed=None)

    def _void(self, grid: Grid, listing: BagListing, why: str) -> Iterator[JudgedFrame]:
        for name in listing.files:
            path = f"{listing.bag.path}/{name}"
            data = self._tree.read(path, PIECE_BYTES_MAX) or b""
            if grid.data_name(name) is not None:
                for raw in self._frames.frames(data, path, self._records.keys)[0]:
                    evidence = self._lens.frame(raw)
                    yield self._judged(evidence, listing.bag, path, (0, 0), listed=False, why=why, closed=None)

    def _accepted(self, evidence: FrameEvidence, bag: Bag, policy: int | None, *, fits: bool) -> tuple[int, int]:
        """Return the messages that readers accept: first, and one behind the last. Always one stretch."""
        chosen = self._records.judging(evidence.frame.head.policy_number, policy)
        places = judge_frame(evidence, bag, chosen, misplaced=not fits).accepted.nonzero()[0]
        return (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)

    def _judged(
        self,
        evidence: FrameEvidence,
        bag: Bag,
        path: str,
        accepted: tuple[int, int],
        *,
        listed: bool | None,
        why: str,
        closed: SignedTime | None,
    ) -> JudgedFrame:
        head, timestamps = evidence.frame.head, evidence.frame.timestamps
        span = (int(timestamps[accepted[0]]), int(timestamps[accepted[1] - 1])) if accepted[1] else None
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
            void_because=why or self._why_not(evidence, accepted),
            leases=tuple(
                (held.witness.domain, held.witness.correlation_id)
                for held in evidence.witnesses
                if held.refusal is None
            ),
            begins=evidence.refusal is None and path != self._begun,
        )
        if evidence.refusal is None:
            self._begun = path
            self._found.written(event)
        return JudgedFrame(evidence, event, bag, closed)

    @staticmethod
    def _why_not(evidence: FrameEvidence, accepted: tuple[int, int]) -> str:
        refused = len(evidence.frame.timestamps) - (accepted[1] - accepted[0])
        if not refused:
            return ""
        return f"readers drop {refused} of its {len(evidence.frame.timestamps)} messages"
