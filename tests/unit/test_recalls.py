"""A holder that is asked for its lease does what was chosen; a sticky lease stays until somebody asks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from appliance.bag.writing import Committed, FrameFile
from appliance.formats.lease import LeaseOutcome, Mode
from appliance.formats.paths import DataName
from appliance.formats.witness import Ended
from appliance.lease.client import ClockLook
from appliance.lease.wire import Acquire, Age, Attend, Recalled, Request, WantedLease
from appliance.session.endings import LossReason
from appliance.session.held import Loss
from appliance.session.stamping import Publication
from tests.support.cluster import HandSite, Site, hand_sites, sites
from tests.support.values import NOW_NS
from timeagent.errors import BadRequest, BadTime, LeaseLost, TryAgain
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.session.held import Lease
    from timeagent.units import TimeInterval

LONG = 60


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path)


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Site]:
    yield from sites(tmp_path)


def busy(site: HandSite, domain: str = "a", mode: Mode = Mode.X) -> None:
    """Another asks, and does not wait."""
    with pytest.raises(TryAgain):
        site.session("rival").acquire(domain, mode=mode, timeout_s=0)


def endings(site: HandSite) -> list[Ended]:
    site.sign_held(0)
    return [each for each in site.ledger_of(0) if isinstance(each, Ended)]


def acquires(site: HandSite) -> int:
    return sum(isinstance(each, Acquire) for each in site.transports[0].calls)


# -- policies ----------------------------------------------------------------------------------------------------------


def test_lease_is_kept_where_recalls_are_ignored_and_nobody_listens(site: HandSite) -> None:
    session = site.session()
    (lease,) = session.acquire("a")
    busy(site)
    session.renew_due()
    lease.check()
    assert not any(isinstance(each, Attend) for each in site.transports[0].calls)


def test_lease_is_given_back_at_once_with_its_watermark(site: HandSite) -> None:
    session = site.session()
    (lease,) = session.acquire("a", recall="relinquish")
    told: list[Loss] = []
    lease.on_lost(told.append)
    assert isinstance(session.publish("log", [b"1"], under=[lease]), Committed)
    busy(site)
    session.renew_due()
    with pytest.raises(LeaseLost) as lost:
        session.publish("log", [b"2"], under=[lease])
    assert lost.value.code == "lease-recalled"
    assert [(loss.reason, loss.ended) for loss in told] == [(LossReason.RECALLED, "recalled")]
    (ended,) = endings(site)
    assert (ended.ending.outcome, ended.ending.messages) == (LeaseOutcome.RELINQUISHED, 1)
    assert ended.ending.watermark_ns == lease.watermark_ns is not None
    (later,) = site.session("rival").acquire("a", timeout_s=0)
    assert later.floor_ns >= lease.watermark_ns


def test_finishing_holder_is_told_once_and_keeps_the_lease_to_the_end_of_its_block(site: HandSite) -> None:
    session = site.session()
    told: list[Lease] = []
    with session.acquire("a", recall="finish") as leases:
        leases[0].on_recall(told.append)
        busy(site)
        session.renew_due()
        busy(site)
        session.renew_due()
        assert told == [leases[0]]
        assert leases[0].recalled
        assert isinstance(session.publish("log", [b"1"], under=leases), Committed)
    site.session("rival").acquire("a", timeout_s=0)


def test_listener_that_comes_after_the_recall_is_called_at_once(site: HandSite) -> None:
    session = site.session()
    (lease,) = session.acquire("a", recall="finish")
    busy(site)
    session.renew_due()
    told: list[Lease] = []
    lease.on_recall(told.append)
    assert told == [lease]


def test_flushing_holder_publishes_under_the_lease_and_then_it_is_given_back(site: HandSite) -> None:
    session = site.session()
    (lease,) = session.acquire("a", recall="flush")
    lease.on_recall(lambda each: session.publish("log", [b"what was cached"], under=[each]))
    busy(site)
    session.renew_due()
    assert lease.loss is not None
    assert lease.loss.reason is LossReason.RECALLED
    rival = site.session("rival")
    with rival.acquire("a", timeout_s=0) as leases:
        assert [each.payload for each in rival.read("log", under=leases)] == [b"what was cached"]


def test_listener_that_fails_is_no_reason_to_keep_the_lease(site: HandSite) -> None:
    session = site.session()
    (lease,) = session.acquire("a", recall="flush")
    done: list[Lease] = []

    def fails(_: Lease) -> None:
        raise ValueError

    lease.on_recall(fails)
    lease.on_recall(done.append)
    busy(site)
    session.renew_due()
    assert done == [lease]
    site.session("rival").acquire("a", timeout_s=0)


def test_orderly_stop_of_the_shard_asks_for_leases_back(site: HandSite) -> None:
    session = site.session()
    session.acquire("a", recall="relinquish")
    shard = site.transports[0].shard
    assert shard is not None
    shard.stop_orderly()
    session.renew_due()
    assert type(shard.stop_orderly()).__name__ == "StoppedOrderly"


def test_recall_that_comes_before_the_session_knows_of_its_grant_is_not_forgotten(site: HandSite) -> None:
    session = site.session()
    session.acquire("b", recall="relinquish")
    recalls = session._recalls

    def before(requests: list[Request]) -> None:
        if isinstance(requests[0], Acquire) and not session._recalls._early:
            site.transports[0].before = lambda _: None
            (reply,) = site.transports[0].call(requests[:1], MS)
            assert type(reply).__name__ == "Granted"
            busy(site)
            recalls.poll()

    site.transports[0].before = before
    (lease,) = session.acquire("a", recall="relinquish")
    assert lease.ended == "recalled"
    told: list[Loss] = []
    lease.on_lost(told.append)
    assert [loss.reason for loss in told] == [LossReason.RECALLED], "who listens after it was given back is told too"
    site.session("rival").acquire("a", timeout_s=0)


@pytest.mark.parametrize(("recall", "sticky_s"), [("sometimes", None), ("ignore", 1), ("finish", 0)])
def test_bad_choice_is_refused_by_name(site: HandSite, recall: str, sticky_s: int | None) -> None:
    with pytest.raises(BadRequest) as refused:
        site.session().acquire("a", recall=recall, sticky_s=sticky_s)
    assert refused.value.code in ("bad-recall", "bad-sticky")
    assert acquires(site) == 0


# -- sticky ------------------------------------------------------------------------------------------------------------


def test_sticky_lease_is_taken_again_without_asking_the_shard(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a", sticky_s=LONG) as first:
        session.publish("log", [b"1"], under=first)
    with session.acquire("a", sticky_s=LONG) as second:
        session.publish("log", [b"2"], under=second)
    assert (first[0].fence, acquires(site)) == (second[0].fence, 1)
    assert first[0] is not second[0]
    assert endings(site) == []
    session.close()
    (ended,) = endings(site)
    assert (ended.ending.messages, ended.ending.watermark_ns) == (2, second[0].watermark_ns)


def test_what_its_user_gave_back_is_over_for_that_user(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a", sticky_s=LONG) as first:
        pass
    with session.acquire("a", sticky_s=LONG) as second:
        with pytest.raises(LeaseLost):
            session.publish("log", [b"1"], under=first)
        session.relinquish(first)  # once more: it is not the second user's
        second[0].check()


def test_unused_lease_goes_back_as_soon_as_another_asks(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a", sticky_s=LONG):
        pass
    busy(site)
    session.renew_due()
    site.session("rival").acquire("a", timeout_s=0)
    with pytest.raises(TryAgain):
        session.acquire("a", sticky_s=LONG, timeout_s=0)


def test_lease_in_use_goes_back_at_the_end_of_its_block_if_another_asks(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a", sticky_s=LONG) as leases:
        busy(site)
        session.renew_due()
        leases[0].check()
    site.session("rival").acquire("a", timeout_s=0)


def test_unused_lease_goes_back_when_its_time_is_up_and_is_renewed_until_then(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a", sticky_s=20):
        pass
    for _ in range(6):
        site.time.advance(3 * SECOND)
        session.renew_due()
    busy(site)
    session.acquire("a", sticky_s=20)
    assert acquires(site) == 2, "its own, and that of the other"


def test_lease_that_nobody_used_for_long_is_given_back(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a", sticky_s=5):
        pass
    site.time.advance(5 * SECOND)
    session.renew_due()
    (ended,) = endings(site)
    assert ended.ending.outcome is LeaseOutcome.RELINQUISHED


def test_lease_that_may_be_over_is_not_handed_out(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a", sticky_s=LONG) as first:
        pass
    site.time.advance(first[0].term_ns)
    (second,) = session.acquire("a", sticky_s=LONG)
    second.check()
    assert second.fence > first[0].fence


# Its clock has a bound, and no signed time.
def test_lease_that_cannot_be_handed_out_now_is_handed_out_later(
    site: HandSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = site.session()
    with session.acquire("a", sticky_s=LONG) as first:
        pass

    def refused() -> NoReturn:
        raise BadTime("planted", "no signed time")

    monkeypatch.setattr(site.time, "now_and_token", refused)
    with pytest.raises(BadTime):
        session.acquire("a", timeout_s=0)
    monkeypatch.undo()
    with session.acquire("a", timeout_s=0) as again:
        assert [each.fence for each in again] == [each.fence for each in first]


def test_stronger_mode_than_the_one_that_is_kept_is_asked_for_anew(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a", mode=Mode.S, sticky_s=LONG):
        pass
    with session.acquire("a", mode=Mode.X, sticky_s=LONG, timeout_s=0) as leases:
        assert leases[0].mode is Mode.X
    with session.acquire("a", mode=Mode.S, sticky_s=LONG, timeout_s=0) as leases:
        assert leases[0].mode is Mode.X, "a lease that covers what is asked for serves"


# A session lease is renewed as one, for all that are under it: it knows no cap of any of them.
@pytest.mark.parametrize("bounds", [{"hold_s_max": 3}, {"progress_within_s": 3}, {"term_s": 5}])
def test_sticky_lease_under_a_session_lease_is_not_handed_out_with_bounds(
    site: HandSite, bounds: dict[str, Any]
) -> None:
    session = site.session(session_leases=True)
    with session.acquire("a", sticky_s=LONG):
        pass
    (lease,) = session.acquire("a", sticky_s=LONG, **bounds)
    assert (lease.session_lease, acquires(site)) == (None, 2)
    began = site.time.now().earliest
    if "term_s" not in bounds:
        for _ in range(30):
            site.time.advance(SECOND)
            session.renew_due()
        assert lease.expiry_ns <= began + 4 * SECOND + site.policy.lease_term_max_ns
        assert lease.ended == "expired"


def test_nobody_has_to_get_on_with_what_nobody_uses(site: HandSite) -> None:
    session, told = site.session(), list[Loss]()
    session.on_lost(told.append)
    with session.acquire("a", sticky_s=LONG, progress_within_s=2):
        pass
    for _ in range(LONG // 2):
        site.time.advance(SECOND)
        session.renew_due()
    (lease,) = session.acquire("a", sticky_s=LONG, progress_within_s=2)
    assert (acquires(site), told) == (1, [])
    for _ in range(LONG // 2):
        site.time.advance(SECOND)
        session.renew_due()
    assert [each.lease for each in told] == [lease]


@pytest.mark.parametrize("hold_s_max", [None, LONG])
def test_cap_of_a_lease_is_read_while_another_thread_takes_it_again_without_bounds(
    site: HandSite, monkeypatch: pytest.MonkeyPatch, hold_s_max: int | None
) -> None:
    session = site.session()
    (lease,) = session.acquire("a", sticky_s=LONG, progress_within_s=LONG, hold_s_max=hold_s_max)
    now = site.time.now

    def taken_again_meanwhile() -> TimeInterval:
        monkeypatch.setattr(site.time, "now", now)
        session._renewer.adopt([lease], ClockLook.of(site.time))
        return now()

    monkeypatch.setattr(site.time, "now", taken_again_meanwhile)
    assert lease.cap_ns() is not None
    assert (lease.progress_within_ns, lease.until_ns) == (None, None)


def test_set_that_is_kept_in_part_is_taken_anew(site: HandSite) -> None:
    session = site.session()
    with session.acquire("b", sticky_s=LONG):
        pass
    with session.acquire("a", "b", sticky_s=LONG, timeout_s=0) as both:
        fences = [each.fence for each in both]
    with session.acquire("b", "a", sticky_s=LONG, timeout_s=0) as again:
        assert [(each.domain, each.fence) for each in again] == list(zip("ab", fences, strict=True))


def test_lease_with_an_undecided_attempt_is_not_kept(site: HandSite) -> None:
    session = site.session()
    (lease,) = session.acquire("a", sticky_s=LONG)
    session.publish("log", [b"1"], under=[lease])
    undecided = Publication(
        file=FrameFile(session._logs.opened("log").grid.bag(site.time.midpoint_ns), DataName("n", bytes(8), 9), b""),
        digest=bytes(32), first_ns=1, last_ns=1, time=b"", sequence=9, messages=1, attempt_id=bytes(16),
        leases=(lease,), proven=((lease, lease.correlation_id),),
    )  # fmt: skip
    session._pending[bytes(16)] = undecided
    session.relinquish([lease])
    assert lease.ended in ("relinquished", "abandoned")
    assert session.keeper.held == {}


# -- over a socket, in threads -----------------------------------------------------------------------------------------


def test_waiter_gets_a_sticky_lease_from_another_session_long_before_its_expiry(whole: Site) -> None:
    with whole.open() as cluster, cluster.session("keeper") as keeper, cluster.session("rival") as rival:
        with keeper.acquire("a", sticky_s=LONG) as kept:
            pass
        with rival.acquire("a", timeout_s=LONG) as leases:
            assert leases[0].settle_to_ns < kept[0].expiry_ns, "it was relinquished, not broken"
            assert leases[0].fence > kept[0].fence


def test_flushing_holder_in_threads_writes_before_the_waiter_reads(whole: Site) -> None:
    with whole.open() as cluster, cluster.session("keeper") as keeper, cluster.session("rival") as rival:
        (lease,) = keeper.acquire("a", recall="flush")
        lease.on_recall(lambda each: keeper.publish("log", [b"flushed"], under=[each]))
        with rival.acquire("a", timeout_s=LONG) as leases:
            assert [each.payload for each in rival.read("log", under=leases)] == [b"flushed"]


def test_session_that_its_listener_closes_has_given_everything_back(whole: Site) -> None:
    with whole.open() as cluster, cluster.session("keeper") as keeper, cluster.session("rival") as rival:
        asked, other = keeper.acquire("a", "b", recall="finish")
        asked.on_recall(lambda _: keeper.close())
        with rival.acquire("a", timeout_s=LONG) as leases:
            assert leases[0].settle_to_ns < asked.expiry_ns, "it was relinquished, not broken"
            assert other.ended == "relinquished"


def test_closed_session_leaves_no_thread_behind(whole: Site) -> None:
    before = set(threading.enumerate())
    with whole.open() as cluster, cluster.session() as session:
        session.acquire("a", recall="finish")
        assert any(each.name.startswith("tenure-recalls") for each in threading.enumerate())
    left = [each for each in threading.enumerate() if each not in before and each.name.startswith("tenure-recalls")]
    assert left == []


# -- circles of waiters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ages", "sticky", "code"),
    [
        pytest.param((1,), None, "deadlock", id="older"),
        pytest.param((NOW_NS + 3_600 * SECOND,), None, "busy", id="younger"),
        pytest.param(tuple(range(1, 99)), None, "busy", id="another each time"),
        pytest.param((1, 0), None, "busy", id="has gone"),
        pytest.param((1,), 60 * SECOND, "busy", id="not in use"),
    ],
)
def test_who_waits_gives_way_only_to_an_older_one_that_goes_on_waiting_for_what_it_uses(
    site: HandSite, monkeypatch: pytest.MonkeyPatch, ages: tuple[int, ...], sticky: int | None, code: str
) -> None:
    rival, session = site.session(), site.session()
    theirs = rival.acquire("b")
    with session.acquire("a", sticky_s=None if sticky is None else sticky / SECOND) as mine:
        (own,) = mine
        if sticky is not None:
            session.relinquish(mine)
        looks = iter(ages)
        last = [0]

        def hear(shard: int, *_: object) -> Recalled:
            last[0] = next(looks, last[0])
            oldest = Age(first_try_ns=last[0], request_id=bytes(16)) if last[0] else None
            by = theirs[0].signed.witness().holder
            wanted = WantedLease(
                domain="a", correlation_id=own.correlation_id, mode=Mode.X, by=by, since_ns=0, oldest=oldest
            )
            return Recalled(request_id=bytes(16), run=bytes(8), heard=0, wanted=(wanted,))

        monkeypatch.setattr(session._recalls, "ask", hear)
        began = site.time.boot_ns()
        with pytest.raises(TryAgain) as told:
            session.acquire("b", timeout_s=8)
        assert told.value.code == code
        assert (site.time.boot_ns() - began < 8 * SECOND) is (code == "deadlock")
        if sticky is None:
            own.check()
    assert len(session.acquire("a", timeout_s=0)) == 1


def test_lease_that_yields_is_kept_when_another_asks_and_nobody_waits_in_a_circle(site: HandSite) -> None:
    session = site.session()
    (lease,) = session.acquire("a", recall="yield")
    (heard,) = session.acquire("b", recall="finish")
    busy(site)
    busy(site, "b")
    session.renew_due()
    assert (lease.recalled, heard.recalled) == (False, True), "the shard names both, and one is listened for"
    lease.check()
    with pytest.raises(BadRequest, match="kept from everybody"):
        session.acquire("b", recall="yield", sticky_s=1)
