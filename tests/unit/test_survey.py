"""What people are shown of a log: racks and bags with their states, and nothing is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.bag.logs import ClosingState, racks_there, view_rack
from tests.support.bags import T0, Node
from tests.support.storage import MemoryStorage, RecordingStorage
from timeagent.units import SECOND

if TYPE_CHECKING:
    from appliance.bag.logs import RackView


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def node(storage: MemoryStorage) -> Node:
    return Node(storage)


def views(node: Node) -> list[RackView]:
    return [view_rack(node.context, node.grid, rack) for rack in [*racks_there(node.context.storage, node.grid)][::-1]]


def states(view: RackView) -> list[ClosingState]:
    return [bag.state for bag in view.bags]


def test_log_without_messages_has_no_racks(node: Node) -> None:
    assert views(node) == []


def test_bag_is_open_then_closing_then_closed_and_its_rack_sealed(node: Node, storage: MemoryStorage) -> None:
    file = node.file(b"1", b"2")
    node.writer.write(file)
    (view,) = views(node)
    assert (view.state, states(view)) == (ClosingState.OPEN, [ClosingState.OPEN])
    assert view.bags[0].files == (file.name.text(),)
    storage.ensure_marker(f"{file.bag.path}/prelock")
    assert states(views(node)[0]) == [ClosingState.CLOSING]
    node.closer.help(file.bag)
    assert states(views(node)[0]) == [ClosingState.CLOSED]
    storage.ensure_marker(f"{file.bag.rack.path}/prelock")
    assert views(node)[0].state is ClosingState.CLOSING
    node.sealer.seal(file.bag.rack)
    assert views(node)[0].state is ClosingState.SEALED


def test_racks_come_in_order_over_days(node: Node) -> None:
    for number, at in enumerate((T0, T0 + 25 * 3_600 * SECOND, T0 + 30 * SECOND), start=1):
        node.time.midpoint_ns = at + SECOND
        node.writer.write(node.file(sequence=number))
    found = [rack.start_ns for rack in [*racks_there(node.context.storage, node.grid)][::-1]]
    assert found == [T0, T0 + 30 * SECOND, T0 + 25 * 3_600 * SECOND]


def test_names_off_the_grid_are_strangers_or_nothing(node: Node, storage: MemoryStorage) -> None:
    node.writer.write(node.file())
    (view,) = views(node)
    for name in ("notes", "22-20-00.500-1000-2000", "22-20-00.000-1000-2001"):
        storage.ensure_directory(f"{view.rack.path}/{name}")
    for name in ("22-20-05", "99-99", "x"):
        storage.ensure_directory(f"logs/events/2023-11-14/{name}")
    storage.ensure_directory("logs/events/not-a-day")
    storage.files[f"{view.bags[0].bag.path}/stranger.txt"] = b""
    (again,) = views(node)
    assert set(again.strangers) == {"notes", "22-20-00.500-1000-2000", "22-20-00.000-1000-2001"}
    assert again.bags == view.bags


def test_looking_changes_nothing(node: Node, storage: MemoryStorage) -> None:
    node.writer.write(node.file())
    recording = RecordingStorage(storage)
    before = dict(storage.files), set(storage.directories)
    views(node.again(recording))
    assert (storage.files, storage.directories) == before
    assert {verb for verb, _ in recording.calls} == {"list_afresh"}
