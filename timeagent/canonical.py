"""Canonical bytes: one value, one encoding; and what exactly a signature or a digest covers.

A record is a msgpack array of its fields in order, every integer in its shortest form. A decoder keeps the bytes as
they came, checks types and lengths, and refuses bytes that do not encode back to themselves: two different byte strings
never mean the same record. Signing is over bytes as sent, never over values encoded again.

Signatures and digests are domain-separated: ``"tenure v1 " + context + NUL + u64 length + payload``. No bytes signed
for one purpose can be presented for another.
"""

from __future__ import annotations

import functools
import hashlib
import os
from threading import Lock
from typing import Annotated, Final

import msgspec

from .errors import Damaged

DIGEST_BYTES: Final = 32

type U64 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
type Bytes8 = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
type Bytes16 = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
type Bytes32 = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
type Bytes64 = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
type Token = Annotated[bytes, msgspec.Meta(min_length=128, max_length=128)]
"""An encoded SignedTime."""


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True, kw_only=True):
    """Base of everything that is stored or signed as a msgpack array.

    The collector does not look at them: what cannot be changed is part of no cycle, and there are many.
    """


_encoder = msgspec.msgpack.Encoder()
_ARRAY_HEADS: Final = tuple(bytes([0x90 | count]) for count in range(16))
_BYTES_HEADS: Final = tuple(bytes([0xC4, size]) for size in range(256))
_decoders: dict[type[Record], msgspec.msgpack.Decoder[Record]] = {}
_making: Final = Lock()
# A child that is forked while another thread makes a decoder must not wait for that thread, which it does not have.
os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)


def encode(record: Record) -> bytes:
    """Return the record's only encoding."""
    return _encoder.encode(record)


def array_head(count: int) -> bytes:
    """Return what an array of so many items begins with: for records that are put together of encoded parts."""
    if count < len(_ARRAY_HEADS):
        return _ARRAY_HEADS[count]
    return b"\xdc" + count.to_bytes(2, "big") if count < 2**16 else b"\xdd" + count.to_bytes(4, "big")


def bytes_head(size: int) -> bytes:
    if size < len(_BYTES_HEADS):
        return _BYTES_HEADS[size]
    return b"\xc5" + size.to_bytes(2, "big") if size < 2**16 else b"\xc6" + size.to_bytes(4, "big")


def encode_for_ever(record: Record) -> bytes:
    """Return the record's only encoding, after making sure that every decoder will take it.

    For what wins its name for ever: a value out of its range is found here, as an AssertionError, and not by every
    reader from now on.
    """
    raw = encode(record)
    try:
        decode(type(record), raw)
    except Damaged as problem:
        raise AssertionError(f"a record that nobody could read: {problem.message}") from None
    return raw


def made_for_ever[R: Record](kind: type[R], *fields: object) -> tuple[R, bytes]:
    """Return the record of these fields, in order, and its encoding, by reading it once as every decoder will.

    The same as ``encode_for_ever`` of the record, without making it twice. Raises AssertionError as that does.
    """
    raw = _encoder.encode(fields)
    try:
        return decode(kind, raw), raw
    except Damaged as problem:
        raise AssertionError(f"a record that nobody could read: {problem.message}") from None


def decode[R: Record](kind: type[R], data: bytes | memoryview, where: str = "") -> R:
    """Read a record, of one kind or of a union of tagged ones.

    Raises Damaged, naming ``where``, for wrong types, rests, and encodings that are not canonical.
    """
    decoder = _decoders.get(kind) or _made(kind)
    try:
        record = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise _damaged(kind, where, problem) from None
    if _encoder.encode(record) != data:
        raise _not_canonical(kind, where)
    assert isinstance(record, kind)
    return record


def decode_all[R: Record](kind: type[R], data: list[bytes], where: str = "") -> list[R]:
    """Read many records of one kind. Raises Damaged if ``decode`` refuses any of them, without saying which."""
    decoder = _decoders.get(kind) or _made(kind)
    try:
        records = list(map(decoder.decode, data))
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise _damaged(kind, where, problem) from None
    if list(map(_encoder.encode, records)) != data:
        raise _not_canonical(kind, where)
    return records  # type: ignore[return-value]


def _damaged(kind: type[Record], where: str, problem: Exception) -> Damaged:
    return Damaged("record-damaged", f"{where or 'a record'} is not {_called(kind)}: {problem}")


def _not_canonical(kind: type[Record], where: str) -> Damaged:
    what = f"{where or 'a record'} is {_called(kind)} in a non-canonical encoding"
    return Damaged("record-not-canonical", what)


def _called(kind: type[Record]) -> str:
    return f"a {kind.__name__}" if isinstance(kind, type) else "one of several records"


def _made[R: Record](kind: type[R]) -> msgspec.msgpack.Decoder[R]:
    """Make a decoder, one at a time: msgspec lets other threads see what it has half made of a type, and crashes."""
    with _making:
        decoder = _decoders.get(kind)
        if decoder is None:
            decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
        return decoder  # type: ignore[return-value]


@functools.cache
def _prefix(context: str) -> bytes:
    """Return what the bytes of a context begin with: there are a score of contexts."""
    return b"tenure v1 " + context.encode("ascii") + b"\0"


def signed_bytes(context: str, payload: bytes) -> bytes:
    """Return what a signature over ``payload`` covers in this context."""
    return _prefix(context) + len(payload).to_bytes(8, "big") + payload


def digest(context: str, payload: bytes) -> bytes:
    """Return the SHA-256 of ``signed_bytes``: 32 bytes."""
    return hashlib.sha256(signed_bytes(context, payload)).digest()
