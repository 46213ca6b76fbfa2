"""Elections on the mount alone, in memory, each candidate with a clock of its own: who may follow whom, and when."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from appliance.formats.chains import ELECTIONS, open_epoch
from appliance.lease.ceiling import RECORDS_KEPT
from appliance.recipes.election import Leader
from appliance.recipes.mount_election import MountElection, MountLeadership
from auditor.audit import audit
from auditor.evidence.tree import Tree
from tests.support.clocks import HandTime
from tests.support.cluster import Site
from tests.support.session_world import Planted, done_but_failed, not_done
from tests.support.storage import MemoryStorage
from tests.support.values import CLUSTER, NOW_NS, TIME_KEY, WITNESS_KEY
from timeagent.errors import BadRequest, BadTime, Damaged, Environment, LeaseLost, TryAgain
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from timeagent.units import Span

TERM = 10 * SECOND
RADIUS = 100 * MS


class Town:
    """Candidates with clocks of their own on one directory."""

    def __init__(self) -> None:
        self.storage = Planted(MemoryStorage(lambda: NOW_NS))
        self.clocks: list[HandTime] = []

    def candidate(self, name: str, off_ns: Span = 0) -> MountElection:
        """``off_ns``: by how much its clock is wrong, within its bound."""
        assert abs(off_ns) <= RADIUS
        time = HandTime(TIME_KEY, NOW_NS + off_ns, RADIUS)
        if self.clocks:
            time.advance(self.clocks[0].boot_ns() - time.boot_ns())
        self.clocks.append(time)
        chance = random.Random(name)
        of = (CLUSTER, "node-a")
        return MountElection(self.storage, time, WITNESS_KEY, of, chance, "e", name, TERM, background=False)

    def advance(self, span: Span) -> None:
        for time in self.clocks:
            time.advance(span)

    def records(self) -> list[str]:
        return sorted(path for path in self.storage.inner.files if path.startswith(ELECTIONS))  # type: ignore[attr-defined]


@pytest.fixture
def town() -> Town:
    return Town()


def leads(election: MountElection) -> MountLeadership | None:
    try:
        return election.campaign(timeout_s=0)
    except TryAgain:
        return None


def lost(leadership: MountLeadership) -> bool:
    try:
        leadership.check()
    except LeaseLost:
        return True
    return False


def test_one_leads_in_an_epoch_of_its_own_and_everybody_can_see_who(town: Town) -> None:
    a, b = town.candidate("a"), town.candidate("b")
    assert b.leader() is None
    with a.campaign() as leadership:
        assert leadership.act(lambda: "done") == "done"
        assert leads(b) is None
        leader = b.leader()
        assert isinstance(leader, Leader)
        assert (leader.candidate, leader.epoch, leader.node) == ("a", leadership.epoch, "node-a")
    assert b.leader() is None
    next_one = leads(b)
    assert next_one is not None
    assert next_one.epoch > leadership.epoch


def test_leader_for_whom_there_is_no_thread_is_told_so(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_to_start(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    a = town.candidate("a")
    a.background = True
    with monkeypatch.context() as planted:
        planted.setattr(Thread, "start", refuse_to_start)
        with pytest.raises(Environment) as told:
            a.campaign()
    assert told.value.code == "no-threads"


def test_leader_that_is_extended_leads_on_in_the_same_epoch(town: Town) -> None:
    a, b = town.candidate("a"), town.candidate("b")
    leadership = a.campaign()
    for _ in range(5):
        town.advance(TERM // 2)
        leadership.extend()
        assert leads(b) is None
        leadership.check()
    assert leadership.epoch == 1
    assert len(town.records()) == 6


@pytest.mark.parametrize("off", [-RADIUS, 0, RADIUS])
def test_no_two_lead_at_once_however_wrong_their_clocks_are_within_their_bounds(town: Town, off: Span) -> None:
    """True time is what the first clock would say if it were right: they are wrong in opposite directions."""
    a, b = town.candidate("a", off), town.candidate("b", -off)
    leadership = a.campaign()
    town.advance(TERM - 5 * RADIUS)
    epochs = []
    for _ in range(60):
        new = leads(b)
        held = not lost(leadership)
        assert not (held and new)
        epochs.append((held, new is not None))
        if new is not None:
            break
        town.advance(RADIUS // 4)
    assert epochs[0] == (True, False)
    assert epochs[-1] == (False, True)


def test_leader_that_lapsed_is_over_for_good_and_is_told_so_once(town: Town) -> None:
    told: list[str] = []
    leadership = town.candidate("a").campaign()
    leadership.on_lost(told.append)
    town.advance(TERM + RADIUS)
    leadership.extend()
    assert lost(leadership)
    assert leadership.over
    assert told == ["not extended in time"]
    assert not leadership.resign()
    assert len(town.records()) == 1


def test_leader_that_slept_is_overtaken(town: Town) -> None:
    a, b = town.candidate("a"), town.candidate("b")
    old = a.campaign()
    town.advance(TERM + 3 * RADIUS)
    new = b.campaign()
    a.time.midpoint_ns -= 5 * SECOND  # type: ignore[attr-defined] # its clock went back while it slept
    old.extend()
    assert lost(old)
    new.check()


def test_margin_that_is_not_left_is_refused_and_the_lead_stays(town: Town) -> None:
    leadership = town.candidate("a").campaign()
    with pytest.raises(LeaseLost, match="less than is asked for"):
        leadership.check(margin_s=10)
    leadership.check(margin_s=9)


def test_leader_that_campaigns_again_is_told_at_once(town: Town) -> None:
    a = town.candidate("a")
    with a.campaign(), pytest.raises(BadRequest) as told:
        a.campaign()
    assert told.value.code == "held-here"
    with a.campaign(timeout_s=0):
        pass


def test_child_of_a_leader_does_not_lead(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    leadership = town.candidate("a").campaign()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 1)
        with pytest.raises(BadRequest) as told:
            leadership.check()
        assert told.value.code == "forked"
        with pytest.raises(BadRequest) as told:
            leadership.extend()
        assert told.value.code == "forked"
        assert not leadership.resign()
    leadership.check()


# The thread that extends may have been at work: its lock is locked for ever in the child.
def test_child_of_a_leader_that_was_extending_waits_for_nobody(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    leadership = town.candidate("a").campaign()
    with ThreadPoolExecutor(1) as other, monkeypatch.context() as child, leadership._lock:
        child.setattr(os, "getpid", lambda: 1)
        assert not other.submit(leadership.resign).result(30)
        with pytest.raises(BadRequest):
            other.submit(leadership.extend).result(30)


# -- hand-over ---------------------------------------------------------------------------------------------------------


def when_it_sleeps(election: MountElection, what: Callable[[], object]) -> None:
    sleep = election.time.sleep

    def doing(span: Span) -> None:
        election.time.sleep = sleep  # type: ignore[method-assign]
        sleep(span)
        what()

    election.time.sleep = doing  # type: ignore[method-assign]


def test_lead_is_handed_over_to_the_one_who_is_named(town: Town) -> None:
    a, b, c = (town.candidate(name) for name in "abc")
    leadership = a.campaign()
    followers: list[MountLeadership] = []

    def others_come() -> None:
        assert leads(b) is None
        assert c.leader() is None
        followers.append(c.campaign(timeout_s=0))

    when_it_sleeps(a, others_come)
    assert leadership.resign(to="c")
    assert lost(leadership)
    assert followers[0].epoch > leadership.epoch


@pytest.mark.parametrize("wrong", ["\udcff", "a\nb", "x" * 200, 7])
def test_lead_is_kept_where_nobody_can_be_called_as_the_nominee(town: Town, wrong: Any) -> None:  # noqa: ANN401 - that is what is wrong
    leadership = town.candidate("a").campaign()
    with pytest.raises(BadRequest):
        leadership.resign(to=wrong)
    leadership.check()
    assert len(town.records()) == 1


def test_nominee_that_does_not_come_keeps_the_others_waiting_for_the_time_out_only(town: Town) -> None:
    a, b = town.candidate("a"), town.candidate("b")
    assert not a.campaign().resign(to="nobody", timeout_s=3)
    town.advance(0)
    b.time.advance(3 * SECOND - 3 * RADIUS)  # type: ignore[attr-defined] # as long as the resigning one waited
    assert leads(b) is None
    b.time.advance(6 * RADIUS)  # type: ignore[attr-defined]
    assert leads(b) is not None


# -- the mount ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [done_but_failed, not_done])
def test_record_in_doubt_gives_no_lead_before_it_is_decided(town: Town, fault: Callable[..., object]) -> None:
    a = town.candidate("a")
    town.storage.at("publish", "00000001", fault)
    assert leads(a) is None
    leadership = a.campaign(timeout_s=30) if fault is not_done else None
    if leadership is None:
        town.advance(TERM + 3 * RADIUS)
        leadership = a.campaign(timeout_s=0)
        assert leadership.epoch == 2
    leadership.check()


def test_lost_reply_is_recognised_while_it_campaigns(town: Town) -> None:
    a = town.candidate("a")
    town.storage.at("publish", "00000001", done_but_failed)
    assert a.campaign(timeout_s=5).epoch == 1


def test_extension_in_doubt_leads_no_longer_than_the_record_before(town: Town) -> None:
    leadership = town.candidate("a").campaign()
    town.advance(TERM // 2)
    town.storage.at("publish", "00000002", done_but_failed)
    leadership.extend()
    town.advance(TERM // 2 - 2 * RADIUS)
    leadership.check()
    leadership.extend()
    town.advance(3 * RADIUS)
    leadership.check()
    assert len(town.records()) == 2


def test_who_cannot_say_that_it_resigned_leads_no_more_and_the_others_wait(town: Town) -> None:
    a, b = town.candidate("a"), town.candidate("b")
    leadership = a.campaign()
    town.storage.at("publish", "00000002", not_done)
    assert not leadership.resign()
    assert lost(leadership)
    assert leads(b) is None
    town.advance(TERM + 3 * RADIUS)
    assert leads(b) is not None


# Where its clock has no bound no record can be signed: its block ends all the same, and the others wait.
@pytest.mark.parametrize("to", [None, "b"])
def test_who_has_no_time_to_resign_by_leads_no_more_and_the_others_wait(
    town: Town, monkeypatch: pytest.MonkeyPatch, to: str | None
) -> None:
    def no_bound() -> None:
        raise BadTime("no-time", "planted")

    a, b = town.candidate("a"), town.candidate("b")
    leadership = a.campaign()
    with monkeypatch.context() as planted:
        planted.setattr(a.time, "now", no_bound)
        planted.setattr(a.time, "token", no_bound)
        assert not leadership.resign(to=to)
    assert lost(leadership)
    assert leads(b) is None
    town.advance(TERM + 3 * RADIUS)
    assert leads(b) is not None


def test_who_listens_when_the_lead_is_lost_is_told_at_once_and_of_a_lead_that_was_resigned_nothing(town: Town) -> None:
    told: list[str] = []
    leadership = town.candidate("a").campaign()
    town.advance(TERM + RADIUS)
    assert lost(leadership)
    leadership.on_lost(told.append)
    assert told == ["not extended in time"]
    with town.candidate("b").campaign(timeout_s=5) as resigned:
        pass
    resigned.on_lost(told.append)
    assert len(told) == 1


def test_record_that_is_not_seen_afterwards_gives_no_lead(town: Town) -> None:
    a = town.candidate("a")
    town.storage.at("list_afresh", ELECTIONS + "/e", lambda call: call())
    for _ in range(3):
        town.storage.at("list_afresh", ELECTIONS + "/e", lambda _: [])
    assert leads(a) is None


def test_slot_that_was_pruned_and_is_linked_again_gives_no_lead(town: Town) -> None:
    a, b = town.candidate("a"), town.candidate("b")
    old = a.campaign()
    town.advance(TERM + 3 * RADIUS)
    new = b.campaign()
    for _ in range(RECORDS_KEPT + 10):
        town.advance(SECOND)
        new.extend()
    assert len(town.records()) <= RECORDS_KEPT + 2
    town.storage.inner.files.pop(f"{ELECTIONS}/e/00000002", None)  # type: ignore[attr-defined]
    a.time.midpoint_ns -= 200 * SECOND  # type: ignore[attr-defined]
    old.extend()
    assert lost(old)
    new.check()


def test_mount_that_fails_for_a_while_is_waited_for(town: Town) -> None:
    a = town.candidate("a")
    for _ in range(3):
        town.storage.at("list_afresh", ELECTIONS + "/e", not_done)
    a.campaign(timeout_s=5).check()
    town.storage.refused = ELECTIONS
    with pytest.raises(Environment):
        town.candidate("b").campaign(timeout_s=1)


def test_record_of_another_election_in_its_place_is_damage(town: Town) -> None:
    a = town.candidate("a")
    a.campaign()
    data = town.storage.inner.files[f"{ELECTIONS}/e/00000001"]  # type: ignore[attr-defined]
    town.storage.inner.files[f"{ELECTIONS}/e/00000002"] = data  # type: ignore[attr-defined]
    with pytest.raises(Damaged):
        town.candidate("b").campaign(timeout_s=0)


@pytest.mark.parametrize("wrong", ["", "a/b", ".", "é"])
def test_bad_name_is_refused(town: Town, wrong: str) -> None:
    with pytest.raises(BadRequest):
        MountElection(
            town.storage, HandTime(TIME_KEY, NOW_NS), WITNESS_KEY, (CLUSTER, "n"), random.Random(1), wrong, "", 1
        )


def test_cluster_leads_and_is_extended_by_a_thread(site: Site) -> None:
    with site.open() as cluster:
        election = MountElection.on(cluster, "e", "a", term_s=0.6)
        with election.campaign() as leadership:
            chain = election.chain
            while max(chain.list_afresh()) < 3:
                cluster.time.sleep(20 * MS)
            leadership.check()
            data = chain.read(3)
            assert data is not None
            assert open_epoch(data, "f").epoch == leadership.epoch
        assert election.leader() is None
        with pytest.raises(BadRequest):
            MountElection.on(cluster, "e", term_s=0.01)


def test_tree_with_an_election_is_audited_without_a_finding(site: Site) -> None:
    with site.open() as cluster:
        with MountElection.on(cluster, "e").campaign(), cluster.session() as session, session.acquire("d") as leases:
            session.publish("log", [b"1"], under=leases)
        cluster.settle("log", cluster.time.now().latest)
    assert audit(Tree(site.root)).findings == ()
