"""Many encoded records at once, as columns of numbers and bytes.

Two records of one length whose types, lengths and words stand at the same places differ in nothing but their values. So
one record of each such *shape* is decoded, and checked, as any other is; of all others it is asked whether their bytes
are those of the shape wherever these are no values, and whether each value could stand so: then they would decode as
well, and each field is a column of bytes that stands at one place.
"""

from __future__ import annotations

import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from timeagent import core
from timeagent.core import NativeCore

type Column = NDArray[np.int64]
type Octets = NDArray[np.uint8]
type Flags = NDArray[np.bool_]
type Place = tuple[int, int]
"""Where a value begins, and its size; ABSENT where there is none."""

_SHAPES_MAX: Final = 512
"""A bound on memory. Records of a tree have few shapes; whoever makes more of them waits longer."""
_SAMPLED: Final = 16
"""So many words of each row are looked at first to tell rows from each other."""
_NEAR_WORDS: Final = 16_384
ABSENT: Final = (-1, 0)
_FREE_TEXT_MAX: Final = 255
"""A longer text makes a shape of its own: whether it is too long then counts in characters."""
_FREE: Final = frozenset({"domain", "log", "writer", "holder.node", "holder.purpose"})
"""Texts that differ from record to record. All others are words of a list, and part of the shape."""
_LOWEST: Final = {1: 1 << 7, 2: 1 << 8, 4: 1 << 16, 8: 1 << 32}
"""By width in bytes: below this a number has a shorter encoding."""
_CHECK: Final = struct.Struct("=iii")
_IS_FIXED, _IS_WIDE, _IS_TEXT = range(3)
"""What the native core asks of the bytes at a place: native/read.c."""


class Shape:
    """Where everything stands in the records of one shape."""

    def __init__(self, raw: bytes, record: msgspec.Struct) -> None:
        """Take a record, encoded and decoded. Raises ValueError for an encoding that no record of ours has."""
        self.record = record
        self.size = len(raw)
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
        self.native = raw, self._checks()
        """The shape as the native core takes it."""

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

    def _checks(self) -> bytes:
        edges = np.flatnonzero(np.diff(self._fixed, prepend=False, append=False)).tolist()
        checks = [(_IS_FIXED, begin, end - begin) for begin, end in zip(edges[::2], edges[1::2], strict=True)]
        checks += [(_IS_WIDE, *each) for each in self._wide]
        checks += [(_IS_TEXT, *each) for each in (*self._texts, *((at, 1) for at in self._bytes))]
        return b"".join(_CHECK.pack(*each) for each in checks)

    def place(self, name: str, last: str = "") -> Place:
        """Return where a field stands, or all up to the last one."""
        found = self.fields.get(name)
        return ABSENT if found is None else (found[0], self.fields[last or name][1] - found[0])

    def items(self, name: str) -> Place:
        """Return where the items of a list of byte strings stand, with the encoded sizes between them."""
        count = 0
        while f"{name}.{count}" in self.fields:
            count += 1
        return self.place(f"{name}.0", f"{name}.{count - 1}") if count else ABSENT

    def fits(self, rows: Octets) -> Flags:
        """Say of each of some records of this length whether it has this shape, and would decode."""
        fits: Flags = (rows[:, self._at] == self._wanted).all(axis=1)
        if self._bytes:
            fits &= (rows[:, self._bytes] < _LOWEST[1]).all(axis=1)
        for at, size in self._wide:
            value = number_at(rows, at, size)
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


def number_at(rows: Octets, at: int, size: int) -> NDArray[np.uint64]:
    """Return the number that stands at a place of each row."""
    values = np.ascontiguousarray(rows[:, at : at + size]).view(f">u{size}")[:, 0]
    return values.astype(np.uint64)


class Shapes:
    """The shapes of one kind of record that were met so far."""

    def __init__(self, decode: Callable[[bytes], msgspec.Struct]) -> None:
        """Take what decodes one record, and refuses, with Damaged, what is none."""
        self._decode = decode
        self._known: list[Shape] = []

    def read(self, raw: list[bytes]) -> Records:
        """Decode records. Raises what decoding one of them would; ValueError for one that has no shape."""
        if len(self._known) >= _SHAPES_MAX:
            self._known = []
        if core.native is None:
            return _read_by_tables(raw, self._new, self._known)
        return _read_natively(core.native, raw, self._new, self._known)

    def _new(self, raw: bytes) -> Shape:
        shape = Shape(raw, self._decode(raw))
        self._known.append(shape)
        return shape


class Records(ABC):
    """Decoded records: for each field a column, in the order in which the records were given."""

    _in_order = False
    """Whether ``_distinct`` goes record by record, and numbers values as they occur."""

    def __init__(self, count: int, shapes: list[Shape]) -> None:
        self._count = count
        self._shapes = shapes
        """Those that some of the records have."""

    def kinds(self) -> list[msgspec.Struct]:
        """Return one record of each shape."""
        return [shape.record for shape in self._shapes]

    @abstractmethod
    def _of_shapes(self, told: list[Any], form: Any) -> NDArray[Any]:  # noqa: ANN401 - any scalar
        """Return for each record what is told of its shape."""

    def of_each(self, answer: Callable[[Any], Any], form: Any = np.bool_) -> NDArray[Any]:  # noqa: ANN401 - any scalar
        """Return for each record what is said of its shape: asked with one record of it, so only of what is shared."""
        return self._of_shapes([answer(shape.record) for shape in self._shapes], form)

    def there(self, name: str) -> Flags:
        """Say of each record whether it has this field."""
        return self._of_shapes([name in shape.fields for shape in self._shapes], np.bool_)

    @abstractmethod
    def number(self, name: str, absent: int = 0) -> Column:
        """Return a number of each record, in int64."""

    def octets(self, name: str, width: int) -> Octets:
        """Return a byte string of ``width`` bytes of each record, a row each; zeros where it is absent.

        Raises ValueError for one of another size.
        """
        places = [shape.place(name) for shape in self._shapes]
        other = next((place[1] for place in places if place != ABSENT and place[1] != width), None)
        if other is not None:
            raise ValueError(f"a field of {other} bytes, where {width} are wanted")
        return self._octets(places, width)

    @abstractmethod
    def _octets(self, places: list[Place], width: int) -> Octets:
        """Return the ``width`` bytes at a place of each record. ``places``: by shape."""

    def identifiers(self, name: str, width: int) -> NDArray[np.uint64]:
        """Return a byte string of ``8 * width`` bytes as so many numbers each; zeros where it is absent."""
        return self.octets(name, 8 * width).view("<u8")

    def raw(self, name: str) -> list[bytes]:
        """Return a byte string, or the bytes of a text, of each record; b"" where it is absent."""
        return self._values([shape.place(name) for shape in self._shapes])

    def items(self, name: str) -> list[bytes]:
        """Return a list of byte strings of each record as it is encoded, from the first one's bytes on to the end."""
        return self._values([shape.items(name) for shape in self._shapes])

    @abstractmethod
    def _values(self, places: list[Place]) -> list[bytes]:
        """Return the bytes at a place of each record. ``places``: by shape."""

    def distinct(self, name: str, last: str = "") -> tuple[Column, list[bytes]]:
        """Return which of the different values each record has (-1: none), and these, in order of occurrence.

        ``last``: a field behind it, up to which everything counts as one value.
        """
        rows, found, values = self._distinct([[shape.place(name, last) for shape in self._shapes]])
        which = np.full(self._count, -1, np.int64)
        which[rows] = found
        return (which, values) if self._in_order or len(self._shapes) == 1 else _in_order(which, values)

    def distinct_items(self, name: str) -> tuple[Column, Column, list[bytes]]:
        """Return of each item of a list of byte strings its record and which of the different ones it is; and these.

        Record by record; the different ones are in order of occurrence.
        """
        most = max(len(getattr(each, name)) for each in self.kinds())
        places = [[shape.place(f"{name}.{n}") for shape in self._shapes] for n in range(most)]
        rows, which, values = self._distinct(places)
        if self._in_order:
            return rows, which, values
        order = np.argsort(rows, kind="stable")
        return (rows[order], *_in_order(which[order], values))

    @abstractmethod
    def _distinct(self, places: list[list[Place]]) -> tuple[Column, Column, list[bytes]]:
        """Return record and number of the values at some places, and the different ones."""


class _Table:
    """Records of one shape, a row of bytes each."""

    def __init__(self, shape: Shape, rows: Column, whole: Octets) -> None:
        self.shape = shape
        self.rows = rows
        self.whole = whole

    def at(self, place: Place) -> Octets | None:
        """Return the bytes at a place; None: it is none."""
        return None if place == ABSENT else self.whole[:, place[0] : sum(place)]


def _read_by_tables(raw: list[bytes], new: Callable[[bytes], Shape], known: list[Shape]) -> Records:
    """Sort records of each length by their shapes. ``new``: makes the shape of a record, and adds it to the known."""
    sizes = np.fromiter(map(len, raw), np.int64, len(raw))
    found: list[_Table] = []
    for size in np.unique(sizes).tolist():
        rows = np.flatnonzero(sizes == size)
        chosen = raw if len(rows) == len(raw) else [raw[n] for n in rows.tolist()]
        whole = np.frombuffer(b"".join(chosen), np.uint8).reshape(len(rows), size)
        waiting = [shape for shape in known if shape.size == size]
        while len(rows):
            fresh = not waiting
            shape = new(whole[0].tobytes()) if fresh else waiting.pop(0)
            fits = shape.fits(whole)
            fits[0] |= fresh
            if fits.all():
                found.append(_Table(shape, rows, whole))
                break
            if fits.any():
                found.append(_Table(shape, rows[fits], whole[fits]))
                rows, whole = rows[~fits], whole[~fits]
    return _Tables(len(raw), found)


class _Tables(Records):
    """Records as arrays of bytes, one for each shape."""

    def __init__(self, count: int, tables: list[_Table]) -> None:
        super().__init__(count, [table.shape for table in tables])
        self._tables = tables

    def _at(self, places: list[Place]) -> Iterator[tuple[_Table, Octets]]:
        for table, place in zip(self._tables, places, strict=True):
            field = table.at(place)
            if field is not None:
                yield table, field

    def _of_shapes(self, told: list[Any], form: Any) -> NDArray[Any]:  # noqa: ANN401 - any scalar
        found = np.zeros(self._count, form)
        for table, each in zip(self._tables, told, strict=True):
            found[table.rows] = each
        return found

    def number(self, name: str, absent: int = 0) -> Column:
        found = np.full(self._count, absent, np.int64)
        for table, field in self._at([shape.place(name) for shape in self._shapes]):
            found[table.rows] = number_at(field, 0, field.shape[1]).astype(np.int64)
        return found

    def _octets(self, places: list[Place], width: int) -> Octets:
        found = np.zeros((self._count, width), np.uint8)
        for table, field in self._at(places):
            found[table.rows] = field
        return found

    def _values(self, places: list[Place]) -> list[bytes]:
        found = [b""] * self._count
        for table, field in self._at(places):
            size, whole = field.shape[1], field.tobytes()
            for number, row in enumerate(table.rows.tolist()):
                found[row] = whole[number * size : number * size + size]
        return found

    def _distinct(self, places: list[list[Place]]) -> tuple[Column, Column, list[bytes]]:
        numbered: dict[bytes, int] = {}
        rows: list[Column] = [np.zeros(0, np.int64)]
        found: list[Column] = [np.zeros(0, np.int64)]
        for of_field in places:
            for table, field in self._at(of_field):
                of_row, firsts = _distinct(field)
                values, size = field[firsts].tobytes(), field.shape[1]
                each = [values[n * size : n * size + size] for n in range(len(firsts))]
                numbers = [numbered.setdefault(value, len(numbered)) for value in each]
                rows.append(table.rows)
                found.append(np.array(numbers, np.int64)[of_row])
        return np.concatenate(rows), np.concatenate(found), list(numbered)


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


def _read_natively(native: NativeCore, raw: list[bytes], new: Callable[[bytes], Shape], known: list[Shape]) -> Records:
    """Find the shape of each record. ``new``: makes the shape of a record, and adds it to the known."""
    kinds = bytearray(4 * len(raw))
    at = native.match(raw, 0, [shape.native for shape in known], kinds)
    while at < len(raw):
        new(raw[at])
        kinds[4 * at : 4 * at + 4] = (len(known) - 1).to_bytes(4, sys.byteorder)
        at = native.match(raw, at + 1, [shape.native for shape in known], kinds)
    used, which = np.unique(np.frombuffer(kinds, np.int32), return_inverse=True)
    return _Native(native, raw, [known[n] for n in used.tolist()], which.astype(np.int32))


class _Native(Records):
    """Records as they were read, each with the number of its shape: the native core looks into them."""

    _in_order = True

    def __init__(self, native: NativeCore, raw: list[bytes], shapes: list[Shape], kinds: NDArray[np.int32]) -> None:
        super().__init__(len(raw), shapes)
        self._native = native
        self._kinds = kinds
        self._all = raw, kinds.tobytes()

    def _of_shapes(self, told: list[Any], form: Any) -> NDArray[Any]:  # noqa: ANN401 - any scalar
        return np.array(told, form)[self._kinds]

    def number(self, name: str, absent: int = 0) -> Column:
        found = self._octets([shape.place(name) for shape in self._shapes], 8).view(">i8")[:, 0].astype(np.int64)
        return np.where(self.there(name), found, absent) if absent else found

    def _octets(self, places: list[Place], width: int) -> Octets:
        found = self._native.column(*self._all, _places(places), width)
        return np.frombuffer(found, np.uint8).reshape(self._count, width)

    def _values(self, places: list[Place]) -> list[bytes]:
        found = [b""] * self._count
        rows, which, values = self._distinct([places])
        for row, number in zip(rows.tolist(), which.tolist(), strict=True):
            found[row] = values[number]
        return found

    def _distinct(self, places: list[list[Place]]) -> tuple[Column, Column, list[bytes]]:
        rows, which, values = self._native.distinct(*self._all, [_places(each) for each in places])
        return np.frombuffer(rows, "<i8"), np.frombuffer(which, "<i8"), values


def _places(places: list[Place]) -> bytes:
    return np.array(places, np.int32).tobytes()
