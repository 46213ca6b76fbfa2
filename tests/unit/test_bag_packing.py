"""Packing and retention of sealed racks: one record before and after, and nothing that can come back into it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from appliance.bag.closedbags import ListedFiles, PackedRack, open_packed, retained
from appliance.bag.packer import NotPacked, OldPack, PackReport, PackState
from appliance.bag.ports import Published
from appliance.bag.writing import Committed, NotCommitted
from appliance.formats.birth import BagKind
from appliance.formats.closed import PACK
from appliance.formats.paths import LOCK, PRELOCK, RETAINED, SEAL
from tests.support.bags import T0, Node, witness
from tests.support.racks import FILES, MESSAGES, SealedRack
from tests.support.storage import Crash, FailingStorage, Fault, MemoryStorage, RecordingStorage, WrappedStorage
from timeagent.errors import Damaged, Environment, TryAgain
from timeagent.units import DAY, MINUTE, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def settled(sealed: SealedRack) -> list[bytes]:
    return sealed.process().settled()


@pytest.mark.parametrize("kind", list(BagKind))
def test_packed_rack_reads_as_before_and_has_no_bag_directories(kind: BagKind) -> None:
    sealed = SealedRack(kind=kind)
    assert settled(sealed) == MESSAGES
    assert sealed.packer().pack(sealed.rack) == PackReport(PackState.PACKED, made=True, swept=3)
    assert sealed.names() == [PACK, PRELOCK, SEAL]
    assert settled(sealed) == sealed.process().latest() == MESSAGES


def test_second_packer_finds_it_done() -> None:
    sealed = SealedRack()
    sealed.packer().pack(sealed.rack)
    storage = RecordingStorage(sealed.storage)
    assert sealed.packer(storage).pack(sealed.rack) == PackReport(PackState.PACKED)
    assert len(storage.calls) < 10
    assert not any(verb in ("publish", "publish_stream", "unlink", "remove_directory") for verb, _ in storage.calls)


def test_rack_that_is_not_sealed_is_left_alone() -> None:
    node = Node(MemoryStorage())
    node.writer.write(node.file(b"m"))
    sealed = SealedRack()
    assert sealed.packer().pack(sealed.node.grid.next_rack(sealed.rack)).state is PackState.UNSEALED


def test_rack_without_files_needs_no_pack() -> None:
    sealed = SealedRack()
    empty = sealed.node.grid.next_rack(sealed.rack)
    sealed.storage.ensure_directory(sealed.node.grid.bag(empty.start_ns).path)
    sealed.process().sealer.seal(empty)
    assert sealed.packer().pack(empty) == PackReport(PackState.EMPTY, swept=1)
    assert sealed.storage.list_afresh(empty.path) == [PRELOCK, SEAL]


def test_altered_or_missing_file_stops_the_packing_and_nothing_is_deleted() -> None:
    for planted in ("altered", "missing", "cut"):
        sealed = SealedRack()
        assert isinstance(sealed.storage, MemoryStorage)
        path = f"{sealed.files[1].bag.path}/{sealed.files[1].name.text()}"
        data = sealed.storage.files.pop(path)
        if planted != "missing":
            sealed.storage.files[path] = data[:-1] + b"x" if planted == "altered" else data[:-1]
        before = dict(sealed.storage.files)
        with pytest.raises(Damaged, match="listed"):
            sealed.packer().pack(sealed.rack)
        assert sealed.storage.files == before


def test_bytes_beyond_the_listed_ones_are_not_packed() -> None:
    sealed = SealedRack()
    assert isinstance(sealed.storage, MemoryStorage)
    path = f"{sealed.files[1].bag.path}/{sealed.files[1].name.text()}"
    sealed.storage.files[path] += b"late"
    sealed.packer().pack(sealed.rack)
    packed = open_packed(sealed.storage, sealed.rack)
    assert packed is not None
    assert packed.file(sealed.files[1].bag.name, sealed.files[1].name.text()) == sealed.files[1].data


def test_pack_of_another_rack_in_place_is_noticed_when_it_is_asked_for_again() -> None:
    server, theirs = MemoryStorage(), MemoryStorage()
    sealed, other = SealedRack(server), SealedRack(theirs)
    other.node.writer.write(other.node.file(b"more", sequence=99))
    other.node.time.advance(MINUTE)
    later = other.node.grid.rack(other.node.time.midpoint_ns - MINUTE)
    other.node.sealer.seal(later)
    sealed.packer().pack(sealed.rack)
    other.packer().pack(later)
    server.files[f"{sealed.rack.path}/{PACK}"] = theirs.files[f"{later.path}/{PACK}"]
    with pytest.raises(Damaged, match="not the pack of its rack's seal"):
        sealed.packer().pack(sealed.rack, again=True)
    assert sealed.packer().pack(sealed.rack).state is PackState.PACKED, "a metronome's turn looks at names only"


# The pack in place is what counts, whoever made it: a bad one must not cost the only good copy.
@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data[:200] + b"?" + data[201:], lambda _: b""])
def test_bad_pack_in_place_costs_no_bag(spoil: Callable[[bytes], bytes]) -> None:
    sealed = SealedRack()
    other = SealedRack()
    other.packer().pack(other.rack)
    assert isinstance(sealed.storage, MemoryStorage)
    assert isinstance(other.storage, MemoryStorage)
    place = f"{sealed.rack.path}/{PACK}"
    sealed.storage.files[place] = spoil(other.storage.files[place])
    before = dict(sealed.storage.files)
    with pytest.raises(Damaged):
        sealed.packer().pack(sealed.rack)
    assert sealed.storage.files == before


# Whoever cleans tmp takes the file before it is linked: the rack has all that it had, and nobody gave it up.
def test_pack_that_goes_before_it_is_linked_is_no_rack_that_was_given_up() -> None:
    class Cleaned(WrappedStorage):
        def publish_stream(self, path: str, chunks: Iterable[bytes], tmp: str) -> Published:
            assert list(chunks)
            assert path.endswith(PACK)
            assert tmp
            return Published.ABSENT

    sealed = SealedRack()
    with pytest.raises(Environment, match="went away") as caught:
        sealed.packer(Cleaned(sealed.storage)).pack(sealed.rack)
    assert caught.value.hint
    assert sealed.packer().pack(sealed.rack).state is PackState.PACKED
    assert settled(sealed) == MESSAGES


# A file as a log of the other kind has it is one of theirs.
@pytest.mark.parametrize("name", ["notes.txt", f"n1.{b'i'.hex() * 8}.00000001.log"])
def test_files_of_other_people_stay_with_their_directory(name: str) -> None:
    sealed = SealedRack()
    bag = sealed.files[0].bag
    sealed.storage.publish(f"{bag.path}/{name}", b"mine", "tmp")
    assert sealed.packer().pack(sealed.rack).left == (bag.path,)
    assert sealed.storage.list_afresh(bag.path) == [name]
    assert settled(sealed) == MESSAGES


def test_directory_goes_data_first_prelock_and_lock_last() -> None:
    sealed = SealedRack()
    storage = RecordingStorage(sealed.storage)
    sealed.packer(storage).pack(sealed.rack)
    removed = [path for verb, path in storage.calls if verb in ("unlink", "remove_directory")]
    bag = sealed.files[1].bag.path
    mine = [path.removeprefix(bag) for path in removed if path.startswith(bag)]
    names = sorted(f"/{file.name.text()}" for file in sealed.files[1:3] if file.bag.path == bag)
    assert mine == [*names, f"/{PRELOCK}", f"/{LOCK}", ""]
    assert ("unlink", f"{sealed.rack.path}/{SEAL}") not in storage.calls


class Stopped(WrappedStorage):
    """A writer that is stopped before its call with a number, while something else happens for hours."""

    def __init__(self, inner: MemoryStorage, at: int, meanwhile: Callable[[], object]) -> None:
        super().__init__(inner)
        self.calls, self.at, self.meanwhile = 0, at, meanwhile

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        del verb, path
        self.calls += 1
        if self.calls == self.at:
            self.meanwhile()
        return call()


def stalled(at: int, kind: BagKind, *, delete: bool) -> bool:
    """Let a writer stop at a call while its rack is sealed and packed (and deleted); false if it has fewer calls."""
    server = MemoryStorage()
    node = Node(server, kind=kind)
    early = node.file(b"early")
    assert node.writer.write(early) == Committed()
    file = node.file(b"late", sequence=2, incarnation=b"L" * 8)
    rack = file.bag.rack

    def hours_pass() -> None:
        node.time.advance(2 * DAY)
        other = node.again()
        other.horizon.settle(rack.end_ns)
        pack(other)
        if delete:
            retain(other)

    storage = Stopped(server, at, hours_pass)
    writer = node.again(storage)
    outcome = writer.writer.write(file)
    assert isinstance(outcome, Committed | NotCommitted), outcome
    node.time.advance(MINUTE)
    if storage.calls < at:
        return False
    if delete:
        # Whatever it brought back is void, and the packer sweeps it.
        assert pack(node.again()).state in (PackState.RETAINED, PackState.PACKED)
        assert retain(node.again()) <= 1
        assert server.list_afresh(rack.path) == [PRELOCK, RETAINED, SEAL]
        assert list(retained_now(node, server)) == [True]
        return True
    expected = [b"late", b"early"] if outcome == Committed() else [b"early"]  # by incarnation: one timestamp
    assert node.again().settled() == node.again().latest() == expected
    pack(node.again())
    assert server.list_afresh(rack.path) == [PACK, PRELOCK, SEAL]
    assert node.again().settled() == expected
    assert type(node.again().writer.write(file)) is type(outcome)
    return True


def pack(node: Node) -> PackReport:
    from appliance.bag.packer import Packer

    return Packer(node.context, node.grid, node.sealer).pack(node.grid.rack(T0))


def retain(node: Node) -> int:
    from appliance.bag.packer import Retention

    return len(Retention(node.context, node.grid, DAY).turn(10))


def retained_now(node: Node, server: MemoryStorage) -> list[bool]:
    seal = node.again().sealer.sealed(node.grid.rack(T0))
    assert seal is not None
    return [retained(server, node.grid.rack(T0), seal)]


@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize("kind", list(BagKind))
def test_writer_that_was_stopped_for_hours_anywhere_makes_nothing_appear(kind: BagKind, *, delete: bool) -> None:
    at = 1
    while stalled(at, kind, delete=delete):
        at += 1
        assert at < 60
    assert at > 4


@pytest.mark.parametrize("fault", list(Fault))
def test_packer_that_meets_a_fault_anywhere_leaves_one_record(fault: Fault) -> None:
    for at in range(1, 100):
        sealed = SealedRack()
        storage = FailingStorage(sealed.storage, fault, at)
        with suppress(Environment, Crash):
            sealed.packer(storage).pack(sealed.rack)
        assert settled(sealed) == MESSAGES
        assert sealed.packer().pack(sealed.rack).state is PackState.PACKED
        assert sealed.names() == [PACK, PRELOCK, SEAL]
        assert settled(sealed) == MESSAGES
        if storage.calls < at:
            assert at > 3 * FILES
            return
    raise AssertionError("packing has more calls than expected")


def test_retention_deletes_packs_by_their_age_and_keeps_prelock_and_seal() -> None:
    sealed = SealedRack()
    retention = sealed.retention()
    assert list(retention.old(retention.cutoff())) == []
    sealed.node.time.advance(DAY)
    assert list(retention.old(retention.cutoff())) == [NotPacked(sealed.rack)]
    assert retention.turn(10) == []
    sealed.packer().pack(sealed.rack)
    (old,) = sealed.retention().old(retention.cutoff())
    assert isinstance(old, OldPack)
    assert old.size == sealed.storage.size_of(old.path)
    assert sealed.retention().turn(10) == [old]
    assert sealed.names() == [PRELOCK, RETAINED, SEAL]
    assert sealed.packer().pack(sealed.rack).state is PackState.RETAINED
    assert sealed.retention().turn(10) == []


# What a fast clock deletes does not come back, so the file server's clock is asked too.
def test_one_fast_clock_deletes_nothing() -> None:
    sealed = SealedRack(MemoryStorage(lambda: T0 + MINUTE))
    sealed.packer().pack(sealed.rack)
    sealed.node.time.advance(10 * DAY)
    assert sealed.retention().turn(10) == []


def test_retention_keeps_to_the_nanosecond() -> None:
    sealed = SealedRack()
    sealed.packer().pack(sealed.rack)
    assert list(sealed.retention().old(sealed.rack.end_ns - 1)) == []
    assert len(list(sealed.retention().old(sealed.rack.end_ns))) == 1


def test_rack_that_is_not_packed_keeps_no_other_from_being_deleted() -> None:
    sealed = SealedRack()
    node = sealed.node
    file = node.file(b"m", sequence=5, witnesses=(witness(node.time),))
    node.writer.write(file)
    later = file.bag.rack
    node.time.advance(MINUTE)
    node.sealer.seal(later)
    sealed.packer().pack(later)
    node.time.advance(2 * DAY)
    assert later > sealed.rack
    assert [each.rack for each in sealed.retention().turn(10)] == [later]
    assert NotPacked(sealed.rack) in sealed.retention().old(later.end_ns)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_one_turn_of_retention_deletes_as_many_packs_as_it_may(most: int) -> None:
    sealed = SealedRack()
    node, racks = sealed.node, [sealed.rack]
    for number in range(5, 9):
        node.time.advance(10 * SECOND)
        file = node.file(b"m", sequence=number, witnesses=(witness(node.time),))
        node.writer.write(file)
        racks.append(file.bag.rack)
    node.time.advance(MINUTE)
    for rack in racks:
        node.sealer.seal(rack)
        sealed.packer().pack(rack)
    node.time.advance(2 * DAY)
    retention = sealed.retention()
    assert [each.rack for each in retention.turn(most)] == racks[:most]
    assert [each.rack for each in retention.turn(10)] == racks[most:]


# Sealed again it would be a rack that nobody has written to, for ever: what its pack holds would be hidden.
@pytest.mark.parametrize("delete", [False, True])
def test_rack_that_was_packed_and_lost_its_seal_is_not_sealed_again(*, delete: bool) -> None:
    sealed = SealedRack()
    sealed.packer().pack(sealed.rack)
    if delete:
        sealed.node.time.advance(2 * DAY)
        sealed.retention().turn(1)
    seal = sealed.storage.read(f"{sealed.rack.path}/{SEAL}")
    assert seal is not None
    sealed.storage.unlink(f"{sealed.rack.path}/{SEAL}")
    with pytest.raises(TryAgain, match="was sealed, and its seal cannot be seen"):
        sealed.process().sealer.seal(sealed.rack)
    assert SEAL not in sealed.names()
    sealed.storage.publish(f"{sealed.rack.path}/{SEAL}", seal, "tmp")
    if not delete:
        assert settled(sealed) == MESSAGES


def test_deleted_rack_is_told_from_one_that_lost_a_bag() -> None:
    sealed = SealedRack()
    seal = sealed.process().sealer.sealed(sealed.rack)
    assert seal is not None
    assert not retained(sealed.storage, sealed.rack, seal)
    sealed.packer().pack(sealed.rack)
    assert not retained(sealed.storage, sealed.rack, seal)
    sealed.node.time.advance(2 * DAY)
    sealed.retention().turn(10)
    assert retained(sealed.storage, sealed.rack, seal)
    sealed.storage.ensure_directory(sealed.files[0].bag.path)
    sealed.process().closer.help(sealed.files[0].bag)
    assert retained(sealed.storage, sealed.rack, seal)


# Who asks whether a rack was given up may be stopped anywhere, while another process packs it.
def test_rack_that_is_packed_meanwhile_is_not_taken_for_deleted() -> None:
    stopped = 0
    for at in range(1, 20):
        sealed = SealedRack()
        assert isinstance(sealed.storage, MemoryStorage)
        storage = Stopped(sealed.storage, at, lambda sealed=sealed: sealed.packer().pack(sealed.rack))  # type: ignore[misc]
        seal = sealed.process().sealer.sealed(sealed.rack)
        assert seal is not None
        assert not retained(storage, sealed.rack, seal), at
        stopped += storage.calls >= at
    assert stopped > 1


def test_pack_gives_files_by_their_names() -> None:
    sealed = SealedRack()
    sealed.packer().pack(sealed.rack)
    packed = open_packed(sealed.storage, sealed.rack)
    assert packed is not None
    for file in sealed.files:
        assert packed.file(file.bag.name, file.name.text()) == file.data
    assert packed.file("elsewhere", sealed.files[0].name.text()) is None
    assert packed.file(sealed.files[0].bag.name, "elsewhere") is None


class Forgotten(dict[str, PackedRack]):
    """What another thread forgets as soon as it was looked for: it has found that the pack is gone."""

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self.pop(str(key), None)
        return found


def test_pack_that_another_thread_forgets_meanwhile_is_opened_again() -> None:
    sealed = SealedRack()
    sealed.packer().pack(sealed.rack)
    bag = sealed.files[0].bag
    lock = sealed.node.authority.read(bag)
    assert lock is not None
    assert lock.lock is not None
    files = ListedFiles(sealed.storage)
    first = list(files.pieces(bag, lock.lock))
    files._packs = Forgotten(files._packs)
    assert list(files.pieces(bag, lock.lock)) == first


# ESTALE, while a server exports its directory anew: for a moment nothing of a rack is there, and then all of it.
def test_rack_that_the_mount_hides_for_a_moment_is_not_swept_as_given_up() -> None:
    sealed = SealedRack()
    assert isinstance(sealed.storage, MemoryStorage)
    before = dict(sealed.storage.files)

    class Hiding(WrappedStorage):
        hides = False

        def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
            data = path.endswith(sealed.files[0].name.text())
            self.hides = verb in ("read", "look") and path.startswith(sealed.rack.path) and (self.hides or data)
            return None if self.hides else call()  # type: ignore[return-value]  # as they say that it is not there

    with pytest.raises(TryAgain, match=f"the mount hides {sealed.rack.path}"):
        sealed.packer(Hiding(sealed.storage)).pack(sealed.rack)
    assert sealed.storage.files == before
    assert settled(sealed) == MESSAGES
