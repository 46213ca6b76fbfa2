"""Columns of evidence: what the audit knows of clean frames and ledger entries, as rows of numbers instead of objects.

A part of the tree makes *chunks*: rows of one kind, cut into buckets by domain or by writer, so that what belongs
together is compared together and no more than a bucket is in memory at once. Names, such as paths and domains, stand
once per chunk, and rows hold their numbers. A row is *plain* where it has been verified, and where every number is
small enough that no sum of three of them overflows: columns may judge it. What others mean only the rules say.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from timeagent.errors import Environment
from timeagent.signedtime import SignedTime

type Rows = NDArray[np.void]
type Column = NDArray[np.int64]
type Flags = NDArray[np.bool_]
type HeadName = tuple[bytes, int, bytes]
"""Incarnation, sequence and digest of a batch head."""
type ShardName = tuple[int, int]
"""Map number and shard."""

BUCKETS: Final = 16
NUMBER_MAX: Final = 3 * 10**18
"""Instants, spans and counts from here on (the year 2065) are judged one by one: three of them may not fit an int64."""
NOTHING: Final = -1
"""Stands for an absent instant."""

USES: Final = "use"
ENTRIES: Final = "entry"
FRAMES: Final = "frame"


def _row(*columns: tuple[str, str]) -> np.dtype[np.void]:
    """Return a row with columns of each of some types; behind them where the bytes are: path, offset and length.

    ``rank``: which of several places counts, the lowest.
    """
    places = ("<u4", "path"), ("<i8", "offset length rank")
    return np.dtype([(name, form) for form, names in (*columns, *places) for name in names.split()])


USE: Final = _row(
    ("<u4", "name head"),
    ("(2,)<u8", "cid"),
    ("(4,)<u8", "digest"),
    ("?", "plain proven staying"),
    ("<i8", "position messages accepted first last settle_to signed sequence at size"),
)
"""One frame written under one lease. ``plain``: a clean one, with every message accepted, every signature good; then
head, position and entry are those of the witness.

``name``: the domain; ``digest``: the frame's, zeros where no frame's is known; ``at``, ``size``: where in the chunk's
raw bytes the entry is; the others: see ``Use``.
"""

GRANT: Final = 0
RENEWAL: Final = 1
UPGRADE: Final = 2
ENDED: Final = 3
OTHER: Final = 255
"""What columns do not judge, nor tell: only where it is, and its bytes, are in its row."""

ENTRY: Final = _row(
    ("<u4", "name head"),
    ("(2,)<u8", "cid session holder previous last_cid set_by_cid"),
    ("(4,)<u8", "last_head set_by_head"),
    ("u1", "kind mode last_outcome set_by_outcome"),
    ("?", "plain held under follows timed last_told last_chained set_by_told set_by_chained"),
    ("<i8", "position fence expiry floor settle_to midpoint radius staleness at size"),
    ("<i8", "last_ended last_watermark last_messages set_by_ended set_by_watermark set_by_messages"),
)
"""One entry about a lease: a grant, a renewal, an upgrade, or an end, of a ledger. OTHER ones, about session leases
(``name`` is empty), and those in frames that are not clean, say no more. ``plain``: columns may judge it.

``mode``: its place among the modes; ``under``, ``session``: the session lease that it is under; ``holder``: a digest of
all that a witness says of its holder, zeros for an end. ``midpoint``, ``radius``, ``staleness``: of the signed time of
an end's watermark, if it is ``timed``.

``last_...``: of an end what it says, of a witness what that says of the lease that ended last; ``set_by_...``: the same
of the lease that set the floor. Each says something if ``..._told``; ``..._head``: the last frame, zeros where there is
none.
"""

FRAME: Final = _row(
    ("<u4", "name"),
    ("(4,)<u8", "digest committed_digest"),
    ("?", "plain proven"),
    ("<i8", "sequence first last committed earliest latest staleness"),
)
"""One frame. ``name``: its writer and incarnation; ``committed``: the sequence that it names, or NOTHING.

``plain``: it is clean; ``proven``: its signed time holds; ``earliest``, ``latest``, ``staleness``: of that.
"""

KINDS: Final = {USES: USE, ENTRIES: ENTRY, FRAMES: FRAME}


class Names(msgspec.Struct, array_like=True):
    """What the numbers in a chunk's rows stand for."""

    names: list[Any] = []
    """Domains (strings), or writers (name, incarnation)."""
    paths: list[str] = []
    heads: list[HeadName] = []


NAMES: Final = msgspec.msgpack.Decoder(Names)


class Chunk(msgspec.Struct, array_like=True):
    """Rows of one kind in one bucket: names, rows and raw entries, one behind the other."""

    kind: str
    bucket: int
    sizes: tuple[int, int, int]
    """How many bytes each of the three has."""
    data: bytes
    place: tuple[int, int] | None = None
    """Where they are instead: in the file of a process, from there on."""


def bucket_of(name: str) -> int:
    return zlib.crc32(name.encode()) % BUCKETS


def numbers(values: bytes, width: int) -> NDArray[np.uint64]:
    """Return identifiers that stand end to end as rows of ``width`` numbers each."""
    return np.frombuffer(values, "<u8").reshape(-1, width)


def used_of(which: NDArray[Any], count: int) -> tuple[list[int], Column]:
    """Return which of ``count`` numbered things occur in a column, in order, and for each row its place among them."""
    there = np.zeros(count, np.bool_)
    there[which] = True
    place: Column = np.cumsum(there) - 1
    return np.flatnonzero(there).tolist(), place[which]


def bytes_of(column: NDArray[Any]) -> list[bytes]:
    """Return each row of a column of byte strings."""
    whole, size = np.ascontiguousarray(column).tobytes(), column.nbytes // max(1, len(column))
    return [whole[at : at + size] for at in range(0, len(whole), size or 1)]


def small(column: Column) -> Flags:
    """Say of each number whether it may be calculated with."""
    return (column >= 0) & (column < NUMBER_MAX)


def time_columns(tokens: Iterable[SignedTime | None]) -> tuple[Flags, Column]:
    """Say of each signed time whether it may be calculated with; midpoint, radius and staleness, zeros where not."""
    each = [() if t is None else (t.midpoint_ns, t.radius_ns, t.staleness_ns) for t in tokens]
    fine = [max(figures, default=NUMBER_MAX) < NUMBER_MAX for figures in each]
    rows = [figures if good else (0, 0, 0) for figures, good in zip(each, fine, strict=True)]
    return np.array(fine, np.bool_), np.array(rows, np.int64).reshape(-1, 3).T


class NotPlain(Exception):
    """Something here is not for columns: it is judged one by one."""


class Numbering[T]:
    """Gives each of some values a number."""

    def __init__(self) -> None:
        self.values: dict[T, int] = {}
        self._listed: list[T] = []

    def listed(self) -> list[T]:
        if len(self._listed) < len(self.values):
            self._listed = list(self.values)
        return self._listed

    def of(self, value: T) -> int:
        return self.values.setdefault(value, len(self.values))

    def all_of(self, values: Iterable[T]) -> NDArray[np.uint32]:
        known = self.values
        return np.array([known.setdefault(value, len(known)) for value in values], np.uint32)


CHUNK_ROWS: Final = 65_536
"""So many rows are gathered before they are cut into chunks: a part may hold millions."""


SINGLES: Final = 256
"""So many rows that come by themselves are added at once."""


_CODES: Final = {"<u4": "I", "<i8": "q", "|u1": "B", "|b1": "?"}


@lru_cache
def _packing(form: np.dtype[np.void]) -> tuple[Callable[..., bytes], dict[str, Any]]:
    """Return what packs the values of a row, and those of a row of zeros; identifiers are bytes."""
    columns = {name: form[name] for name in form.names or ()}
    codes = (f"{each.itemsize}s" if each.shape else _CODES[each.str] for each in columns.values())
    return struct.Struct(f"<{''.join(codes)}").pack, {n: b"" if each.shape else 0 for n, each in columns.items()}


class ChunkMaker:
    """Gathers rows of one kind, and cuts them into chunks."""

    def __init__(self, kind: str, keep: Callable[[list[Chunk]], list[Chunk]] = list) -> None:
        """Hold nothing. ``keep``: puts finished chunks where they take no memory."""
        self.kind = kind
        self._keep = keep
        self._done: list[Chunk] = []
        self._buckets: list[int] = []
        """Of each name."""
        self._waiting = 0
        self.names: Numbering[Any] = Numbering()
        self.paths: Numbering[str] = Numbering()
        self.heads: Numbering[HeadName] = Numbering()
        self._rows: list[Rows] = []
        self._raw: list[bytes] = []
        self._pack, self._nothing = _packing(KINDS[kind])
        self._packed: list[bytes] = []
        """Rows that came by themselves."""

    def add(self, rows: Rows, raw: Sequence[bytes] = ()) -> None:
        """Take rows whose names, paths and heads have this maker's numbers. ``raw``: what ``at`` numbers, if any."""
        if raw:
            rows["at"] += len(self._raw)
            self._raw += raw
        self._rows.append(rows)
        self._waiting += len(rows)
        if self._waiting >= CHUNK_ROWS:
            self._done += self._keep(self._cut())

    def add_one(
        self,
        name: Any,  # noqa: ANN401 - a domain, or a writer
        where: tuple[str, int, int],
        rank: int,
        head: HeadName | None = None,
        raw: bytes | None = None,
        **columns: Any,  # noqa: ANN401 - any scalar, or the bytes of an identifier
    ) -> None:
        """Take a row by itself. ``where``: path, offset and length; ``raw``: its entry, of kinds that have one."""
        path, columns["offset"], columns["length"] = where
        columns |= {"name": self.names.of(name), "path": self.paths.of(path), "rank": rank}
        if head is not None:
            columns["head"] = self.heads.of(head)
        if raw is not None:
            columns["at"] = len(self._raw)
            self._raw.append(raw)
        self._packed.append(self._pack(*(self._nothing | columns).values()))
        if len(self._packed) == SINGLES:
            self.add(self._unpacked())

    def _unpacked(self) -> Rows:
        rows, self._packed = np.frombuffer(bytearray().join(self._packed), KINDS[self.kind]), []
        return rows

    def chunks(self) -> list[Chunk]:
        """Return everything, in the order in which it came, but for what is in different buckets."""
        done, self._done = self._done, []
        return [*done, *self._cut()]

    def _cut(self) -> list[Chunk]:
        if self._packed:
            self._rows.append(self._unpacked())
        if not self._rows:
            return []
        rows = np.concatenate(self._rows)
        names, paths, heads = list(self.names.values), list(self.paths.values), list(self.heads.values)
        self._buckets += [bucket_of(n if isinstance(n, str) else n[0]) for n in names[len(self._buckets) :]]
        buckets = np.array(self._buckets, np.uint8)
        of_row = buckets[rows["name"]]
        order = np.argsort(of_row, kind="stable")
        ends = np.searchsorted(of_row[order], np.arange(BUCKETS + 1))
        found = []
        for bucket in range(BUCKETS):
            first, end = int(ends[bucket]), int(ends[bucket + 1])
            if first == end:
                continue
            cut = rows[order[first:end]]
            raw = b""
            if self._raw:
                used, which = used_of(cut["at"], len(self._raw))
                raw = b"".join([self._raw[n] for n in used])
                sizes = np.fromiter((len(self._raw[n]) for n in used), np.int64, len(used))
                cut["size"], cut["at"] = sizes[which], (np.cumsum(sizes) - sizes)[which]
            told = Names(
                names=_renumbered(cut, "name", names),
                paths=_renumbered(cut, "path", paths),
                heads=_renumbered(cut, "head", heads) if heads else [],
            )
            parts = msgspec.msgpack.encode(told), cut.tobytes(), raw
            found.append(Chunk(self.kind, bucket, (len(parts[0]), len(parts[1]), len(raw)), b"".join(parts)))
        self._rows, self._raw, self._waiting = [], [], 0
        return found


def _renumbered[T](rows: Rows, column: str, values: list[T]) -> list[T]:
    """Give a column the numbers of those values only that occur in it; return these."""
    used, rows[column] = used_of(rows[column], len(values))
    return [values[n] for n in used]


class RowBucket:
    """All rows of one kind in one bucket, with numbers that hold across its chunks."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.names: Numbering[Any] = Numbering()
        self.paths: Numbering[str] = Numbering()
        self.heads: Numbering[HeadName] = Numbering()
        self._parts: list[Rows] = []
        self._raw: list[memoryview] = []
        self._raw_end = 0

    def take(self, base: int, chunk: Chunk, data: bytes) -> None:
        """Add a chunk. ``base``: added to its ranks; ``data``: what it holds, without raw bytes where nobody asks."""
        names, rows, _ = chunk.sizes
        told, kept = NAMES.decode(data[:names]), memoryview(data)[names + rows :]
        part = np.frombuffer(data, KINDS[self.kind], rows // KINDS[self.kind].itemsize, names).copy()
        each_name = (tuple(each) if isinstance(each, list) else each for each in told.names)
        known = {"name": self.names.all_of(each_name), "path": self.paths.all_of(told.paths)}
        if told.heads:
            known["head"] = self.heads.all_of(told.heads)
        for column, values in known.items():
            part[column] = values[part[column]]
        part["rank"] += base
        if kept:
            part["at"] += self._raw_end
            self._raw.append(kept)
            self._raw_end += len(kept)
        self._parts.append(part)

    def rows(self) -> Rows:
        return np.concatenate(self._parts) if self._parts else np.zeros(0, KINDS[self.kind])

    def by_name(self, wanted: Container[Any]) -> dict[Any, Rows]:
        """Return the rows of each of some names that has any, in the order in which they were read."""
        rows, names = self.rows(), self.names.listed()
        known = np.fromiter((name in wanted for name in names), np.bool_, len(names))
        rows = rows[known[rows["name"]]] if len(rows) else rows
        rows = rows[np.lexsort((rows["rank"], rows["name"]))]
        parts = np.split(rows, np.flatnonzero(np.diff(rows["name"])) + 1) if len(rows) else []
        return {names[part["name"][0]]: part for part in parts}

    def each(self, rows: Rows, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield of each row where it is (path, offset, length), and some columns: identifiers as bytes."""
        values = (rows[each] for each in ("path", "offset", "length", *columns))
        lists = (bytes_of(each) if each.ndim > 1 else each.tolist() for each in values)
        paths = self.paths.listed()
        for path, offset, length, *rest in zip(*lists, strict=True):
            yield (paths[path], offset, length), *rest

    def raw(self) -> bytes:
        return b"".join(self._raw)


class Spool:
    """Files in one directory, which is gone with the audit."""

    def __init__(self, directory: Path) -> None:
        """Take a directory that every process of this audit knows."""
        self._directory = directory
        self._own: tuple[int, FileIO] | None = None
        """The process that writes, and its file."""
        self._files: dict[int, FileIO] = {}
        """Of each process, open for reading at places: it does not matter who else has the same descriptor."""

    def keep(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """Write what chunks hold; return them with the places instead, and as they are where they do not fit."""
        found = []
        for chunk in chunks:
            kept = chunk
            with suppress(OSError):
                if chunk.place is None:
                    kept = Chunk(chunk.kind, chunk.bucket, chunk.sizes, b"", (os.getpid(), self._write(chunk.data)))
            found.append(kept)
        return found

    def read(self, chunk: Chunk, *, raw: bool) -> bytes:
        """Return what a chunk holds, raw bytes if they are asked for. Raises Environment: it is not there."""
        if chunk.place is None:
            return chunk.data
        (process, at), wanted = chunk.place, sum(chunk.sizes if raw else chunk.sizes[:2])
        try:
            file = self._files.get(process)
            if file is None:
                file = self._files[process] = (self._directory / str(process)).open("rb", buffering=0)
            found = os.pread(file.fileno(), wanted, at)
            if len(found) != wanted:
                problem = f"{len(found)} of {wanted} bytes of columns are there"
                raise OSError(errno.EIO, problem, str(file.name))  # noqa: TRY301 - told with all that may be wrong
        except OSError as problem:
            raise Environment(
                "audit-files-lost",
                f"{self._directory}, where this audit keeps what it has read, failed: {problem}",
                hint="let nothing clear it while an audit runs; TMPDIR names another place",
            ) from None
        return found

    def _write(self, data: bytes) -> int:
        process = os.getpid()
        if self._own is None or self._own[0] != process:
            file = (self._directory / str(process)).open("ab", buffering=0)
            self._own = process, file
        file, left = self._own[1], memoryview(data)
        at = file.seek(0, os.SEEK_END)
        while left:
            left = left[file.write(left) :]
        return at

    def close(self) -> None:
        if self._own is not None and self._own[0] == os.getpid():
            self._own[1].close()
        self._own = None
        for file in self._files.values():
            file.close()
        self._files.clear()
