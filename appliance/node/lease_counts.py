"""What became of leases in one run of a shard, counted from its ledger, by the first part of their domains' names.

The thread that appends the ledger counts; the shard's, only what has waited in a queue. A block that says more than
some of its entries have to is counted by every n-th of them, n-fold. Names of which too many come are counted together.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Final

from timeagent.errors import Damaged
from timeagent.units import Instant, Span

from ..bag.storage import Storage
from ..formats.framing import pieces
from ..formats.lease import LeaseOutcome
from ..formats.witness import Ended, LedgerBlock, Witness, WitnessKind, decode_entry, open_block
from .records import StoredLedger

PARTS_MAX: Final = 50
"""How many first parts of names are told apart; the others are REST."""
REST: Final = "(others)"
COUNTED_MAX: Final = 64
"""How many entries of one block are looked at."""
FENCE_BYTES: Final = 8


def first_part(domain: str) -> str:
    """Return the first part of a domain's name: ``account`` of account/7, ``/srv`` of /srv/a, ``/semaphore``."""
    head, _, rest = domain.removeprefix("/").partition("/")
    tree = domain[: len(domain) - len(domain.removeprefix("/"))]
    return tree + (head.partition(":")[0] if tree and rest else head)


class LeaseCounts:
    """Each number is written by one thread, and read by any. All of them only grow."""

    def __init__(self) -> None:
        self.parts: set[str] = set()
        self.grants: Counter[str] = Counter()
        """By part: also of sets that were given up, whose leases are withdrawn."""
        self.ends: Counter[tuple[str, LeaseOutcome]] = Counter()
        self.held_ns: Counter[str] = Counter()
        """How long those that ended had been held."""
        self.sad: Counter[str] = Counter()
        """Grants where an earlier lease ended without its holder's word, and may be believed in still."""
        self.sad_ns: Counter[str] = Counter()
        """For how long, together: so long waits who does not only write messages."""

        self.waits: Counter[tuple[str, bool]] = Counter()
        """Requests that have waited in a queue, by part, and whether they were granted: else they waited in vain."""
        self.waits_ns: Counter[tuple[str, bool]] = Counter()
        """How long, together."""

    def waited(self, domain: str, span: Span, granted: bool) -> None:  # noqa: FBT001 - as a shard says it
        """Count a request that has left its queue: in the shard's thread."""
        key = (self._part(domain), granted)
        self.waits[key] += 1
        self.waits_ns[key] += span

    def count(self, data: bytes) -> None:
        """Count whole blocks. Raises Damaged."""
        for piece in pieces(data)[0]:
            block = open_block(piece, "a block of the ledger")
            self._count(block, block.batch_head("a block of the ledger").signed_time().midpoint_ns)

    def _count(self, block: LedgerBlock, now_ns: Instant) -> None:
        weight = -(-len(block.entries) // COUNTED_MAX)
        for raw in block.entries[::weight]:
            entry = decode_entry(raw)
            if isinstance(entry, Witness) and entry.kind is WitnessKind.GRANT:
                part = self._part(entry.domain)
                self.grants[part] += weight
                left: Span = entry.settle_to_ns - now_ns
                if left > 0:
                    self.sad[part] += weight
                    self.sad_ns[part] += left * weight
            elif isinstance(entry, Ended):
                part = self._part(entry.domain)
                self.ends[part, entry.ending.outcome] += weight
                granted = int.from_bytes(entry.ending.correlation_id[:FENCE_BYTES], "big")  # its fence: about then
                self.held_ns[part] += max(0, entry.ending.ended_ns - granted) * weight

    def _part(self, domain: str) -> str:
        part = first_part(domain)
        if part not in self.parts:
            if len(self.parts) >= PARTS_MAX:
                return REST
            self.parts.add(part)
        return part


class CountedLedger(StoredLedger):
    """A run's ledger that counts what it appends."""

    def __init__(self, storage: Storage, map_number: int, shard: int, incarnation: bytes) -> None:
        super().__init__(storage, map_number, shard, incarnation)
        self.lease_counts = LeaseCounts()

    def append(self, data: bytes) -> None:
        super().append(data)
        with contextlib.suppress(Damaged):  # what cannot be counted costs numbers, not the ledger
            self.lease_counts.count(data)
