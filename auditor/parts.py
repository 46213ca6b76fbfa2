"""A part of the evidence: what one rack, or one ledger file, tells when it is read by itself; and which parts are read.

A part depends on nothing but its own bytes and the cluster's records, so that parts are read by several processes, kept
from run to run, and put together in the order of their names: the verdict does not depend on who read what when.

What is narrowed away on purpose may hold anything: a message that is missing from the rest is no finding. Records,
ceiling chains and ledgers are read whole in any case, because what may be written in one hour follows from what was
granted before it.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import msgspec

from timeagent.console import printable
from timeagent.errors import BadRequest
from timeagent.units import INSTANT_MAX, rfc3339

from .columns.layout import Chunk
from .evidence.unknown_keys import Stranger
from .rows import Rows, encode_rows
from .rules.finding import Evidence, Finding
from .seals import BagCounts

if TYPE_CHECKING:
    from collections.abc import Collection

    from appliance.formats.paths import Rack
    from timeagent.units import Instant

    from .evidence.tree import LedgerFile
    from .rows import Value

_COMPARED_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What is asked for; by default everything."""

    since_ns: Instant = 0
    until_ns: Instant = INSTANT_MAX
    """Racks that hold an instant in [since, until) are read."""
    logs: tuple[str, ...] = ()
    """Names of logs; none: all."""
    domains: tuple[str, ...] = ()
    """Domains whose leases are judged, or beginnings of them that end in ``*``; none: all."""

    def reads_log(self, log: str) -> bool:
        """Whether a log is read."""
        return not self.logs or log in self.logs

    def reads_rack(self, rack: Rack) -> bool:
        """Whether a rack is read."""
        return rack.end_ns > self.since_ns and rack.start_ns < self.until_ns

    def judges(self, domain: str) -> bool:
        """Whether a domain's leases are judged."""
        return not self.domains or any(
            domain.startswith(each[:-1]) if each.endswith("*") else domain == each for each in self.domains
        )

    @property
    def whole(self) -> bool:
        """Whether nothing is left out."""
        return self == WHOLE

    def fields(self) -> dict[str, Any]:
        """Return what JSON shows; nothing where nothing is left out."""
        if self.whole:
            return {}
        return {
            "narrowed_to": {
                "since": rfc3339(self.since_ns) if self.since_ns else None,
                "until": rfc3339(self.until_ns) if self.until_ns < INSTANT_MAX else None,
                "logs": list(self.logs),
                "domains": list(self.domains),
            }
        }


def check_asked(narrowing: Narrowing, known: Collection[str]) -> None:
    """Raise BadRequest for a domain that was asked for and of which the tree tells nothing. ``known``: all domains.

    Silence about a name that was mistyped looks like an acquittal.
    """
    for asked in narrowing.domains:
        only = Narrowing(domains=(asked,))
        if not any(map(only.judges, known)):
            near = ", ".join(map(printable, _nearest(asked.removesuffix("*"), known)))
            hint = f"the nearest that are: {near}" if near else "the tree tells of no lease at all"
            raise BadRequest("no-such-domain", f"the tree tells of no lease on {printable(asked)!r}", hint=hint)


def _nearest(name: str, known: Collection[str]) -> list[str]:
    """Return the names that are most like one; of very many only those beside it are looked at."""
    names = sorted(known)
    if len(names) > _COMPARED_MAX:
        at = bisect_left(names, name)
        names = names[max(0, at - _COMPARED_MAX // 2) : at + _COMPARED_MAX // 2]
    return get_close_matches(name, names, n=3, cutoff=0.3) or names[:3]


WHOLE: Final = Narrowing()


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
