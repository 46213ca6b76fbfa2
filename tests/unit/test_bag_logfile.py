"""Appending into log bags: which file, what a list says of an attempt, and three outcomes, each only when true."""

from __future__ import annotations

from dataclasses import replace
from threading import Barrier, Event, Thread
from typing import TYPE_CHECKING, Any

import pytest

from appliance.bag.closing import Closed
from appliance.bag.objects import ObjectStorage
from appliance.bag.packer import Packer, PackState
from appliance.bag.writing import Committed, FrameFile, LogFileWriter, NotCommitted, Unknown
from appliance.formats.birth import BagKind
from appliance.formats.framing import measure
from appliance.formats.paths import PRELOCK, DataName
from appliance.session.open_logs import LogBook, OpenLog
from tests.support.bags import INCARNATION, LOG, T0, Node
from tests.support.object_store import MemoryBucket
from tests.support.storage import FailingStorage, Fault, MemoryStorage, RecordingStorage, WrappedStorage
from timeagent.errors import Environment
from timeagent.units import MINUTE, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from appliance.bag.writing import Outcome


@pytest.fixture
def server() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def node(server: MemoryStorage) -> Node:
    node = Node(server, kind=BagKind.LOG)
    server.server_clock_ns = lambda: node.time.midpoint_ns
    return node


def appended(server: MemoryStorage) -> dict[str, bytes]:
    """Return what the data files hold, by number."""
    return {path.split(".")[-2]: data for path, data in sorted(server.files.items()) if path.endswith(".log")}


def close(node: Node, file: FrameFile) -> Closed:
    node.time.advance(4 * SECOND)
    closed = node.closer.close(file.bag)
    assert isinstance(closed, Closed)
    return closed


class Torn(WrappedStorage):
    """The n-th append leaves so many bytes, and fails; or says that it was shorter."""

    def __init__(self, inner: MemoryStorage, at: int, left: int, *, says: int | None = None) -> None:
        super().__init__(inner)
        self._at, self._left, self._says = at, left, says

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        self._at -= 1
        if self._at:
            return self.inner.append(path, data, expected_size)
        self.inner.append(path, data[: self._left], expected_size)
        if self._says is None:
            raise Environment("mount-full", f"append {path}: no space left on device")
        return self._says


def test_write_is_three_verbs_and_frames_of_one_run_share_a_file(node: Node, server: MemoryStorage) -> None:
    recorder = RecordingStorage(server)
    other = node.again(recorder)
    first, second = other.file(b"1"), other.file(b"2", sequence=2)
    assert other.writer.write(first) == other.writer.write(second) == Committed()
    path = f"{first.bag.path}/n1.{INCARNATION.hex()}.00000001.log"
    once = [("append", path), ("look", first.bag.path), ("look", first.bag.rack.path)]
    assert recorder.calls == [("ensure_directory", first.bag.path), *once, *once]
    assert server.files[path] == first.data + second.data
    close(node, first)
    assert node.settled() == [b"1", b"2"]


def test_each_bag_and_each_run_has_files_of_its_own(node: Node, server: MemoryStorage) -> None:
    node.writer.write(node.file(b"1"))
    node.writer.write(node.file(b"2", incarnation=b"j" * 8))
    node.time.advance(SECOND)
    node.writer.write(node.file(b"3", sequence=2))
    assert len(appended(server)) == 3
    assert node.latest() == [b"1", b"2", b"3"]


# A torn frame in the middle would hide what is acknowledged behind it.
@pytest.mark.parametrize("left", [0, 1, 40, 10_000])
def test_after_a_failed_append_everything_goes_to_a_new_file(node: Node, server: MemoryStorage, left: int) -> None:
    other = node.again(Torn(server, 2, left))
    files = [other.file(b"%d" % n, sequence=n) for n in (1, 2, 3)]
    assert other.writer.write(files[0]) == Committed()
    assert isinstance(other.writer.write(files[1]), Unknown)
    assert other.writer.write(files[2]) == Committed()
    assert appended(server) == {
        "00000001": files[0].data + files[1].data[:left],
        "00000002": files[2].data,
    }
    close(node, files[0])
    whole = left >= len(files[1].data)
    assert other.writer.resolve(files[1]) == (Committed() if whole else other.writer.resolve(files[1]))
    assert isinstance(other.writer.resolve(files[1]), Committed if whole else NotCommitted)
    assert node.settled() == ([b"1", b"2", b"3"] if whole else [b"1", b"3"])


def test_append_that_says_another_size_is_in_doubt(node: Node, server: MemoryStorage) -> None:
    other = node.again(Torn(server, 1, 10, says=10))
    outcome = other.writer.write(other.file())
    assert isinstance(outcome, Unknown)
    assert "append-short" in outcome.reason
    assert other.writer.write(other.file(sequence=2)) == Committed()
    assert sorted(appended(server)) == ["00000001", "00000002"]


def test_attempt_repeated_in_a_new_file_counts_once(node: Node, server: MemoryStorage) -> None:
    other = node.again(FailingStorage(server, Fault.DONE_BUT_FAILED, at=2))
    file = other.file(b"once")
    assert isinstance(other.writer.write(file), Unknown)
    assert other.writer.write(file) == Committed()
    assert appended(server) == {"00000001": file.data, "00000002": file.data}
    close(node, file)
    assert node.settled() == [b"once"]


# All files that an attempt may be in count: also one whose append was reported failed.
def test_attempt_is_committed_by_any_of_its_files(node: Node, server: MemoryStorage) -> None:
    other = node.again(FailingStorage(server, Fault.DONE_BUT_FAILED, at=2))
    file = other.file(b"m")
    assert isinstance(other.writer.write(file), Unknown)
    close(node, file)
    assert other.writer.write(file) == Committed()
    assert sorted(appended(server)) == ["00000001", "00000002"]
    assert node.again().writer.resolve(file) == Committed()
    assert node.settled() == [b"m"]


def test_late_append_to_a_listed_file_is_not_committed(node: Node, server: MemoryStorage) -> None:
    first, late = node.file(b"1"), node.file(b"2", sequence=2)
    node.writer.write(first)
    closed = close(node, first)
    outcome = node.writer.write(late)
    assert isinstance(outcome, NotCommitted)
    assert list(appended(server).values()) == [first.data + late.data]
    assert [entry.size for entry in closed.lock.entries] == [len(first.data)]
    assert node.again().writer.resolve(late) == outcome
    assert node.settled() == [b"1"]


def test_somebody_elses_bytes_in_our_file_send_us_to_a_new_one(node: Node, server: MemoryStorage) -> None:
    first, second = node.file(b"1"), node.file(b"2", sequence=2)
    node.writer.write(first)
    (path,) = [path for path in server.files if path.endswith(".log")]
    server.files[path] += b"torn by somebody"
    assert node.writer.write(second) == Committed()
    assert appended(server)["00000002"] == second.data
    close(node, first)
    assert node.settled() == [b"1", b"2"]


def test_files_that_are_there_already_are_passed_over(node: Node, server: MemoryStorage) -> None:
    node.writer.write(node.file(b"1"))
    other = node.again()
    assert other.writer.write(other.file(b"2", sequence=2)) == Committed()
    assert sorted(appended(server)) == ["00000001", "00000002"]


def test_same_attempt_again_has_the_same_outcome(node: Node) -> None:
    file = node.file()
    assert node.writer.write(file) == Committed()
    assert node.writer.write(file) == Committed()
    close(node, file)
    assert node.writer.write(file) == Committed()
    assert node.again().writer.write(file) == Committed()
    node.time.advance(MINUTE)
    node.sealer.seal(file.bag.rack)
    assert node.writer.write(file) == Committed()
    assert node.settled() == [b"m"]


def test_attempt_that_is_twice_in_one_file_counts_where_the_list_has_the_first(
    node: Node, server: MemoryStorage
) -> None:
    class ClosesBeforeTheSecond(FailingStorage):
        appends = 0

        def append(self, path: str, data: bytes, expected_size: int) -> int:
            self.appends += 1
            if self.appends == 2:
                close(node, file)
            return super().append(path, data, expected_size)

    file, other = node.file(), node.again(ClosesBeforeTheSecond(server, Fault.NOT_DONE, at=3))  # the first look
    assert isinstance(other.writer.write(file), Unknown)
    assert other.writer.write(file) == Committed()
    assert len(appended(server)) == 1
    assert node.settled() == [b"m"]


# Packed away: what this writer knows of its own appends, and the sizes in the seal, are enough.
def test_attempt_in_doubt_is_decided_by_the_seal_when_its_bag_was_packed(node: Node, server: MemoryStorage) -> None:
    other = node.again(FailingStorage(server, Fault.DONE_BUT_FAILED, at=2))
    file, missed = other.file(b"m"), other.file(b"missed", sequence=2)
    assert isinstance(other.writer.write(file), Unknown)
    node.time.advance(MINUTE)
    node.sealer.seal(file.bag.rack)
    server.remove_tree(file.bag.path)
    assert other.writer.resolve(file) == Committed()
    assert isinstance(other.writer.write(missed), NotCommitted)
    stranger = node.again().writer.resolve(file)
    assert isinstance(stranger, Unknown)
    assert "file-unreadable" in stranger.reason


# A virtual machine that was copied while it ran goes on twice, with one incarnation and the same names of files.
def test_twin_whose_append_failed_does_not_take_a_file_of_the_other_for_its_own(
    node: Node, server: MemoryStorage
) -> None:
    first, second = node.file(b"longer than the other"), node.file(b"2")
    twin = node.again(FailingStorage(server, Fault.NOT_DONE, at=2))
    assert node.writer.write(first) == Committed()
    assert isinstance(twin.writer.write(second), Unknown)
    close(node, first)
    assert isinstance(twin.writer.resolve(second), NotCommitted)
    assert node.settled() == [b"longer than the other"]


# Both attempts were under way when the machine was copied, and each twin put another one into its first file.
def test_attempt_counts_that_a_twin_wrote_into_a_file_whose_name_was_tried_for_another(
    node: Node, server: MemoryStorage
) -> None:
    class Broken(WrappedStorage):
        def append(self, path: str, data: bytes, expected_size: int) -> int:
            raise Environment("planted", f"append {len(data)} bytes to {path} at {expected_size}")

    first, second = node.file(b"1"), node.file(b"2", sequence=2)
    twin = node.again(Broken(server))
    assert isinstance(twin.writer.write(first), Unknown)
    assert isinstance(twin.writer.write(second), Unknown)
    assert node.writer.write(second) == Committed()
    close(node, second)
    assert twin.writer.resolve(second) == Committed()
    assert isinstance(twin.writer.resolve(first), NotCommitted)
    assert node.settled() == [b"2"]


def test_twin_that_stood_still_does_not_take_a_packed_file_of_the_other_for_its_own(
    node: Node, server: MemoryStorage
) -> None:
    first, second = node.file(b"longer than the other"), node.file(b"2")
    assert node.writer.write(first) == Committed()

    class StandsStill(WrappedStorage):
        def append(self, path: str, data: bytes, expected_size: int) -> int:
            node.time.advance(10 * MINUTE)
            node.horizon.settle(T0 + 10 * SECOND)
            assert Packer(node.context, node.grid, node.sealer).pack(first.bag.rack).state is PackState.PACKED
            server.ensure_directory(second.bag.path)
            return super().append(path, data, expected_size)

    assert not isinstance(node.again(StandsStill(server)).writer.write(second), Committed)


# What another file of its writer holds, and cannot be read any more, does not hide a file that holds the attempt.
def test_attempt_counts_in_a_second_file_where_the_first_was_altered(node: Node, server: MemoryStorage) -> None:
    other = node.again(FailingStorage(server, Fault.DONE_BUT_FAILED, at=2))
    file = other.file(b"m")
    assert isinstance(other.writer.write(file), Unknown)
    assert other.writer.write(file) == Committed()
    close(node, file)
    (path,) = [path for path in server.files if path.endswith("00000001.log")]
    server.files[path] = b"altered"
    assert other.writer.resolve(file) == Committed()


def test_attempt_whose_rack_was_given_up_counts_by_its_own_size_beside_other_files(
    node: Node, server: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.bag.writing.FILE_BYTES_MAX", 1)  # a file each
    other = node.again(FailingStorage(server, Fault.DONE_BUT_FAILED, at=5))
    later, sooner = other.file(b"later", sequence=2), other.file(b"sooner")
    assert other.writer.write(later) == Committed()  # by another thread, whose number is higher
    assert isinstance(other.writer.write(sooner), Unknown)
    node.time.advance(MINUTE)
    node.sealer.seal(sooner.bag.rack)
    server.remove_tree(sooner.bag.path)
    assert other.writer.resolve(sooner) == Committed()


# The thread that repeats an attempt finds its new file taken, while another thread looks up where the attempt was.
def test_resolving_beside_a_writer_whose_file_is_taken_counts_the_file_before(
    node: Node, server: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = node.again(FailingStorage(server, Fault.DONE_BUT_FAILED, at=2))
    file = other.file(b"m")
    assert isinstance(other.writer.write(file), Unknown)
    close(node, file)
    tried_of = LogFileWriter._tried_of
    writer = other.writer
    assert isinstance(writer, LogFileWriter)

    class Places(list[Any]):
        def __reversed__(self) -> Iterator[Any]:
            found = super().__reversed__()
            self.pop()
            return found

    def looked_up(self: LogFileWriter, what: FrameFile) -> Any:  # noqa: ANN401
        tried = tried_of(self, what)
        tried.places = Places([*tried.places, *writer._begin(what)[1:]])
        return tried

    monkeypatch.setattr(LogFileWriter, "_tried_of", looked_up)
    assert writer.resolve(file) == Committed()


def test_attempt_that_many_others_have_pushed_out_finds_its_file_taken(
    node: Node, server: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.bag.writing._ATTEMPTS_KEPT", 1)

    class Slow(WrappedStorage):
        def append(self, path: str, data: bytes, expected_size: int) -> int:
            if data == first.data and second not in written:
                written.append(second)
                assert other.writer.write(second) == Committed()
                server.files[path] = b"of somebody else"
            return self.inner.append(path, data, expected_size)

    written: list[FrameFile] = []
    other = node.again(Slow(server))
    first, second = other.file(b"1"), other.file(b"2", sequence=2)
    assert other.writer.write(first) == Committed()
    close(node, first)
    assert sorted(node.settled()) == [b"1", b"2"]


def test_part_of_several_frames_is_neither_committed_nor_not(node: Node, server: MemoryStorage) -> None:
    one, two = node.file(b"1"), node.file(b"2", sequence=2)
    both = FrameFile(one.bag, DataName("n1", b"w" * 8, 1), one.data + two.data)
    other = node.again(Torn(server, 1, len(one.data) + 7))
    assert isinstance(other.writer.write(both), Unknown)
    close(node, both)
    outcome = other.writer.resolve(both)
    assert isinstance(outcome, Unknown)
    assert "part" in outcome.reason
    assert other.writer.write(both) == outcome
    assert node.settled() == [b"1"]


def test_prelock_makes_the_writer_finish_the_closing(node: Node, server: MemoryStorage) -> None:
    file = node.file()
    server.ensure_directory(file.bag.path)
    server.ensure_marker(f"{file.bag.path}/{PRELOCK}")
    assert node.writer.write(file) == Committed()
    assert isinstance(node.writer.write(node.file(sequence=2)), NotCommitted)


def test_directory_that_vanished_leaves_the_outcome_unknown(node: Node, server: MemoryStorage) -> None:
    file, second = node.file(), node.file(sequence=2)
    assert node.writer.write(file) == Committed()
    server.remove_tree(file.bag.path)
    assert isinstance(node.writer.write(second), Unknown)
    assert node.writer.write(second) == Committed()


def test_file_is_not_appended_to_beyond_its_limit(
    node: Node, server: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = node.file(b"1"), node.file(b"2", sequence=2)
    monkeypatch.setattr("appliance.bag.writing.FILE_BYTES_MAX", len(one.data) + len(two.data))
    for sequence in (1, 2, 3):
        assert node.writer.write(node.file(b"%d" % sequence, sequence=sequence)) == Committed()
    assert {name: len(data) for name, data in appended(server).items()} == {
        "00000001": len(one.data) + len(two.data),
        "00000002": len(one.data),
    }
    monkeypatch.setattr("appliance.bag.writing.FILE_BYTES_MAX", 1)
    assert node.writer.write(node.file(b"large", sequence=4)) == Committed()


# A stuck append must not hold up the others: they take another file.
def test_threads_that_append_at_once_use_two_files(node: Node, server: MemoryStorage) -> None:
    inside, go_on = Event(), Event()

    class Stuck(WrappedStorage):
        def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
            if verb == "append" and not inside.is_set():
                inside.set()
                assert go_on.wait(30)
            del path
            return call()

    other = node.again(Stuck(server))
    outcomes = []
    thread = Thread(target=lambda: outcomes.append(other.writer.write(other.file(b"1"))), daemon=True)
    thread.start()
    assert inside.wait(30)
    assert other.writer.write(other.file(b"2", sequence=2)) == Committed()
    go_on.set()
    thread.join(30)
    assert outcomes == [Committed()]
    assert sorted(appended(server)) == ["00000001", "00000002"]
    assert other.writer.write(other.file(b"3", sequence=3)) == Committed()
    assert len(appended(server)) == 2


# Each of them gives back a file that no store appends to: what comes next makes a new one.
def test_message_after_many_threads_have_written_at_once_to_an_object_store_is_committed() -> None:
    many = 66
    together: list[Barrier] = [Barrier(many, timeout=20)]

    class AtOnce(WrappedStorage):
        def append(self, path: str, data: bytes, expected_size: int) -> int:
            for each in together:
                each.wait()
            return self.inner.append(path, data, expected_size)

    node = Node(AtOnce(ObjectStorage(MemoryBucket())), kind=BagKind.LOG)
    files = [node.file(b"%d" % number, sequence=number) for number in range(1, many + 1)]
    said: list[Outcome] = []
    threads = [Thread(target=lambda each=each: said.append(node.writer.write(each))) for each in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [Committed()] * many
    together.clear()
    assert node.writer.write(node.file(b"next", sequence=many + 1)) == Committed()


# Each of two writers would begin with file 1: what one of them appended there would stand for what the other could not.
def test_threads_that_open_a_log_at_once_share_its_writer(node: Node, server: MemoryStorage) -> None:
    both = Barrier(2, timeout=20)

    class AtOnce(WrappedStorage):
        def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
            del verb
            if path == node.grid.log_path:
                both.wait()
            return call()

    book = LogBook(replace(node.context, storage=AtOnce(server)))
    opened: list[OpenLog] = []
    threads = [Thread(target=lambda: opened.append(book.opened(LOG))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [book.by_name[LOG]] * 2


# A lease is given back while another thread writes under it: that one's append was slow, and the bag is closed by now.
@pytest.mark.parametrize("done", [True, False])
def test_writing_that_another_thread_resolves_meanwhile_says_the_same(
    node: Node,
    server: MemoryStorage,
    done: bool,  # noqa: FBT001 - one of the cases
) -> None:
    said: list[Outcome] = []

    class Slow(WrappedStorage):
        def append(self, path: str, data: bytes, expected_size: int) -> int:
            if not done:
                said.append(other.writer.resolve(file))
            size = self.inner.append(path, data, expected_size)
            if done:
                said.append(other.writer.resolve(file))
            return size

    other = node.again(Slow(server))
    file = other.file(b"1")
    outcome = other.writer.write(file)
    assert said == [outcome]
    assert isinstance(outcome, Committed if done else NotCommitted)
    assert node.settled() == ([b"1"] if done else [])


def test_resolving_what_another_thread_has_just_written_is_to_be_asked_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = node.file()

    def there(_: LogFileWriter, what: FrameFile) -> bool:
        return isinstance(node.writer.write(what), Committed)

    monkeypatch.setattr(LogFileWriter, "_is_there", there)
    assert isinstance(node.writer.resolve(file), Unknown)
    close(node, file)
    assert node.writer.resolve(file) == Committed()


def test_resolving_does_not_wait_for_an_append_that_is_in_time(node: Node, server: MemoryStorage) -> None:
    class Blind(WrappedStorage):
        def look(self, directory: str, names: object) -> frozenset[str] | None:
            raise Environment("planted", f"{directory} {names}")

    storage = node.again(Blind(server))
    file = storage.file()
    assert isinstance(storage.writer.write(file), Unknown)
    storage.context.storage.look = server.look  # type: ignore[method-assign]
    before = node.time.midpoint_ns
    assert storage.writer.resolve(file) == Committed()
    assert node.time.midpoint_ns == before


# Read back by this machine means nothing: its cache may hold what never reached the server.
def test_append_in_doubt_is_not_believed_because_it_can_be_read(node: Node, server: MemoryStorage) -> None:
    other = node.again(FailingStorage(server, Fault.DONE_BUT_FAILED, at=2))
    file = other.file()
    assert isinstance(other.writer.write(file), Unknown)
    assert other.latest() == [b"m"]
    before = node.time.midpoint_ns
    assert other.writer.resolve(file) == Committed()
    assert node.time.midpoint_ns > before + SECOND


@pytest.mark.parametrize("name", ["n1.6969696969696969.00000001.msg", "n1.6969696969696969.1.log", "README", "x.log"])
def test_file_of_the_other_kind_is_foreign(node: Node, server: MemoryStorage, name: str) -> None:
    file = node.file()
    node.writer.write(file)
    server.files[f"{file.bag.path}/{name}"] = node.file(b"no", sequence=9).data
    assert node.latest() == [b"m"]
    closed = close(node, file)
    assert [entry.name.rpartition(".")[2] for entry in closed.lock.entries] == ["log"]
    assert node.settled() == [b"m"]


def test_bag_before_the_log_is_refused(node: Node, server: MemoryStorage) -> None:
    before = dict(server.files)
    assert isinstance(node.writer.write(node.file(timestamps=[T0 - SECOND])), NotCommitted)
    assert server.files == before


def test_effective_size_ends_before_what_is_torn(node: Node) -> None:
    one, two = node.file(b"1").data, node.file(b"2", sequence=2).data
    assert measure(one + two[:-1])[1] == len(one)
    assert measure(one + b"\0" * 50 + two)[1] == len(one)
    assert measure(one + two)[1] == len(one) + len(two)
