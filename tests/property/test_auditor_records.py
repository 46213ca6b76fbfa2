"""Records read as columns: taken if and only if each of them decodes, and every field is what decoding says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.formats.framing import Attempt, FrameHead
from appliance.formats.witness import Ended, SignedWitness, Witness, decode_entry
from auditor.columns import records as columns
from auditor.columns.frames import FrameBatch
from auditor.columns.layout import Column, NotPlain
from auditor.columns.records import Records, Shapes
from tests.support.msgpack import other_forms
from tests.support.mutants import plant_in_text
from tests.support.records import records
from tests.support.shares import examples
from timeagent import core
from timeagent.canonical import Record, decode, encode
from timeagent.errors import Damaged

KINDS: dict[type[Record], Callable[[bytes], msgspec.Struct]] = {
    FrameHead: lambda raw: decode(FrameHead, raw),
    SignedWitness: lambda raw: decode(SignedWitness, raw),
    Witness: decode_entry,
    Ended: decode_entry,
}


def leaves_of(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield name and value of every field of a record, down to numbers, texts and byte strings."""
    if isinstance(value, msgspec.Struct):
        for each in value.__struct_fields__:
            yield from leaves_of(getattr(value, each), f"{name}.{each}" if name else each)
    elif isinstance(value, tuple):
        for number, each in enumerate(value):
            yield from leaves_of(each, f"{name}.{number}")
    else:
        yield name, value


def decodes(kind: type[Record], raw: bytes) -> bool:
    try:
        KINDS[kind](raw)
    except Damaged:
        return False
    return True


def agree(kind: type[Record], raw: list[bytes]) -> None:
    """Read records as columns and one by one, and compare everything: by the reference, and by the native core."""
    for native in (None, core.chosen("")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(core, "native", native)
            _agree(kind, raw)


def _agree(kind: type[Record], raw: list[bytes]) -> None:
    shapes = Shapes(KINDS[kind])
    try:
        found = shapes.read(raw)
    except (Damaged, ValueError):
        assert not all(decodes(kind, each) for each in raw)
        return
    for n, one in enumerate(raw):
        told = dict(leaves_of(KINDS[kind](one)))
        for name, value in told.items():
            assert found.there(name)[n] == (value is not None and not isinstance(value, bool)), name
            if isinstance(value, int) and not isinstance(value, bool):
                assert found.number(name)[n] == value, name
            elif isinstance(value, str):
                which, values = found.distinct(name)
                assert values[which[n]] == value.encode(), name
            elif isinstance(value, bytes):
                which, values = found.distinct(name)
                assert found.raw(name)[n] == values[which[n]] == value, name
                if value and len(value) % 8 == 0 and len({len(each) for each in values}) == 1:
                    assert found.identifiers(name, len(value) // 8)[n].tobytes() == value, name

    for name in {"witnesses", "path"} & set(kind.__struct_fields__):
        own = [getattr(KINDS[kind](one), name) for one in raw]
        rows, which, values = found.distinct_items(name)
        listed = [(n, each) for n, items in enumerate(own) for each in items]
        assert [(n, values[number]) for n, number in zip(rows.tolist(), which.tolist(), strict=True)] == listed
        assert values == list(dict.fromkeys(each for _, each in listed))
        if name == "path":
            assert found.items(name) == [b"\xc4\x20".join(items) for items in own]


def same_size(data: st.DataObject, raw: bytes) -> bytes:
    """Change some bytes."""
    changed = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    return bytes(changed)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@examples(30)
@given(data=st.data())
def test_columns_say_what_decoding_says(kind: type[Record], data: st.DataObject) -> None:
    agree(kind, [encode(data.draw(records(kind))) for _ in range(data.draw(st.integers(1, 4)))])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@examples(80)
@given(data=st.data())
def test_columns_refuse_what_decoding_refuses(kind: type[Record], data: st.DataObject) -> None:
    raw = encode(data.draw(records(kind)))
    agree(kind, [raw, same_size(data, raw), raw])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@examples(10)
@given(data=st.data())
def test_columns_refuse_other_forms_of_a_number(kind: type[Record], data: st.DataObject) -> None:
    raw = encode(data.draw(records(kind)))
    for other in list(other_forms(raw))[:20]:
        agree(kind, [raw, other])


def a_head(log: str, writer: str) -> FrameHead:
    return FrameHead(
        cluster_id=bytes(16),
        log=log,
        writer=writer,
        incarnation=bytes(8),
        sequence=2**40,
        attempts=(),
        committed=None,
        time=bytes(128),
        witnesses=(b"one", b"two"),
        trust_number=300,
        policy_number=7,
    )


@pytest.mark.parametrize("chosen", ["python", ""])
def test_many_shapes_are_read_together_and_too_many_are_not(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "native", core.chosen(chosen))
    raw = [encode(a_head("l" * (1 + n % 200), "w" * (1 + n // 200))) for n in range(1025)]
    columns._pattern.cache_clear()
    shapes = Shapes(KINDS[FrameHead])
    assert len(shapes.read(raw[:1024] * 2).kinds()) == 1024
    assert columns._pattern.cache_info().misses == (1024 if core.native is None else 0), "each is made once"
    with pytest.raises(ValueError, match="too many"):
        Shapes(KINDS[FrameHead]).read(raw)
    assert len(shapes.read(raw[-2:]).kinds()) == 2


# Whoever can write to the mount can make one that would take hours, which decoding refuses in a moment.
@pytest.mark.parametrize("chosen", ["python", ""])
def test_what_takes_long_to_know_by_its_shape_has_none(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "native", core.chosen(chosen))
    most, head = columns._PARTS_MAX, a_head("orders", "n1")
    parts = len(dict(leaves_of(head))) - 1 - len(head.witnesses)  # one is absent
    for witnesses, writer in ((most - parts, most), (most - parts + 1, 1), (1, most + 1)):
        record = msgspec.structs.replace(head, witnesses=(b"x",) * witnesses, writer="w" * writer)
        if (witnesses, writer) == (most - parts, most):
            assert Shapes(KINDS[FrameHead]).read([encode(record)] * 2).distinct("writer")[1] == [record.writer.encode()]
            continue
        with pytest.raises(ValueError, match="of ours"):
            Shapes(KINDS[FrameHead]).read([encode(record)] * 2)


def test_attempts_beyond_the_messages_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = tuple(Attempt(id=bytes(16), messages=1) for _ in range(1000))
    asked: list[str] = []
    number = Records.number

    def told(self: Records, name: str) -> Column:
        asked.append(name)
        return number(self, name)

    monkeypatch.setattr(Records, "number", told)
    batch = FrameBatch.__new__(FrameBatch)
    batch.heads = Shapes(KINDS[FrameHead]).read([encode(msgspec.structs.replace(a_head("a", "b"), attempts=attempts))])
    batch.counts = np.array([3])
    with pytest.raises(NotPlain):
        batch._check_attempts()
    assert len(asked) == 4, "one more than there are messages"


MUTANTS = {
    "what is fixed": ("_IS_FIXED: own", "_IS_FIXED: b'.' * size"),
    "small numbers": ("_IS_TEXT: b'(?:[\\\\0-\\\\x7f]{%d}|%b)' % (size, own)", "_IS_TEXT: b'.' * size"),
    "the shortest form": ("_SHORTEST.get(size, b'')", "b'.' * size"),
    "below 2**63": ("_SHORTEST.get(size, b'')", "_SHORTEST.get(size, b'').replace(b'[\\\\0-\\\\x7f]', b'.')"),
    "texts": ("_IS_TEXT: b'(?:[\\\\0-\\\\x7f]{%d}|%b)' % (size, own)", "_IS_TEXT: b'.' * size"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_condition_of_a_shape_is_needed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = encode(a_head("orders", "n1"))
    wrong = {
        "what is fixed": raw.replace(b"\xc4\x03one", b"\xd9\x03one"),
        "small numbers": raw[:-1] + b"\xe0",
        "the shortest form": raw.replace((300).to_bytes(2), bytes(2)),
        "below 2**63": raw.replace((2**40).to_bytes(8), b"\xff" * 8),
        "texts": raw.replace(b"orders", b"order\xff"),
    }[mutant]
    assert len(wrong) == len(raw)
    assert wrong != raw
    agree(FrameHead, [raw, wrong])
    monkeypatch.setattr(core, "native", None)
    plant_in_text(monkeypatch, columns, "_pattern", *MUTANTS[mutant])
    Shapes(KINDS[FrameHead]).read([raw, wrong])  # which refuses it without the mutant
