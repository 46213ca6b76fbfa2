"""What the witness ledgers on the mount say about leases: the last known ones, and how those before them ended.

Nothing is verified here: that is the auditor's work. A ledger grows for as long as its shard runs, so it is read from
near its end and then only what is new; the files are opened, read and closed, never written.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.formats.framing import Kind, Piece, pack, piece_at
from appliance.formats.lease import LeaseOutcome
from appliance.formats.ledger import open_block
from appliance.formats.shardmap import shard_number
from appliance.formats.witness import Ended, Stopped, Witness
from timeagent.errors import Environment
from timeagent.units import Instant

FIRST_READ_BYTES: Final = 4 * 1024 * 1024
"""How much of a ledger's end is read at first: leases are renewed, so live ones are mentioned there again."""

READ_BYTES_MAX: Final = 4 * 1024 * 1024
DOMAINS_MAX: Final = 20_000
_MAGIC: Final = pack(Kind.LEDGER, b"")[:4]


@dataclass(frozen=True, slots=True)
class LedgerLease:
    """The newest that a ledger says about one domain."""

    witness: Witness
    shard: int
    incarnation: bytes
    signed_ns: Instant
    """When the shard said so, by its own clock."""
    ended: LeaseOutcome | None = None
    """How that lease ended, if the ledger says that it did."""


@dataclass(frozen=True, slots=True)
class LedgersTell:
    """What all ledgers together say."""

    leases: tuple[LedgerLease, ...]
    """The last known lease of each domain that is not known to have ended."""
    fences: dict[str, int]
    """The newest fence of each domain, ended or not."""
    previous: dict[bytes, LeaseOutcome]
    """How the lease before each known grant ended, by the grant's correlation id."""


class LedgerBook:
    """The newest of each domain, from all ledgers that were read. One thread."""

    def __init__(self) -> None:
        self._domains: OrderedDict[str, LedgerLease] = OrderedDict()
        self._previous: OrderedDict[bytes, LeaseOutcome] = OrderedDict()
        """How the lease before a grant ended, by the grant's correlation id."""
        self._told: LedgersTell | None = None

    def told(self) -> LedgersTell:
        """Return what they say. The very same value until a block says something new: rows are made from it."""
        if self._told is None:
            self._told = LedgersTell(
                tuple(known for known in self._domains.values() if known.ended is None),
                {domain: known.witness.fence for domain, known in self._domains.items()},
                dict(self._previous),
            )
        return self._told

    def take(self, piece: Piece, where: str) -> None:
        """Take in one block. Raises Damaged."""
        block = open_block(piece, where)
        head = block.batch_head(where)
        signed_ns, shard = head.signed_time(where).midpoint_ns, shard_number(head.map_number, head.shard)
        for entry in block.decoded(where):
            match entry:
                case Witness():
                    self._grant(LedgerLease(entry, shard, head.incarnation, signed_ns))
                case Ended():
                    self._end(entry)
                case Stopped():
                    self._stop(head.incarnation)
                case _:
                    pass

    def _grant(self, new: LedgerLease) -> None:
        domain = new.witness.domain
        known = self._domains.get(domain)
        if known is not None and (known.witness.fence, known.witness.expiry_ns) > (
            new.witness.fence,
            new.witness.expiry_ns,
        ):
            return
        self._told = None
        _put(self._domains, domain, new)
        outcome = new.witness.last_ended.outcome if new.witness.last_ended else None
        if outcome is not None:
            _put(self._previous, new.witness.correlation_id, outcome)

    def _end(self, entry: Ended) -> None:
        known = self._domains.get(entry.domain)
        if known is not None and known.witness.correlation_id == entry.ending.correlation_id:
            self._told = None
            self._domains[entry.domain] = LedgerLease(
                known.witness, known.shard, known.incarnation, known.signed_ns, entry.ending.outcome
            )

    def _stop(self, incarnation: bytes) -> None:
        """Forget what an orderly stopped run had out: it waited until nothing was."""
        self._told = None
        for domain in [d for d, known in self._domains.items() if known.incarnation == incarnation]:
            del self._domains[domain]


def _put[K, V](kept: OrderedDict[K, V], key: K, value: V) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > DOMAINS_MAX:
        kept.popitem(last=False)


class LedgerTail:
    """One ledger file, read from near its end and then onwards. One thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset: int | None = None
        self._stuck_at: int | None = None
        """The size at which nothing whole began at the offset: worth trying again when the file has grown."""

    def read(self, book: LedgerBook) -> int | None:
        """Take in what is new; return the file's size, None if there is no file. Raises Environment, Damaged."""
        try:
            # Touches the mount: opened, read, closed. A copy may hold anything under this name.
            if not self._file.is_file():
                return None
            with self._file.open("rb", buffering=0) as file:
                size = file.seek(0, 2)
                first = self._offset is None
                start = max(0, size - FIRST_READ_BYTES) if self._offset is None else self._offset
                if start >= size or size == self._stuck_at:
                    self._offset = start
                    return size
                file.seek(start)
                data = file.read(min(READ_BYTES_MAX, size - start))
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise Environment("ledger-unreadable", f"cannot read {self._file}: {problem.strerror}") from None
        begin = _synchronised(data) if first and start else 0
        taken = self._take(data, begin, book)
        self._offset = start + begin + taken
        self._stuck_at = None if taken else size
        return size

    def _take(self, data: bytes, begin: int, book: LedgerBook) -> int:
        offset = begin
        while isinstance(piece := piece_at(data, offset), Piece):
            if piece.kind is Kind.LEDGER:
                book.take(piece, f"{self._file}, block at {offset} of what was read")
            offset = piece.end
        return offset - begin


def _synchronised(data: bytes) -> int:
    """Return where the first whole piece begins in bytes that begin anywhere; their end if none does."""
    offset = data.find(_MAGIC)
    while offset >= 0:
        if isinstance(piece_at(data, offset), Piece):
            return offset
        offset = data.find(_MAGIC, offset + 1)
    return len(data)
