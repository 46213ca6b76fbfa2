"""Packing at one's own pace: bounded turns, new racks first, old ones again; and what a log will cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.bag import metronome
from appliance.bag.logs import forecast, view_rack
from appliance.bag.metronome import (
    AGAIN_FACTOR,
    DELAY_NS,
    PACKS_PER_TURN,
    RETENTION_PERIOD_NS,
    STAGGER_NS,
    Packing,
    stagger,
)
from appliance.bag.packer import Packer, Retention
from appliance.formats.closed import PACK
from appliance.formats.paths import PRELOCK, RETAINED, SEAL
from tests.support.bags import POLICY, T0, Node
from tests.support.storage import FailingStorage, Fault, MemoryStorage, RecordingStorage
from timeagent.errors import Environment
from timeagent.units import DAY, MINUTE

if TYPE_CHECKING:
    from appliance.bag.ports import Storage

RACKS = 5


def written(storage: Storage) -> Node:
    """Five racks with one message each, sealed."""
    node = Node(storage)
    for sequence in range(1, RACKS + 1):
        node.writer.write(node.file(b"m%d" % sequence, sequence=sequence))
        node.time.advance(POLICY.rack_ns)
    node.time.advance(MINUTE)
    node.horizon.settle(T0 + RACKS * POLICY.rack_ns)
    return node


def packs(storage: MemoryStorage) -> int:
    return sum(path.endswith(f"/{PACK}") for path in storage.files)


def packing(node: Node, keep_ns: int | None = None) -> Packing:
    node.sealer.newest_sealed()
    return Packing(node.context, node.grid, node.sealer, keep_ns)


def test_racks_are_packed_some_at_a_turn_when_writers_had_their_time() -> None:
    storage = MemoryStorage()
    node = written(storage)
    pace = packing(node)
    pace.turn(node.time.now())
    node.time.advance(DELAY_NS + STAGGER_NS)
    counts = []
    for _ in range(RACKS):
        pace.turn(node.time.now())
        counts.append(packs(storage))
    assert counts == [2, 4, RACKS, RACKS, RACKS]
    assert PACKS_PER_TURN == 2
    assert node.again().settled() == [b"m%d" % sequence for sequence in range(1, RACKS + 1)]


# A seal of a log in use is some hundred kilobytes, and a daemon has hundreds of logs.
def test_seals_of_packed_racks_stay_in_no_memory() -> None:
    node = written(MemoryStorage())
    first = node.grid.rack(T0)
    assert node.sealer.kept(first) is not None
    pace = packing(node)
    for _ in range(RACKS):
        pace.turn(node.time.now())
        node.time.advance(DELAY_NS + STAGGER_NS)
    assert [node.sealer.kept(node.grid.rack(T0 + n * POLICY.rack_ns)) for n in range(RACKS)] == [None] * RACKS


def racks_pass(node: Node, pace: Packing, racks: int) -> None:
    """Let so many racks go by, each sealed and packed as it comes."""
    for _ in range(racks):
        node.time.advance(POLICY.rack_ns)
        node.metronome.turn(node.time.now())
        pace.turn(node.time.now())


# Whoever brought it back was stopped as long: at the ages of an hour, of four, of sixteen it is seen.
def test_directory_that_came_back_is_swept_when_it_is_some_times_as_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metronome, "AGAIN_NS", 20 * POLICY.rack_ns)
    storage = MemoryStorage()
    node = written(storage)
    pace = packing(node)
    racks_pass(node, pace, 80)  # from here on it keeps up
    back = node.grid.bag(node.time.midpoint_ns).path
    late = (DELAY_NS + STAGGER_NS) // POLICY.rack_ns
    racks_pass(node, pace, late)
    for passed in (20 + late, (AGAIN_FACTOR - 1) * 20):
        storage.ensure_directory(back)
        racks_pass(node, pace, passed)
        assert back not in storage.directories


def test_rack_that_the_mount_did_not_let_be_packed_is_packed_by_the_next_turn() -> None:
    storage = MemoryStorage()
    node = written(storage)
    node.time.advance(DELAY_NS + STAGGER_NS)
    failing = node.again(FailingStorage(storage, Fault.NOT_DONE, at=12))
    pace = packing(failing)
    failed = 0
    for _ in range(RACKS):
        try:
            pace.turn(node.time.now())
        except Environment:
            failed += 1
    assert (failed, packs(storage)) == (1, RACKS)


def test_turns_that_find_everything_packed_are_far_apart() -> None:
    storage = MemoryStorage()
    node = written(storage)
    node.time.advance(DELAY_NS + STAGGER_NS)
    first = packing(node)
    while node.time.now().surely_past(first.turn(node.time.now()).next_ns):
        pass
    again = packing(node.again())
    assert again.turn(node.time.now()).next_ns == node.time.now().latest + POLICY.rack_ns


def test_turn_before_its_time_touches_nothing() -> None:
    storage = RecordingStorage(MemoryStorage())
    node = written(storage)
    node.time.advance(DELAY_NS + STAGGER_NS)
    pace = packing(node, DAY)
    while (next_ns := pace.turn(node.time.now()).next_ns) <= node.time.midpoint_ns:
        pass
    storage.calls.clear()
    node.time.advance(next_ns - node.time.midpoint_ns)
    assert pace.turn(node.time.now()).next_ns == next_ns
    assert storage.calls == []


def test_retention_does_not_begin_before_the_first_rack_can_be_old() -> None:
    storage = RecordingStorage(MemoryStorage())
    node = written(storage)
    deleting = packing(node, DAY)
    asked = []
    for _ in range(30):
        deleting.turn(node.time.now())
        asked.append("server_clock" in {verb for verb, _ in storage.calls})
        storage.calls.clear()
        node.time.advance(RETENTION_PERIOD_NS)
    assert asked.index(True) == 0, "when the racks were sealed"
    assert asked.index(True, 1) == DAY // RETENTION_PERIOD_NS


def test_retention_looks_once_at_a_rack_of_which_nothing_is_left() -> None:
    storage = RecordingStorage(MemoryStorage())
    node = written(storage)
    node.time.advance(2 * DAY)
    racks = [node.grid.rack(T0 + number * POLICY.rack_ns) for number in range(RACKS)]
    for rack in racks:
        Packer(node.context, node.grid, node.sealer).pack(rack)
    retention = Retention(node.context, node.grid, DAY)
    assert [len(retention.turn(RACKS + 1)) for _ in range(2)] == [RACKS, 0]
    storage.calls.clear()
    assert retention.turn(RACKS + 1) == []
    assert {path for _, path in storage.calls}.isdisjoint(rack.path for rack in racks)


def test_damaged_rack_is_told_and_the_others_go_on() -> None:
    storage = MemoryStorage()
    node = written(storage)
    path = next(path for path in sorted(storage.files) if path.endswith(".msg"))
    storage.files[path] = storage.files[path][:-1] + b"?"
    node.time.advance(DELAY_NS + STAGGER_NS)
    pace = packing(node)
    told = [problem.code for _ in range(RACKS) for problem in pace.turn(node.time.now()).damaged]
    assert "file-altered" in told
    assert packs(storage) == RACKS - 1
    assert path in storage.files


def test_old_packs_are_deleted_now_and_then_where_that_is_wanted() -> None:
    storage = MemoryStorage()
    node = written(storage)
    node.time.advance(2 * DAY)
    keeping = packing(node)
    for _ in range(RACKS):
        keeping.turn(node.time.now())
    assert packs(storage) == RACKS
    deleting = packing(node.again(), DAY)
    deleting.turn(node.time.now())
    node.time.advance(RETENTION_PERIOD_NS)
    assert deleting.turn(node.time.now()).deleted == RACKS
    rack = node.grid.rack(T0)
    assert storage.list_afresh(rack.path) == [PRELOCK, RETAINED, SEAL]
    view = view_rack(node.context, node.grid, rack)
    assert (view.retained, view.pack_bytes) == (True, None)
    node.time.advance(RETENTION_PERIOD_NS)
    assert deleting.turn(node.time.now()).deleted == 0


# Nothing depends on it; it only makes it likely that one node does the work.
def test_each_node_waits_another_while_and_always_the_same() -> None:
    waits = {node: stagger(node, "logs/a/b/c", MINUTE) for node in ("n1", "n2", "n3", "n4")}
    assert len(set(waits.values())) == 4
    assert all(0 <= wait < MINUTE for wait in waits.values())
    assert waits["n1"] == stagger("n1", "logs/a/b/c", MINUTE) != stagger("n1", "logs/a/b/d", MINUTE)
    assert stagger("n1", "x", 0) == 0
    first = {min(waits, key=lambda node: stagger(node, f"rack {number}", MINUTE)) for number in range(60)}
    assert first == set(waits)


def test_forecast_goes_by_the_newest_racks() -> None:
    storage = MemoryStorage()
    node = written(storage)
    node.time.advance(DELAY_NS + STAGGER_NS)
    before = forecast(node.context, node.grid, None)
    assert (before.packs_per_day, before.racks_per_day) == (0, DAY // POLICY.rack_ns)
    pace = packing(node)
    for _ in range(RACKS):
        pace.turn(node.time.now())
    after = forecast(node.context, node.grid, 7)
    sizes = sum(len(data) for path, data in storage.files.items() if path.endswith(f"/{PACK}"))
    sealed = sum(path.endswith(f"/{SEAL}") for path in storage.files)
    assert after.names_now < before.names_now
    assert after.names_for_ever_per_day == 3 * after.racks_per_day
    assert after.pack_bytes_per_day == sizes * after.racks_per_day / sealed
    assert after.bytes_kept == 7 * after.pack_bytes_per_day
