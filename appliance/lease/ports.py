"""What a shard and its server need of the mount: the ceiling chain, the witness ledger, who is trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..formats.address import Address


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
        """Take whole blocks. May raise TenureError: what is lost is a gap for the auditor, never a violation."""
        ...


class Trust(Protocol):
    """The newest trust record that is known here. Thread-safe; never touches the mount, never blocks."""

    @property
    def number(self) -> int:
        """Return the record's number."""
        ...

    def node_of(self, key_id: bytes) -> str | None:
        """Return whose TLS key this is, whatever its validity, or None."""
        ...

    def refuses(self, key_id: bytes) -> str | None:
        """Return why nobody may be at the other end of a connection with this TLS key now, or None if it is good."""
        ...

    def address_of(self, node: str) -> Address | None:
        """Return where a node answers other nodes, or None where no good key of it says so."""
        ...

    def look(self) -> None:
        """Have the newest record read soon: somebody showed a key that is not known yet."""
        ...
