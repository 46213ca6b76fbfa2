import msgspec
import pytest

from appliance.formats.framing import Kind
from appliance.formats.lockfile import LockEntry, LockFile, RackSeal, SealEntry, open_lock, open_seal
from appliance.formats.stamped import body_digest, stamp
from tests.support.values import BAG_NAME, TIME_KEY, hand_time, lock, lock_bytes, seal
from timeagent.canonical import decode, encode
from timeagent.errors import Damaged


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
