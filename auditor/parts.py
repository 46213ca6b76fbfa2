"""A part of the evidence: what one rack, or one ledger file, tells when it is read by itself.

A part depends on nothing but its own bytes and the cluster's records, so that parts are read by several processes, kept
from run to run, and put together in the order of their names: the verdict does not depend on who read what when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from .columns.layout import Chunk
from .finding import Evidence, Finding
from .rows import Rows, encode_rows
from .seals import BagCounts
from .strangers import Stranger

if TYPE_CHECKING:
    from appliance.formats.paths import Rack

    from .load import LedgerFile
    from .rows import Value


@dataclass(frozen=True, slots=True)
class RackUnit:
    """One rack of a log."""

    log: str
    rack: Rack

    @property
    def name(self) -> str:
        """The path that says which part of the tree this is."""
        return self.rack.path


@dataclass(frozen=True, slots=True)
class LedgerUnit:
    """One ledger file."""

    file: LedgerFile

    @property
    def name(self) -> str:
        """The path that says which part of the tree this is."""
        return self.file.path


CHUNK_ROWS: Final = 2048
type Unit = RackUnit | LedgerUnit


class Part(msgspec.Struct, kw_only=True):
    """What a unit came to."""

    findings: list[Finding] = []
    rows: dict[str, list[bytes]] = {}
    """By table, as ``Index.take`` wants them."""
    columns: list[Chunk] = []
    closed_to: dict[str, int] = {}
    unreadable: dict[str, str] = {}
    newest: bytes | None = None
    """The latest signed time that holds, encoded."""
    unknown_keys: list[Stranger] = []
    beyond_policy: list[Stranger] = []
    # of a rack
    counts: BagCounts = msgspec.field(default_factory=BagCounts)
    trust_named: list[int] = []
    trust_closed: dict[int, int] = {}
    policy_closed: dict[int, int] = {}
    doubted: bool = False
    """Whether a lock file names a trust record that is not there: then all later parts mean something else."""
    has_seal: bool = False
    seal: Evidence | None = None
    """Where the seal is, if it holds."""
    # of a ledger file
    torn: bool = False
    stopped: bool = False
    damaged: bool = False


_decoder = msgspec.msgpack.Decoder(Part)


def encode_part(part: Part) -> bytes:
    """Return the bytes that another process, or another run, reads."""
    return msgspec.msgpack.encode(part)


def decode_part(data: bytes) -> Part:
    """Read a part. Raises ValueError for what is none."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as problem:
        raise ValueError(str(problem)) from None


class PartRows(Rows):
    """Gathers the rows of one part, as bytes: a part may hold a hundred thousand frames."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        super().__init__()
        self._chunks: dict[str, list[bytes]] = {}
        self._kept: dict[str, list[tuple[Value, ...]]] = {}
        self._heads: dict[tuple[Value, ...], Value] = {}
        """Incarnation, sequence and digest of each head, and the rank of the place where it counts."""

    def _insert(self, table: str, row: tuple[Value, ...]) -> None:
        if table == "head":  # every frame under a batch tells of its head
            known = self._heads.get(row[:3])
            if known is not None and known <= row[-1]:  # type: ignore[operator]
                return
            self._heads[row[:3]] = row[-1]
        kept = self._kept.get(table)
        if kept is None:
            kept = self._kept[table] = []
        kept.append(row)
        if len(kept) >= CHUNK_ROWS:
            self._pack(table)

    def _pack(self, table: str) -> None:
        self._chunks.setdefault(table, []).append(encode_rows(self._kept.pop(table)))

    def rows(self) -> dict[str, list[bytes]]:
        """Return everything, some rows at a time, by table."""
        for table in list(self._kept):
            self._pack(table)
        return self._chunks

    @property
    def closed(self) -> dict[str, int]:
        """How far each log is closed."""
        return self._closed_to
