"""msgpack as a reader of bytes sees it: where each item begins, and how else it could have been written."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_SIZES = {
    **{0xC4 + n: ("bin", 1 << n) for n in range(3)},
    **{0xCC + n: ("uint", 1 << n) for n in range(4)},
    **{0xD9 + n: ("str", 1 << n) for n in range(3)},
    **{0xDC + n: ("array", 2 << n) for n in range(2)},
}
_FORMS = {
    "uint": [
        (0xCC, ">B"),
        (0xCD, ">H"),
        (0xCE, ">I"),
        (0xCF, ">Q"),
        (0xD0, ">b"),
        (0xD1, ">h"),
        (0xD2, ">i"),
        (0xD3, ">q"),
    ],
    "bin": [(0xC4, ">B"), (0xC5, ">H"), (0xC6, ">I")],
    "str": [(0xD9, ">B"), (0xDA, ">H"), (0xDB, ">I")],
    "array": [(0xDC, ">H"), (0xDD, ">I")],
}


@dataclass(frozen=True)
class Item:
    """One item: its head at ``[offset, body)``; ``number`` is the integer itself or the length that the head states."""

    kind: str
    offset: int
    body: int
    number: int


def items(raw: bytes) -> Iterator[Item]:
    """Yield every item, the outer before the inner."""
    offset = 0
    while offset < len(raw):
        first = raw[offset]
        if first < 0x80:
            item = Item("uint", offset, offset + 1, first)
        elif 0x90 <= first < 0xA0:
            item = Item("array", offset, offset + 1, first & 15)
        elif 0xA0 <= first < 0xC0:
            item = Item("str", offset, offset + 1, first & 31)
        elif first == 0xC0:
            item = Item("nil", offset, offset + 1, 0)
        else:
            kind, size = _SIZES[first]
            number = int.from_bytes(raw[offset + 1 : offset + 1 + size], "big")
            item = Item(kind, offset, offset + 1 + size, number)
        yield item
        offset = item.body + (item.number if item.kind in {"str", "bin"} else 0)


def other_forms(raw: bytes) -> Iterator[bytes]:
    """Yield the same value in every other encoding of one of its heads."""
    for item in items(raw):
        for code, form in _FORMS.get(item.kind, []):
            try:
                head = bytes([code]) + struct.pack(form, item.number)
            except struct.error:
                continue
            if head != raw[item.offset : item.body]:
                yield raw[: item.offset] + head + raw[item.body :]
