import hashlib
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Lock

import msgspec
import pytest

from timeagent.canonical import (
    U64,
    Bytes8,
    Record,
    array_head,
    bytes_head,
    decode,
    digest,
    encode,
    encode_for_ever,
    signed_bytes,
)
from timeagent.errors import Damaged


class Example(Record, frozen=True):
    number: U64
    name: str
    key: Bytes8
    last: U64 | None = None


VALUE = Example(number=1, name="a", key=b"12345678")
RAW = b"\x94\x01\xa1a\xc4\x0812345678\xc0"


# A type that one thread has half made crashes the other, which finds it: daemons died of it, once in thirty starts.
def test_decoders_are_made_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fresh(Record, frozen=True):
        number: U64

    making, another, barrier, made = Lock(), Event(), Barrier(4), msgspec.msgpack.Decoder

    def make(kind: type[Record]) -> msgspec.msgpack.Decoder[Record]:
        alone = making.acquire(blocking=False)
        assert alone, "two threads make a decoder at the same time"
        another.wait(0.05)  # time enough for another to come in
        making.release()
        return made(kind)

    def read(_: int) -> Record:
        barrier.wait()
        return decode(Fresh, encode(Fresh(number=1)))

    monkeypatch.setattr(msgspec.msgpack, "Decoder", make)
    with ThreadPoolExecutor(4) as pool:
        assert [each.number for each in pool.map(read, range(4))] == [1] * 4  # type: ignore[attr-defined]


def test_record_is_an_array_of_its_fields_in_order() -> None:
    assert encode(VALUE) == RAW
    assert decode(Example, RAW) == VALUE
    assert decode(Example, memoryview(RAW)) == VALUE


REFUSED = {
    "integer one byte longer": b"\x94\xcc\x01\xa1a\xc4\x0812345678\xc0",
    "integer in eight bytes": b"\x94\xcf" + bytes(7) + b"\x01\xa1a\xc4\x0812345678\xc0",
    "signed form of a positive integer": b"\x94\xd0\x01\xa1a\xc4\x0812345678\xc0",
    "float": b"\x94\xcb\x3f\xf0\0\0\0\0\0\0\xa1a\xc4\x0812345678\xc0",
    "boolean for an integer": b"\x94\xc3\xa1a\xc4\x0812345678\xc0",
    "text for an integer": b"\x94\xa11\xa1a\xc4\x0812345678\xc0",
    "negative": b"\x94\xff\xa1a\xc4\x0812345678\xc0",
    "above 2^63 - 1": b"\x94\xcf\x80" + bytes(7) + b"\xa1a\xc4\x0812345678\xc0",
    "longer head of a text": b"\x94\x01\xd9\x01a\xc4\x0812345678\xc0",
    "bytes for text": b"\x94\x01\xc4\x01a\xc4\x0812345678\xc0",
    "text for bytes": b"\x94\x01\xa1a\xa812345678\xc0",
    "longer head of bytes": b"\x94\x01\xa1a\xc5\0\x0812345678\xc0",
    "bytes one short": b"\x94\x01\xa1a\xc4\x071234567\xc0",
    "bytes one long": b"\x94\x01\xa1a\xc4\x09123456789\xc0",
    "text that is not UTF-8": b"\x94\x01\xa1\xff\xc4\x0812345678\xc0",
    "wrong order": b"\x94\xa1a\x01\xc4\x0812345678\xc0",
    "longer head of the array": b"\xdc\0\x04" + RAW[1:],
    "field too many": b"\x95" + RAW[1:] + b"\x01",
    "field with a default left out": b"\x93" + RAW[1:-1],
    "field too few": b"\x92\x01\xa1a",
    "rest": RAW + b"\0",
    "truncated": RAW[:-1],
    "empty": b"",
    "map": b"\x81\xa6number\x01",
    "huge length": b"\x94\x01\xdb\xff\xff\xff\xff",
    "deep nesting": b"\x91" * 100_000,
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_encoding_is_refused_and_names_the_place(name: str) -> None:
    with pytest.raises(Damaged, match="the example") as refused:
        decode(Example, REFUSED[name], "the example")
    assert refused.value.code in {"record-damaged", "record-not-canonical"}


# Types and lengths are checked by the decoder; these only the comparison with the record's own encoding refuses.
@pytest.mark.parametrize("name", ["integer one byte longer", "longer head of a text", "field with a default left out"])
def test_without_the_comparison_two_encodings_would_mean_one_record(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Agreeing:
        def encode(self, _record: Record) -> object:
            class Same:
                def __ne__(self, other: object) -> bool:
                    return False

                __hash__ = None  # type: ignore[assignment]

            return Same()

    monkeypatch.setattr("timeagent.canonical._encoder", Agreeing())
    assert decode(Example, REFUSED[name]) == VALUE


def test_record_that_no_decoder_would_take_is_found_before_it_is_kept() -> None:
    assert encode_for_ever(VALUE) == RAW
    for bad in (
        Example(number=-1, name="a", key=b"12345678"),
        Example(number=2**63, name="a", key=b"12345678"),
        Example(number=1, name="a", key=b"1234567"),
    ):
        with pytest.raises(AssertionError, match="nobody could read"):
            encode_for_ever(bad)


def test_signed_bytes_are_what_the_document_says() -> None:
    assert signed_bytes("c", b"xyz") == b"tenure v1 c\0\0\0\0\0\0\0\0\x03xyz"
    assert digest("c", b"xyz") == hashlib.sha256(b"tenure v1 c\0\0\0\0\0\0\0\0\x03xyz").digest()


# A context that begins as another one does, and a payload that continues it, are still two different things.
def test_contexts_cannot_be_confused() -> None:
    assert len({signed_bytes("a", b"b"), signed_bytes("ab", b""), signed_bytes("a", b""), signed_bytes("", b"a")}) == 4


# Records are put together of parts in bulk: the heads are the shortest ones, as an encoder writes them.
@pytest.mark.parametrize("size", [0, 1, 15, 16, 255, 256, 65_535, 65_536])
def test_heads_are_those_of_an_encoder(size: int) -> None:
    assert array_head(size) + b"\xc0" * size == msgspec.msgpack.encode([None] * size)
    assert bytes_head(size) + bytes(size) == msgspec.msgpack.encode(bytes(size))
