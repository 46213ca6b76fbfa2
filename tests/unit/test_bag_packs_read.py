"""Packed racks read as their directories did; what vanishes meanwhile is found in the pack; what is gone is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.bag.closedbags import open_packed
from appliance.bag.message import START, before
from appliance.bag.reader import Follower, Level
from appliance.formats.closed import PACK
from appliance.formats.paths import SEAL
from tests.support.bags import POLICY, T0, Node
from tests.support.readings import delete_bags, fill, fresh_node, pack_rack, seal_all
from tests.support.storage import MemoryStorage, RecordingStorage, WrappedStorage
from timeagent.errors import BadRequest, Damaged, TryAgain
from timeagent.units import INSTANT_MAX, MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from timeagent.units import Instant, Span

FLUSHES = [(second, f"n{second % 2}", b"a" * 8, [0, 1, 5]) for second in (0, 1, 1, 4, 9, 10, 12, 21)]
RACKS = [T0 + n * POLICY.rack_ns for n in range(3)]


@pytest.fixture
def node() -> Node:
    node = fresh_node()
    fill(node, FLUSHES)
    seal_all(node)
    return node


def files(node: Node) -> dict[str, bytes]:
    storage = node.context.storage
    assert isinstance(storage, MemoryStorage)
    return storage.files


@pytest.mark.parametrize("delete", [False, True])
def test_packed_racks_read_as_their_directories_did(node: Node, *, delete: bool) -> None:
    expected = list(node.again().reader.settled())
    latest = list(node.again().reader.latest())
    for start in RACKS:
        pack_rack(node, node.grid.rack(start), delete=delete)
    assert list(node.again().reader.settled()) == expected == latest == list(node.again().reader.latest())
    between = node.again().reader.settled(T0 + SECOND, T0 + 10 * SECOND)
    assert [m.payload for m in between] == [
        m.payload for m in expected if T0 + SECOND < m.timestamp_ns <= T0 + 10 * SECOND
    ]


def test_pack_is_read_by_ranges_and_its_racks_directories_are_not_asked(node: Node) -> None:
    for start in RACKS:
        pack_rack(node, node.grid.rack(start))
    recorder = RecordingStorage(node.context.storage)
    reader = node.again(recorder).reader
    assert len(list(reader.settled(T0, T0 + 2 * SECOND))) == 9
    pack = f"{node.grid.rack(T0).path}/{PACK}"
    assert {path for verb, path in recorder.calls if verb.startswith("read_from")} == {pack}
    assert not [path for verb, path in recorder.calls if verb == "read" and path.endswith((".msg", PACK))]
    calls = len(recorder.calls)
    assert len(list(reader.settled(T0, T0 + 2 * SECOND))) == 9
    assert {verb for verb, _ in recorder.calls[calls:]} <= {"look", "read_from"}


# The reader has the list and stalls; meanwhile the rack is packed and its directories go.
@pytest.mark.parametrize("number", range(4))
def test_file_that_vanishes_while_a_bag_is_read_is_found_in_the_pack(node: Node, number: int) -> None:
    expected = list(node.again().reader.settled())
    rack = node.grid.rack(T0)

    class Packing(WrappedStorage):
        left = number

        def read(self, path: str) -> bytes | None:
            if path.startswith(rack.path) and path.endswith(".msg"):
                if self.left == 0:
                    pack_rack(node, rack)
                self.left -= 1
            return self.inner.read(path)

    storage = Packing(node.context.storage)
    assert list(node.again(storage).reader.settled()) == expected
    assert storage.left == -1


# The lock file was read while the rack was not sealed; by now it is sealed and packed.
def test_bag_that_was_closed_and_is_packed_by_now_is_read_from_the_pack() -> None:
    node = fresh_node()
    fill(node, FLUSHES)
    node.time.midpoint_ns = T0 + 14 * SECOND
    node.horizon.settle(T0 + 9 * SECOND)
    expected = node.settled()
    assert expected
    seal_all(node)
    pack_rack(node, node.grid.rack(T0))
    assert [m.payload for batch in node.reader.batches(level=Level.STALE_OK) for m in batch] == expected


@pytest.mark.parametrize("damage", ["altered", "short", "not the pack of this rack", "another seal's"])
def test_damaged_pack_is_damage_and_named(node: Node, damage: str) -> None:
    first, second = node.grid.rack(RACKS[0]), node.grid.rack(RACKS[1])
    pack_rack(node, first)
    path = f"{first.path}/{PACK}"
    data = files(node)[path]
    if damage == "altered":
        files(node)[path] = data[:1000] + bytes([data[1000] ^ 1]) + data[1001:]
    elif damage == "short":
        files(node)[path] = data[:-1]
    else:
        pack_rack(node, second)
        files(node)[path] = files(node)[f"{second.path}/{PACK}"]
    with pytest.raises(Damaged) as caught:
        node.again().settled()
    assert node.grid.rack(T0).path in caught.value.message


def test_listed_file_that_is_in_neither_is_damage(node: Node) -> None:
    rack = node.grid.rack(T0)
    lost = next(path for path in files(node) if path.startswith(rack.path) and path.endswith(".msg"))
    del files(node)[lost]
    with pytest.raises(Damaged) as caught:
        node.again().settled()
    assert lost in caught.value.message


def test_what_retention_gave_up_is_refused_by_name_and_may_be_left_out(node: Node) -> None:
    expected = list(node.again().reader.settled())
    for start in RACKS[:2]:
        pack_rack(node, node.grid.rack(start))
        del files(node)[f"{node.grid.rack(start).path}/{PACK}"]
    assert f"{node.grid.rack(T0).path}/{SEAL}" in files(node)
    with pytest.raises(BadRequest, match=r"from 2023-11-14T22:20:00\S* to 2023-11-14T22:20:10") as caught:
        node.again().settled()
    assert caught.value.code == "gone"
    reading = node.again().reader.batches(gone_ok=True)
    assert [m for batch in reading for m in batch] == [m for m in expected if m.timestamp_ns >= RACKS[2]]
    assert [(each.start_ns, each.end_ns) for each in reading.gone] == [(RACKS[0], RACKS[2])]
    later = node.again().reader.batches(before(RACKS[2]))
    assert sum(len(batch) for batch in later) == 3
    assert later.gone == []


# A reading may be stopped for days in a rack; what was deleted meanwhile is gone, and not damaged.
def test_pack_that_retention_deletes_while_it_is_read_is_gone_at_the_next_pass(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.bag.closedbags.WINDOW_BYTES", 1)
    expected = list(node.again().reader.settled())
    for start in RACKS:
        pack_rack(node, node.grid.rack(start))
    reader = node.again().reader
    reading = reader.batches(gone_ok=True)
    found = list(next(reading))
    del files(node)[f"{node.grid.rack(T0).path}/{PACK}"]
    with pytest.raises(TryAgain, match="deleted while it was read"):
        next(reading)
    rest = reader.batches(reading.position, gone_ok=True)
    found += [m for batch in rest for m in batch]
    assert found == [m for m in expected if m in found]
    assert {m.timestamp_ns for m in found} >= {m.timestamp_ns for m in expected if m.timestamp_ns >= RACKS[1]}
    assert [each.end_ns for each in rest.gone] == [RACKS[1]]


def test_pack_that_is_deleted_while_it_is_opened_is_gone_and_not_damaged(node: Node) -> None:
    class Deleting(WrappedStorage):
        def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
            if verb == "read_from":
                self.inner.unlink(path)
            return call()

    rack = node.grid.rack(T0)
    pack_rack(node, rack)
    assert open_packed(Deleting(node.context.storage), rack) is None


# Who knows nothing of the seal yet helps to close, by a directory that it makes again, and is sent to the seal.
def test_rack_that_was_given_up_before_its_bag_was_opened_is_no_damage(node: Node) -> None:
    rack = node.grid.rack(T0)
    pack_rack(node, rack)
    del files(node)[f"{rack.path}/{PACK}"]
    with pytest.raises(TryAgain, match="given up"):
        node.again().reader._open_bag(node.grid.bag(T0), START, INSTANT_MAX)


# A client that answers from an old cache would make a reader leave out what everybody else reads.
def test_seal_that_was_seen_and_is_hidden_is_not_taken_as_absent(node: Node) -> None:
    sealer = node.again().reader.horizon.authority.sealer
    newest = sealer.newest_sealed()
    assert newest is not None
    del files(node)[f"{newest.path}/{SEAL}"]
    with pytest.raises(TryAgain, match="was sealed"):
        sealer.sealed(newest)
    assert sealer.sealed(node.grid.next_rack(newest)) is None


# What is behind it cannot be read yet, and is asked for again and again.
def test_follower_names_a_stretch_that_is_gone_once(node: Node) -> None:
    for start in RACKS[:2]:
        pack_rack(node, node.grid.rack(start))
    del files(node)[f"{node.grid.rack(RACKS[0]).path}/{PACK}"]
    seal = files(node).pop(f"{node.grid.rack(RACKS[1]).path}/{SEAL}")
    looks = iter(range(3))

    def wait(_span: Span, _horizon: Instant) -> None:
        if next(looks) == 1:
            files(node)[f"{node.grid.rack(RACKS[1]).path}/{SEAL}"] = seal

    follower = Follower(node.again().reader, wait, gone_ok=True)
    assert next(follower.batches()).parts[0].first_ns > RACKS[1]
    assert next(looks) == 2
    assert [(each.start_ns, each.end_ns) for each in follower.gone] == [(RACKS[0], RACKS[1])]


# A session's readers are shared by its threads: what one throws out, another has thrown out just before.
@pytest.mark.parametrize("packed", [False, True])
def test_threads_that_make_room_at_once_do_not_hinder_each_other(
    monkeypatch: pytest.MonkeyPatch, *, packed: bool
) -> None:
    class Shared[V](dict[str, V]):
        def pop(self, key: str, *default: V) -> V:  # type: ignore[override]
            super().pop(key, None)
            return super().pop(key, *default)

    for bound, value in (("_ONE_BY_ONE_MAX", 0), ("_RACKS_KEPT", 1), ("_PACKS_KEPT", 1)):
        monkeypatch.setattr(f"appliance.bag.closedbags.{bound}", value)
    node = fresh_node()
    expected = fill(node, [(second, "n1", b"a" * 8, [0]) for second in (1, 10)])
    node.time.midpoint_ns = T0 + 14 * SECOND
    node.horizon.settle(T0 + 11 * SECOND)
    if packed:
        seal_all(node)
        for start in RACKS[:2]:
            pack_rack(node, node.grid.rack(start))
    reader = node.again().reader
    known, packs = Shared[object](), Shared[object]()
    monkeypatch.setattr(reader._closed, "_known", known)
    monkeypatch.setattr(reader._closed.files, "_packs", packs)
    assert [message.timestamp_ns for message in reader.settled()] == [row[0] for row in expected]
    assert (len(known), len(packs)) == ((0, 1) if packed else (1, 0))  # so much memory it takes, however many there are


# Nothing was there to be given up: an empty rack is no gap.
def test_sealed_rack_without_messages_is_not_gone() -> None:
    node = fresh_node()
    fill(node, [(21, "n1", b"a" * 8, [0])])
    seal_all(node)
    for start in RACKS[:2]:
        delete_bags(node, node.grid.rack(start))
    reading = node.again().reader.batches(START)
    assert [len(batch) for batch in reading] == [1]
    assert reading.gone == []
    assert node.time.midpoint_ns > T0 + 500 * MS
