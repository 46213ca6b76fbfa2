"""Closer, sealer, authority: what a bag holds for ever."""

import hashlib
from collections.abc import Callable

import msgspec
import pytest

from appliance.bag.closing import Closed, Contents, NotDue, Sealer
from appliance.bag.ports import RecordNumbers
from appliance.bag.writing import Committed
from appliance.formats.closed import RECORDS_LAG_NS, RackSeal, open_lock
from appliance.formats.framing import Kind, pack
from appliance.formats.paths import LOCK, PRELOCK, SEAL
from appliance.formats.policy import check_policy
from tests.support.bags import CLUSTER, POLICY, T0, TIME_KEY, FixedRecords, Node
from tests.support.clocks import HandTime
from tests.support.storage import MemoryStorage, RecordingStorage, WrappedStorage
from timeagent.errors import Damaged, TryAgain
from timeagent.units import DAY, MINUTE, MS, SECOND


@pytest.fixture
def server() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def node(server: MemoryStorage) -> Node:
    node = Node(server)
    server.server_clock_ns = lambda: node.time.midpoint_ns
    return node


def test_bag_is_due_when_end_and_grace_are_surely_past(node: Node) -> None:
    bag = node.grid.bag(node.time.midpoint_ns)
    node.time.midpoint_ns = bag.due_ns + node.time.radius_ns
    assert node.closer.close(bag) == NotDue(bag.due_ns)
    assert node.context.storage.list_afresh(bag.path) is None
    node.time.advance(1)
    assert isinstance(node.closer.close(bag), Closed)


def test_whoever_finds_a_prelock_asks_no_clock(node: Node) -> None:
    bag = node.grid.bag(node.time.midpoint_ns)
    node.context.storage.ensure_directory(bag.path)
    node.context.storage.ensure_marker(f"{bag.path}/{PRELOCK}")
    assert isinstance(node.closer.close(bag), Closed)


def test_lock_names_size_digest_and_newest_records(node: Node) -> None:
    file = node.file(b"one", b"two")
    node.writer.write(file)
    node.time.advance(4 * SECOND)
    node.records.policies[7] = POLICY
    closed = node.closer.close(file.bag)
    assert isinstance(closed, Closed)
    (entry,) = closed.lock.entries
    assert (entry.name, entry.size) == (file.name.text(), len(file.data))
    assert entry.digest == hashlib.sha256(hashlib.sha256(file.data[:-16]).digest()).digest()
    assert (closed.lock.trust_number, closed.lock.policy_number) == (1, 7)
    assert closed.lock.closer == "n1"


def test_records_are_asked_for_after_the_listing(server: MemoryStorage) -> None:
    class Watched(FixedRecords):
        def newest(self) -> RecordNumbers:
            recorder.calls.append(("newest", ""))
            return super().newest()

    recorder = RecordingStorage(server)
    node = Node(recorder, records=Watched())
    bag = node.grid.bag(T0)
    node.time.advance(4 * SECOND)
    recorder.calls.clear()
    node.closer.close(bag)
    verbs = [verb for verb, _ in recorder.calls]
    assert verbs == [
        "look", "ensure_directory", "ensure_marker", "list_afresh", "newest", "publish", "look", "read"
    ]  # fmt: skip


@pytest.mark.parametrize("seen", [[1, 7], [1, 1]])
def test_closer_that_stood_still_before_signing_looks_for_records_again(server: MemoryStorage, seen: list[int]) -> None:
    class Slow(FixedRecords):
        def newest(self) -> RecordNumbers:
            found = super().newest()
            looked.append(found.policy)
            if looked == [1]:
                self.policies[seen[1]] = POLICY
                time.advance(RECORDS_LAG_NS + 1)
            return found

    looked: list[int] = [0]
    time = HandTime(TIME_KEY, T0 + 500 * MS)
    node = Node(server, time=time, records=Slow())
    node.time.advance(4 * SECOND)
    looked.clear()
    closed = node.closer.close(node.grid.bag(T0))
    assert isinstance(closed, Closed)
    assert looked == seen
    assert closed.lock.policy_number == seen[1]


def test_torn_tail_is_not_listed(node: Node, server: MemoryStorage) -> None:
    file = node.file()
    node.writer.write(file)
    path = f"{file.bag.path}/{file.name.text()}"
    server.files[path] = file.data + b"torn"
    server.files[f"{file.bag.path}/{node.file(sequence=2).name.text()}"] = b"no piece at all"
    closed = node.closer.help(file.bag)
    assert isinstance(closed, Closed)
    assert [entry.size for entry in closed.lock.entries] == [len(file.data), 0]


@pytest.mark.parametrize(
    "name",
    [
        "README",
        ".nfs0000",
        "n1.6969696969696969.00000001.log",
        "n1.6969696969696969.1.msg",
        "\udcff",
        "lock~",
        "x" * 200,
    ],
)
def test_foreign_file_is_ignored(node: Node, server: MemoryStorage, name: str) -> None:
    file = node.file()
    node.writer.write(file)
    server.files[f"{file.bag.path}/{name}"] = b"?"
    server.files[f"{file.bag.rack.path}/{name}"] = b"?"
    server.ensure_directory(f"{file.bag.rack.path}/22-20-00.000-999-2000")
    node.time.advance(60 * SECOND)
    seal = node.sealer.seal(file.bag.rack)
    assert isinstance(seal, RackSeal)
    assert [entry.bag for entry in seal.entries] == [file.bag.name]
    assert [entry.name for entry in open_lock(seal.entries[0].lock, "")[0].entries] == [file.name.text()]


def test_directory_under_a_data_files_name_is_listed_as_empty(node: Node, server: MemoryStorage) -> None:
    file = node.file()
    server.ensure_directory(f"{file.bag.path}/{file.name.text()}")
    closed = node.closer.help(file.bag)
    assert isinstance(closed, Closed)
    assert [entry.size for entry in closed.lock.entries] == [0]


def test_listed_file_that_cannot_be_found_closes_nothing(node: Node, server: MemoryStorage) -> None:
    class Hiding(RecordingStorage):
        def read(self, path: str) -> bytes | None:
            return None if path.endswith(".msg") else super().read(path)

    file = node.file()
    node.writer.write(file)
    with pytest.raises(TryAgain, match=file.bag.name):
        node.again(Hiding(server)).closer.help(file.bag)
    assert f"{file.bag.path}/{LOCK}" not in server.files


@pytest.mark.parametrize("damage", ["bytes", "empty", "another bag's", "another cluster's"])
def test_damaged_lock_file_is_named(node: Node, server: MemoryStorage, damage: str) -> None:
    bag = node.grid.bag(T0)
    cluster = b"x" * 16 if damage == "another cluster's" else CLUSTER
    writer = Node(server, records=FixedRecords(cluster_id=cluster), grid=node.grid)
    from_bag = node.grid.bag(T0 + SECOND) if damage == "another bag's" else bag
    server.ensure_directory(from_bag.path)
    closed = writer.closer.help(from_bag)
    assert isinstance(closed, Closed)
    server.ensure_directory(bag.path)
    whole = len(closed.raw)
    server.files[f"{bag.path}/{LOCK}"] = closed.raw[: {"bytes": whole - 1, "empty": 0}.get(damage, whole)]
    with pytest.raises(Damaged) as caught:
        node.authority.read(bag)
    assert f"{bag.path}/{LOCK}" in caught.value.message


def test_closing_where_the_directory_is_gone_makes_none(node: Node, server: MemoryStorage) -> None:
    bag = node.grid.bag(T0)
    assert node.closer.help(bag) is None
    assert server.list_afresh(bag.rack.path) is None


def test_rack_is_sealed_when_both_clocks_say_that_the_delay_is_past(node: Node, server: MemoryStorage) -> None:
    rack = node.grid.rack(T0)
    due = rack.end_ns + POLICY.seal_delay_ns
    node.time.midpoint_ns = rack.end_ns + node.time.radius_ns
    assert node.sealer.seal(rack) == NotDue(rack.end_ns)
    node.time.midpoint_ns = due + node.time.radius_ns
    assert node.sealer.seal(rack) == NotDue(due)
    node.time.advance(1)
    server.server_clock_ns = lambda: due
    assert node.sealer.seal(rack) == NotDue(due)
    assert server.list_afresh(rack.path) is None
    server.server_clock_ns = lambda: due + 1
    seal = node.sealer.seal(rack)
    assert isinstance(seal, RackSeal)
    assert seal.entries == ()


# A log keeps the grace of its birth: a policy that wants racks sealed sooner must not void what its bags still take.
def test_rack_is_not_sealed_before_its_last_bag_is_due_whatever_the_policy_says_since(
    node: Node, server: MemoryStorage
) -> None:
    hasty = check_policy(
        msgspec.structs.replace(
            POLICY, number=2, span_ns=100 * MS, grace_ns=1_600 * MS, seal_delay_ns=2 * SECOND, radius_ns_max=50 * MS
        )
    )
    hurried = Node(server, records=FixedRecords(policies={1: POLICY, 2: hasty}), grid=node.grid)
    rack, birth = node.grid.rack(T0), node.grid.birth
    due = rack.end_ns + birth.span_ns + birth.grace_ns + 4 * hasty.radius_ns_max
    assert hasty.seal_delay_ns < birth.span_ns + birth.grace_ns
    hurried.time.midpoint_ns = due + hurried.time.radius_ns
    assert hurried.sealer.seal(rack) == NotDue(due)
    assert server.list_afresh(rack.path) is None
    hurried.time.advance(1)
    server.server_clock_ns = lambda: due + 1
    assert isinstance(hurried.sealer.seal(rack), RackSeal)


class Hurried(Sealer):
    """Another thread asks for another rack as soon as this one has noted when its own is due."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, {} if name == "_due" else value)


def test_racks_that_threads_ask_for_at_once_are_each_due_in_their_time(node: Node) -> None:
    sealer = Hurried(node.context, node.grid, node.closer)
    rack = node.grid.rack(T0)
    node.time.advance(rack.end_ns - T0 + SECOND)
    assert sealer.seal(rack) == node.sealer.seal(rack)
    assert isinstance(sealer.seal(rack), NotDue)


# One fast clock must not stop a cluster: it would void every write from now on.
def test_fast_clock_alone_begins_no_sealing(node: Node, server: MemoryStorage) -> None:
    fast = Node(server, "n2", HandTime(TIME_KEY, T0 + DAY), grid=node.grid)
    assert isinstance(fast.sealer.seal(node.grid.rack(T0)), NotDue)
    assert node.writer.write(node.file()).__class__.__name__ == "Committed"


def test_rack_with_a_prelock_is_sealed_at_once(node: Node, server: MemoryStorage) -> None:
    rack = node.grid.rack(T0)
    file = node.file()
    node.writer.write(file)
    server.ensure_marker(f"{rack.path}/{PRELOCK}")
    seal = node.again().sealer.seal(rack)
    assert isinstance(seal, RackSeal)
    assert [entry.bag for entry in seal.entries] == [file.bag.name]


# Listing until nothing new appears would never end while somebody keeps writing.
def test_rack_is_listed_once(node: Node, server: MemoryStorage) -> None:
    node.writer.write(node.file())
    node.time.advance(MINUTE)
    recorder = RecordingStorage(server)
    rack = node.grid.rack(T0)
    node.again(recorder).sealer.seal(rack)
    assert recorder.calls.count(("list_afresh", rack.path)) == 1


def test_seals_are_linked_in_order(node: Node, server: MemoryStorage) -> None:
    racks = [node.grid.rack(T0 + n * POLICY.rack_ns) for n in range(4)]
    node.time.midpoint_ns = racks[3].end_ns + 2 * POLICY.seal_delay_ns
    recorder = RecordingStorage(server)
    node.again(recorder).sealer.seal(racks[3])
    sealed = [path for verb, path in recorder.calls if verb == "publish" and path.endswith(SEAL)]
    assert sealed == [f"{rack.path}/{SEAL}" for rack in racks]
    assert node.again().sealer.newest_sealed() == racks[3]


def test_newest_seal_is_found_and_followed(node: Node) -> None:
    racks = [node.grid.rack(T0 + n * POLICY.rack_ns) for n in range(3)]
    other = node.again()
    assert other.sealer.newest_sealed() is None
    node.time.midpoint_ns = racks[0].end_ns + 6 * SECOND
    node.sealer.seal(racks[0])
    assert other.sealer.newest_sealed() == racks[0]
    node.time.midpoint_ns = racks[2].end_ns + 6 * SECOND
    node.sealer.seal(racks[2])
    assert other.sealer.newest_sealed() == racks[2]


def test_damaged_seal_is_named(node: Node, server: MemoryStorage) -> None:
    rack = node.grid.rack(T0)
    server.ensure_directory(rack.path)
    server.files[f"{rack.path}/{SEAL}"] = pack(Kind.SEAL, b"?")
    with pytest.raises(Damaged) as caught:
        node.sealer.seal(rack)
    assert f"{rack.path}/{SEAL}" in caught.value.message


def test_bag_that_is_not_in_the_seal_does_not_exist(node: Node, server: MemoryStorage) -> None:
    bag = node.grid.bag(T0)
    node.time.midpoint_ns = bag.rack.end_ns + 6 * SECOND
    node.sealer.seal(bag.rack)
    late = node.file(timestamps=[T0 + MS])
    server.ensure_directory(bag.path)
    server.publish(f"{bag.path}/{late.name.text()}", late.data, "tmp")
    other = node.again()
    assert isinstance(other.closer.help(bag), Closed)
    assert other.authority.close(bag) == Contents(None)
    assert node.again().authority.read(bag) == Contents(None)
    assert node.settled() == []


# A directory that was packed away and made again by a stalled closer says something else than the seal.
def test_seal_answers_for_a_bag_whose_directory_was_made_again(node: Node, server: MemoryStorage) -> None:
    file = node.file()
    node.writer.write(file)
    node.time.midpoint_ns = file.bag.rack.end_ns + 6 * SECOND
    node.sealer.seal(file.bag.rack)
    server.remove_tree(file.bag.path)
    server.ensure_directory(file.bag.path)
    other = node.again()
    closed = other.closer.help(file.bag)
    assert isinstance(closed, Closed)
    assert closed.lock.entries == ()
    contents = node.again().authority.close(file.bag)
    assert isinstance(contents, Contents)
    assert contents.lock is not None
    assert [entry.name for entry in contents.lock.entries] == [file.name.text()]


def test_directory_that_vanished_without_a_seal_is_no_answer(node: Node) -> None:
    with pytest.raises(TryAgain, match="seal"):
        node.authority.answer(node.grid.bag(T0), None)


# A mount may say for a moment that a directory is not there which is (ESTALE, while a server exports it anew).
@pytest.mark.parametrize(("verb", "path"), [("list_afresh", ""), ("ensure_marker", f"/{PRELOCK}")])
def test_rack_that_the_mount_hides_for_a_moment_is_not_sealed_without_its_bags(
    server: MemoryStorage, verb: str, path: str
) -> None:
    hidden: list[str] = []

    class Hiding(WrappedStorage):
        def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
            if hidden == [verb, path]:
                hidden.clear()
                return None  # type: ignore[return-value]  # as both say that the directory is not there
            return call()

    node = Node(Hiding(server))
    assert isinstance(node.writer.write(node.file(b"m")), Committed)
    rack = node.grid.rack(T0)
    node.time.advance(2 * POLICY.rack_ns + MINUTE)
    hidden += [verb, f"{rack.path}{path}"]
    with pytest.raises(TryAgain, match=f"the mount hides {rack.path}"):
        node.sealer.seal(rack)
    assert hidden == []
    node.horizon.settle(T0 + POLICY.rack_ns)
    assert node.again().settled() == [b"m"]
