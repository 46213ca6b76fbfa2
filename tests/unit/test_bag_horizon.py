"""How far a log is closed: settle, refresh, metronome."""

from dataclasses import replace

import msgspec
import pytest

from appliance.bag.metronome import BAGS_PER_TURN, SECOND_OPINION_NS, Metronome
from appliance.formats.paths import LOCK, PRELOCK, SEAL
from tests.support.bags import POLICY, T0, TIME_KEY, FixedRecords, Node
from tests.support.clocks import HandTime
from tests.support.storage import MemoryStorage, RecordingStorage
from timeagent.errors import TryAgain
from timeagent.units import HOUR, MINUTE, SECOND


@pytest.fixture
def server() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def node(server: MemoryStorage) -> Node:
    node = Node(server)
    server.server_clock_ns = lambda: node.time.midpoint_ns
    return node


def locked(server: MemoryStorage) -> list[str]:
    return sorted(path.split("/")[4] for path in server.files if path.endswith("/" + LOCK))


def test_before_its_birth_a_log_is_closed(node: Node) -> None:
    assert node.horizon.reached == T0
    assert node.horizon.settle(T0) == T0


def test_settle_closes_every_bag_that_holds_an_earlier_instant(node: Node, server: MemoryStorage) -> None:
    reached = node.horizon.settle(T0 + 2 * SECOND + 1)
    assert reached == T0 + 3 * SECOND
    assert locked(server) == [node.grid.bag(T0 + n * SECOND).name for n in range(3)]
    assert node.time.now().surely_past(node.grid.bag(T0 + 2 * SECOND).due_ns)


def test_settle_on_a_bags_edge_leaves_the_next_bag_open(node: Node, server: MemoryStorage) -> None:
    assert node.horizon.settle(T0 + SECOND) == T0 + SECOND
    assert locked(server) == [node.grid.bag(T0).name]


def test_settled_horizon_touches_nothing(node: Node, server: MemoryStorage) -> None:
    recorder = RecordingStorage(server)
    other = node.again(recorder)
    other.horizon.settle(T0 + SECOND)
    recorder.calls.clear()
    other.horizon.settle(T0 + SECOND)
    assert recorder.calls == []


def test_settle_waits_no_longer_than_it_must(node: Node) -> None:
    node.horizon.settle(T0 + SECOND)
    assert node.time.midpoint_ns == node.grid.bag(T0).due_ns + node.time.radius_ns + 1


def test_settle_reports_progress_while_it_waits(node: Node) -> None:
    seen: list[int] = []
    node.horizon.settle(T0 + 2 * SECOND, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == T0 + 2 * SECOND
    assert len(seen) > 30


def test_settle_stops_at_its_deadline_and_keeps_what_was_closed(node: Node) -> None:
    with pytest.raises(TryAgain) as caught:
        node.horizon.settle(T0 + HOUR, deadline_boot_ns=node.time.boot_ns() + 5 * SECOND)
    assert caught.value.code == "settle-timed-out"
    assert node.horizon.reached == T0 + 3 * SECOND


def test_settle_goes_on_at_once_when_another_closes_early(node: Node, server: MemoryStorage) -> None:
    def close_early(_: int) -> None:
        server.ensure_directory(node.grid.bag(T0).path)
        server.ensure_marker(f"{node.grid.bag(T0).path}/{PRELOCK}")

    node.horizon.settle(T0 + SECOND, close_early)
    assert node.time.midpoint_ns < T0 + SECOND


def test_another_process_sees_how_far_the_log_is_closed(node: Node, server: MemoryStorage) -> None:
    node.horizon.settle(T0 + 4 * SECOND)
    recorder = RecordingStorage(server)
    other = node.again(recorder)
    assert other.horizon.refresh() == T0 + 4 * SECOND
    assert {verb for verb, _ in recorder.calls} == {"look", "list_afresh"}


def test_refresh_crosses_from_a_sealed_rack_into_the_next(node: Node) -> None:
    node.time.midpoint_ns = T0 + POLICY.rack_ns + 6 * SECOND
    node.sealer.seal(node.grid.rack(T0))
    node.horizon.settle(T0 + POLICY.rack_ns + 2 * SECOND)
    assert node.again().horizon.refresh() == T0 + POLICY.rack_ns + 2 * SECOND


def test_settling_a_long_idle_log_seals_racks_and_closes_no_empty_bag(node: Node, server: MemoryStorage) -> None:
    node.time.advance(HOUR)
    to = T0 + HOUR - MINUTE
    assert node.horizon.settle(to) >= to
    assert locked(server) == []
    assert sum(path.endswith("/" + SEAL) for path in server.files) == (HOUR - MINUTE) // POLICY.rack_ns


# A server whose clock is behind delays seals, never a settle.
def test_settle_closes_bag_by_bag_where_the_rack_may_not_be_sealed_yet(node: Node, server: MemoryStorage) -> None:
    server.server_clock_ns = lambda: T0
    node.time.advance(MINUTE)
    assert node.horizon.settle(T0 + 12 * SECOND) == T0 + 12 * SECOND
    assert len(locked(server)) == 12


# "Closed" by a directory says nothing once sealing has begun.
def test_horizon_takes_the_seals_word_in_a_rack_with_a_prelock(node: Node, server: MemoryStorage) -> None:
    node.horizon.settle(T0 + 2 * SECOND)
    server.ensure_marker(f"{node.grid.rack(T0).path}/{PRELOCK}")
    other = node.again()
    assert other.horizon.refresh() == T0 + POLICY.rack_ns
    assert f"{node.grid.rack(T0).path}/{SEAL}" in server.files


def test_written_bag_is_in_the_record_after_the_settle(node: Node) -> None:
    node.writer.write(node.file(b"a"))
    node.time.advance(2 * SECOND)
    node.writer.write(node.file(b"b", sequence=2))
    node.horizon.settle(node.time.midpoint_ns)
    assert node.again().settled() == [b"a", b"b"]


def test_metronome_closes_what_is_due_below_what_was_written(node: Node, server: MemoryStorage) -> None:
    node.writer.write(node.file())
    node.time.advance(5 * SECOND)
    node.writer.write(node.file(sequence=2))
    report = node.metronome.turn(node.time.now())
    assert (report.bags_closed, report.racks_sealed) == (3, 0)
    assert report.next_ns == node.grid.bag(T0 + 3 * SECOND).due_ns, "the next of those below what was written"
    assert len(locked(server)) == 3
    node.time.advance(4 * SECOND)
    assert node.metronome.turn(node.time.now()).bags_closed == 3
    assert node.horizon.reached == T0 + 6 * SECOND


def test_metronome_leaves_an_idle_log_until_its_racks_can_be_sealed(node: Node, server: MemoryStorage) -> None:
    node.time.advance(POLICY.rack_ns)
    report = node.metronome.turn(node.time.now())
    assert (report.bags_closed, report.racks_sealed) == (0, 0)
    assert report.next_ns == T0 + POLICY.rack_ns + POLICY.seal_delay_ns
    node.time.advance(5 * SECOND)
    report = node.metronome.turn(node.time.now())
    assert (report.bags_closed, report.racks_sealed, node.metronome.reached) == (0, 1, T0 + POLICY.rack_ns)
    assert report.next_ns == T0 + 2 * POLICY.rack_ns + POLICY.seal_delay_ns
    assert locked(server) == []


def test_metronomes_turn_is_bounded_and_says_that_there_is_more(server: MemoryStorage) -> None:
    policy = POLICY.__class__(number=1, cluster_id=POLICY.cluster_id)
    time = HandTime(TIME_KEY, T0 + 500_000_000)
    node = Node(server, time=time, records=FixedRecords(policies={1: policy}))
    time.advance(100 * SECOND)
    node.writer.write(node.file())
    time.advance(4 * SECOND)
    first, second = node.metronome.turn(time.now()), node.metronome.turn(time.now())
    assert (first.bags_closed, second.bags_closed) == (BAGS_PER_TURN, 101 - BAGS_PER_TURN)
    now = time.now()
    assert (now.surely_past(first.next_ns), now.surely_past(second.next_ns)) == (True, False)


def test_metronome_seals_some_racks_a_turn_after_an_outage(node: Node) -> None:
    node.time.advance(2 * MINUTE)
    reports = [node.metronome.turn(node.time.now()) for _ in range(3)]
    due = [node.time.now().surely_past(each.next_ns) for each in reports]
    assert [(each.racks_sealed, more) for each, more in zip(reports, due, strict=True)] == [
        (8, True),
        (3, False),
        (0, False),
    ]


def test_every_node_seals_a_rack_at_another_time(node: Node) -> None:
    due = set()
    for name in ("n1", "n2", "n3", "n4"):
        metronome = Metronome(replace(node.context, node=name), node.grid, seal_stagger_ns=MINUTE)
        due.add(metronome.turn(node.time.now()).next_ns)
    earliest_ns = T0 + POLICY.rack_ns + POLICY.seal_delay_ns
    assert len(due) == 4
    assert all(earliest_ns <= each < earliest_ns + POLICY.rack_ns // 2 for each in due)


def test_file_server_whose_clock_is_behind_is_asked_again_later(node: Node, server: MemoryStorage) -> None:
    server.server_clock_ns = lambda: node.time.midpoint_ns - HOUR
    node.time.advance(MINUTE)
    report = node.metronome.turn(node.time.now())
    assert report.racks_sealed == 0
    assert report.next_ns == node.time.now().latest + SECOND_OPINION_NS
    asked = list[int]()
    server.server_clock_ns = lambda: asked.append(1) or 0  # type: ignore[func-returns-value]
    node.time.advance(SECOND_OPINION_NS - SECOND)
    node.metronome.turn(node.time.now())
    assert asked == []
    server.server_clock_ns = lambda: node.time.midpoint_ns
    node.time.advance(2 * SECOND)
    assert node.metronome.turn(node.time.now()).racks_sealed > 0


def test_bag_far_above_the_horizon_is_closed_while_racks_wait_for_their_seals(server: MemoryStorage) -> None:
    policy = msgspec.structs.replace(POLICY, seal_delay_ns=MINUTE)
    node = Node(server, records=FixedRecords(policies={1: policy}))
    node.time.advance(4 * policy.rack_ns)
    node.writer.write(node.file())
    node.time.advance(5 * SECOND)
    node.metronome.turn(node.time.now())
    assert node.again().settled() == [b"m"]


def test_turn_with_nothing_to_do_looks_and_makes_nothing(node: Node, server: MemoryStorage) -> None:
    before = dict(server.files)
    node.metronome.turn(node.time.now())
    assert server.files == before
