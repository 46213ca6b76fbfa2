"""Many encoded records at once, as columns of numbers and bytes.

Two records of one length whose types, lengths and words stand at the same places differ in nothing but their values. So
one record of each such *shape* is decoded, and checked, as any other is; of all others it is asked whether their bytes
are those of the shape wherever these are no values, and whether each value could stand so: then they would decode as
well, and each field is a column of bytes that stands at one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from appliance.formats.frame import FRAME_MESSAGES_MAX
from appliance.formats.framing import CHECKSUM_BYTES, HEADER_BYTES, PAYLOAD_BYTES_MAX, Kind, pack
from timeagent.canonical import signed_bytes

from .layout import numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

type Column = NDArray[np.int64]

_START: Final = pack(Kind.FRAME, b"")[:8]
NO_CHECK: Final = bytes(16)
"""Behind a checksum, where that stands for a digest."""


class NotPlain(Exception):
    """Something here is not for columns: it is judged one by one."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The frames of some files, in order."""

    file: Column
    """Which file each frame is in."""
    offset: Column
    """Where its piece begins in the file."""
    length: Column
    """Bytes of the piece."""
    digests: list[bytes]
    heads: list[bytes]
    counts: Column
    """How many messages."""
    first: Column
    last: Column


@lru_cache(4096)
def _prefix(length: int) -> bytes:
    """Return what stands before a payload of this length in what the digest of a frame covers."""
    return signed_bytes("frame", bytes(length))[: -length or None]


def cut(files: Sequence[bytes], *, hashed: bool = True) -> Cut:
    """Cut files into frames, check their checksums, and that they are made as frames are, but for their heads.

    ``hashed``: else no checksum is checked, and stands for the digest of its frame. Raises NotPlain where one of them
    holds anything else than whole frames.
    """
    whole = files[0] if len(files) == 1 else b"".join(files)
    view = memoryview(whole)
    begins: list[int] = []
    ends: list[int] = []
    digests: list[bytes] = []
    counts: list[int] = []
    at = end = 0
    for data in files:
        end += len(data)
        before = len(begins)
        while at < end:
            body_end = at + HEADER_BYTES + int.from_bytes(whole[at + 8 : at + HEADER_BYTES])
            after = body_end + CHECKSUM_BYTES
            if after > end or whole[at : at + 8] != _START:
                raise NotPlain
            if hashed:
                if sha256(view[at:body_end]).digest()[:CHECKSUM_BYTES] != whole[body_end:after]:
                    raise NotPlain
                body = at + HEADER_BYTES
                digests.append(sha256(_prefix(body_end - body) + view[body:body_end]).digest())
            else:
                digests.append(whole[body_end:after] + NO_CHECK)
            begins.append(at)
            ends.append(body_end)
            at = after
        counts.append(len(begins) - before)
    if not all(counts):
        raise NotPlain
    return _parse(whole, files, np.array(counts), np.array(begins), np.array(ends), digests)


def _parse(
    whole: bytes, files: Sequence[bytes], frames: Column, begins: Column, ends: Column, digests: list[bytes]
) -> Cut:
    payload = begins + HEADER_BYTES
    if (ends - payload > PAYLOAD_BYTES_MAX).any():
        raise NotPlain
    octets = np.frombuffer(whole, np.uint8)
    # Of a payload too short for it, some of the checksum is read, and the end is beyond the payload's all the same.
    head_end = payload + 4 + _u32(octets, payload)
    if (head_end + 4 > ends).any():
        raise NotPlain
    counts = _u32(octets, head_end)
    columns = head_end + 4
    middle, rest = columns + 8 * counts, columns + 12 * counts
    if (counts < 1).any() or (counts > FRAME_MESSAGES_MAX).any() or (rest > ends).any():
        raise NotPlain
    instants = np.frombuffer(_joined(whole, columns, middle), "<i8")
    lengths = np.frombuffer(_joined(whole, middle, rest), "<u4")
    starts = np.cumsum(counts) - counts
    rising = instants[1:] > instants[:-1]
    rising[starts[1:] - 1] = True
    if not rising.all() or (np.add.reduceat(lengths, starts, dtype=np.int64) != ends - rest).any():
        raise NotPlain
    sizes = np.fromiter(map(len, files), np.int64, len(files))
    file = np.repeat(np.arange(len(files)), frames)
    return Cut(
        file=file,
        offset=begins - (np.cumsum(sizes) - sizes)[file],
        length=ends + CHECKSUM_BYTES - begins,
        digests=digests,
        heads=[whole[a:b] for a, b in zip((payload + 4).tolist(), head_end.tolist(), strict=True)],
        counts=counts,
        first=instants[starts].astype(np.int64),
        last=instants[starts + counts - 1].astype(np.int64),
    )


def _u32(octets: NDArray[np.uint8], at: Column) -> Column:
    """Return the little-endian numbers that stand at some places."""
    found: Column = octets[at[:, None] + np.arange(4)].view("<u4")[:, 0].astype(np.int64)
    return found


def _joined(whole: bytes, begins: Column, ends: Column) -> bytes:
    return b"".join([whole[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)])


type Octets = NDArray[np.uint8]
type Flags = NDArray[np.bool_]

_SHAPES_MAX: Final = 512
"""A bound on memory. Records of a tree have few shapes; whoever makes more of them waits longer."""
_FREE_TEXT_MAX: Final = 255
"""A longer text makes a shape of its own: whether it is too long then counts in characters."""
_FREE: Final = frozenset({"domain", "log", "writer", "holder.node", "holder.purpose"})
"""Texts that differ from record to record. All others are words of a list, and part of the shape."""
_SAMPLED: Final = 16
"""So many words of each row are looked at first to tell rows from each other."""
_NEAR_WORDS: Final = 16_384
_LOWEST: Final = {1: 1 << 7, 2: 1 << 8, 4: 1 << 16, 8: 1 << 32}
"""By width in bytes: below this a number has a shorter encoding."""


class _Shape:
    """Where everything stands in the records of one shape."""

    def __init__(self, raw: bytes, record: msgspec.Struct) -> None:
        """Take a record, encoded and decoded. Raises ValueError for an encoding that no record of ours has."""
        self.record = record
        self.fields: dict[str, tuple[int, int]] = {}
        """Where the value of each number, text and byte string begins and ends."""
        self._raw = np.frombuffer(raw, np.uint8)
        self._fixed = np.ones(len(raw), np.bool_)
        self._bytes: list[int] = []
        self._wide: list[tuple[int, int]] = []
        self._texts: list[tuple[int, int]] = []
        if self._walk(record, "", 0) != len(raw):
            raise ValueError("the record does not end where its bytes do")
        self._at = np.flatnonzero(self._fixed)
        self._wanted = self._raw[self._at]

    def _walk(self, value: object, name: str, at: int) -> int:
        """Note where a value stands that begins at an offset; return where it ends."""
        body, size = _header(self._raw, at)
        if isinstance(value, msgspec.Struct):
            inner = type(value).__struct_fields__
            at = body
            if size == len(inner) + 1:  # a word says of what kind it is
                at = sum(_header(self._raw, at))
            for each in inner:
                at = self._walk(getattr(value, each), f"{name}.{each}" if name else each, at)
            return at
        if isinstance(value, tuple):
            at = body
            for number, each in enumerate(value):
                at = self._walk(each, f"{name}.{number}", at)
            return at
        if value is None or isinstance(value, bool):
            return body
        self.fields[name] = (body, body + size)
        if isinstance(value, int):
            self._fixed[body : body + size] = False
            if body == at:
                self._bytes.append(body)
            else:
                self._wide.append((body, size))
        elif isinstance(value, bytes):
            self._fixed[body : body + size] = False
        elif isinstance(value, str) and name in _FREE and size <= _FREE_TEXT_MAX:
            self._fixed[body : body + size] = False
            self._texts.append((body, size))
        return body + size

    def fits(self, rows: Octets) -> Flags:
        """Say of each of some records of this length whether it has this shape, and would decode."""
        fits: Flags = (rows[:, self._at] == self._wanted).all(axis=1)
        if self._bytes:
            fits &= (rows[:, self._bytes] < _LOWEST[1]).all(axis=1)
        for at, size in self._wide:
            value = _number(rows, at, size)
            fits &= value >= np.uint64(_LOWEST[size])
            if size == 8:  # noqa: PLR2004 - as many bytes as the largest number has
                fits &= rows[:, at] < _LOWEST[1]
        for at, size in self._texts:
            text = rows[:, at : at + size]
            plain = (text < _LOWEST[1]).all(axis=1)
            fits &= plain | (text == self._raw[at : at + size]).all(axis=1)
        return fits


def _header(raw: Octets, at: int) -> tuple[int, int]:
    """Return where the value begins whose encoding begins at an offset, and its size: bytes, or of an array elements.

    A number below 128 is its own header.
    """
    tag = int(raw[at])
    if tag < 0x80:  # noqa: PLR2004 - the tags of MessagePack, here and below
        return at, 1
    if tag in (0xC0, 0xC2, 0xC3):
        return at + 1, 0
    if 0x90 <= tag <= 0x9F:  # noqa: PLR2004
        return at + 1, tag & 0x0F
    if 0xA0 <= tag <= 0xBF:  # noqa: PLR2004
        return at + 1, tag & 0x1F
    if 0xCC <= tag <= 0xCF:  # noqa: PLR2004
        return at + 1, 1 << (tag - 0xCC)
    width = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4}.get(tag)
    if width is None:
        raise ValueError(f"no record of ours holds the tag {tag:#x}")
    return at + 1 + width, int.from_bytes(raw[at + 1 : at + 1 + width].tobytes(), "big")


def _number(rows: Octets, at: int, size: int) -> NDArray[np.uint64]:
    values = np.ascontiguousarray(rows[:, at : at + size]).view(f">u{size}")[:, 0]
    return values.astype(np.uint64)


class Shapes:
    """The shapes of one kind of record that were met so far."""

    def __init__(self, decode: Callable[[bytes], msgspec.Struct]) -> None:
        """Take what decodes one record, and refuses, with Damaged, what is none."""
        self._decode = decode
        self._known: dict[int, list[_Shape]] = {}
        self._count = 0

    def read(self, raw: Sequence[bytes]) -> Records:
        """Decode records. Raises what decoding one of them would; ValueError for one that has no shape."""
        sizes = np.fromiter(map(len, raw), np.int64, len(raw))
        found: list[_Table] = []
        for size in np.unique(sizes).tolist():
            rows = np.flatnonzero(sizes == size)
            chosen = raw if len(rows) == len(raw) else [raw[n] for n in rows.tolist()]
            whole = np.frombuffer(b"".join(chosen), np.uint8).reshape(len(rows), size)
            found += self._sorted(rows, whole)
        return Records(len(raw), found)

    def _sorted(self, rows: Column, whole: Octets) -> list[_Table]:
        found: list[_Table] = []
        for shape in list(self._known.get(whole.shape[1], ())):
            fits = shape.fits(whole)
            if fits.all():
                return [*found, _Table(shape, rows, whole)]
            if fits.any():
                found.append(_Table(shape, rows[fits], whole[fits]))
                rows, whole = rows[~fits], whole[~fits]
        while len(rows):
            first = whole[0].tobytes()
            shape = self._keep(_Shape(first, self._decode(first)), len(first))
            fits = shape.fits(whole)
            fits[0] = True
            found.append(_Table(shape, rows[fits], whole[fits]))
            rows, whole = rows[~fits], whole[~fits]
        return found

    def _keep(self, shape: _Shape, size: int) -> _Shape:
        if self._count >= _SHAPES_MAX:
            self._known.clear()
            self._count = 0
        self._count += 1
        self._known.setdefault(size, []).append(shape)
        return shape


class _Table:
    """Records of one shape, a row of bytes each."""

    def __init__(self, shape: _Shape, rows: Column, whole: Octets) -> None:
        self.shape = shape
        self.rows = rows
        """Which records these are."""
        self.whole = whole

    def field(self, name: str, last: str = "") -> Octets | None:
        """Return the bytes of a field, or of all up to the last one; None where it is absent."""
        place = self.shape.fields.get(name)
        return None if place is None else self.whole[:, place[0] : self.shape.fields[last or name][1]]


class Records:
    """Decoded records: for each field a column, in the order in which the records were given."""

    def __init__(self, count: int, tables: list[_Table]) -> None:
        self._count = count
        self._tables = tables

    def kinds(self) -> list[msgspec.Struct]:
        """Return one record of each shape."""
        return [table.shape.record for table in self._tables]

    def of_each(self, answer: Callable[[Any], Any], form: Any = np.bool_) -> NDArray[Any]:  # noqa: ANN401 - any scalar
        """Return for each record what is said of its shape: asked with one record of it, so only of what is shared."""
        found = np.zeros(self._count, form)
        for table in self._tables:
            found[table.rows] = answer(table.shape.record)
        return found

    def there(self, name: str) -> Flags:
        """Say of each record whether it has this field."""
        found = np.zeros(self._count, np.bool_)
        for table in self._tables:
            found[table.rows] = name in table.shape.fields
        return found

    def number(self, name: str, absent: int = 0) -> Column:
        """Return a number of each record, in int64."""
        found = np.full(self._count, absent, np.int64)
        for table in self._tables:
            place = table.shape.fields.get(name)
            if place is not None:
                found[table.rows] = _number(table.whole, place[0], place[1] - place[0]).astype(np.int64)
        return found

    def identifiers(self, name: str, width: int) -> NDArray[np.uint64]:
        """Return a byte string of ``8 * width`` bytes as so many numbers each; zeros where it is absent."""
        found = np.zeros((self._count, width), np.uint64)
        for table in self._tables:
            field = table.field(name)
            if field is not None:
                found[table.rows] = numbers(field.tobytes(), width)
        return found

    def octets(self, name: str, width: int) -> Octets:
        """Return a byte string of ``width`` bytes of each record, a row each; zeros where it is absent."""
        found = np.zeros((self._count, width), np.uint8)
        for table in self._tables:
            field = table.field(name)
            if field is not None:
                found[table.rows] = field
        return found

    def raw(self, name: str) -> list[bytes]:
        """Return a byte string, or the bytes of a text, of each record; b"" where it is absent."""
        found = [b""] * self._count
        for table in self._tables:
            field = table.field(name)
            if field is None or not field.shape[1]:
                continue
            size, whole = field.shape[1], field.tobytes()
            for row, at in zip(table.rows.tolist(), range(0, len(whole), size), strict=True):
                found[row] = whole[at : at + size]
        return found

    def distinct(self, name: str, last: str = "") -> tuple[Column, list[bytes]]:
        """Return which of the different values each record has (-1: none), and these, in order of occurrence.

        ``last``: a field behind it, up to which everything counts as one value.
        """
        which = np.full(self._count, -1, np.int64)
        numbered: dict[bytes, int] = {}
        for table in self._tables:
            field = table.field(name, last)
            if field is None:
                continue
            of_row, firsts = _distinct(field)
            values, size = field[firsts].tobytes(), field.shape[1]
            each = [values[n * size : n * size + size] for n in range(len(firsts))]
            places = [numbered.setdefault(value, len(numbered)) for value in each]
            which[table.rows] = np.array(places, np.int64)[of_row]
        if len(self._tables) > 1:
            return _in_order(which, list(numbered))
        return which, list(numbered)


def _in_order(which: Column, values: list[bytes]) -> tuple[Column, list[bytes]]:
    """Number values anew, in the order in which they occur."""
    told, first = np.unique(which, return_index=True)
    order = told[np.argsort(first)]
    order = order[order >= 0]
    place = np.full(len(values) + 1, -1, np.int64)
    place[order] = np.arange(len(order))
    return place[which], [values[n] for n in order.tolist()]


def _distinct(rows: Octets) -> tuple[Column, Column]:
    """Return which of the different rows each is, and where each of these occurs first, in order of occurrence."""
    count, size = rows.shape
    if count <= 1 or size == 0:
        return np.zeros(count, np.int64), np.arange(min(count, 1))
    words = np.zeros((count, -(-size // 8)), "<u8")
    words.view(np.uint8)[:, :size] = rows
    marks = _marks(words)
    if (marks == marks[0]).all():
        firsts, of_row = np.zeros(1, np.int64), np.zeros(count, np.int64)
    else:
        _, firsts, of_row = np.unique(marks, return_index=True, return_inverse=True)
    again = np.flatnonzero(firsts[of_row] != np.arange(count))
    if not _same_rows(words, again, firsts[of_row[again]]):  # different rows with one mark
        numbered: dict[bytes, int] = {}
        of_row = np.fromiter((numbered.setdefault(row.tobytes(), n) for n, row in enumerate(rows)), np.int64, count)
        firsts, of_row = np.unique(of_row, return_inverse=True)
    order = np.argsort(firsts)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place[of_row], firsts[order]


def _same_rows(words: NDArray[np.uint64], some: Column, others: Column) -> bool:
    """Whether rows are equal to others, each to its own: so many at once as a processor has near it."""
    step = max(1, _NEAR_WORDS // words.shape[1])
    parts = range(0, len(some), step)
    return all((words.take(some[n : n + step], 0) == words.take(others[n : n + step], 0)).all() for n in parts)


@lru_cache(256)
def _sampled(width: int) -> list[int]:
    """Return which words of a row of so many are looked at first."""
    return sorted({round(n * (width - 1) / (_SAMPLED - 1)) for n in range(_SAMPLED)})


def _marks(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a number for each row: equal for equal rows, and mostly different for others. Looks at some words only."""
    found = np.zeros(len(words), np.uint64)
    for column in _sampled(words.shape[1]):
        found = found * np.uint64(0x9E3779B97F4A7C15) + words[:, column]
    return found
