"""One write into one bag: three outcomes, and each only when it is true."""

import pytest

from appliance.bag import writing
from appliance.bag.closing import Closed
from appliance.bag.writing import Committed, NotCommitted, Unknown
from appliance.formats.paths import LOCK, PRELOCK
from tests.support.bags import T0, Node
from tests.support.mutants import plant
from tests.support.storage import FailingStorage, Fault, MemoryStorage, RecordingStorage
from timeagent.errors import Damaged
from timeagent.units import MINUTE, SECOND, TimeInterval


@pytest.fixture
def server() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def node(server: MemoryStorage) -> Node:
    node = Node(server)
    server.server_clock_ns = lambda: node.time.midpoint_ns
    return node


def test_write_is_five_verbs_the_first_time_and_three_then(node: Node, server: MemoryStorage) -> None:
    recorder = RecordingStorage(server)
    other = node.again(recorder)
    assert other.writer.write(other.file()) == Committed()
    assert [verb for verb, _ in recorder.calls] == ["ensure_directory", "publish", "look", "look"]
    recorder.calls.clear()
    assert other.writer.write(other.file(sequence=2)) == Committed()
    bag = other.grid.bag(other.time.midpoint_ns)
    assert recorder.calls == [
        ("publish", f"{bag.path}/{other.file(sequence=2).name.text()}"),
        ("look", bag.path),
        ("look", bag.rack.path),
    ]


# No clock excuses the look: a paused machine's clock may have stood still.
def test_write_long_before_the_bags_end_looks_twice_all_the_same(node: Node, server: MemoryStorage) -> None:
    file = node.file()
    server.ensure_directory(file.bag.path)
    node.again().closer.help(file.bag)
    assert isinstance(node.writer.write(file), NotCommitted)
    later = node.file(timestamps=[T0 + SECOND])
    server.ensure_marker(f"{file.bag.rack.path}/{PRELOCK}")
    node.again().sealer.seal(file.bag.rack)
    assert isinstance(node.writer.write(later), NotCommitted)


# A virtual machine that was copied while it ran goes on twice, with one incarnation and the same next sequence.
def test_twin_with_other_bytes_under_one_name_is_not_told_committed(node: Node) -> None:
    first, second = node.file(b"of the one"), node.file(b"of the other")
    assert first.name == second.name
    assert node.writer.write(first) == Committed()
    twin = node.again()
    for _ in range(2):
        outcome = twin.writer.write(second)
        assert isinstance(outcome, Unknown)
        assert "another file named" in outcome.reason
    assert node.writer.write(first) == Committed()
    node.time.advance(4 * SECOND)
    with pytest.raises(Damaged) as twins:
        twin.writer.resolve(second)
    assert twins.value.code == "other-bytes"
    node.horizon.settle(T0 + SECOND)
    assert node.again().settled() == [b"of the one"]


@pytest.mark.parametrize("step", ["_publish", "_is_there"])
def test_twin_that_looks_at_the_name_only_is_caught(node: Node, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    wrong = {
        "_publish": ("self._there(file) not in (None, file.data)", "False"),
        "_is_there": ("self._there(file) == file.data", "True"),
    }
    plant(monkeypatch, writing, f"MaildirWriter.{step}", *wrong[step])
    assert node.writer.write(node.file(b"of the one")) == Committed()
    assert node.again().writer.write(node.file(b"of the other")) == Committed()


def test_same_attempt_again_has_the_same_outcome(node: Node) -> None:
    file = node.file()
    assert node.writer.write(file) == Committed()
    assert node.again().writer.write(file) == Committed()
    node.time.advance(4 * SECOND)
    assert isinstance(node.closer.close(file.bag), Closed)
    assert node.again().writer.write(file) == Committed()
    node.time.advance(MINUTE)
    node.sealer.seal(file.bag.rack)
    assert node.again().writer.write(file) == Committed()
    assert node.settled() == [b"m"]


# Packed away and made again: the directory is void, the seal still lists the file.
def test_attempt_repeated_after_its_bag_was_packed_is_decided_by_the_seal(node: Node, server: MemoryStorage) -> None:
    file, missed = node.file(), node.file(sequence=2)
    node.writer.write(file)
    node.time.advance(MINUTE)
    node.sealer.seal(file.bag.rack)
    server.remove_tree(file.bag.path)
    assert node.again().writer.write(file) == Committed()
    server.remove_tree(file.bag.path)
    server.ensure_directory(file.bag.path)
    node.again().closer.help(file.bag)
    assert node.again().writer.write(file) == Committed()
    assert isinstance(node.again().writer.write(missed), NotCommitted)


def test_prelock_of_the_bag_makes_the_writer_finish_the_closing(node: Node, server: MemoryStorage) -> None:
    file = node.file()
    server.ensure_directory(file.bag.path)
    server.ensure_marker(f"{file.bag.path}/{PRELOCK}")
    assert node.writer.write(file) == Committed()
    assert f"{file.bag.path}/{LOCK}" in server.files


def test_late_file_is_not_committed(node: Node) -> None:
    file = node.file()
    node.time.advance(4 * SECOND)
    node.closer.close(file.bag)
    outcome = node.writer.write(file)
    assert isinstance(outcome, NotCommitted)
    assert file.bag.path in outcome.reason
    assert node.writer.resolve(file) == outcome


def test_bag_before_the_log_is_refused(node: Node, server: MemoryStorage) -> None:
    before = dict(server.files)
    assert isinstance(node.writer.write(node.file(timestamps=[T0 - SECOND])), NotCommitted)
    assert server.files == before


def test_directory_that_vanished_leaves_the_outcome_unknown(node: Node, server: MemoryStorage) -> None:
    class Vanishing(RecordingStorage):
        def look(self, directory: str, names: object) -> frozenset[str] | None:  # noqa: ARG002
            server.remove_tree(directory)
            return None

    file = node.file()
    outcome = node.again(Vanishing(server)).writer.write(file)
    assert isinstance(outcome, Unknown)


def test_damaged_lock_leaves_the_outcome_unknown_and_resolving_says_why(node: Node, server: MemoryStorage) -> None:
    file = node.file()
    server.ensure_directory(file.bag.path)
    server.files[f"{file.bag.path}/{PRELOCK}"] = b""
    server.files[f"{file.bag.path}/{LOCK}"] = b"?"
    outcome = node.writer.write(file)
    assert isinstance(outcome, Unknown)
    assert f"{file.bag.path}/{LOCK}" in outcome.reason
    with pytest.raises(Damaged):
        node.writer.resolve(file)


def test_other_bytes_under_our_name_are_damage(node: Node) -> None:
    file, other = node.file(b"a"), node.file(b"b")
    assert node.writer.write(file) == Committed()
    node.time.advance(4 * SECOND)
    node.closer.close(file.bag)
    with pytest.raises(Damaged, match="other-bytes"):
        node.writer.resolve(other)


@pytest.mark.parametrize("fault", [Fault.NOT_DONE, Fault.DONE_BUT_FAILED])
def test_doubtful_publication_is_decided_by_closing(node: Node, server: MemoryStorage, fault: Fault) -> None:
    file = node.file()
    outcome = node.again(FailingStorage(server, fault, at=2)).writer.write(file)
    happened = fault is Fault.DONE_BUT_FAILED
    assert isinstance(outcome, Committed if happened else Unknown)
    assert isinstance(node.writer.resolve(file), Committed if happened else NotCommitted)


def test_resolving_waits_until_the_bag_is_due_and_no_longer(node: Node) -> None:
    file = node.file()
    outcome = node.writer.resolve(file)
    assert isinstance(outcome, NotCommitted)
    assert 0 < node.time.midpoint_ns - file.bag.due_ns < SECOND


def test_resolving_stops_at_its_deadline(node: Node) -> None:
    file = node.file()
    outcome = node.writer.resolve(file, node.time.boot_ns() + SECOND)
    assert isinstance(outcome, Unknown)
    assert node.time.midpoint_ns < file.bag.end_ns + SECOND


def test_resolving_does_not_wait_for_a_file_that_is_in_time(node: Node) -> None:
    file = node.file()
    node.writer.write(file)
    before = node.time.now()
    assert node.writer.resolve(file) == Committed()
    assert node.time.now() == before == TimeInterval.around(before.midpoint, node.time.radius_ns)
