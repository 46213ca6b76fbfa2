"""The walk over ceiling chains and witness ledgers: reads each file once, checks it, and fills the index."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

from appliance.formats.chains import open_ceiling
from appliance.formats.framing import Kind, Piece
from appliance.formats.paths import record_name
from appliance.formats.witness import (
    BatchHead,
    CeilingCopy,
    Ended,
    LedgerBlock,
    Revoked,
    SessionEnded,
    SessionWitness,
    Stopped,
    Witness,
    decode_entry,
    head_digest,
    open_block,
)
from timeagent.errors import Damaged

from ..columns.layout import ENTRIES, OTHER, Chunk, ChunkMaker, Column, HeadName, small
from ..columns.parts import EvidenceSource, Part
from ..columns.records import Records, Shapes, entry_rows
from ..evidence.finding import Evidence, Verdict, found
from ..evidence.records import RECORD_BYTES_MAX
from ..evidence.signatures import head_refusal
from ..evidence.tree import ChainFile, LedgerFile, Rest, Tail
from ..rules.records import ceiling_findings, title_of
from .facts import Facts

_ENTRIES_AT_ONCE: Final = 32_768
"""So many are read before they become columns."""


@dataclass(slots=True)
class _Block:
    """A block whose head can be read."""

    file: LedgerFile
    where: Evidence
    block: LedgerBlock
    head: BatchHead
    name: HeadName = (b"", 0, b"")
    rank: int = 0
    """Which of several places counts; this and the name are set when it is known to hold."""


class ShardWalk:
    """Walks all chains and ledgers of a tree, in order."""

    def __init__(self, reading: EvidenceSource, told: Part, timeline: Facts | None) -> None:
        """Take where evidence comes from. ``told``: takes what is found; ``timeline``: told of what columns leave."""
        self._timeline = timeline
        self._reading = reading
        self._rows = ChunkMaker(ENTRIES, reading.keep)
        """What blocks say of leases, and of session leases."""
        self._shapes = Shapes(decode_entry)
        self._rank = 0
        """Of the last block: what a later one says counts."""
        self._records = reading.records
        self._told = told
        self._ledgers = told.ledgers
        self._missing_maps: set[int] = set()
        self._waiting: list[_Block] = []
        self._entries = 0

    def walk_chains(self) -> None:
        for file in self._reading.tree.chains():
            self._map(file.map_number)
            data = self._reading.tree.read(file.path, RECORD_BYTES_MAX)
            if data is not None:
                self._ceiling(data, Evidence(file.path, 0, len(data)), file)

    def ledger(self, file: LedgerFile) -> None:
        self._map(file.map_number)
        for piece in self._reading.tree.pieces(file.path):
            if isinstance(piece, Rest):
                self._rest(file, piece)
            else:
                self._block(file, piece)
        self._flush()
        self._ledgers.there.add(file.incarnation)
        if file.path in self._reading.tree.unreadable:
            self._ledgers.stopped.add(file.incarnation)

    def _map(self, number: int) -> None:
        if number not in self._missing_maps and self._records.missing(Kind.MAP, number):
            self._missing_maps.add(number)
            path = f"map/{record_name(number)}"
            reason = f"shards work under map {number}, which is not there: whose a domain was is not checked"
            self._told.found("unverifiable-map", path, reason, [Evidence(path)])

    def _ceiling(self, data: bytes, where: Evidence, file: ChainFile | None) -> None:
        """Take one ceiling record, from its file or as a ledger's copy."""
        try:
            record, signed = open_ceiling(data, where.path)
            place = (record.map_number, record.shard, record.number)
            wrong = record.cluster_id != self._records.cluster_id
            wrong |= file is not None and place != (file.map_number, file.shard, file.number)
            holds = f"{where.path} holds ceiling record {record.number} of shard {record.shard}"
            reason = f"{holds} under map {record.map_number} of cluster {record.cluster_id.hex()}" if wrong else ""
        except Damaged as problem:
            reason = problem.message
        if reason:
            title = "a ceiling record is damaged or misplaced"
            self._told.found("damaged-record", where.path, reason, [where], title)
            return
        keys = self._records.keys
        findings = list(ceiling_findings(self._reading.signatures, keys, record, signed, where))
        self._told.refused(findings, keys, record.time, signed.key_id)
        if not findings:
            self._told.ceilings.append((place[:2], record.number, data, self._told.place(where)))
            if self._timeline:
                self._timeline.ceiling(record, data, where)

    def _rest(self, file: LedgerFile, rest: Rest) -> None:
        where = Evidence(file.path, rest.offset, rest.length)
        if rest.tail is Tail.TORN:
            self._ledgers.torn.add(file.incarnation)
            return
        reason = f"{file.path}, offset {rest.offset}: {rest.length} bytes are no block, nor a torn one: {rest.reason}"
        verdict = Verdict.INDETERMINATE if rest.tail is Tail.UNCLEAR else None
        self._ledgers.damaged.add(file.incarnation)
        self._told.report(found("damaged-ledger", file.path, reason, [where], verdict=verdict))

    def _block(self, file: LedgerFile, piece: Piece) -> None:
        """Take one block, if it holds, now or with those after it."""
        where = Evidence(file.path, piece.offset, piece.end - piece.offset)
        try:
            if piece.kind is not Kind.LEDGER:
                raise Damaged("piece-damaged", f"{file.path} holds a {piece.kind.name.lower()}")  # noqa: TRY301 - caught with all that is wrong with a block
            block = open_block(piece, file.path)
            head = block.batch_head(file.path)
            head.signed_time(file.path)
        except Damaged as problem:
            self._damaged(file, problem.message, where)
            return
        self._waiting.append(_Block(file, where, block, head))
        self._entries += len(block.entries)
        if self._entries >= _ENTRIES_AT_ONCE:
            self._flush()

    def _damaged(self, file: LedgerFile, reason: str, where: Evidence) -> None:
        self._ledgers.damaged.add(file.incarnation)
        self._told.found("damaged-ledger", file.path, reason, [where])

    def _flush(self) -> None:
        """Check the blocks that wait, and keep what those say that hold."""
        blocks, self._waiting, self._entries = self._waiting, [], 0
        if not blocks:
            return
        records = None
        if not self._reading.one_by_one:
            with suppress(Damaged, ValueError):
                records = self._shapes.read([raw for each in blocks for raw in each.block.entries])
        chosen: list[int] = []
        good: list[_Block] = []
        number = 0
        for each in blocks:
            count = len(each.block.entries)
            if (records is not None or self._is_readable(each)) and self._is_signed(each):
                self._tell_head(each)
                good.append(each)
                chosen.extend(range(number, number + count))
            else:
                self._ledgers.damaged.add(each.file.incarnation)
            number += count
        if records is None:
            others = [(which, n) for which, each in enumerate(good) for n in range(len(each.block.entries))]
        else:
            others = self._by_columns(records, np.array(chosen, np.int64), good) if good else []
        for which, position in others:
            self._other(good[which], position)

    def _by_columns(self, records: Records, chosen: Column, blocks: list[_Block]) -> list[tuple[int, int]]:
        """Keep what blocks say of leases; return block and position of all else. ``chosen``: their records."""
        counts = [len(each.block.entries) for each in blocks]
        block = np.repeat(np.arange(len(blocks)), counts)
        position = np.arange(len(block)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows, maker = entry_rows(records, chosen), self._rows
        which, domains = records.distinct("domain")
        names = maker.names.all_of(each.decode() for each in domains)
        others, kept = (np.flatnonzero(each) for each in (rows["kind"] == OTHER, rows["kind"] != OTHER))
        rows, of = rows[kept], block[kept]
        rows["name"] = names[which[chosen[kept]]] if len(kept) else 0
        rows["position"] = position[kept]
        rows["plain"] &= small(rows["position"])
        rows["head"] = maker.heads.all_of(each.name for each in blocks)[of]
        rows["path"] = maker.paths.all_of(self._told.shown(each.where.path) for each in blocks)[of]
        places = [(each.where.offset, each.where.length, each.rank) for each in blocks]
        rows["offset"], rows["length"], rows["rank"] = np.array(places, np.int64)[of].T
        rows["at"] = kept
        maker.add(rows, [entry for each in blocks for entry in each.block.entries])
        return list(zip(block[others].tolist(), position[others].tolist(), strict=True))

    def chunks(self) -> list[Chunk]:
        return self._rows.chunks()

    def _is_readable(self, each: _Block) -> bool:
        try:
            deque(each.block.decoded(each.file.path), 0)
        except Damaged as problem:
            self._damaged(each.file, problem.message, each.where)
            return False
        return True

    def _is_signed(self, each: _Block) -> bool:
        """Whether a block is what its shard signed; what is wrong with it is reported."""
        file, block, head, where = each.file, each.block, each.head, each.where
        if (head.map_number, head.shard, head.incarnation) != (file.map_number, file.shard, file.incarnation):
            reason = f"{file.path} holds a block of run {head.incarnation.hex()} of shard {head.shard}"
            self._told.found("damaged-ledger", file.path, reason, [where])
            return False
        if not block.entries_match(head):
            reason = f"{file.path}, block {head.sequence}: the entries are not those that the head signs"
            title = "a ledger's block holds other witnesses than its shard signed"
            self._told.found("forged-witness", f"{file.path} block {head.sequence}", reason, [where], title)
            return False
        keys, signed = self._records.keys, (self._records.cluster_id, block.head, head, block.signature)
        refusal = None if keys is None else head_refusal(self._reading.signatures, keys, *signed)
        if refusal:
            reason = f"{file.path}, block {head.sequence}: {refusal.reason}"
            what = "the signed time of a batch" if refusal.code == "forged-time" else "a batch of witnesses"
            title = title_of(refusal.code, "a batch of witnesses", f"{what} does not verify")
            finding = found(refusal.code, f"{file.path} block {head.sequence}", reason, [where], title=title)
            self._told.refused([finding], keys, head.time, head.key_id)
            return False
        return True

    def _tell_head(self, each: _Block) -> None:
        """Tell the index of a block's head; say how it is named, and which of several places this is."""
        head, digest = each.head, head_digest(each.block.head)
        self._rank -= 1
        self._told.add_head(head, digest, each.block.head, each.where, self._rank, in_ledger=True)
        if self._timeline:
            self._timeline.head(head, each.where)
        each.name, each.rank = (head.incarnation, head.sequence, digest), self._rank

    def _other(self, each: _Block, position: int) -> None:
        raw = each.block.entries[position]
        entry = decode_entry(raw)
        if self._timeline:
            self._timeline.entry(each.head, each.name[2], position, entry, each.where, -each.rank)
        match entry:
            case Witness() | Ended() | Revoked() | SessionWitness() | SessionEnded():
                domain = "" if isinstance(entry, SessionWitness | SessionEnded) else entry.domain
                place = self._told.place(each.where)
                self._rows.add_one(domain, place, each.rank, each.name, raw, position=position, kind=OTHER)
            case CeilingCopy():
                self._ceiling(entry.record, each.where, None)
            case Stopped():
                self._ledgers.stopped.add(each.head.incarnation)
            case _:
                pass
