"""What a node's writer does with one frame, attempt, log or submission it does with each of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.bag.logs import create_log
from appliance.bag.writing import Committed, FrameFile, Unknown
from appliance.formats.birth import BagKind
from appliance.formats.paths import Grid
from appliance.node.writer_server import Batcher, NodeWriter
from appliance.node.writer_wire import Submit
from tests.support.bags import CLUSTER, T0, Node, frame_file, witness
from tests.support.storage import MemoryStorage
from tests.unit.test_nodewriter_server import WRITER, Log
from tests.unit.test_nodewriter_shared import idle, silent, speaking, world

if TYPE_CHECKING:
    from appliance.bag.writing import Outcome


@pytest.fixture
def node() -> Node:
    return Node(MemoryStorage())


def frame(node: Node, *payloads: bytes, sequence: int = 1, **changes: object) -> FrameFile:
    return frame_file(node, payloads, sequence=sequence, **{"witnesses": (witness(node.time),), **changes})  # type: ignore[arg-type]


def submission(*files: FrameFile) -> Submit:
    data = b"".join(each.data for each in files)
    bag = files[0].bag
    return Submit(number=1, log=bag.log, bag_start_ns=bag.start_ns, frames=data)


# -- attempts in doubt -------------------------------------------------------------------------------------------------


# The frame is the second piece of the second file of the node's writer: wherever it is, it is in the record.
def test_frame_is_found_wherever_the_nodes_writer_has_put_it() -> None:
    w = world(speaking)
    for number in (2, 3):
        assert w.shared.write(frame(w.node, b"other", sequence=number)) == Committed()
    w.door.submit(w.file.bag, frame(w.node, b"before", sequence=4).data + w.file.data)
    idle(w.door)
    assert isinstance(w.shared.write(w.file), Unknown)
    w.close()
    assert w.shared.write(w.file) == Committed()
    assert sorted(w.settled()) == [b"before", b"m", b"other", b"other"]


def test_each_attempt_in_doubt_is_decided_for_itself() -> None:
    w = world(silent)
    other = frame(w.node, b"other", sequence=2)
    assert isinstance(w.shared.write(w.file), Unknown)
    assert isinstance(w.shared.write(other), Unknown)
    assert len(w.door.taken) == 2
    w.close()
    assert w.shared.write(other) == Committed()
    assert w.shared.write(w.file) == Committed()


# -- what is handed in -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_every_frame_of_a_submission_is_one_of_this_node_and_bag(node: Node, wrong: int) -> None:
    service = NodeWriter(CLUSTER, "n1", WRITER, lambda _: Log(node.grid))
    good = [frame(node, b"m", sequence=number) for number in (1, 2, 3)]
    assert service.submit(submission(*good), lambda _: None) is None
    end = good[0].bag.end_ns
    for bad in (
        frame(node, b"m", writer="n2"),
        frame(node, b"m", log="other"),
        frame(node, b"m", b"n", timestamps=[end - 1, end], bag_at=T0),
        frame(node, b"m", b"n", timestamps=[T0 - 1, T0], bag_at=T0),
    ):
        spoilt = [*good[:wrong], FrameFile(good[0].bag, bad.name, bad.data), *good[wrong + 1 :]]
        refused = service.submit(
            Submit(1, good[0].bag.log, good[0].bag.start_ns, b"".join(each.data for each in spoilt)), lambda _: None
        )
        assert refused is not None


def test_each_log_has_its_own_bags(node: Node) -> None:
    logs = {"events": Log(node.grid), "other": Log(Grid(create_log(node.context, "other", BagKind.MAILDIR)))}
    service = NodeWriter(CLUSTER, "n1", WRITER, lambda name: logs[name])
    for name, log in logs.items():
        bag = log.grid.bag(node.time.midpoint_ns)
        data = frame(node, b"m", log=name).data
        assert service.submit(Submit(1, name, bag.start_ns, data), lambda _: None) is None
        assert service.batchers[""].turn()
        assert [each.bag for each in log.files] == [bag]


# In a log bag the first try may have left the frames in another file than the second.
@pytest.mark.parametrize(("outcomes", "named"), [((Committed("f"),), "f"), ((Unknown("lost"), Committed("g")), None)])
def test_file_of_frames_is_named_only_where_they_were_written_once(
    node: Node, outcomes: tuple[Outcome, ...], named: str | None
) -> None:
    log = Log(node.grid)
    log.outcomes = list(outcomes)
    service = NodeWriter(CLUSTER, "n1", WRITER, lambda _: log)
    told: list[Outcome] = []
    assert service.submit(submission(frame(node, b"m")), told.append) is None
    assert service.batchers[""].turn()
    assert [each.file_name for each in told if isinstance(each, Committed)] == [named]


def test_what_several_have_handed_in_makes_room_again_once_it_is_written(node: Node) -> None:
    batcher = Batcher(lambda _, __: Committed(), queue_bytes_max=10)
    for _ in range(4):
        for frames in (b"aa", b"bbbb", b"cccc"):
            assert batcher.submit(node.grid.bag(T0), frames, lambda _: None) is None
        assert batcher.submit(node.grid.bag(T0), b"d", lambda _: None) is not None
        while batcher.turn():
            pass
