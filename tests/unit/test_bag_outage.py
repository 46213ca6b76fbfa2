"""A cluster that was off for long is settled rack by rack: many at once, seals in order, nothing left out."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

import pytest

from appliance.bag.horizon import RACKS_AT_ONCE, Horizon
from appliance.bag.ports import BagContext, Parallel, Published, Threads
from appliance.bag.posix import PosixStorage
from appliance.formats.paths import LOCK, PRELOCK, SEAL
from tests.support.bags import POLICY, T0, Node
from tests.support.storage import MemoryStorage, RecordingStorage, WrappedStorage
from timeagent.errors import Environment
from timeagent.units import HOUR, MINUTE, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from appliance.bag.ports import Storage

OUTAGE = 200 * POLICY.rack_ns


def horizon(node: Node, parallel: Parallel, storage: Storage | None = None) -> Horizon:
    context = BagContext(storage or node.context.storage, node.time, node.records, "n2", parallel)
    return Horizon(context, node.grid)


def after_outage(storage: Storage) -> Node:
    """Two racks with messages, the second one open; then nobody was there for 200 racks."""
    node = Node(storage)
    for sequence in range(1, 9):
        node.writer.write(node.file(f"m{sequence}".encode(), sequence=sequence))
        node.time.advance(2 * SECOND)
    node.time.advance(OUTAGE + MINUTE)
    return node


@pytest.mark.parametrize("parallel", [Parallel(), Threads(4)])
def test_long_outage_is_settled_whole(tmp_path: Path, parallel: Parallel) -> None:
    node = after_outage(PosixStorage(tmp_path))
    said: list[int] = []
    target = T0 + OUTAGE
    assert horizon(node, parallel).settle(target, said.append) >= target
    assert said == sorted(said)
    assert len(said) >= (OUTAGE // POLICY.rack_ns) // RACKS_AT_ONCE
    assert node.again().settled() == [f"m{sequence}".encode() for sequence in range(1, 9)]
    rack = node.grid.rack(T0)
    while rack.end_ns <= target:
        names = node.context.storage.list_afresh(rack.path) or []
        assert {PRELOCK, SEAL} <= set(names)
        rack = node.grid.next_rack(rack)


def test_seals_are_linked_in_order(tmp_path: Path) -> None:
    storage = RecordingStorage(PosixStorage(tmp_path))
    node = after_outage(storage)
    storage.calls.clear()
    horizon(node, Threads(8)).settle(T0 + OUTAGE)
    seals = [path for verb, path in storage.calls if verb == "publish" and path.endswith(SEAL)]
    assert seals == sorted(seals)
    assert len(seals) >= OUTAGE // POLICY.rack_ns


# The file server's clock is asked before the first prelock: one fast clock must not void what others write.
def test_fast_clock_seals_nothing_however_many_racks_it_believes_to_be_past() -> None:
    server = MemoryStorage(lambda: T0 + 3 * SECOND)
    node = Node(server)
    node.writer.write(node.file(b"m"))
    node.time.advance(HOUR)
    far = horizon(node, Threads(4))
    for _ in range(8):
        far.step()
    names = [path.rpartition("/")[2] for path in server.files if path.count("/") == 4]
    assert names == []


def test_empty_bags_of_the_current_rack_are_closed_several_at_a_time() -> None:
    server = MemoryStorage()
    node = Node(server)
    node.time.advance(9 * SECOND)
    reaching = horizon(node, Threads(4))
    assert reaching.step() is None
    assert reaching.reached == T0 + 4 * SECOND
    assert sum(path.endswith(f"/{LOCK}") for path in server.files) == 4


class Refusing(WrappedStorage):
    """Refuses one seal."""

    def __init__(self, inner: Storage, path: str) -> None:
        super().__init__(inner)
        self.path = path

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        if verb == "publish" and path == self.path:
            raise Environment("planted", f"{verb} {path}")
        return call()


def test_seal_that_cannot_be_linked_stops_those_after_it() -> None:
    server = MemoryStorage()
    node = after_outage(server)
    third = node.grid.rack(T0 + 2 * POLICY.rack_ns)
    with pytest.raises(Environment):
        horizon(node, Threads(4), Refusing(server, f"{third.path}/{SEAL}")).settle(T0 + OUTAGE)
    sealed = [path for path in server.files if path.endswith(f"/{SEAL}")]
    assert len(sealed) == 2
    assert horizon(node, Threads(4)).settle(T0 + OUTAGE) >= T0 + OUTAGE
    assert server.publish(f"{third.path}/{SEAL}", b"", "tmp") is Published.LOST


@pytest.mark.parametrize("had", [0, 2])
def test_outage_is_settled_whole_also_where_there_are_few_threads_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, had: int
) -> None:
    node = after_outage(PosixStorage(tmp_path))
    left, begin = [had], Thread.start

    def start(thread: Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        begin(thread)

    monkeypatch.setattr(Thread, "start", start)
    far = horizon(node, Threads(4))
    assert far.settle(T0 + OUTAGE) >= T0 + OUTAGE
    assert node.again().settled() == [f"m{sequence}".encode() for sequence in range(1, 9)]
