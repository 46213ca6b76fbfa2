"""Records: one value, one encoding, and every other string of bytes is refused or means something else."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.formats.closed import LockEntry, LockFile, made_lock
from tests.support.msgpack import items, other_forms
from tests.support.records import RECORDS, records
from tests.support.shares import examples
from tests.support.values import all_files, batch
from timeagent.canonical import Record, decode, encode, encode_for_ever, made_for_ever
from timeagent.errors import Damaged

# Each property runs for every kind of record.
few = examples(30)


def refused(kind: type[Record], raw: bytes) -> bool:
    """Whether the bytes are refused; bytes that are taken must be the only encoding of what they say."""
    try:
        record = decode(kind, raw)
    except Damaged:
        return True
    assert encode(record) == raw
    return False


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@few
@given(data=st.data())
def test_record_is_read_back_and_is_what_its_fields_make(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(records(kind))
    raw = encode(record)
    assert decode(kind, raw) == record
    assert encode(decode(kind, raw)) == raw
    tagged = record.__struct_config__.tag is not None
    assert next(items(raw)).number == len(record.__struct_fields__) + tagged
    if not tagged:
        fields = [getattr(record, name) for name in record.__struct_fields__]
        assert made_for_ever(kind, *fields) == (record, encode_for_ever(record))


# Another form of the same value, fields in another order, more or fewer of them, bytes that lack, follow or changed.
@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@few
@given(data=st.data())
def test_no_other_bytes_mean_the_same_record(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(records(kind))
    raw = encode(record)
    others = list(other_forms(raw))
    assert others
    assert all(refused(kind, other) for other in others)

    at = data.draw(st.integers(0, len(raw) - 1))
    assert refused(kind, raw[:at])
    assert refused(kind, raw + data.draw(st.binary(min_size=1, max_size=9)))
    changed = bytearray(raw)
    changed[at] ^= data.draw(st.integers(1, 255))
    assert refused(kind, bytes(changed)) or decode(kind, bytes(changed)) != record

    values = msgspec.msgpack.decode(raw)
    for wrong in (values[:-1], [*values, None], [*values, 0], [*values, b""]):
        assert refused(kind, msgspec.msgpack.encode(wrong))
    other = msgspec.msgpack.encode(data.draw(st.permutations(values)))
    assert other == raw or refused(kind, other) or decode(kind, other) != record


# What ``encode_for_ever`` finds in a record, or its construction refuses, is found in the fields.
@few
@given(
    entries=st.lists(
        st.tuples(
            st.text(st.characters(codec="ascii"), max_size=3),
            st.one_of(st.integers(-1, 2), st.sampled_from([2**63 - 1, 2**63, 1.0])),
            st.sampled_from([bytes(32), bytes(31), "digest"]),
        ),
        max_size=4,
    )
)
def test_list_that_a_reader_would_refuse_is_not_made(entries: list[tuple[str, int, bytes]]) -> None:
    def by_record() -> bytes | None:
        try:
            listed = tuple(LockEntry(name=name, size=size, digest=digest) for name, size, digest in entries)
            whole = LockFile(
                cluster_id=bytes(16), log="l", bag="b", closer="n", trust_number=1, policy_number=2, entries=listed
            )
            return encode_for_ever(whole)
        except (ValueError, AssertionError):
            return None

    def by_fields() -> bytes | None:
        try:
            return made_lock(bytes(16), "l", "b", "n", (1, 2), entries)[1]
        except AssertionError:
            return None

    assert by_fields() == by_record()


# Shown to be a test of something: a decoder without the comparison takes nearly all of them.
def test_plain_msgpack_takes_the_other_forms() -> None:
    raw = batch().head
    taken = 0
    for other in other_forms(raw):
        msgspec.msgpack.decode(other)
        taken += 1
    assert taken > 50


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@few
@given(raw=st.binary(max_size=400))
def test_arbitrary_bytes_are_refused_by_name_or_canonical(kind: type[Record], raw: bytes) -> None:
    refused(kind, raw)


# No file of one kind is taken for another: the first field that differs, or the number of fields, says so.
def test_golden_files_hold_what_their_kind_says() -> None:
    files = all_files()
    assert len(set(files.values())) == len(files)
