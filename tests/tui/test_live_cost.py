"""What a live screen must not do anew four times a second: counted, never timed. The share is told by bench-tui."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import cast

import pytest

import tui.feed
import tui.sources.live
import tui.sources.mount
from appliance.admin.moving import begin, resharded
from appliance.cluster import Cluster
from appliance.demo.machines import MACHINES_NAME, DemoPlace, set_up_place
from appliance.formats.shardmap import ShardMap
from appliance.node.settings import ROOT_KEY
from tests.support.cluster import as_daemon
from tests.support.machine import HandMachine
from tests.support.mutants import plant, plant_in_text
from tests.support.screens import RecordedSource, state
from timeagent.clock import SystemClock
from timeagent.errors import Environment
from timeagent.keys import load_private_key
from timeagent.units import HOUR, MINUTE, MS, SECOND
from tui.feed import WORKERS_MAX, AskedQuestion, Feed, ask_once
from tui.model.state import ClusterState, Reach
from tui.sources.live import LiveSource
from tui.sources.mount import MountLocation

LOOKS_MAX = 50
MAP = ShardMap(number=1, cluster_id=bytes(16), owners=("node1", "node2"))
ONE, OTHER = [name for n in range(100) if MAP.shard_of(name := f"account/{n:02d}") == 0][:2]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[DemoPlace]:
    made = set_up_place(tmp_path / "demo", 2, SystemClock().realtime_ns(), random.Random(str(tmp_path)))
    yield made
    made.forget()


def asked_again(source: LiveSource) -> ClusterState:
    for question in source.questions():
        question.put()
    return source.state_at()


def test_rows_stay_the_same_value_until_somebody_says_something_new(place: DemoPlace) -> None:
    first = place.machines[0]
    with (
        closing(LiveSource(MountLocation(place.mount, allow_root=True), SystemClock())) as source,
        Cluster.open(place.mount, node_dir=first.directory, allow_root=True) as cluster,
        cluster.session("counting") as session,
    ):
        assert as_daemon(cluster).routes.host.try_host(0, cluster.map)
        with session.acquire(ONE):
            before = ask_once(source, 60 * SECOND).leases
            for _ in range(LOOKS_MAX):  # a ledger may be written, or a lease renewed, in between
                after = asked_again(source).leases
                if after is before:
                    break
                before = after
            else:
                pytest.fail("rows were made anew each time")
            with session.acquire(OTHER):
                assert [row.domain for row in asked_again(source).leases] == [ONE, OTHER]


def test_rows_that_are_made_anew_each_time_are_caught(place: DemoPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.sources.live, "LiveRows._told", "each if each.earlier else None", "each")
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test_rows_stay_the_same_value_until_somebody_says_something_new(place)


def test_rows_that_stay_when_a_shard_says_something_new_are_caught(
    place: DemoPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, tui.sources.live, "LiveRows.rows", "made_from != self._made_from", "not self._made_from")
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test_rows_stay_the_same_value_until_somebody_says_something_new(place)


class Busy(RecordedSource):
    """A source with a question that is answered again and again."""

    def __init__(self, answers: int) -> None:
        super().__init__(state())
        self.told = 0
        self.enough = Event()
        self._left = answers
        self._questions = (AskedQuestion("busy", MS, HandMachine(), self._answer),)

    def _answer(self) -> None:
        self._left -= 1
        if not self._left:
            self.enough.set()

    def state_at(self, instant: int | None = None) -> ClusterState:
        self.told += 1
        return super().state_at(instant)


def test_answers_make_no_frames_but_the_first_and_what_was_asked_at_once() -> None:
    source = Busy(200)
    feed = Feed(source, HandMachine(), frame_ns=10 * MINUTE)
    feed.start(lambda _state: None, lambda _problem: None)
    try:
        assert source.enough.wait(60)
        assert source.told <= 2, "the first frame, and the one with the first answer in it"
        before = source.told
        feed.ask_now()
        for _ in range(6_000):
            if source.told > before:
                break
            SystemClock().sleep(10 * MS)
        assert source.told > before
    finally:
        feed.stop()


def test_frame_for_every_answer_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_in_text(monkeypatch, tui.feed, "Feed._asking", "if waited_for", "if True")
    with pytest.raises(AssertionError):
        test_answers_make_no_frames_but_the_first_and_what_was_asked_at_once()


# A map is replaced by one of as many shards.
def test_shards_of_a_new_map_are_asked_and_those_of_the_old_no_more() -> None:
    old, new = (AskedQuestion(name, MS, HandMachine(), Event().set) for name in ("old shard", "new shard"))
    source = RecordedSource(state(), questions=(old,))
    feed = Feed(source, HandMachine(), frame_ns=MS)
    feed.start(lambda _state: None, lambda _problem: None)
    try:
        until(lambda: old.freshness().reach is Reach.ANSWERS)
        source._questions = (new,)
        until(lambda: new.freshness().reach is Reach.ANSWERS)
        until(lambda: all(thread.name != "top old shard" for thread in threading.enumerate()))
    finally:
        feed.stop()


# The map of the cluster that it asks through is an earlier one: nobody else in this process looks for the next.
def test_shards_that_came_by_a_move_are_asked_by_who_looks_on(place: DemoPlace) -> None:
    key = load_private_key(place.mount.parent / MACHINES_NAME / ROOT_KEY)
    (directory, *_) = (machine.directory for machine in place.machines)
    with (
        closing(LiveSource(MountLocation(place.mount, allow_root=True), SystemClock())) as source,
        Cluster.open(place.mount, node_dir=directory, allow_root=True) as cluster,
    ):
        ask_once(source, MINUTE)
        both = begin(cluster.registers, key, lambda before: resharded(before, 3, ["node1"]))
        as_daemon(cluster).maps.refresh()
        for number in both.shards:
            cluster.routes.host.try_host(number, both)
        for _ in range(2):  # those of the new map are asked once it is known
            asked_again(source)
        shown = {each.shard: each.freshness for each in asked_again(source).shards}
        come = [number for number in both.shards if number not in both.leaving]
        assert len(come) == 3
        assert "has no shard" not in " ".join(shown[number].problem for number in come)


def until(so: Callable[[], bool]) -> None:
    for _ in range(LOOKS_MAX * 20):
        if so():
            return
        SystemClock().sleep(10 * MS)
    raise AssertionError("it never came to be")


@pytest.mark.parametrize(
    ("place", "old"),
    [("Feed._tell", "question not in self._wakes"), ("Feed._asking", "question not in self.source.questions()")],
)
def test_shards_that_are_not_asked_or_asked_for_ever_are_caught(
    place: str, old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = "len(self._wakes) < len(self.source.questions())" if place == "Feed._tell" else "False"
    plant_in_text(monkeypatch, tui.feed, place, old, new)
    monkeypatch.setitem(globals(), "LOOKS_MAX", 5)
    with pytest.raises(AssertionError):
        test_shards_of_a_new_map_are_asked_and_those_of_the_old_no_more()


class Wake:
    """Instead of the event that ends a rest: who rests is told to stop."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.rested_s = -1.0

    def wait(self, seconds: float) -> bool:
        self.rested_s = seconds
        self._feed.stop()
        return True

    def clear(self) -> None: ...


# A mount that hung for five minutes would be looked at again after a hundred.
@pytest.mark.parametrize(
    ("took_ns", "rest_ns"),
    [(0, MS), (MS, 20 * MS), (400 * MS, 8 * SECOND), (4500 * MS, 10 * SECOND), (HOUR, 10 * SECOND)],
)
def test_question_that_takes_long_is_asked_less_often_but_never_forgotten(took_ns: int, rest_ns: int) -> None:
    machine = HandMachine()
    feed = Feed(RecordedSource(state()), machine)
    wake = Wake(feed)
    question = AskedQuestion("slow", MS, machine, lambda: machine.pass_time(took_ns))
    feed._asking(question, cast("Event", wake))()
    assert wake.rested_s == rest_ns / SECOND


# Each key asks for the details of another row.
def test_what_hangs_is_asked_a_bounded_number_of_times() -> None:
    feed, let_go = Feed(RecordedSource(state()), HandMachine()), Event()
    try:
        asked = [feed.do(let_go.wait, lambda _problem: None) for _ in range(WORKERS_MAX + 5)]
        refused = [each.result(0) for each in asked if each.done()]
        assert [getattr(each, "code", None) for each in refused] == ["all-hang"] * 5
    finally:
        let_go.set()
    assert all(each.result(60) for each in asked)
    until(lambda: feed.do(lambda: True, lambda _problem: None).result(60) is True)


# It is opened anew with every look at the mount.
def test_cluster_that_cannot_be_used_here_is_closed(place: DemoPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Cluster) -> None:
        raise Environment("runtime-not-ours", "others may write there", hint="name another directory")

    def looking() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("tenure-trust")}

    before = looking()
    monkeypatch.setattr(Cluster, "routes", property(refuse))
    with closing(LiveSource(MountLocation(place.mount, allow_root=True), SystemClock())) as source:
        for _ in range(2):
            source.mount.put()
        assert source.mount.error is not None
        assert source.mount.error.code == "runtime-not-ours"
    until(lambda: looking() <= before)
