"""The evidence that rules over leases and sequences need: in columns by domain or writer, and what of a span is there.

The index holds only what has been verified, or could not be for want of keys; every row says where in the tree its
bytes are. Columns wait in files, all else is in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from appliance.formats.policy import Policy
from timeagent.signedtime import SignedTime
from timeagent.units import SECOND

from ..evidence.finding import Evidence, Verdict
from .layout import ENTRIES, FRAMES, NAMES, USES, Chunk, Column, HeadName, Numbering, RowBucket, Spool
from .parts import HeadRow, Part

_FIGURES: Final = ("messages", "accepted", "first", "last", "proven", "settle_to", "signed", "sequence", "staying")
"""Of a use, beside its place and digest."""
_STATED: Final = ("head", "position", "rank", "at", "size")
PART_RANKS: Final = 2**40
"""More than there are ranks in a part."""


@dataclass(frozen=True, slots=True)
class Use:
    """One frame written under one lease."""

    where: Evidence
    messages: int
    accepted: int
    """How many of them readers accept."""
    first_ns: int
    last_ns: int
    """The lowest and the highest timestamp that is accepted; of all of them where none is."""
    proven: bool
    """Whether its signatures hold, and its bag's list counts. Else it is nothing but a reason to doubt a count."""
    settle_to_ns: int
    """What the witness that the frame carries asks its holder to settle a log to."""
    signed_ns: int
    """The latest instant at which the frame can have been stamped, by its signed time."""
    sequence: int = 0
    """The frame's, in its writer's run."""
    staying: bool = True
    """Whether the lease counts there without a half from a chain that comes later."""
    digest: bytes | None = None
    """The frame's; None where it is not known."""

    @property
    def log(self) -> str:
        return self.where.path.split("/")[1]


class StatedEntry(NamedTuple):
    """An entry as it was signed, from the one of several places that counts."""

    head: HeadName
    position: int
    raw: bytes
    where: Evidence


class DomainRows(NamedTuple):
    """What is known of one domain: each entry once, by batch and place in it; and its uses with their leases' ids."""

    domain: str
    entries: Sequence[StatedEntry]
    uses: Sequence[tuple[bytes, Use]] = ()


_BAG: Final = np.dtype(
    [("log", "<u4"), ("start", "<i8"), ("end", "<i8"), ("closed", "?"), ("blind", "?"), ("closed_ns", "<i8")]
)
"""As ``Part.add_bag`` takes it."""


class Index:
    """Evidence by domain, run and writer. Processes that are forked have it too."""

    def __init__(self, *, spooling: bool = False) -> None:
        """Hold nothing. ``spooling``: columns wait in files."""
        self._directory: TemporaryDirectory[str] | None = None
        with suppress(OSError):
            self._directory = TemporaryDirectory(prefix="tenure-audit-") if spooling else None
        self.spool = Spool(Path(self._directory.name)) if self._directory else None
        """Where columns wait; None where no directory can be made: then they are in memory."""
        self.clear()

    def clear(self) -> None:
        self._heads: dict[HeadName, HeadRow] = {}
        self._ceilings: dict[tuple[tuple[int, int], int, bytes], Evidence] = {}
        self._unread: dict[str, set[tuple[int, int]]] = {}
        self._logs: Numbering[str] = Numbering()
        self._bags = [np.zeros(0, _BAG)]
        self._of_logs: list[tuple[NDArray[np.void], Column, Column]] = []
        """Of each log the bags, where each begins, and until where it and those before it reach: for ``_within``."""
        self._chunks: dict[tuple[str, int], list[tuple[int, Chunk]]] = {}

    def take(self, part: Part, base: int = 0) -> None:
        """Take what was gathered of the next part. ``base``: added to its ranks."""
        for head in part.heads:
            before, rank = self._heads.get(head.name), head.rank + base
            if before is None or rank < before.rank:
                in_ledger = head.in_ledger + (before.in_ledger if before else 0)
                self._heads[head.name] = head._replace(rank=rank, in_ledger=in_ledger)
        for shard, number, record, where in part.ceilings:
            self._ceilings.setdefault((shard, number, record), Evidence(*where))
        for writer, start_ns, end_ns in part.unread:
            self._unread.setdefault(writer, set()).add((start_ns, end_ns))
        if part.bags:
            self._bags.append(np.array([(self._logs.of(log), *rest) for log, *rest in part.bags], _BAG))
        for chunk in self.spool.keep(part.columns) if self.spool else part.columns:
            self._chunks.setdefault((chunk.kind, chunk.bucket), []).append((base, chunk))

    def _data(self, chunk: Chunk, *, raw: bool = False) -> bytes:
        return self.spool.read(chunk, raw=raw) if self.spool else chunk.data

    def bucket(self, kind: str, number: int, *, raw: bool = False) -> RowBucket:
        """Return all rows of one kind in one bucket. ``raw``: with the bytes of their entries."""
        found = RowBucket(kind)
        for base, chunk in self._chunks.get((kind, number), ()):
            found.take(base, chunk, self._data(chunk, raw=raw))
        return found

    def rows_of(self, bucket: int, domains: Collection[str]) -> Iterator[DomainRows]:
        """Yield what is known of some domains of a bucket, in order of their names. Session leases are of none: ""."""
        kinds = [self.bucket(kind, bucket, raw=True) for kind in (ENTRIES, USES)]
        told = [(each, each.by_name(domains), each.raw(), each.heads.listed()) for each in kinds]
        for domain in sorted({name for _, rows_of, *_ in told for name in rows_of}):
            entries: dict[tuple[bytes, int, int, bytes], tuple[int, StatedEntry]] = {}
            uses: list[tuple[bytes, Use]] = []
            for of_kind, rows_of, raw, heads in told:
                rows = rows_of.get(domain)
                if rows is not None and of_kind.kind == USES:
                    for where, lease, digest, *figures in of_kind.each(rows, "cid", "digest", *_FIGURES):
                        use = Evidence(*where), *figures, digest if any(digest) else None
                        uses.append((lease, Use(*use)))
                    rows = rows[rows["plain"]]
                for where, number, position, rank, at, size in () if rows is None else of_kind.each(rows, *_STATED):
                    head = heads[number]
                    name = head[0], head[1], position, head[2]
                    if name not in entries or rank < entries[name][0]:
                        entries[name] = rank, StatedEntry(head, position, raw[at : at + size], Evidence(*where))
            uses.sort(key=lambda each: (each[1].where.path, each[1].where.offset))
            yield DomainRows(domain, [entry for _, (_, entry) in sorted(entries.items())], uses)

    def buckets(self) -> list[int]:
        return sorted({bucket for _, bucket in self._chunks})

    def column_bytes(self) -> int:
        return sum(chunk.sizes[1] for chunks in self._chunks.values() for _, chunk in chunks)

    def all_domains(self) -> set[str]:
        found: set[str] = set()
        for (kind, _), chunks in self._chunks.items():
            for _, chunk in chunks if kind != FRAMES else ():
                found.update(NAMES.decode(self._data(chunk)[: chunk.sizes[0]]).names)
        return found - {""}

    def close(self) -> None:
        if self.spool:
            self.spool.close()
        if self._directory:
            self._directory.cleanup()

    def head(self, incarnation: bytes, sequence: int, digest: bytes) -> bytes:
        """Return a head by its name. Raises KeyError."""
        return self._heads[incarnation, sequence, digest].raw

    def heads(self) -> list[HeadRow]:
        """Return every head once, by run and sequence."""
        return sorted(self._heads.values(), key=lambda head: (head.shard, head.name))

    def ceilings(self) -> Iterator[tuple[bytes, Evidence]]:
        """Yield (file bytes, where) of every ceiling record, chain by chain, in order of number."""
        for (_, _, record), where in sorted(self._ceilings.items(), key=lambda each: (*each[0][:2], each[1])):
            yield record, where

    def ceilings_signed_under(self) -> set[tuple[bytes, int]]:
        """Return (incarnation, number of the ceiling record) of every batch that is known."""
        return {(head.name[0], head.ceiling) for head in self._heads.values()}

    def _all_bags(self) -> NDArray[np.void]:
        """Return all bags, log by log, in order."""
        if len(self._bags) > 1:
            bags = np.concatenate(self._bags)
            bags = bags[np.lexsort((bags["start"], bags["log"]))]
            of_each = np.split(bags, np.flatnonzero(np.diff(bags["log"])) + 1)
            self._of_logs = [(each, each["start"].copy(), np.maximum.accumulate(each["end"])) for each in of_each]
            self._bags = [bags]
        return self._bags[0]

    def closings(self) -> Iterator[tuple[str, int, int]]:
        """Yield (log, start of a bag, the instant before which it surely was not closed), those of a log in order."""
        bags, logs = self._all_bags(), self._logs.listed()
        bags = bags[bags["closed_ns"] > 0]
        for log, start, closed in zip(*(bags[each].tolist() for each in ("log", "start", "closed_ns")), strict=True):
            yield logs[log], start, closed

    def _within(self, first_ns: int, last_ns: int) -> Iterator[NDArray[np.void]]:
        """Yield of each log the bags that hold one of some instants."""
        self._all_bags()
        for bags, starts, reached in self._of_logs:
            near = bags[np.searchsorted(reached, first_ns, "right") : np.searchsorted(starts, last_ns, "right")]
            yield near[near["end"] > first_ns]

    def bags_within(self, first_ns: int, last_ns: int) -> tuple[bool, bool]:
        """Return (some bag that holds one of these instants is open, some was closed with what cannot be read)."""
        bags = np.concatenate([np.zeros(0, _BAG), *self._within(first_ns, last_ns)])
        return not bags["closed"].all(), bool(bags["blind"].any())

    def all_closed(self, first_ns: int, last_ns: int) -> bool:
        """Whether in every log each bag that may hold one of these instants is in the copy, and closed.

        A bag that is not there proves nothing in a rack without its seal: it may have been made after the copy had
        listed the rack, though bags after it, copied later, are closed.
        """
        for bags in self._within(first_ns, last_ns):
            reached, closed = first_ns, bags[bags["closed"]]
            for start, end in zip(closed["start"].tolist(), closed["end"].tolist(), strict=True):
                if start > reached:
                    break
                reached = max(reached, end)
            if reached <= last_ns:
                return False
        return bool(self._of_logs)

    def is_unread(self, writer: str, first_ns: int, last_ns: int) -> bool:
        """Whether a frame of a writer with a timestamp in [first, last] may be in a file that cannot be read.

        In one of its own, or in a directory of which nobody knows whose files it holds.
        """
        spans = self._unread.get(writer, set()) | self._unread.get("", set())
        return any(start <= last_ns and end > first_ns for start, end in spans)


SLACK_NS: Final = 2 * SECOND
"""For whoever closes bags: so late it may look at one that is due."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What of a span of time is in the copy."""

    index: Index
    settled_ns: int
    """What is not older than this had perhaps not been closed, when the last was signed that is in the copy."""

    @classmethod
    def of(cls, index: Index, policy: Policy | None, newest: SignedTime | None) -> Coverage:
        """Take what is known when all files are read. ``newest``: the latest signed time that holds."""
        if newest is None:
            return cls(index, 0)
        bag_ns = policy.span_ns + policy.grace_ns if policy else 0
        return cls(index, newest.interval.earliest - bag_ns - 4 * newest.radius_ns - SLACK_NS)

    def missing_frame(self, first_ns: int, last_ns: int) -> Verdict | None:
        """Return what it means that a frame with timestamps in [first, last] is in no bag; None: nothing yet."""
        _, blind = self.index.bags_within(first_ns, last_ns)
        closed = not blind and self.index.all_closed(first_ns, last_ns)
        return Verdict.INDETERMINATE if closed or last_ns < self.settled_ns else None

    def missing_within(self, first_ns: int, last_ns: int) -> Verdict | None:
        """The same of a message, of which nothing is said either where a bag that is there may hold it unseen."""
        still_open, blind = self.index.bags_within(first_ns, last_ns)
        return None if still_open or blind else self.missing_frame(first_ns, last_ns)
