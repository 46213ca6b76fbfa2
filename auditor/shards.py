"""The walk over ceiling chains and witness ledgers: reads each file once, checks it, and fills the index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

from appliance.formats.ceiling import open_ceiling
from appliance.formats.framing import Kind
from appliance.formats.ledger import open_block
from appliance.formats.paths import record_name
from appliance.formats.sessionlease import SessionEnded, SessionWitness
from appliance.formats.witness import CeilingCopy, Ended, Stopped, Witness, head_digest
from timeagent.errors import Damaged

from .finding import Evidence, Verdict
from .frames import head_refusal
from .load import Rest, Tail
from .records import RECORD_BYTES_MAX
from .rules.ledgers import LedgersSeen
from .rules.registry import found
from .rules.signatures import ceiling_findings
from .verification import misattributed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from appliance.formats.framing import Piece
    from appliance.formats.witness import BatchHead, Entry

    from .columns.ledgers import LedgerColumns
    from .finding import Finding
    from .index import Rows
    from .load import ChainFile, LedgerFile, Tree
    from .records import ClusterRecords
    from .verification import Signatures

IN_LEDGER: Final = 1


class _Place(TypedDict):
    where: Evidence
    rank: int


class ShardWalk:
    """Walks all chains and ledgers of a tree, in order."""

    def __init__(
        self,
        tree: Tree,
        records: ClusterRecords,
        signatures: Signatures,
        index: Rows,
        report: Callable[[Finding], None],
        columns: LedgerColumns | None = None,
    ) -> None:
        """Take where evidence comes from and findings go to. ``columns``: take what blocks say of leases."""
        self._columns = columns
        self._rank = 0
        """Of the last block: what a later one says counts."""
        self._tree = tree
        self._records = records
        self._signatures = signatures
        self._index = index
        self._report = report
        self._missing_maps: set[int] = set()
        self.torn: set[bytes] = set()
        """Runs whose last ledger file ends in a torn block."""
        self.ledgers = LedgersSeen()

    def walk_chains(self) -> None:
        """Audit every ceiling record, by itself."""
        for file in self._tree.chains():
            self._map(file.map_number)
            data = self._tree.read(file.path, RECORD_BYTES_MAX)
            if data is not None:
                self._ceiling(data, Evidence(file.path, 0, len(data)), file)

    def ledger(self, file: LedgerFile) -> None:
        """Audit every block of a ledger file, by itself."""
        self._map(file.map_number)
        self.torn.discard(file.incarnation)  # a torn block was written again, to the next file
        for piece in self._tree.pieces(file.path):
            if isinstance(piece, Rest):
                self._rest(file, piece)
            else:
                self._block(file, piece)
        self.ledgers.there.add(file.incarnation)
        if file.path in self._tree.unreadable:
            self.ledgers.stopped.add(file.incarnation)

    def _map(self, number: int) -> None:
        if number not in self._missing_maps and self._records.missing(Kind.MAP, number):
            self._missing_maps.add(number)
            path = f"map/{record_name(number)}"
            reason = f"shards work under map {number}, which is not there: whose a domain was is not checked"
            self._report(found("unverifiable-map", path, reason, [Evidence(path)]))

    def _ceiling(self, data: bytes, where: Evidence, file: ChainFile | None) -> None:
        """Take one ceiling record, from its file or as a ledger's copy."""
        try:
            record, signed = open_ceiling(data, where.path)
        except Damaged as problem:
            self._report(found("damaged-record", where.path, problem.message, [where]))
            return
        place = (record.map_number, record.shard, record.number)
        if record.cluster_id != self._records.cluster_id or (
            file is not None and place != (file.map_number, file.shard, file.number)
        ):
            reason = (
                f"{where.path} holds ceiling record {record.number} of shard {record.shard} under map "
                f"{record.map_number} of cluster {record.cluster_id.hex()}"
            )
            self._report(found("damaged-record", where.path, reason, [where]))
            return
        findings = list(ceiling_findings(self._signatures, self._records.keys, record, signed, where))
        for finding in findings:
            self._report(finding)
        if not findings:
            self._index.add("ceiling", *place, data, where=where)

    def _rest(self, file: LedgerFile, rest: Rest) -> None:
        where = Evidence(file.path, rest.offset, rest.length)
        if rest.tail is Tail.TORN:
            self.torn.add(file.incarnation)
            return
        reason = f"{file.path}, offset {rest.offset}: {rest.length} bytes are no block, nor a torn one: {rest.reason}"
        verdict = Verdict.INDETERMINATE if rest.tail is Tail.UNCLEAR else None
        self.ledgers.damaged.add(file.incarnation)
        self._report(found("damaged-ledger", file.path, reason, [where], verdict=verdict))

    def _block(self, file: LedgerFile, piece: Piece) -> None:
        """Take one block, if it holds."""
        if not self._good_block(file, piece):
            self.ledgers.damaged.add(file.incarnation)

    def _good_block(self, file: LedgerFile, piece: Piece) -> bool:
        where = Evidence(file.path, piece.offset, piece.end - piece.offset)
        try:
            if piece.kind is not Kind.LEDGER:
                raise Damaged("piece-damaged", f"{file.path} holds a {piece.kind.name.lower()}")  # noqa: TRY301
            block = open_block(piece, file.path)
            head = block.batch_head(file.path)
            head.signed_time(file.path)
            entries = list(block.decoded(file.path))
        except Damaged as problem:
            self._report(found("damaged-ledger", file.path, problem.message, [where]))
            return False
        if (head.map_number, head.shard, head.incarnation) != (file.map_number, file.shard, file.incarnation):
            reason = f"{file.path} holds a block of run {head.incarnation.hex()} of shard {head.shard}"
            self._report(found("damaged-ledger", file.path, reason, [where]))
            return False
        if not block.entries_match(head):
            reason = f"{file.path}, block {head.sequence}: the entries are not those that the head signs"
            self._report(found("forged-witness", f"{file.path} block {head.sequence}", reason, [where]))
            return False
        keys = self._records.keys
        refusal = (
            head_refusal(self._signatures, keys, self._records.cluster_id, block.head, head, block.signature)
            if keys is not None
            else None
        )
        if refusal:
            reason = f"{file.path}, block {head.sequence}: {refusal.reason}"
            self._report(found(refusal.code, f"{file.path} block {head.sequence}", reason, [where]))
            return False
        stranger = misattributed(keys, head.signed_time(), head.node)
        if stranger:
            reason = f"{file.path}, block {head.sequence}: {stranger}"
            self._report(found("forged-time", f"{file.path} block {head.sequence}", reason, [where]))
        self._take(head, block.head, entries, block.entries, where)
        return True

    def _take(
        self, head: BatchHead, raw: bytes, entries: list[Entry], raw_entries: tuple[bytes, ...], where: Evidence
    ) -> None:
        digest = head_digest(raw)
        run = (head.incarnation, head.sequence)
        named = (head.map_number, head.shard, head.ceiling_number)
        self._rank -= 1
        place: _Place = {"where": where, "rank": self._rank}
        self._index.add("head", *run, digest, *named, IN_LEDGER, raw, **place)
        positions: Iterable[int] = range(len(entries))
        if self._columns is not None:
            name = (*run, digest)
            positions = self._columns.take(name, entries, raw_entries, self._index.shown(where.path), where, self._rank)
        for position in positions:
            entry, raw_entry = entries[position], raw_entries[position]
            match entry:
                case Witness():
                    lease = (entry.domain, entry.correlation_id)
                    self._index.add("entry", *lease, *run, position, digest, raw_entry, rest=(0,), **place)
                case Ended():
                    lease = (entry.domain, entry.ending.correlation_id)
                    self._index.add("entry", *lease, *run, position, digest, raw_entry, rest=(1,), **place)
                case SessionWitness() | SessionEnded():
                    rest = (int(isinstance(entry, SessionEnded)),)
                    of = ("", entry.session_id)
                    self._index.add("entry", *of, *run, position, digest, raw_entry, rest=rest, **place)
                case CeilingCopy():
                    self._ceiling(entry.record, where, None)
                case Stopped():
                    self.ledgers.stopped.add(head.incarnation)
                case _:
                    pass
