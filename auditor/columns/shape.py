"""One shape of records: where everything stands in those that differ in nothing but their values."""

from __future__ import annotations

import struct
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

type Octets = NDArray[np.uint8]
type Flags = NDArray[np.bool_]
type Place = tuple[int, int]
"""Where a value begins, and its size; ABSENT where there is none."""

ABSENT: Final = (-1, 0)
_FREE_TEXT_MAX: Final = 255
"""A longer text makes a shape of its own: whether it is too long then counts in characters."""
_FREE: Final = frozenset({"domain", "log", "writer", "holder.node", "holder.purpose"})
"""Texts that differ from record to record. All others are words of a list, and part of the shape."""
_LOWEST: Final = {1: 1 << 7, 2: 1 << 8, 4: 1 << 16, 8: 1 << 32}
"""By width in bytes: below this a number has a shorter encoding."""
_CHECK: Final = struct.Struct("=iii")
_IS_FIXED, _IS_SMALL, _IS_WIDE, _IS_TEXT = range(4)
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
        checks += [(_IS_SMALL, at, 1) for at in self._bytes]
        checks += [(_IS_WIDE, *each) for each in self._wide]
        checks += [(_IS_TEXT, *each) for each in self._texts]
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
