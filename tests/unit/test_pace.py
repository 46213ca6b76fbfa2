"""The pace of all logs: nobody looks at an idle log, and one that is used again is closed like one in use."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from appliance.bag.logs import Store, create_log
from appliance.bag.metronome import Packing
from appliance.bag.ports import BagContext
from appliance.bag.roots import PlacedStorage
from appliance.bag.writing import Committed
from appliance.daemon import pace as pace_module
from appliance.daemon.daemon import BEAT_NS
from appliance.daemon.pace import NEW_LOGS_NS, RETRY_NS, SEAL_STAGGER_NS, STAGGER_NS, WOKEN_NS, Pace
from appliance.formats.closed import PACK
from appliance.formats.paths import LOCK, LOGS, SEAL, Grid
from appliance.node.runtime import Wakes
from tests.support.bags import LOG, T0, Node
from tests.support.cluster import wait_until
from tests.support.paced import DAILY, PacedNode, PacedWorld
from tests.support.shares import shares
from tests.support.storage import MemoryStorage, WrappedStorage
from timeagent.clock import SystemClock
from timeagent.errors import BadTime, Environment
from timeagent.units import DAY, MINUTE, MS, SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.bag.metronome import PackingReport
    from appliance.bag.ports import Storage
    from appliance.formats.paths import Bag
    from timeagent.units import Instant, TimeInterval

OPENS_MAX_PER_RACK = 7.5
"""Of one of three nodes for one idle log: its rack's seal, its packing, and old racks again; 0.012 a second."""

LATE_NS = STAGGER_NS + 2 * BEAT_NS
"""So long after it is due a bag is closed at the latest, by the one node that does it."""


def server(world: PacedWorld) -> MemoryStorage:
    assert isinstance(world.storage, MemoryStorage)
    return world.storage


def closed(world: PacedWorld, bag: Bag) -> bool:
    return f"{bag.path}/{LOCK}" in server(world).files


def written(node: PacedNode, sequence: int = 1) -> Bag:
    """Let a new process of a node write; return the bag that it wrote to."""
    process = node.process()
    file = process.file(sequence=sequence)
    process.writer.write(file)
    return file.bag


def closes_at(world: PacedWorld, bag: Bag) -> Instant:
    """Let time go by until a bag is closed; return when that was."""
    while not closed(world, bag):
        world.run(BEAT_NS)
        assert world.time.midpoint_ns < bag.due_ns + MINUTE, "nobody closes it"
    return world.time.midpoint_ns


def test_nobody_looks_at_an_idle_log_before_something_can_be_due() -> None:
    world = PacedWorld(MemoryStorage(), nodes=3, idle=4)
    seal_due_ns = T0 + DAILY.rack_ns + DAILY.seal_delay_ns
    assert world.opens(seal_due_ns - world.time.midpoint_ns - SECOND) == 0


def test_idle_log_is_looked_at_once_a_rack_and_node() -> None:
    racks, nodes, logs = 9, 3, 4
    world = PacedWorld(MemoryStorage(), nodes, logs - 1)
    opens = world.opens(racks * DAILY.rack_ns)
    assert 0 < opens <= OPENS_MAX_PER_RACK * racks * nodes * logs
    process = world.nodes[0].process()
    assert process.horizon.refresh() >= world.time.midpoint_ns - 2 * DAILY.rack_ns, "and its horizon advances"
    sealed = [path for path in server(world).files if path.endswith(f"/{SEAL}")]
    assert len(sealed) == racks * logs


def test_looks_at_many_logs_are_spread_in_time() -> None:
    world = PacedWorld(MemoryStorage(), idle=40)
    world.run(T0 + DAILY.rack_ns + DAILY.seal_delay_ns - world.time.midpoint_ns)
    per_stretch = [world.opens(SEAL_STAGGER_NS // 8) for _ in range(8)]
    assert min(per_stretch) > 0
    assert max(per_stretch) < sum(per_stretch) // 3


def test_usually_one_of_many_nodes_does_the_work() -> None:
    world = PacedWorld(MemoryStorage(), nodes=5)
    world.run(6 * DAILY.rack_ns)
    tried = sum(node.mount.calls["publish"] for node in world.nodes)
    sealed = sum(path.endswith(f"/{SEAL}") for path in server(world).files)
    assert sealed == tried == 6


def test_log_that_is_used_again_after_idling_is_closed_as_promptly_as_one_in_use() -> None:
    world = PacedWorld(MemoryStorage(), nodes=2)
    for _ in range(2):
        bag = written(world.nodes[0])
        assert closes_at(world, bag) <= bag.due_ns + LATE_NS
        world.run(3 * MINUTE)


@pytest.mark.parametrize("share", shares(3))
def test_every_bag_of_bursts_at_any_time_is_closed_promptly(share: int) -> None:
    chance = random.Random(21 + share)
    world = PacedWorld(MemoryStorage(), nodes=2)
    bags: dict[str, Bag] = {}
    sequence = 0

    def check() -> None:
        for bag in list(bags.values()):
            if closed(world, bag):
                del bags[bag.path]
            else:
                assert world.time.midpoint_ns <= bag.due_ns + LATE_NS, bag

    for _ in range(15):
        for _ in range(chance.choice((1, 1, 2, 6))):
            sequence += 1
            bag = written(chance.choice(world.nodes), sequence)
            bags[bag.path] = bag
            world.run(chance.choice((BEAT_NS, 4 * BEAT_NS, SECOND, 2 * SECOND)), check)
        world.run(chance.choice((SECOND, 3 * SECOND, 10 * SECOND, MINUTE, 7 * MINUTE)), check)
    assert sequence > 15
    world.run(6 * SECOND, check)
    assert bags == {}


def test_log_in_use_is_looked_at_about_once_a_bag_however_many_wake_it() -> None:
    world = PacedWorld(MemoryStorage())
    beats = 0

    def write() -> None:
        nonlocal beats
        beats += 1
        written(world.nodes[0], beats)

    world.run(5 * SECOND, write)  # until the bags that nobody wrote to are closed
    before = world.nodes[0].mount.opens
    world.run(20 * DAILY.span_ns, write)
    assert beats == (5 * SECOND + 20 * DAILY.span_ns) // BEAT_NS
    assert world.nodes[0].mount.opens - before <= 16 * 20, "closing the bag, and finding the next one"


def test_log_in_use_is_followed_by_nodes_that_use_it_and_by_no_other() -> None:
    world = PacedWorld(MemoryStorage(), nodes=3)
    user, reader, other = world.nodes
    process, beats = reader.process(), 0

    def write() -> None:
        nonlocal beats
        beats += 1
        if beats % 10 == 0:
            written(user, beats)

    world.run(T0 + DAILY.rack_ns + MINUTE // 2 - world.time.midpoint_ns)
    world.run(3 * MINUTE, write)  # all have looked at the rack, and seen that the log is in use
    for node in world.nodes:
        node.mount.forget()
    world.run(20 * DAILY.span_ns, write)
    assert user.mount.opens > 20
    assert other.mount.opens == reader.mount.opens == 0
    process.horizon.refresh()
    world.run(20 * DAILY.span_ns, write)
    assert reader.mount.opens > 0, "it closes what was asked for"
    reader.mount.forget()
    world.run(20 * DAILY.span_ns, write)
    assert reader.mount.opens == 0, "and nothing after that"


def test_bag_of_a_writer_that_woke_nobody_is_closed_where_somebody_asks_for_the_horizon() -> None:
    world = PacedWorld(MemoryStorage(), nodes=2)
    orphan = Node(world.storage, "n3", world.time, world.records)
    file = orphan.file()
    orphan.writer.write(file)
    world.run(10 * SECOND)
    assert not closed(world, file.bag), "nobody knows of it yet"
    assert world.nodes[1].process().settled() == []
    world.run(WOKEN_NS + 2 * BEAT_NS + LATE_NS)
    assert closed(world, file.bag)


def test_bag_of_a_writer_that_woke_nobody_is_closed_within_a_rack() -> None:
    world = PacedWorld(MemoryStorage(), nodes=2)
    orphan = Node(world.storage, "n3", world.time, world.records)
    file = orphan.file()
    orphan.writer.write(file)
    world.run(file.bag.rack.end_ns + DAILY.seal_delay_ns + SEAL_STAGGER_NS - world.time.midpoint_ns)
    assert world.nodes[1].process().settled() == [b"m"]


def test_packs_come_as_racks_are_sealed() -> None:
    world = PacedWorld(MemoryStorage(), nodes=2)
    written(world.nodes[0])
    world.run(2 * DAILY.rack_ns)
    packed = [path for path in server(world).files if path.endswith(f"/{PACK}")]
    assert len(packed) == 1, "of the rack that somebody wrote to"


def test_new_logs_are_looked_for_now_and_then_and_found_at_once_when_they_are_woken() -> None:
    world = PacedWorld(MemoryStorage())
    (node,) = world.nodes
    world.run(NEW_LOGS_NS)
    context = BagContext(world.storage, world.time, world.records, "n1")
    create_log(context, "new")
    world.run(NEW_LOGS_NS + BEAT_NS)
    assert set(node.pace.horizons()) == {LOG, "new"}
    create_log(context, "woken")
    node.woken.wake("woken")
    node.woken.wake("no-such-log")
    node.woken.wake("..")
    world.run(BEAT_NS)
    assert set(node.pace.horizons()) == {LOG, "new", "woken"}


@pytest.mark.parametrize("fails", [False, True], ids=["at once", "when it can be read again"])
def test_bag_that_woke_a_log_that_was_not_known_yet_is_closed_promptly(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    world = PacedWorld(MemoryStorage())
    (node,) = world.nodes
    world.run(BEAT_NS)  # and a listing comes a second later
    birth = create_log(BagContext(world.storage, world.time, world.records, "n1"), "new")
    writing = Node(world.storage, "n1", world.time, world.records, Grid(birth), wake=node.woken.wake)
    file = writing.file(b"m", log="new")
    assert isinstance(writing.writer.write(file), Committed)
    around = node.mount.around

    def failing(verb: str, path: str, call: object) -> object:
        if path.startswith(f"{LOGS}/new"):
            raise Environment("planted", "the mount says no")
        return around(verb, path, call)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        if fails:
            patch.setattr(node.mount, "around", failing)
        world.run(BEAT_NS)
    assert closes_at(world, file.bag) <= file.bag.due_ns + LATE_NS


def test_where_listings_cost_new_logs_are_looked_for_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStorage, "listing_pause_ns", 20 * SECOND)
    world = PacedWorld(MemoryStorage())
    (node,) = world.nodes
    world.run(BEAT_NS)
    create_log(BagContext(world.storage, world.time, world.records, "n1"), "new")
    world.run(18 * SECOND)
    assert set(node.pace.horizons()) == {LOG}
    world.run(2 * SECOND)
    assert set(node.pace.horizons()) == {LOG, "new"}


def test_damaged_log_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    world = PacedWorld(MemoryStorage())
    server(world).ensure_directory("logs/a-damaged")
    server(world).files["logs/a-damaged/log"] = b"damaged"
    bag = written(world.nodes[0])
    with caplog.at_level(logging.WARNING):
        world.run(NEW_LOGS_NS + BEAT_NS)
    assert "log-not-opened log=a-damaged" in caplog.text
    assert closes_at(world, bag)


def test_turn_that_fails_is_tried_again_and_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = PacedWorld(MemoryStorage(), idle=1)
    (node,) = world.nodes
    bag = written(node)
    around = node.mount.around

    def failing(verb: str, path: str, call: object) -> object:
        if "idle0" in path:
            raise Environment("planted", "the mount says no")
        return around(verb, path, call)  # type: ignore[arg-type]

    node.woken.wake("idle0")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(node.mount, "around", failing)
        closes_at(world, bag)
    assert caplog.text.count("metronome-failed log=idle0 code=planted") > 1
    world.run(2 * DAILY.rack_ns)
    assert any("idle0" in path and path.endswith(SEAL) for path in server(world).files)


def test_beat_without_usable_time_is_logged_and_what_was_woken_is_taken_up_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = PacedWorld(MemoryStorage())
    bag = written(world.nodes[0])

    def no_time() -> object:
        raise BadTime("no-time", "no bound")

    world.time.now = no_time  # type: ignore[method-assign, assignment]
    with caplog.at_level(logging.WARNING):
        world.run(BEAT_NS)
    assert "beat-failed code=no-time" in caplog.text
    del world.time.now
    assert closes_at(world, bag) <= bag.due_ns + LATE_NS


def test_log_that_was_woken_often_has_one_turn_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    world = PacedWorld(MemoryStorage())
    (node,) = world.nodes
    for _ in range(50):
        node.woken.wake(LOG)
        world.run(WOKEN_NS + 2 * BEAT_NS)
    turns: list[Instant] = []
    turn = Packing.turn

    def counted(self: Packing, now: TimeInterval) -> PackingReport:
        turns.append(now.earliest)
        return turn(self, now)

    monkeypatch.setattr(Packing, "turn", counted)
    world.run(T0 + DAILY.rack_ns + DAILY.seal_delay_ns + SEAL_STAGGER_NS - world.time.midpoint_ns)
    assert len(turns) == 1


def test_daemons_own_looks_wake_nobody() -> None:
    world = PacedWorld(MemoryStorage())
    (node,) = world.nodes
    node.pace = Pace(replace(node.process().context, storage=node.mount), node.woken.taken)
    node.woken.wake(LOG)
    world.run(20 * DAILY.span_ns)
    node.mount.forget()
    world.run(20 * DAILY.span_ns)
    assert node.mount.opens == 0


def test_turns_of_one_beat_are_bounded_and_every_log_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "TURNS_PER_BEAT", 2)
    world = PacedWorld(MemoryStorage(), idle=6)
    world.run(2 * DAILY.rack_ns)
    for log in world.logs:
        assert any(path.startswith(f"logs/{log}/") and path.endswith(SEAL) for path in server(world).files)


def test_what_is_woken_is_told_once_and_again_when_it_is_woken_again(tmp_path: Path) -> None:
    mine, daemons = Wakes(tmp_path), Wakes(tmp_path)
    mine.wake("early")
    assert daemons.taken() == [], "no daemon has run here: nobody would take it away"
    daemons.open()
    for _ in range(3):
        mine.wake("a")
    mine.wake("b")
    assert sorted(daemons.taken()) == ["a", "b"]
    assert daemons.taken() == []
    mine.wake("a")
    assert daemons.taken() == ["a"]


class HungStorage(WrappedStorage):
    """A store that answers when it is told to."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.answers, self.asked = Event(), Event()

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        self.asked.set()
        assert self.answers.wait(60), f"{verb} {path}"
        return call()


def test_store_that_does_not_answer_holds_up_its_own_logs_alone() -> None:
    root, elsewhere = MemoryStorage(), MemoryStorage()
    hung = HungStorage(elsewhere)
    storage = PlacedStorage(root, lambda _: hung)
    world = PacedWorld(storage)
    (node,) = world.nodes
    context = BagContext(root, world.time, world.records, "n1")
    birth = create_log(context, "far", store=Store("/srv/far", elsewhere))
    world.run(NEW_LOGS_NS + BEAT_NS)
    assert hung.asked.wait(60)
    written(node)
    for _ in range(3):
        node.woken.wake("far")
    world.run(2 * DAILY.rack_ns)
    horizons = node.pace.horizons()
    assert horizons[LOG] > horizons["far"] + DAILY.rack_ns
    hung.answers.set()
    wait_until(SystemClock(), lambda: not node.pace._done.empty())
    far = Node(storage, "n1", world.time, world.records, Grid(birth), wake=node.woken.wake)
    bag = far.file(b"m", log="far").bag
    assert isinstance(far.writer.write(far.file(b"m", log="far")), Committed)
    node.woken.wake("far")
    until = world.time.midpoint_ns + MINUTE
    while node.pace.horizons()["far"] < bag.end_ns:
        assert world.time.midpoint_ns < until, "what was woken is closed at its time"
        world.run(BEAT_NS)
        SystemClock().sleep(5 * MS)


def test_what_breaks_in_the_thread_of_a_store_is_raised_by_the_beat() -> None:
    root, elsewhere = MemoryStorage(), MemoryStorage()

    def broken(_: str) -> Storage:
        raise AssertionError("a mistake")

    world = PacedWorld(PlacedStorage(root, broken))
    create_log(BagContext(root, world.time, world.records, "n1"), "far", store=Store("/srv/far", elsewhere))
    world.run(NEW_LOGS_NS + BEAT_NS)
    pace = world.nodes[0].pace
    wait_until(SystemClock(), lambda: not pace._done.empty())
    with pytest.raises(AssertionError, match="a mistake"):
        pace.beat()


def test_store_for_which_there_is_no_thread_is_turned_to_again_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_thread(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    root, elsewhere = MemoryStorage(), MemoryStorage()
    world = PacedWorld(PlacedStorage(root, lambda _: elsewhere))
    (node,) = world.nodes
    create_log(BagContext(root, world.time, world.records, "n1"), "far", store=Store("/srv/far", elsewhere))
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", no_thread)
        bag = written(node)
        world.run(bag.due_ns + LATE_NS - world.time.midpoint_ns)
        assert f"{bag.path}/{LOCK}" in root.files, "the logs at the root go on"
    world.run(2 * RETRY_NS)
    wait_until(SystemClock(), lambda: not node.pace._done.empty())
    node.pace.beat()


# The file server's clock says then that nothing is due, and is asked again later, by that time.
def test_clock_that_was_far_ahead_for_a_while_keeps_no_rack_open(monkeypatch: pytest.MonkeyPatch) -> None:
    world = PacedWorld(MemoryStorage())
    (node,), ahead = world.nodes, DAY
    monkeypatch.setattr(MemoryStorage, "server_clock", lambda _, tmp: world.time.midpoint_ns - ahead)  # noqa: ARG005
    world.time.midpoint_ns += ahead
    world.run(3 * SECOND)
    world.time.midpoint_ns, ahead = world.time.midpoint_ns - ahead, 0
    bag = written(node)
    assert closes_at(world, bag) <= bag.due_ns + LATE_NS
    world.run(2 * DAILY.rack_ns)
    assert f"{bag.rack.path}/{SEAL}" in server(world).files
    assert f"{bag.rack.path}/{PACK}" in server(world).files


def test_clock_that_is_set_back_during_a_turn_in_another_store_counts_when_that_is_over() -> None:
    def away(_: str) -> Storage:
        raise Environment("planted", "it is not mounted")

    root, handed = MemoryStorage(), list[Callable[[], object]]()
    world = PacedWorld(PlacedStorage(root, away), events=False)
    context = BagContext(root, world.time, world.records, "n1")
    create_log(context, "far", store=Store("/srv/far", MemoryStorage()))
    pace = Pace(replace(context, storage=world.storage), list, apart=lambda _, do: handed.append(do))
    world.time.midpoint_ns += DAY
    pace.beat()
    world.time.midpoint_ns -= DAY
    pace.beat()
    assert len(handed) == 1
    handed[0]()
    pace.beat()
    assert len(handed) == 2
