"""What a run of a shard leaves when it stops for a restart, and what whoever goes on compares with the mount.

It is the last thing that is written to the shard's file on tmpfs (``store.py``), and is found once. To go on is a
courtesy: whatever does not match, or cannot be read, is as if nothing had been left (docs/protocol/lease.md,
"Restarts").
"""

from __future__ import annotations

from timeagent.canonical import U64, Bytes8, Bytes16, Bytes32, Record
from timeagent.errors import Damaged
from timeagent.units import Instant

from ..formats.framing import pieces
from ..formats.witness import Revoked, head_digest, open_block
from .ceiling import ShardIdentity


class Suspension(Record, frozen=True):
    """A run that stopped with leases out: what of it is not in the states of its domains and session leases."""

    cluster_id: Bytes16
    map_number: U64
    shard: U64
    node: str
    boot: str
    """Of the machine: nothing is taken over after it has begun anew."""
    incarnation: Bytes8
    since_ns: U64
    signed_ns: U64
    """The latest instant that it signed."""
    head: Bytes32
    """The digest of the head of its last batch."""
    batches: U64
    blocks_lost: U64
    block_bytes: U64
    """How long the last block of its ledger is."""
    ceiling: bytes
    """The newest record that it linked and saw."""
    pending: bytes
    """A record that it may have linked after that; empty: there is none."""
    floor_ns: U64
    """The shard floor and its settle_to: evictions have raised what the ceiling record states."""
    settle_to_ns: U64
    begun_floor_ns: U64
    """The same when the run began: rows of the file leave them out."""
    begun_settle_to_ns: U64
    going_by: U64
    """The newest map that it went by."""
    alone_until_ns: U64
    """While it leaves: until when leases of before may be believed in alone."""
    recalls: U64
    """The number of its last recall: holders have heard up to there."""
    revoked: tuple[Revoked, ...]
    """The newest revocations."""
    ledger_file: U64 = 0
    """Where its ledger ends: the number of the file, and its size."""
    ledger_bytes: U64 = 0

    def identity(self, release: str) -> ShardIdentity:
        return ShardIdentity(
            self.cluster_id, self.map_number, self.shard, self.node, self.incarnation, self.since_ns, release
        )

    def difference(self, fresh: ShardIdentity, boot: str) -> str | None:
        """Return what of it is another's than that of a run that would begin ``fresh`` here, or None."""
        for what, own, other in (
            ("the machine has begun anew: boot", self.boot, boot),
            ("it was left by node", self.node, fresh.node),
            ("it is of cluster", self.cluster_id.hex(), fresh.cluster_id.hex()),
            ("it is of map", self.map_number, fresh.map_number),
            ("it is of shard", self.shard, fresh.shard),
        ):
            if own != other:
                return f"{what} {own}, not {other}"
        return None

    def ledger_difference(self, last_block: bytes | None) -> str | None:
        """Return what is wrong with the end of its ledger, or None. ``last_block``: None where that ends elsewhere."""
        where = "the last block of its ledger"
        if last_block is None:
            return "its ledger does not end where it did"
        try:
            (piece,), rest = pieces(last_block)
            same = not rest and head_digest(open_block(piece, where).head) == self.head
        except (Damaged, ValueError):
            same = False
        return None if same else f"{where} is another"

    def clock_difference(self, midpoint_ns: Instant) -> str | None:
        """Return that a clock is behind what was signed last, or None."""
        behind = self.signed_ns - midpoint_ns
        return f"the clock is {behind} ns behind what was signed last" if behind > 0 else None
