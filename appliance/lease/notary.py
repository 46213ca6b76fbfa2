"""Sign a turn's entries as one batch, chain the batches of one incarnation, and hand each to the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeagent.errors import TenureError

from ..formats.ledger import block_bytes
from ..formats.witness import NO_HEAD, CeilingCopy, Entry, head_digest, sign_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from timeagent.keys import KeyInUse, Signer
    from timeagent.signedtime import SignedTime

    from ..formats.witness import Batch
    from .ceiling import RightToGrant, ShardIdentity
    from .ports import LedgerSink


class Notary:
    """The head chain of one incarnation. A batch counts once it is published; until then it can be dropped."""

    def __init__(
        self, identity: ShardIdentity, signer: Signer | KeyInUse, chain: RightToGrant, ledger: LedgerSink
    ) -> None:
        """Take the ports."""
        self._identity = identity
        self._signer = signer
        self._chain = chain
        self._ledger = ledger
        self._previous = NO_HEAD
        self._copies: list[CeilingCopy] = []
        self.batches = 0
        """How many batches are published."""
        self.blocks_lost = 0
        """How many of them the ledger refused: gaps for the auditor, never a reason to stop."""

    def note(self, record: bytes) -> None:
        """Keep a linked ceiling record for the next batch: the chain itself is pruned."""
        self._copies.append(CeilingCopy(record=record))

    def waiting(self) -> list[Entry | bytes]:
        """Return what the next batch has to begin with."""
        return list(self._copies)

    def sign(self, entries: Sequence[Entry | bytes], time: SignedTime) -> Batch | None:
        """Sign a turn's entries, which begin with what was waiting; None where there are none.

        Whoever begins a turn sees first that the key has not ended.
        """
        if not entries:
            return None
        return sign_batch(
            entries,
            self._signer.in_use,
            cluster_id=self._identity.cluster_id,
            node=self._identity.node,
            map_number=self._identity.map_number,
            shard=self._identity.shard,
            incarnation=self._identity.incarnation,
            ceiling_number=self._chain.number,
            ceiling_ns=self._chain.ceiling_ns,
            sequence=self.batches + 1,
            previous=self._previous,
            time=time,
        )

    def publish(self, batch: Batch | None) -> None:
        """Adopt a batch whose states are written, and hand its block to the ledger. No reply leaves before this."""
        if batch is None:
            return
        self.batches += 1
        self._previous = head_digest(batch.head)
        self._copies.clear()
        try:
            self._ledger.append(block_bytes(batch))
        except TenureError:
            self.blocks_lost += 1
