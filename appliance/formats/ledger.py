"""One block of the witness ledger: a signed turn with all of its entries. One piece per block in the ledger file."""

from __future__ import annotations

from collections.abc import Iterator

from timeagent.canonical import Bytes64, Record, decode, encode
from timeagent.errors import Damaged

from .framing import Kind, Piece, pack
from .merkle import root
from .witness import Batch, BatchHead, Entry, decode_entries, decode_entry


class LedgerBlock(Record, frozen=True):
    """Head, signature and raw entries of one batch, as they were signed."""

    head: bytes
    signature: Bytes64
    entries: tuple[bytes, ...]

    def batch_head(self, where: str) -> BatchHead:
        """Return the head. Raises Damaged."""
        return decode(BatchHead, self.head, where)

    def decoded(self, where: str) -> Iterator[Entry]:
        """Yield the entries in order. Raises Damaged."""
        try:
            yield from decode_entries(list(self.entries))
        except Damaged:  # say which
            for index, entry in enumerate(self.entries):
                decode_entry(entry, f"{where}, entry {index}")
            raise

    def entries_match(self, head: BatchHead) -> bool:
        """Whether these are the entries that the head signs."""
        return bool(self.entries) and len(self.entries) == head.count and root(self.entries) == head.root


def block_bytes(batch: Batch) -> bytes:
    return pack(Kind.LEDGER, encode(LedgerBlock(head=batch.head, signature=batch.signature, entries=batch.entries)))


def open_block(piece: Piece, where: str) -> LedgerBlock:
    """Read a block from its piece. Raises Damaged."""
    return decode(LedgerBlock, piece.payload, where)
