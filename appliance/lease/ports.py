"""What a shard needs from the mount: its ceiling chain and its witness ledger. Given to it by the constructor."""

from __future__ import annotations

from typing import Protocol


class ChainPort(Protocol):
    """The numbered records of one ceiling chain, published with link(2). Touches the mount; may raise Environment."""

    def list_afresh(self) -> list[int]:
        """Return the numbers that are there; the directory is opened anew. Empty where there is no directory."""
        ...

    def read(self, number: int) -> bytes | None:
        """Return a record's bytes, or None where there is none under that number."""
        ...

    def link(self, number: int, data: bytes) -> bool:
        """Publish a record: True if these bytes are there now. False: the number was taken, perhaps by ourselves."""
        ...

    def unlink(self, number: int) -> None:
        """Remove a pruned record; nothing happens where there is none."""
        ...


class LedgerSink(Protocol):
    """Where the blocks of the witness ledger go."""

    def append(self, data: bytes) -> None:
        """Take whole blocks. May raise LeaseholdError: what is lost is a gap for the auditor, never a violation."""
        ...
