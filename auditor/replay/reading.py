"""A tree as a timeline: every signed statement that verifies, read once, file by file.

What does not verify makes no event: readers, holders and successors would have refused it too. Damage is the audit's
to report. Nothing is written, and nothing outside the tree is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.formats.ceiling import open_ceiling
from appliance.formats.framing import Kind, Piece
from appliance.formats.ledger import open_block
from appliance.formats.sessionlease import SessionEnded, SessionWitness
from appliance.formats.witness import CeilingCopy, Ended, Stopped, Witness, head_digest
from auditor.chains import HeadFact
from auditor.evidence.records import RECORD_BYTES_MAX, load_records
from auditor.evidence.signatures import Signatures
from auditor.frames import FrameReader, head_refusal
from auditor.rules.finding import Evidence
from auditor.rules.records import ceiling_findings
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime

from .bags import BagReading
from .events import CeilingLinked, ClockReading, LeaseEnded, LeaseTold, SessionOver, SessionTold
from .gathering import AS_IT_WAS, Gathered
from .timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from appliance.formats.lease import Ending
    from appliance.formats.witness import BatchHead
    from auditor.chains import ShardName
    from auditor.evidence.records import ClusterRecords
    from auditor.evidence.tree import LedgerFile, Tree
    from auditor.frames import FrameEvidence
    from auditor.rules.finding import Finding

    from .bags import JudgedFrame
    from .events import Place
    from .gathering import Gathering, WhatIf


def read_timeline(
    tree: Tree,
    *,
    root_key: bytes | None = None,
    signatures: Signatures | None = None,
    findings: Iterable[Finding] = (),
    lens: WhatIf = AS_IT_WAS,
    progress: Callable[[int, str], None] | None = None,
) -> Timeline:
    """Read a whole tree. Never raises for what is in it. Costs as much as an audit; memory grows with the frames.

    ``findings``: of the tree's audit, to be placed in time. ``signatures``: shared with that audit, each is checked
    once. ``lens``: as if something had been otherwise.
    """
    signatures = signatures or Signatures()
    records, _ = load_records(tree, signatures, root_key)
    found = Gathered()
    for _ in read_frames(tree, records, signatures, lens, found, progress or _silent):
        pass
    return made_timeline(found, findings)


def read_frames(
    tree: Tree,
    records: ClusterRecords,
    signatures: Signatures,
    lens: WhatIf,
    found: Gathering,
    progress: Callable[[int, str], None],
) -> Iterator[JudgedFrame]:
    """Read everything, ledgers first; yield each frame as it is read. ``found``: where everything goes to."""
    shards = ShardReading(tree, records, signatures, lens, found)
    bags = BagReading(tree, records, signatures, FrameReader(signatures, records.cluster_id), lens, found)
    done = 0
    for path in shards.read():
        done += 1
        progress(done, path)
    for log in tree.logs():
        for each in bags.read(log):
            if isinstance(each, str):
                done += 1
                progress(done, each)
            else:
                shards.carried(each.evidence)
                yield each


def made_timeline(found: Gathered, findings: Iterable[Finding]) -> Timeline:
    """Return the timeline of what was read."""
    return Timeline(found.events(), findings=findings, prelocked=found.prelocks, packed=found.packs)


def _silent(_done: int, _what: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Said:
    """Where a statement stands, by whom and when it was made."""

    place: Place
    clock: ClockReading
    where: Evidence
    shard: ShardName


class ShardReading:
    """Reads every chain and ledger of a tree, and the witnesses that frames carry. Each statement counts once."""

    def __init__(
        self, tree: Tree, records: ClusterRecords, signatures: Signatures, lens: WhatIf, found: Gathering
    ) -> None:
        """Take where evidence comes from, and where what it says goes to."""
        self._tree = tree
        self._records = records
        self._signatures = signatures
        self._lens = lens
        self._found = found

    def read(self) -> Iterator[str]:
        """Read chains and ledgers; yield the path of each ledger file when it is done."""
        for file in self._tree.chains():
            data = self._tree.read(file.path, RECORD_BYTES_MAX)
            if data is not None:
                self._ceiling(data, Evidence(file.path, 0, len(data)))
        for ledger in self._tree.ledgers():
            for piece in self._tree.pieces(ledger.path):
                if isinstance(piece, Piece):
                    self._block(ledger, piece)
            yield ledger.path

    def carried(self, evidence: FrameEvidence) -> None:
        """Take the witnesses of a frame that no ledger has. ``evidence``: as the lens shows it."""
        for held in evidence.witnesses:
            if held.refusal is None:
                digest = head_digest(held.signed.head)
                self._found.head(HeadFact(held.head, digest, held.token, evidence.where, in_ledger=False))
                self._witness(
                    held.witness,
                    digest,
                    held.signed.index,
                    self._said(held.head, held.token, evidence.where, held.signed.index),
                )

    def _said(self, head: BatchHead, token: SignedTime, where: Evidence, position: int) -> Said:
        name = f"shard {head.map_number}/{head.shard:04d}"
        place = (name, head.incarnation, head.sequence, position)
        return Said(place, ClockReading.of(head.node, token), where, (head.map_number, head.shard))

    def _block(self, file: LedgerFile, piece: Piece) -> None:
        where = Evidence(file.path, piece.offset, piece.end - piece.offset)
        try:
            if piece.kind is not Kind.LEDGER:
                return
            block = open_block(piece, file.path)
            head = block.batch_head(file.path)
            token = head.signed_time(file.path)
            entries = list(block.decoded(file.path))
        except Damaged:
            return
        keys = self._records.keys
        if (head.map_number, head.shard, head.incarnation) != (file.map_number, file.shard, file.incarnation):
            return
        if not block.entries_match(head) or (
            keys is not None
            and head_refusal(self._signatures, keys, self._records.cluster_id, block.head, head, block.signature)
        ):
            return
        token = self._lens.token(head.node, token)
        digest = head_digest(block.head)
        self._found.head(HeadFact(head, digest, token, where, in_ledger=True))
        for position, entry in enumerate(entries):
            said = self._said(head, token, where, position)
            match entry:
                case Witness():
                    self._witness(entry, digest, position, said)
                case Ended():
                    self._end(entry.domain, entry.ending, said, (entry.floor_ns, entry.settle_to_ns))
                case SessionWitness():
                    midpoint = said.clock.midpoint_ns
                    self._found.session(SessionTold(midpoint, said.place, said.clock, where, said.shard, entry))
                case SessionEnded():
                    ended = entry.ended_ns + self._lens.shifts.get(head.node, 0)
                    self._found.session(SessionOver(ended, said.place, said.clock, where, said.shard, entry))
                case CeilingCopy():
                    self._ceiling(entry.record, where)
                case Stopped():
                    self._found.stopped(head.incarnation)
                case _:
                    pass

    def _witness(self, witness: Witness, digest: bytes, position: int, said: Said) -> None:
        if self._found.knows((digest, position)):
            return
        told = LeaseTold(said.clock.midpoint_ns, said.place, said.clock, said.where, said.shard, witness)
        self._found.told((digest, position), told)
        for ending in (witness.last_ended, witness.floor_set_by):
            if ending is not None:
                self._end(witness.domain, ending, said, None)

    def _end(self, domain: str, ending: Ending, said: Said, numbers: tuple[int, int] | None) -> None:
        """Take the end of a lease: from its shard's ledger, or, with no numbers, from a later witness."""
        floor, settle_to = numbers or (None, None)
        ended = ending.ended_ns + self._lens.shifts.get(said.clock.node, 0) if numbers else ending.ended_ns
        event = LeaseEnded(ended, said.place, said.clock, said.where, said.shard, domain, ending, floor, settle_to)
        self._found.ended(event, hearsay=numbers is None)

    def _ceiling(self, data: bytes, where: Evidence) -> None:
        try:
            record, signed = open_ceiling(data, where.path)
            token = SignedTime.decode(record.time, where.path)
        except Damaged:
            return
        if record.cluster_id != self._records.cluster_id:
            return
        if any(ceiling_findings(self._signatures, self._records.keys, record, signed, where)):
            return
        token = self._lens.token(record.node, token)
        shard = (record.map_number, record.shard)
        place = (f"shard {record.map_number}/{record.shard:04d}", record.incarnation, record.number, 0)
        clock = ClockReading.of(record.node, token)
        self._found.ceiling(data, CeilingLinked(token.midpoint_ns, place, clock, where, shard, record))
