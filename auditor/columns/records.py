"""Many encoded records at once, as columns of numbers and bytes.

Two records of one length whose types, lengths and words stand at the same places differ in nothing but their values. So
one record of each such *shape* is decoded, and checked, as any other is; of all others it is asked whether their bytes
are those of the shape wherever these are no values, and whether each value could stand so: then they would decode as
well, and each field is a column of bytes that stands at one place.

The entries of ledger blocks become rows so: only of blocks that hold. Those that columns do not judge (the ends of
leases that were ended alone, or with their session lease) become rows as well, which are not *plain*: their domains are
judged one by one.
"""

from __future__ import annotations

import hashlib
import re
import struct
import sys
from array import array
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from appliance.formats.lease import LeaseOutcome, Mode, Phase
from appliance.formats.witness import Ended, Entry, Witness, WitnessKind
from timeagent import core
from timeagent.core import NativeCore
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime

from .layout import (
    ENDED,
    ENTRY,
    GRANT,
    NOTHING,
    NUMBER_MAX,
    OTHER,
    RENEWAL,
    UPGRADE,
    Column,
    Flags,
    Rows,
    numbers,
    small,
    time_columns,
)

type Octets = NDArray[np.uint8]
type Place = tuple[int, int]
"""Where a value begins, and its size; ABSENT where there is none."""

_SHAPES_MAX: Final = 512
"""So many are kept for other records. Records of a tree have few; twice as many are read as columns together.

A bound on memory, and on time: each new shape is followed by a look at all that are known, by all records behind it.
"""
_PATTERNS_MAX: Final = 8 * _SHAPES_MAX
"""Those of all kinds of record that an audit reads, or each would be made anew for each new shape."""
ABSENT: Final = (-1, 0)
_FREE_TEXT_MAX: Final = 255
"""A longer text makes a shape of its own: whether it is too long then counts in characters."""
_PARTS_MAX: Final = 4_096
"""So many values has a record that has a shape, and so many bytes a text of it: a shape takes time by both."""
_FREE: Final = frozenset({"domain", "log", "writer", "holder.node", "holder.purpose"})
"""Texts that differ from record to record. All others are words of a list, and part of the shape."""
_CHECK: Final = struct.Struct("=iii")
_PLACE: Final = struct.Struct("=ii")
_IS_FIXED, _IS_WIDE, _IS_TEXT = range(3)
"""What is asked of the bytes at a place: those of the model; a number; ASCII, or those of the model."""
_SHORTEST: Final = {1: rb"[\x80-\xff]", 2: rb"[^\0].", 4: rb"(?!\0\0).{4}", 8: rb"(?!\0{4})[\0-\x7f].{7}"}
"""By width in bytes: a number that has no shorter encoding, and fits 63 bits."""


class Shape:
    """Where everything stands in the records of one shape."""

    def __init__(self, raw: bytes, record: msgspec.Struct) -> None:
        """Take a record, encoded and decoded. Raises ValueError for an encoding that no record of ours has."""
        self.record = record
        self.fields: dict[str, tuple[int, int]] = {}
        """Where the value of each number, text and byte string begins and ends."""
        self._raw = raw
        self._free: list[tuple[int, int, int]] = []
        """What is not as in this record: what is asked of it, where it is and its size."""
        if self._walk(record, "", 0) != len(raw):
            raise ValueError("the record does not end where its bytes do")
        self.model = raw, self._checks()
        """The record, and what another one has to be like: as the native core takes it."""

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
        if len(self.fields) > _PARTS_MAX or (isinstance(value, str) and size > _PARTS_MAX):
            raise ValueError("no record of ours that is read by columns has so many values, or so long a text")
        if isinstance(value, int):
            self._free.append((_IS_TEXT if body == at else _IS_WIDE, body, size))
        elif isinstance(value, bytes):
            self._free.append((-1, body, size))
        elif isinstance(value, str) and name in _FREE and size <= _FREE_TEXT_MAX:
            self._free.append((_IS_TEXT, body, size))
        return body + size

    def _checks(self) -> bytes:
        checks, end = bytearray(), 0
        for what, at, size in (*self._free, (-1, len(self._raw), 0)):
            if at > end:
                checks += _CHECK.pack(_IS_FIXED, end, at - end)
            if what >= 0 and size:
                checks += _CHECK.pack(what, at, size)
            end = at + size
        return bytes(checks)

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


def _header(raw: bytes, at: int) -> tuple[int, int]:
    """Return where the value begins whose encoding begins at an offset, and its size: bytes, or of an array elements.

    A number below 128 is its own header.
    """
    tag = raw[at]
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
    return at + 1 + width, int.from_bytes(raw[at + 1 : at + 1 + width], "big")


class Reference:
    """What the native core does with records (native/read.c), in Python."""

    def __init__(self) -> None:
        self._tables: tuple[list[bytes], bytes, list[tuple[Column, Octets]]] | None = None
        """Of the records and kinds that were asked about last."""

    def match(self, records: list[bytes], begin: int, shapes: list[tuple[bytes, bytes]], kinds: bytearray) -> int:
        """Write the shape of each record up to the first that has none; return the number of that one."""
        of_size: dict[int, list[tuple[int, Callable[[bytes], object]]]] = {}
        for number, (model, checks) in enumerate(shapes):
            of_size.setdefault(len(model), []).append((number, _pattern(model, checks).fullmatch))
        found = memoryview(kinds).cast("i")
        for number, record in enumerate(records[begin:], begin):
            for kind, fits in of_size.get(len(record), ()):
                if fits(record):
                    found[number] = kind
                    break
            else:
                return number
        return len(records)

    def column(self, records: list[bytes], kinds: bytes, places: bytes, width: int) -> bytes:
        """Return a field of each record in so many bytes, behind zeros where it has fewer."""
        if self._tables is None or self._tables[0] is not records or self._tables[1] != kinds:
            self._tables = records, kinds, list(_tables(records, np.frombuffer(kinds, np.int32)))
        found = np.zeros((len(records), width), np.uint8)
        for (rows, table), (at, size) in zip(self._tables[2], _PLACE.iter_unpack(places), strict=False):
            if at >= 0:
                found[rows, width - size :] = table[:, at : at + size]
        return found.tobytes()

    def distinct(self, records: list[bytes], kinds: bytes, places: list[bytes]) -> tuple[bytes, bytes, list[bytes]]:
        """Number the different values of fields: columns of record and number, and the values."""
        fields = [_PLACE.iter_unpack(each) for each in places]
        if not fields:
            return b"", b"", []
        cuts = [[slice(at, at + size) for at, size in those if at >= 0] for those in zip(*fields, strict=True)]
        of_each = map(cuts.__getitem__, memoryview(kinds).cast("i"))
        values = [record[cut] for record, those in zip(records, of_each, strict=True) for cut in those]
        numbered = {value: number for number, value in enumerate(dict.fromkeys(values))}
        rows = np.repeat(
            np.arange(len(records)), np.array([len(each) for each in cuts], int)[np.frombuffer(kinds, np.int32)]
        )
        return rows.tobytes(), array("q", map(numbered.__getitem__, values)).tobytes(), list(numbered)


def _tables(records: list[bytes], kinds: NDArray[np.int32]) -> Iterator[tuple[Column, Octets]]:
    """Yield the rows of each kind, and their records side by side: those of one kind have one length."""
    for kind in range(kinds.max(initial=-1) + 1):
        rows = np.flatnonzero(kinds == kind)
        octets = np.frombuffer(b"".join([records[n] for n in rows.tolist()]), np.uint8)
        yield rows, octets.reshape(len(rows), len(octets) // max(1, len(rows)))


@lru_cache(_PATTERNS_MAX)
def _pattern(model: bytes, checks: bytes) -> re.Pattern[bytes]:
    """Return what the records of a shape match. ``checks``: in order; what none of them is about is free."""
    found, end = b"", 0
    for what, at, size in _CHECK.iter_unpack(checks):
        own = re.escape(model[at : at + size])
        form = {_IS_FIXED: own, _IS_WIDE: _SHORTEST.get(size, b""), _IS_TEXT: rb"(?:[\0-\x7f]{%d}|%b)" % (size, own)}
        found += b".{%d}" % (at - end) + form[what]
        end = at + size
    return re.compile(found + b".{%d}" % (len(model) - end), re.DOTALL)


class Shapes:
    """The shapes of one kind of record that were met so far."""

    def __init__(self, decode: Callable[[bytes], msgspec.Struct]) -> None:
        """Take what decodes one record, and refuses, with Damaged, what is none."""
        self._decode = decode
        self._known: list[Shape] = []

    def read(self, raw: list[bytes]) -> Records:
        """Decode records. Raises what decoding one of them would; ValueError for one that has no shape, or too many."""
        if len(self._known) >= _SHAPES_MAX:
            self._known = []
        known, by, kinds, at = self._known, core.native or Reference(), bytearray(4 * len(raw)), -1
        while (at := by.match(raw, at + 1, [shape.model for shape in known], kinds)) < len(raw):
            if len(known) == 2 * _SHAPES_MAX:
                raise ValueError("the records have too many shapes")
            known.append(Shape(raw[at], self._decode(raw[at])))
            kinds[4 * at : 4 * at + 4] = (len(known) - 1).to_bytes(4, sys.byteorder)
        used, which = np.unique(np.frombuffer(kinds, np.int32), return_inverse=True)
        return Records(by, raw, [known[n] for n in used.tolist()], which.astype(np.int32))


class Records:
    """Decoded records: for each field a column, in the order in which the records were given."""

    def __init__(
        self, by: NativeCore | Reference, raw: list[bytes], shapes: list[Shape], kinds: NDArray[np.int32]
    ) -> None:
        """Take records, each with the number of its shape, and who looks into them."""
        self._by = by
        self._shapes = shapes
        """Those that some of the records have."""
        self._kinds = kinds
        self._all = raw, kinds.tobytes()

    def kinds(self) -> list[msgspec.Struct]:
        return [shape.record for shape in self._shapes]

    def of_each(self, answer: Callable[[Any], Any], form: Any = np.bool_) -> NDArray[Any]:  # noqa: ANN401 - any scalar
        """Return for each record what is said of its shape: asked with one record of it, so only of what is shared."""
        return np.array([answer(shape.record) for shape in self._shapes], form)[self._kinds]

    def there(self, name: str) -> Flags:
        return np.array([name in shape.fields for shape in self._shapes], np.bool_)[self._kinds]

    def number(self, name: str, absent: int = 0) -> Column:
        """Return a number of each record, in int64."""
        found = self._octets([shape.place(name) for shape in self._shapes], 8).view(">i8")[:, 0].astype(np.int64)
        return np.where(self.there(name), found, absent) if absent else found

    def octets(self, name: str, width: int) -> Octets:
        """Return a byte string of ``width`` bytes of each record, a row each; zeros where it is absent.

        Raises ValueError for one of another size.
        """
        places = [shape.place(name) for shape in self._shapes]
        other = next((place[1] for place in places if place != ABSENT and place[1] != width), None)
        if other is not None:
            raise ValueError(f"a field of {other} bytes, where {width} are wanted")
        return self._octets(places, width)

    def _octets(self, places: list[Place], width: int) -> Octets:
        """Return the bytes at a place of each record, behind zeros where there are fewer. ``places``: by shape."""
        found = self._by.column(*self._all, _packed(places), width)
        return np.frombuffer(found, np.uint8).reshape(len(self._kinds), width)

    def identifiers(self, name: str, width: int) -> NDArray[np.uint64]:
        """Return a byte string of ``8 * width`` bytes as so many numbers each; zeros where it is absent."""
        return self.octets(name, 8 * width).view("<u8")

    def raw(self, name: str) -> list[bytes]:
        """Return a byte string, or the bytes of a text, of each record; b"" where it is absent."""
        return self._values([shape.place(name) for shape in self._shapes])

    def items(self, name: str) -> list[bytes]:
        """Return a list of byte strings of each record as it is encoded, from the first one's bytes on to the end."""
        return self._values([shape.items(name) for shape in self._shapes])

    def _values(self, places: list[Place]) -> list[bytes]:
        """Return the bytes at a place of each record. ``places``: by shape."""
        found = [b""] * len(self._kinds)
        rows, which, values = self._distinct([places])
        for row, number in zip(rows.tolist(), which.tolist(), strict=True):
            found[row] = values[number]
        return found

    def distinct(self, name: str, last: str = "") -> tuple[Column, list[bytes]]:
        """Return which of the different values each record has (-1: none), and these, in order of occurrence.

        ``last``: a field behind it, up to which everything counts as one value.
        """
        rows, found, values = self._distinct([[shape.place(name, last) for shape in self._shapes]])
        which = np.full(len(self._kinds), -1, np.int64)
        which[rows] = found
        return which, values

    def distinct_items(self, name: str) -> tuple[Column, Column, list[bytes]]:
        """Return of each item of a list of byte strings its record and which of the different ones it is; and these.

        Record by record; the different ones are in order of occurrence.
        """
        most = max(len(getattr(each, name)) for each in self.kinds())
        return self._distinct([[shape.place(f"{name}.{n}") for shape in self._shapes] for n in range(most)])

    def _distinct(self, places: list[list[Place]]) -> tuple[Column, Column, list[bytes]]:
        """Return record and number of the values at some places, and the different ones."""
        rows, which, values = self._by.distinct(*self._all, [_packed(each) for each in places])
        return np.frombuffer(rows, "<i8"), np.frombuffer(which, "<i8"), values


def _packed(places: list[Place]) -> bytes:
    return np.array(places, np.int32).tobytes()


_KINDS: Final = {WitnessKind.GRANT: GRANT, WitnessKind.RENEWAL: RENEWAL, WitnessKind.UPGRADE: UPGRADE}
MODES: Final = tuple(Mode)
OUTCOMES: Final = tuple(LeaseOutcome)
_PLAIN: Final = frozenset({LeaseOutcome.RELINQUISHED, LeaseOutcome.EXPIRED, LeaseOutcome.WITHDRAWN})
"""How leases end, mostly; nobody ended these alone, or with others."""


def _kind(entry: Entry) -> int:
    return _KINDS[entry.kind] if isinstance(entry, Witness) else ENDED if isinstance(entry, Ended) else OTHER


def _plain(entry: Entry) -> bool:
    """Whether an entry is of the sort that columns judge, by what all of its shape share."""
    return isinstance(entry, Witness) or (isinstance(entry, Ended) and entry.ending.outcome in _PLAIN)


def entry_rows(records: Records, chosen: Column) -> Rows:
    """Return a row for each of some entries, without its domain and its place; ``kind`` is OTHER of some."""
    rows = np.zeros(len(chosen), ENTRY)
    rows["kind"] = records.of_each(_kind, np.uint8)[chosen]
    plain = records.of_each(_plain)[chosen]
    rows["cid"] = (records.identifiers("correlation_id", 2) | records.identifiers("ending.correlation_id", 2))[chosen]
    modes = records.of_each(lambda each: MODES.index(each.mode) if isinstance(each, Witness) else 0, np.uint8)
    rows["mode"] = modes[chosen]
    rows["held"] = records.of_each(lambda each: isinstance(each, Witness) and each.phase is Phase.HELD)[chosen]
    for column, told, name in (("previous", "follows", "previous_id"), ("session", "under", "session_id")):
        rows[column], rows[told] = records.identifiers(name, 2)[chosen], records.there(name)[chosen]
    for name in ("fence", "expiry_ns", "floor_ns", "settle_to_ns"):
        column = name.removesuffix("_ns")
        rows[column] = records.number(name)[chosen]
        plain &= small(rows[column])
    for who, places in (("last", ("ending", "last_ended")), ("set_by", ("floor_set_by",))):
        plain &= _take_ending(records, chosen, rows, who, places)
    which, raw = records.distinct("holder.node", "holder.purpose")
    digests = b"".join([bytes(16), *(hashlib.blake2b(each, digest_size=16).digest() for each in raw)])
    rows["holder"] = numbers(digests, 2)[which[chosen] + 1]
    rows["timed"] = records.there("ending.watermark_time")[chosen]
    which, raw = records.distinct("ending.watermark_time")
    which = which[chosen]
    fine, times = time_columns([*map(_token, raw), None])  # the last is that of those that have none
    rows["midpoint"], rows["radius"], rows["staleness"] = times[:, which]
    rows["plain"] = plain & (fine[which] | ~rows["timed"])
    return rows


def _take_ending(records: Records, chosen: Column, rows: Rows, who: str, places: tuple[str, ...]) -> Flags:
    """Take what entries tell of the end of a lease, in one of some places; say of each whether it can be compared."""

    def outcome(entry: Entry) -> int:
        told = next((each for each in (getattr(entry, place, None) for place in places) if each is not None), None)
        return 0 if told is None else OUTCOMES.index(told.outcome)

    rows[f"{who}_outcome"] = records.of_each(outcome, np.uint8)[chosen]
    fine = np.ones(len(chosen), np.bool_)
    watermark = np.full(len(chosen), NOTHING)
    for place in places:
        told = records.there(f"{place}.correlation_id")[chosen]
        if not told.any():
            continue
        rows[f"{who}_told"] |= told
        rows[f"{who}_cid"] |= records.identifiers(f"{place}.correlation_id", 2)[chosen]
        rows[f"{who}_ended"] |= records.number(f"{place}.ended_ns")[chosen]
        rows[f"{who}_messages"] |= records.number(f"{place}.messages")[chosen]
        watermark = np.maximum(watermark, records.number(f"{place}.watermark_ns", NOTHING)[chosen])
        rows[f"{who}_chained"] |= records.there(f"{place}.chain_head")[chosen]
        rows[f"{who}_head"] |= records.identifiers(f"{place}.chain_head", 4)[chosen]
    rows[f"{who}_watermark"] = watermark
    for column in ("ended", "messages"):
        fine &= small(rows[f"{who}_{column}"])
    return fine & (watermark < NUMBER_MAX)


def _token(raw: bytes) -> SignedTime | None:
    try:
        return SignedTime.decode(raw)
    except Damaged:
        return None
