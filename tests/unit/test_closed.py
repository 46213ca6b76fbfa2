from __future__ import annotations

import struct
from contextlib import suppress
from hashlib import sha256

import msgspec
import pytest

from appliance.formats.closed import (
    TRAILER_BYTES,
    LockEntry,
    LockFile,
    PackIndex,
    PackMaker,
    RackSeal,
    SealEntry,
    open_lock,
    open_pack,
    open_seal,
)
from appliance.formats.framing import Kind
from appliance.formats.paths import SEAL
from appliance.formats.stamped import body_digest, stamp
from tests.support.bags import T0, Node
from tests.support.storage import MemoryStorage
from tests.support.values import BAG_NAME, TIME_KEY, hand_time, lock, lock_bytes, seal
from timeagent.canonical import decode, encode
from timeagent.errors import Damaged
from timeagent.units import MINUTE, SECOND


def entry(name: str) -> LockEntry:
    return LockEntry(name=name, size=1, digest=bytes(32))


def test_lock_file_is_read_back_and_its_time_covers_the_list() -> None:
    opened, stamped = open_lock(lock_bytes(), "f")
    assert opened == lock()
    assert stamped.signed_time("f").verified_by(TIME_KEY.verifier(), body_digest(Kind.LOCK, stamped.body))
    assert list(opened.by_name()) == [each.name for each in lock().entries]


def test_empty_bag_has_a_lock_file_too() -> None:
    empty = msgspec.structs.replace(lock(), entries=())
    assert open_lock(stamp(Kind.LOCK, empty, hand_time()), "f")[0] == empty


def test_seal_answers_for_its_bags_and_for_no_other() -> None:
    opened, _ = open_seal(stamp(Kind.SEAL, seal(), hand_time()), "f")
    assert opened == seal()
    assert opened.lock_of(BAG_NAME) == lock_bytes()
    assert opened.lock_of("22-10-08.000-1000-2000") is None
    assert open_lock(opened.lock_of(BAG_NAME) or b"", "f")[0] == lock()


@pytest.mark.parametrize("names", [("b", "a"), ("a", "a"), ("a", "c", "b")])
def test_list_out_of_order_is_neither_made_nor_read(names: tuple[str, ...]) -> None:
    ordered = sorted(set(names))
    good_lock = msgspec.structs.replace(lock(), entries=tuple(map(entry, ordered)))
    good_seal = msgspec.structs.replace(seal(), entries=tuple(SealEntry(bag=name, lock=b"") for name in ordered))
    with pytest.raises(ValueError, match="in order"):
        msgspec.structs.replace(good_lock, entries=tuple(map(entry, names)))
    with pytest.raises(ValueError, match="in order"):
        msgspec.structs.replace(good_seal, entries=tuple(SealEntry(bag=name, lock=b"") for name in names))
    for kind, good, parts in (
        (LockFile, good_lock, {name: encode(entry(name)) for name in names}),
        (RackSeal, good_seal, {name: encode(SealEntry(bag=name, lock=b"")) for name in names}),
    ):
        raw = encode(good)
        assert decode(kind, raw) == good
        in_order = bytes([0x90 + len(ordered)]) + b"".join(parts[name] for name in ordered)
        as_given = bytes([0x90 + len(names)]) + b"".join(parts[name] for name in names)
        assert raw.count(in_order) == 1
        with pytest.raises(Damaged, match="in order"):
            decode(kind, raw.replace(in_order, as_given))


def test_lock_and_seal_do_not_stand_for_each_other() -> None:
    with pytest.raises(Damaged):
        open_seal(lock_bytes(), "f")
    with pytest.raises(Damaged):
        open_lock(stamp(Kind.SEAL, seal(), hand_time()), "f")


class Sealed:
    """A sealed rack with three bags, one message, two messages, and a bag of two files; and its pack."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        node = Node(self.storage)
        for sequence, payloads in enumerate(((b"a",), (b"bb", b"ccc"), (b"d",), (b"",)), 1):
            node.writer.write(node.file(*payloads, sequence=sequence))
            node.time.advance(2 * SECOND if sequence < 3 else 1)
        node.time.advance(MINUTE)
        self.rack = node.grid.rack(T0)
        node.sealer.seal(self.rack)
        raw = self.storage.read(f"{self.rack.path}/{SEAL}")
        assert raw is not None
        self.seal = raw
        self.maker = PackMaker(raw, "seal")
        self.files = [self.storage.files[f"{self.rack.path}/{x.bag}/{x.entry.name}"] for x in self.maker.listed]
        self.pack = self.made(self.maker)

    def made(self, maker: PackMaker) -> bytes:
        for data in self.files:
            maker.add(data)
        return b"".join((maker.head, *self.files, maker.tail()))


@pytest.fixture(scope="module")
def sealed() -> Sealed:
    return Sealed()


def opened(data: bytes) -> PackIndex:
    return open_pack(lambda offset, length: data[offset : offset + length], len(data), "pack")


def test_files_are_in_the_pack_byte_by_byte_where_the_index_says(sealed: Sealed) -> None:
    index = opened(sealed.pack)
    assert index.disagreement(sealed.maker.seal_digest, sealed.maker.listed, sealed.maker.bags) is None
    assert [list(index.files_of(bag)) for bag in index.bags] == [[0], [1], [2, 3]]
    assert list(index.files_of("elsewhere")) == []
    for number, data in enumerate(sealed.files):
        at = int(index.offsets[number])
        assert sealed.pack[at : at + int(index.sizes[number])] == data
        assert index.digest(number) == sealed.maker.listed[number].entry.digest


# Its last columns, each whole: of every piece offset, length, file, first and last timestamp, messages, sequence.
def test_index_says_what_each_frame_holds(sealed: Sealed) -> None:
    index = opened(sealed.pack)
    columns = struct.unpack("<4Q4I4I4q4q4I4Q", sealed.pack[-TRAILER_BYTES - 4 * 44 : -TRAILER_BYTES])
    offsets, lengths, files, first, last, messages, sequences = (columns[at : at + 4] for at in range(0, 28, 4))
    assert [offsets, lengths] == [tuple(index.offsets), tuple(index.sizes)]
    assert [files, messages, sequences] == [(0, 1, 2, 3), (1, 2, 1, 1), (1, 2, 3, 4)]
    assert [end - begin for begin, end in zip(first, last, strict=True)] == [0, 1, 0, 0]


# Two that pack one rack publish the same bytes: whoever wins, nothing is lost.
def test_all_packers_make_the_same_bytes(sealed: Sealed) -> None:
    assert sealed.made(PackMaker(sealed.seal, "seal")) == sealed.pack


def test_file_that_is_not_what_was_listed_is_not_packed(sealed: Sealed) -> None:
    for wrong in (b"", sealed.files[0] + b"x", sealed.files[0][:-1], b"x" * len(sealed.files[0]), sealed.files[1]):
        with pytest.raises(Damaged, match="that were listed"):
            PackMaker(sealed.seal, "seal").add(wrong)


def verified(data: bytes, sealed: Sealed) -> None:
    """What whoever verifies a pack does; raises where it does not hold."""
    index = opened(data)
    maker = PackMaker(sealed.seal, "seal")
    wrong = index.disagreement(maker.seal_digest, maker.listed, maker.bags)
    if wrong:
        raise Damaged("pack-damaged", wrong)
    for number in range(len(maker.listed)):
        at = int(index.offsets[number])
        maker.add(data[at : at + int(index.sizes[number])])
    if data[: index.data_at] + data[index.index_at :] != maker.head + maker.tail():
        raise Damaged("pack-damaged", "the index is not that of the files")


def test_no_byte_of_a_pack_can_change_unnoticed(sealed: Sealed) -> None:
    verified(sealed.pack, sealed)
    for at in range(len(sealed.pack)):
        changed = bytearray(sealed.pack)
        changed[at] ^= 0x10
        with pytest.raises(Damaged):
            verified(bytes(changed), sealed)


def test_pack_that_was_cut_or_has_more_is_damaged(sealed: Sealed) -> None:
    for data in (b"", sealed.pack[:10], sealed.pack[:-1], sealed.pack[1:], sealed.pack + b"\0", bytes(4096)):
        with pytest.raises(Damaged, match="pack, offset"):
            opened(data)


# Nobody signs a pack: its checksums are right, and its index is what somebody wrote.
@pytest.mark.parametrize("at", range(12))
@pytest.mark.parametrize("wrong", [b"\xff\xfe\xfd\xfc", (2**31).to_bytes(4, "little")])
def test_index_that_is_none_behind_good_checksums_is_damaged(sealed: Sealed, wrong: bytes, at: int) -> None:
    whole = opened(sealed.pack)
    index = bytearray(sealed.pack[whole.index_at : -TRAILER_BYTES])
    step = (len(index) - 7 * 4 * len(whole.names)) // 12
    begins = at * step - at * step % 4
    index[begins : begins + 4] = wrong
    body = sealed.pack[-TRAILER_BYTES:-48] + sha256(index).digest()
    data = sealed.pack[: whole.index_at] + index + body + sha256(body).digest()[:16]
    with suppress(Damaged):
        opened(bytes(data))


def test_index_whose_names_are_no_text_is_damaged(sealed: Sealed) -> None:
    whole = opened(sealed.pack)
    index = sealed.pack[whole.index_at : -TRAILER_BYTES].replace(b".msg", b"\xff\xfe\xfd\xfc")
    body = sealed.pack[-TRAILER_BYTES:-48] + sha256(index).digest()
    with pytest.raises(Damaged, match="no index of ours"):
        opened(sealed.pack[: whole.index_at] + index + body + sha256(body).digest()[:16])


def test_pack_of_another_seal_is_told_from_this_one(sealed: Sealed) -> None:
    index = opened(sealed.pack)
    maker = sealed.maker
    assert "made from the seal" in (index.disagreement(b"x" * 32, maker.listed, maker.bags) or "")
    assert "lists 3 files" in (index.disagreement(maker.seal_digest, maker.listed[:3], maker.bags) or "")
    swapped = (maker.listed[1], maker.listed[0], *maker.listed[2:])
    assert "its file 0" in (index.disagreement(maker.seal_digest, swapped, maker.bags) or "")


def test_rack_without_files_has_an_empty_pack() -> None:
    node = Node(MemoryStorage())
    node.time.advance(2 * MINUTE)
    rack = node.grid.rack(T0)
    node.sealer.seal(rack)
    raw = node.context.storage.read(f"{rack.path}/{SEAL}")
    assert raw is not None
    maker = PackMaker(raw, "seal")
    index = opened(maker.head + maker.tail())
    assert (index.names, index.bags) == ((), ())
