"""Bags in an object store, step by step: what is asked for, and what happens where a mount would have no directory."""

from __future__ import annotations

import pytest

from appliance.bag.objects import ObjectStorage
from appliance.bag.packer import Packer, PackState
from appliance.bag.writing import Committed, NotCommitted, Unknown
from appliance.formats.birth import BagKind
from appliance.formats.paths import LOCK, PRELOCK, SEAL
from tests.support.bags import Node
from tests.support.object_store import MemoryBucket, Mishap
from timeagent.units import MINUTE, SECOND


def in_a_store(kind: BagKind) -> tuple[Node, MemoryBucket]:
    bucket = MemoryBucket()
    return Node(ObjectStorage(bucket), kind=kind), bucket


@pytest.mark.parametrize("kind", list(BagKind))
def test_message_is_one_put_and_four_heads(kind: BagKind) -> None:
    node, bucket = in_a_store(kind)
    for sequence in (1, 2):
        file = node.file(b"m", sequence=sequence)
        bucket.requests.clear()
        assert isinstance(node.writer.write(file), Committed)
        put, *looks = [each.removeprefix("put ").removeprefix("look for ") for each in bucket.requests]
        rack = file.bag.rack.path
        assert looks == [put, f"{file.bag.path}/{PRELOCK}", f"{rack}/{PRELOCK}", f"{rack}/{SEAL}"]
        assert bucket.objects[put] == file.data


@pytest.mark.parametrize("kind", list(BagKind))
def test_bag_is_closed_with_all_its_objects_and_none_comes_later(kind: BagKind) -> None:
    node, bucket = in_a_store(kind)
    files = [node.file(b"%d" % sequence, sequence=sequence) for sequence in (1, 2, 3)]
    for file in files[:2]:
        assert isinstance(node.writer.write(file), Committed)
    node.time.advance(4 * SECOND)
    node.authority.close(files[0].bag)
    assert isinstance(node.writer.write(files[2]), NotCommitted)
    assert node.latest() == [b"1", b"2"]
    data = [key for key in bucket.objects if key.startswith(files[0].bag.path) and not key.endswith((PRELOCK, LOCK))]
    assert len(data) == 3


@pytest.mark.parametrize("kind", list(BagKind))
def test_put_that_was_done_and_failed_is_unknown_until_the_bag_is_closed(kind: BagKind) -> None:
    node, bucket = in_a_store(kind)
    file = node.file(b"m")
    bucket.mishaps = [Mishap.DONE_BUT_FAILED]
    outcome = node.writer.write(file)
    assert isinstance(outcome, Unknown if kind is BagKind.LOG else Committed)  # a whole file under its own name is seen
    node.time.advance(4 * SECOND)
    assert isinstance(node.writer.resolve(file), Committed)
    assert node.latest() == [b"m"]


@pytest.mark.parametrize("kind", list(BagKind))
def test_put_that_comes_back_to_a_packed_bag_makes_nothing_appear(kind: BagKind) -> None:
    node, bucket = in_a_store(kind)
    early, late = node.file(b"early"), node.file(b"late", sequence=2)
    assert isinstance(node.writer.write(early), Committed)
    node.time.advance(MINUTE)
    node.sealer.seal(early.bag.rack)
    packer = Packer(node.context, node.grid, node.sealer)
    assert packer.pack(early.bag.rack).state is PackState.PACKED
    rack = early.bag.rack.path
    kept = {key for key in bucket.objects if key.startswith(rack)}
    assert kept == {f"{rack}/{name}" for name in (PRELOCK, SEAL, "pack")}
    assert isinstance(node.writer.write(late), NotCommitted)
    assert node.again().latest() == [b"early"]
    assert packer.pack(early.bag.rack).swept == 1
    assert {key for key in bucket.objects if key.startswith(rack)} == kept
