"""What a process is told must be true, whatever its node's writer did, said, or does later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from appliance.bag.closedbags import ListedFiles
from appliance.bag.writing import Committed, FrameFile, NotCommitted, Outcome, Unknown
from appliance.formats.paths import Bag
from appliance.node.writer_client import Doubt, Handed, SharedWriter
from appliance.node.writer_server import NodeWriter
from appliance.node.writer_wire import Submit
from tests.support.bags import CLUSTER, INCARNATION, T0, Node, frame_file, witness
from tests.support.storage import FailingStorage, Fault, MemoryStorage
from timeagent.units import SECOND

WRITER = b"W" * 8
SILENCE = Doubt("it says nothing", WRITER)


@dataclass
class Door:
    """A node's writer on the same storage, which writes when it is told to."""

    node: Node
    says: Callable[[Outcome], Handed] = lambda outcome: (
        Doubt(str(outcome), WRITER) if isinstance(outcome, Unknown) else outcome
    )
    writes: bool = True
    taken: list[tuple[Bag, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.service = NodeWriter(CLUSTER, "n1", WRITER, lambda _: self.node)

    def submit(self, bag: Bag, frames: bytes) -> Handed:
        self.taken.append((bag, frames))
        return self.says(self.write()) if self.writes else self.says(Unknown("not written"))

    def write(self) -> Outcome:
        outcomes: list[Outcome] = []
        bag, frames = self.taken[-1]
        submission = Submit(number=1, log=bag.log, bag_start_ns=bag.start_ns, frames=frames)
        assert self.service.submit(submission, outcomes.append) is None
        while self.service.batchers[""].turn():
            pass
        return outcomes[0]


@dataclass
class World:
    server: MemoryStorage
    node: Node
    door: Door
    shared: SharedWriter
    file: FrameFile

    def close(self) -> None:
        closer = Node(self.server, "c", grid=self.node.grid)
        closer.time.advance(60 * SECOND)
        closer.authority.close(self.file.bag)

    def seal(self) -> None:
        sealer = Node(self.server, "c", grid=self.node.grid)
        sealer.time.advance(60 * SECOND)
        sealer.sealer.seal(self.file.bag.rack)

    def settled(self) -> list[bytes]:
        reader = Node(self.server, "r", grid=self.node.grid)
        reader.time.advance(60 * SECOND)
        reader.horizon.settle(self.file.bag.end_ns)
        return reader.settled()


def world(door: Callable[[Door], None] = lambda _: None) -> World:
    server = MemoryStorage()
    node = Node(server)
    there = Door(Node(server, grid=node.grid))
    door(there)
    closed = ListedFiles(server)
    shared = SharedWriter(node.writer, there, node.grid, node.authority, closed)
    file = frame_file(node, [b"m"], witnesses=(witness(node.time),))
    return World(server, node, there, shared, file)


def silent(door: Door) -> None:
    door.says = lambda _: SILENCE


def idle(door: Door) -> None:
    door.says, door.writes = (lambda _: SILENCE), False


def speaking(door: Door) -> None:
    door.says = lambda outcome: Doubt(str(outcome), WRITER) if isinstance(outcome, Unknown) else outcome
    door.writes = True


def absent(door: Door) -> None:
    door.says, door.writes = (lambda _: None), False


def test_a_clear_answer_is_the_outcome_and_nothing_else_is_written() -> None:
    w = world()
    assert w.shared.write(w.file) == Committed()
    names = [path for path in w.server.files if path.endswith(".msg")]
    assert len(names) == 1
    assert WRITER.hex() in names[0]
    assert w.settled() == [b"m"]


def test_late_is_late_whoever_writes() -> None:
    w = world()
    w.close()
    outcome = w.shared.write(w.file)
    assert isinstance(outcome, NotCommitted)
    assert w.settled() == []


def test_what_is_not_taken_is_written_by_oneself() -> None:
    w = world(absent)
    assert w.shared.write(w.file) == Committed()
    names = [path for path in w.server.files if path.endswith(".msg")]
    assert len(names) == 1
    assert INCARNATION.hex() in names[0]


def interrupted(door: Door) -> None:
    def says(_: Outcome) -> Handed:
        raise KeyboardInterrupt

    door.says = says


def test_what_was_handed_in_when_its_writer_was_interrupted_is_found() -> None:
    w = world(interrupted)
    with pytest.raises(KeyboardInterrupt):
        w.shared.write(w.file)
    w.close()
    assert w.shared.resolve(w.file) == Committed()
    assert w.settled() == [b"m"]


# Ctrl-C between the answer and whoever takes note of it: the attempt is decided by closing, as any other.
def test_what_the_nodes_writer_has_committed_is_found_by_who_has_not_heard_the_answer() -> None:
    w = world()
    assert w.shared.write(w.file) == Committed()
    w.close()
    assert w.shared.resolve(w.file) == Committed()


@pytest.mark.parametrize("door", [silent, idle])
def test_doubt_is_unknown_and_the_same_again_decides_it_by_a_file_of_its_own(door: Callable[[Door], None]) -> None:
    w = world(door)
    assert isinstance(w.shared.write(w.file), Unknown)
    assert w.shared.write(w.file) == Committed()
    assert len(w.door.taken) == 1, "nobody is asked twice who was silent"
    assert w.settled() == [b"m"], "two equal frames count once"


def test_written_in_silence_then_closed_is_committed_although_the_own_file_is_late() -> None:
    w = world(silent)
    assert isinstance(w.shared.write(w.file), Unknown)
    w.close()
    assert w.shared.write(w.file) == Committed()
    assert w.settled() == [b"m"]


def test_written_in_silence_then_sealed_is_committed_too() -> None:
    w = world(silent)
    assert isinstance(w.shared.write(w.file), Unknown)
    w.seal()
    assert w.shared.write(w.file) == Committed()


def test_never_written_and_closed_is_not_committed() -> None:
    w = world(idle)
    assert isinstance(w.shared.write(w.file), Unknown)
    w.close()
    assert isinstance(w.shared.write(w.file), NotCommitted)
    assert w.settled() == []


def test_a_writer_that_wakes_after_the_closing_changes_nothing() -> None:
    w = world(idle)
    assert isinstance(w.shared.write(w.file), Unknown)
    w.close()
    assert isinstance(w.shared.write(w.file), NotCommitted)
    assert isinstance(w.door.write(), NotCommitted)
    assert w.settled() == []


def test_resolving_finds_what_was_written_in_silence() -> None:
    w = world(silent)
    assert isinstance(w.shared.write(w.file), Unknown)
    w.close()
    assert w.shared.resolve(w.file) == Committed()
    nothing = world(idle)
    assert isinstance(nothing.shared.write(nothing.file), Unknown)
    nothing.close()
    assert isinstance(nothing.shared.resolve(nothing.file), NotCommitted)


def test_another_frame_of_the_node_is_not_taken_for_the_own_one() -> None:
    w = world(idle)
    assert isinstance(w.shared.write(w.file), Unknown)
    other = frame_file(w.node, [b"other"], sequence=2, witnesses=(witness(w.node.time),))
    w.door.taken.append((other.bag, other.data))
    assert w.door.write() == Committed()
    w.close()
    assert isinstance(w.shared.write(w.file), NotCommitted)
    assert w.settled() == [b"other"]


def test_a_list_that_cannot_be_searched_leaves_it_unknown_and_later_decides() -> None:
    w = world(silent)
    assert isinstance(w.shared.write(w.file), Unknown)
    w.close()
    stored = next(path for path in w.server.files if WRITER.hex() in path and path.startswith("logs/events/20"))
    data = w.server.files.pop(stored)
    assert isinstance(w.shared.write(w.file), Unknown)
    w.server.files[stored] = data
    assert w.shared.write(w.file) == Committed()


def test_a_file_that_cannot_be_read_hides_none_that_holds_the_frame() -> None:
    w = world(silent)
    other = frame_file(w.node, [b"other"], sequence=2, witnesses=(witness(w.node.time),))
    w.door.taken.append((other.bag, other.data))
    assert w.door.write() == Committed()
    assert isinstance(w.shared.write(w.file), Unknown)
    w.close()
    first, second = sorted(each for each in w.server.files if WRITER.hex() in each and "/tmp/" not in each)
    assert w.file.data in w.server.files[second]
    w.server.files[first] = b"altered"
    assert w.shared.write(w.file) == Committed()


@pytest.mark.parametrize("fault", [Fault.NOT_DONE, Fault.DONE_BUT_FAILED])
@pytest.mark.parametrize("closes_after", ["nothing", "the door", "the own file"])
@pytest.mark.parametrize("written", ["at once", "after the doubt", "after the own file", "never"])
@pytest.mark.parametrize("at", range(1, 13))
def test_no_failure_of_the_mount_makes_an_outcome_untrue(
    fault: Fault, closes_after: str, written: str, at: int
) -> None:
    """Every call of the own writer fails once, both ways, around a silent writer that writes when it likes."""
    w = world(silent if written == "at once" else idle)
    failing = FailingStorage(w.server, fault, at)
    node = Node(failing, grid=w.node.grid)
    closed = ListedFiles(failing)
    shared = SharedWriter(node.writer, w.door, node.grid, node.authority, closed)
    told = [shared.write(w.file)]
    if written == "after the doubt":
        w.door.write()
    if closes_after == "the door":
        w.close()
    if isinstance(told[-1], Unknown):
        told.append(shared.write(w.file))
    if written == "after the own file":
        w.door.write()
    if closes_after == "the own file":
        w.close()
    node.time.advance(60 * SECOND)
    for again in (shared.write, shared.resolve, shared.resolve):
        if isinstance(told[-1], Unknown):
            told.append(again(w.file))
    w.close()
    there = w.settled()
    assert there in ([], [b"m"])
    for outcome in told:
        match outcome:
            case Committed():
                assert there == [b"m"]
            case NotCommitted():
                assert there == []
            case Unknown():
                pass
    assert not isinstance(told[-1], Unknown), "one failure is not for ever"
    assert w.file.bag.start_ns >= T0


def test_a_door_that_speaks_again_is_not_asked_about_what_it_was_silent_on() -> None:
    w = world(silent)
    failing = FailingStorage(w.server, Fault.NOT_DONE, 1)
    node = Node(failing, grid=w.node.grid)
    shared = SharedWriter(node.writer, w.door, node.grid, node.authority, ListedFiles(failing))
    assert isinstance(shared.write(w.file), Unknown), "the door wrote it, in silence"
    assert isinstance(shared.write(w.file), Unknown), "the own file could not be made"
    w.close()
    speaking(w.door)  # its second file of the same frame is late
    assert shared.write(w.file) == Committed()


@pytest.mark.parametrize("at", range(1, 13))
def test_a_door_that_opens_late_is_not_asked_about_an_own_file_in_doubt(at: int) -> None:
    w = world(absent)
    failing = FailingStorage(w.server, Fault.DONE_BUT_FAILED, at)
    node = Node(failing, grid=w.node.grid)
    shared = SharedWriter(node.writer, w.door, node.grid, node.authority, ListedFiles(failing))
    told = [shared.write(w.file)]
    w.close()
    speaking(w.door)  # and what it would write now is late
    node.time.advance(60 * SECOND)
    while isinstance(told[-1], Unknown) and len(told) < 4:
        told.append(shared.write(w.file))
    assert isinstance(told[-1], Committed) == (w.settled() == [b"m"])


def test_a_closing_that_cannot_be_seen_decides_nothing() -> None:
    w = world(idle)
    assert isinstance(w.shared.write(w.file), Unknown)
    w.close()

    class Blind:
        def read(self, _: Bag) -> None:
            return None

    w.shared._authority = Blind()  # type: ignore[assignment]
    assert isinstance(w.shared.write(w.file), Unknown)
