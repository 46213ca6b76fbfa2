"""Mutex, RWLock and Semaphore over sessions that share a hand-driven clock: who has what, and who is told what."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from appliance.lease.wire import Acquire, Inspect, LeasePage, Relinquish, Request
from appliance.recipes.cached_value import CachedValue
from appliance.recipes.election import Election
from appliance.recipes.exclusion import Locked, Mutex, RWLock, Semaphore
from appliance.recipes.mount_election import MountElection
from appliance.session.endings import LossReason
from appliance.session.held import Lease, Loss
from tests.support.cluster import HandSite, hand_sites
from timeagent.errors import BadRequest, LeaseLost, ShardUnavailable, TryAgain
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from appliance.lease.wire import LeaseView, Reply
    from appliance.recipes.exclusion import Hold, Tool
    from appliance.session.held import Lease


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path, shards=3)


def can_be_had(tool: Tool[Hold]) -> bool:
    try:
        tool.acquire(timeout_s=0).relinquish()
    except TryAgain:
        return False
    return True


def test_mutex_is_one_sessions_until_its_block_ends(site: HandSite) -> None:
    ours, theirs = Mutex(site.session(), "d"), Mutex(site.session(), "d")
    with ours as hold:
        assert hold.act(lambda: "done") == "done"
        assert not can_be_had(theirs)
    assert can_be_had(theirs)
    with pytest.raises(LeaseLost):
        hold.act(lambda: pytest.fail("done"))


def test_each_holder_of_a_mutex_has_a_higher_fence(site: HandSite) -> None:
    fences = []
    for _ in range(3):
        with Mutex(site.session(), "d") as hold:
            fences.append(hold.fence)
    assert sorted(set(fences)) == fences


def test_mutex_excludes_a_plain_lease_of_its_name(site: HandSite) -> None:
    with Mutex(site.session(), "d"), pytest.raises(TryAgain):
        site.session().acquire("d", timeout_s=0)


def test_session_that_asks_for_what_it_has_is_told_at_once(site: HandSite) -> None:
    session = site.session()
    with Mutex(session, "d") as hold:
        asked = len(site.transports[site.shard_of("d")].calls)
        with pytest.raises(BadRequest) as told:
            Mutex(session, "d").acquire()
        assert told.value.code == "held-here"
        assert len(site.transports[site.shard_of("d")].calls) == asked
        hold.check()


# Its last use has ended, in another thread, and its shard has not heard of that: there is nothing to use once more.
def test_mutex_that_is_being_given_back_is_not_had_once_more(site: HandSite, monkeypatch: pytest.MonkeyPatch) -> None:
    session = site.session()
    mutex = Mutex(session, "d", reentrant=True)
    relinquish = session.relinquish

    def slowly(leases: Sequence[Lease]) -> bool:
        with pytest.raises(TryAgain):
            mutex.acquire(timeout_s=0)
        return relinquish(leases)

    with monkeypatch.context() as patch:
        hold = mutex.acquire()
        patch.setattr(session, "relinquish", slowly)
        hold.relinquish()
    mutex.acquire(timeout_s=0).check()


def test_reentrant_use_has_the_same_fence_and_the_last_gives_it_back(site: HandSite) -> None:
    session = site.session()
    outer = Mutex(session, "d", reentrant=True).acquire()
    inner = Mutex(session, "d", reentrant=True).acquire()
    assert inner.fence == outer.fence
    outer.relinquish()
    outer.relinquish()
    inner.check()
    assert not can_be_had(Mutex(site.session(), "d"))
    inner.relinquish()
    assert can_be_had(Mutex(site.session(), "d"))


# Its shard died, so who had it before may believe in it yet: the first use waits for that, in another thread.
@pytest.mark.parametrize("reentrant", [True, False])
def test_lease_that_ran_out_unseen_is_no_use_that_another_could_share(site: HandSite, *, reentrant: bool) -> None:
    mutex = Mutex(site.session(), "d", reentrant=reentrant)
    first = mutex.acquire()
    site.time.advance(2 * site.policy.lease_term_max_ns)
    second = mutex.acquire()
    second.check()
    assert second.fence > first.fence
    with pytest.raises(LeaseLost):
        first.check()


def test_reentrant_use_waits_for_earlier_holders_as_the_first_does(
    site: HandSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    (earlier,) = site.session().acquire("d")
    site.start(site.shard_of("d"))
    session = site.session()
    mutex = Mutex(session, "d", reentrant=True)

    def meanwhile(_: object) -> None:
        monkeypatch.undo()
        assert earlier.surely_held()
        with mutex:
            assert not earlier.surely_held()

    monkeypatch.setattr(session, "check_held", meanwhile)
    mutex.acquire().check()


def test_reentrant_use_goes_on_where_the_first_is_interrupted_while_it_waits_for_earlier_holders(
    site: HandSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.session().acquire("d")
    site.start(site.shard_of("d"))
    session = site.session()
    mutex = Mutex(session, "d", reentrant=True)
    holds: list[Hold] = []

    def meanwhile(_: object) -> None:
        monkeypatch.undo()
        holds.append(mutex.acquire())
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "check_held", meanwhile)
    with pytest.raises(KeyboardInterrupt):
        mutex.acquire()
    holds[0].check()
    assert not can_be_had(Mutex(site.session(), "d"))
    holds[0].relinquish()
    assert can_be_had(Mutex(site.session(), "d"))


def test_reentrant_use_that_may_not_wait_for_earlier_holders_leaves_the_lease_as_it_was(site: HandSite) -> None:
    site.session().acquire("d")
    site.start(site.shard_of("d"))
    session = site.session()
    (lease,) = session.acquire("d", record_only=True)
    mutex = Mutex(session, "d", reentrant=True)
    with pytest.raises(TryAgain) as early:
        mutex.acquire(timeout_s=0)
    assert early.value.code == "warming"
    lease.check()
    mutex.acquire().relinquish()
    lease.check()


def test_lost_mutex_is_told_and_acts_no_more(site: HandSite) -> None:
    hold = Mutex(site.session(), "d").acquire()
    told: list[Loss] = []
    hold.on_lost(told.append)
    site.time.advance(hold.lease.term_ns + SECOND)
    with pytest.raises(LeaseLost):
        hold.act(lambda: pytest.fail("done"))
    assert [each.reason for each in told] == [LossReason.EXPIRED]
    assert can_be_had(Mutex(site.session(), "d"))


def test_waiting_for_a_mutex_ends_when_it_is_given_up(site: HandSite) -> None:
    with Mutex(site.session(), "d"):
        before = site.time.boot_ns()
        with pytest.raises(TryAgain):
            Mutex(site.session(), "d").acquire(timeout_s=60, given_up=lambda: site.time.boot_ns() > before + SECOND)
        assert site.time.boot_ns() < before + 10 * SECOND


def test_readers_share_and_a_writer_is_alone(site: HandSite) -> None:
    one, other = RWLock(site.session(), "d"), RWLock(site.session(), "d")
    with one.reading, other.reading:
        assert not can_be_had(RWLock(site.session(), "d").writing)
    with one.writing:
        assert not can_be_had(other.writing)
        assert not can_be_had(other.reading)
    assert can_be_had(other.writing)


def test_writer_may_read_again_and_a_reader_may_not_write(site: HandSite) -> None:
    lock = RWLock(site.session(), "d", reentrant=True)
    with lock.writing, lock.reading, lock.reading:
        pass
    with lock.reading, pytest.raises(BadRequest, match="give it back first"):
        lock.writing.acquire()
    assert can_be_had(RWLock(site.session(), "d").writing)


# -- semaphores --------------------------------------------------------------------------------------------------------


def semaphores(site: HandSite, count: int, n: int = 2) -> list[Semaphore]:
    return [Semaphore(site.session(), "gpu", n) for _ in range(count)]


def test_as_many_have_a_semaphore_as_it_says_and_no_more(site: HandSite) -> None:
    *some, last = semaphores(site, 4, n=3)
    holds = [each.acquire(timeout_s=0) for each in some]
    assert len({hold.lease.domain for hold in holds}) == 3
    assert not can_be_had(last)
    holds[1].relinquish()
    assert can_be_had(last)


def test_session_may_have_several_slots_and_is_told_at_once_when_it_has_all(site: HandSite) -> None:
    (semaphore,) = semaphores(site, 1)
    with semaphore, semaphore:
        with pytest.raises(BadRequest) as told:
            semaphore.acquire()
        assert told.value.code == "held-here"
    assert can_be_had(semaphores(site, 1)[0])


def test_another_number_of_slots_is_refused_until_nobody_has_one(site: HandSite) -> None:
    (small,) = semaphores(site, 1, n=2)
    (large,) = semaphores(site, 1, n=5)
    with small:
        with pytest.raises(BadRequest) as told:
            large.acquire(timeout_s=0)
        assert told.value.code == "semaphore-size"
        assert can_be_had(small)
    with large, pytest.raises(BadRequest):
        small.acquire(timeout_s=0)
    assert can_be_had(small)


def test_who_waits_for_its_turn_is_told_that_the_numbers_differ(site: HandSite) -> None:
    (small,), (large,) = semaphores(site, 1, n=2), semaphores(site, 1, n=5)
    waits = site.session()
    waits.acquire("/semaphore:gpu/turn", record_only=True)
    site.session().acquire("/semaphore:gpu/2/1")
    began = site.time.midpoint_ns
    with pytest.raises(BadRequest) as told:
        large.acquire(timeout_s=60)
    assert told.value.code == "semaphore-size"
    assert "semaphore of 2" in told.value.message
    assert "5 were asked for" in told.value.message
    assert "ask for 2" in told.value.hint
    assert site.time.midpoint_ns - began < 10 * SECOND
    assert not can_be_had(small)


def test_slots_of_another_number_whose_holder_died_refuse_nobody_for_ever(site: HandSite) -> None:
    dead = semaphores(site, 1, n=2)[0].acquire()
    (large,) = semaphores(site, 1, n=5)
    site.time.advance(dead.lease.term_ns + SECOND)
    assert can_be_had(large)


def test_slot_of_another_number_that_was_renewed_since_the_look_refuses(
    site: HandSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, asker = site.session(), site.session()
    hold = Semaphore(holder, "gpu", 2).acquire()
    look = asker.keeper.leases_below

    def slowly(tree: str) -> list[LeaseView]:
        """See what there is, then take longer for the next line than a lease lasts, while all are renewed."""
        seen = look(tree)
        for _ in range(3):
            site.time.advance(hold.lease.term_ns // 2)
            holder.renew_due()
            asker.renew_due()
        return seen

    monkeypatch.setattr(asker.keeper, "leases_below", slowly)
    with pytest.raises(BadRequest) as told:
        Semaphore(asker, "gpu", 5).acquire(timeout_s=0)
    assert told.value.code == "semaphore-size"
    hold.check()


def test_shard_whose_pages_do_not_go_on_is_asked_no_more(site: HandSite, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = site.transports[site.shard_of("/semaphore:gpu/turn")]
    asks, asked = shard.call, iter(range(3))

    def answers(requests: list[Request], timeout_ns: int) -> list[Reply]:
        replies = asks(requests, timeout_ns)
        return [replace(each, more=next(asked) >= 0) if isinstance(each, LeasePage) else each for each in replies]

    monkeypatch.setattr(shard, "call", answers)
    session = site.session()
    with pytest.raises(ShardUnavailable, match="does not say what is held"):
        session.keeper.leases_below("/semaphore:gpu")
    client = session.keeper.client(site.shard_of("/semaphore:gpu/turn"))
    assert len(list(client.leases_under(bytes(16)))) == 1


def test_slot_of_a_dead_holder_is_had_when_its_lease_is_past(site: HandSite) -> None:
    first, second, third = semaphores(site, 3)
    dead, alive = first.acquire(), second.acquire()
    began = site.time.midpoint_ns
    hold = third.acquire(timeout_s=30)
    assert hold.lease.domain == dead.lease.domain
    assert dead.lease.expiry_ns <= site.time.midpoint_ns <= began + 15 * SECOND
    assert alive.lease.domain != hold.lease.domain


def test_who_had_the_turn_and_lost_it_before_its_slot_was_granted_has_no_slot(site: HandSite) -> None:
    """It stood still between the look and the slot; meanwhile others came, who say that there are five slots."""
    shard = site.transports[site.shard_of("/semaphore:gpu/turn")]
    slow, *others = [Semaphore(site.session(), "gpu", 1), *semaphores(site, 5, n=5)]
    taken: list[Hold] = []

    def stands_still(requests: list[Request]) -> None:
        if any(isinstance(each, Acquire) and each.domain.endswith("/1/0") for each in requests):
            shard.before = lambda _: None
            site.time.advance(12 * SECOND)
            taken.extend(each.acquire() for each in others)

    shard.before = stands_still
    with pytest.raises((BadRequest, TryAgain)):
        slow.acquire(timeout_s=5)
    assert len(taken) == 5
    for hold in taken:
        hold.check()
    assert not [each for each in site.session().keeper.leases_below("/semaphore:gpu/1") if each]


# Ctrl-C while its shard has yet to say that it has the turn back, or before the slot is known to count.
@pytest.mark.parametrize("at", ["the end of the turn", "the look at the turn"])
def test_semaphore_whose_taking_is_interrupted_has_no_slot(
    site: HandSite, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    session = site.session()
    relinquish = session.relinquish

    def interrupted(leases: Sequence[Lease]) -> bool:
        relinquish(leases)
        if leases[0].domain.endswith("turn"):
            raise KeyboardInterrupt
        return True

    def check(lease: Lease, **_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as planted:
        if at == "the end of the turn":
            planted.setattr(session, "relinquish", interrupted)
        else:
            planted.setattr(Lease, "check", check)
        with pytest.raises(KeyboardInterrupt):
            Semaphore(session, "gpu", 1).acquire()
    assert can_be_had(semaphores(site, 1, n=1)[0])


def test_giving_back_that_was_interrupted_is_repeated(site: HandSite, monkeypatch: pytest.MonkeyPatch) -> None:
    session = site.session()

    def interrupted(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    hold = Mutex(session, "d").acquire()
    with monkeypatch.context() as planted:
        planted.setattr(session, "relinquish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hold.relinquish()
    hold.relinquish()
    assert can_be_had(Mutex(site.session(), "d"))


def test_free_slot_takes_as_many_requests_whatever_their_number(site: HandSite) -> None:
    counts = []
    for n in (1, 7, 700):
        name = f"n{n}"
        calls = site.transports[site.shard_of(f"/semaphore:{name}/turn")].calls
        before = len(calls)
        Semaphore(site.session(), name, n).acquire()
        counts.append([type(each) for each in calls[before:]])
    assert counts == [[Acquire, Inspect, Acquire, Relinquish]] * 3


@pytest.mark.parametrize("name", ["a/b", "a%2Fb", "ü", "a b"])
def test_names_are_kept_apart(site: HandSite, name: str) -> None:
    with Semaphore(site.session(), name, 1):
        for other in {"a/b", "a%2Fb", "ü", "a b", "a"} - {name}:
            assert can_be_had(Semaphore(site.session(), other, 2))


@pytest.mark.parametrize("wrong", [0, -1, 10_001, True, 1.5])
def test_number_that_is_none_is_refused(site: HandSite, wrong: int) -> None:
    with pytest.raises(BadRequest):
        Semaphore(site.session(), "d", wrong)


def test_tool_of_no_session_is_refused() -> None:
    nobody: Any = None
    for make in (Mutex, RWLock, partial(Semaphore, n=1), Election, partial(CachedValue, domain="d"), MountElection.on):
        with pytest.raises(BadRequest) as refused:
            make(nobody, "d")
        assert refused.value.code == "bad-type"


def test_tool_of_a_bad_name_is_refused_before_anything_is_asked(site: HandSite) -> None:
    for make in (Mutex, RWLock, lambda session, name: Semaphore(session, name, 1)):
        with pytest.raises(BadRequest):
            make(site.session(), "bad\n")
    assert issubclass(Mutex, Locked)
    assert all(not each.calls for each in site.transports)
