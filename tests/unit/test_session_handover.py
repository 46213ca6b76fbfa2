"""How leases pass from a session to the next: given back, or left by a holder that died or stood still."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.bag.writing import Committed, Unknown
from appliance.lease.wire import Relinquish, Renew, Request
from tests.support.cluster import HandSite, hand_sites
from timeagent.errors import BadRequest, BadTime, LeaseLost
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

from tests.support.session_world import LOG, Planted, payloads, publish, sent


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path)


@pytest.fixture
def mount(site: HandSite) -> Planted:
    return Planted(site.storage)


# -- giving back -------------------------------------------------------------------------------------------------------


def test_relinquishing_says_watermark_count_and_chain_head(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a", "b") as leases:
        publish(session, leases, b"1", b"2")
        session.publish(LOG, [b"3"], under=leases[:1])
        last = session.read(LOG, under=leases)[-1]
    a, b = sorted(sent(site, Relinquish), key=lambda given: given.domain)
    assert (a.messages, b.messages) == (3, 2)
    assert a.watermark_ns == last.timestamp_ns
    assert b.watermark_ns is not None
    assert b.watermark_ns < last.timestamp_ns
    assert a.chain_head not in (None, b.chain_head)
    assert [lease.ended for lease in leases] == ["relinquished"] * 2


def test_next_holder_writes_above_the_watermark_and_need_not_wait(site: HandSite) -> None:
    first, second = site.session(), site.session()
    with first.acquire("a") as leases:
        publish(first, leases, b"1")
        watermark = leases[0].watermark_ns
    before = site.time.midpoint_ns
    with second.acquire("a") as leases:
        assert (leases[0].floor_ns, leases[0].settle_to_ns) == (watermark, 0)
        assert [m.payload for m in second.read(LOG, under=leases)] == [b"1"]
        assert publish(second, leases, b"2") == Committed()
    assert site.time.midpoint_ns == before
    assert payloads(site) == [b"1", b"2"]


def test_who_wrote_nothing_relinquishes_without_a_watermark(site: HandSite) -> None:
    with site.session().acquire("a"):
        pass
    (given,) = sent(site, Relinquish)
    assert (given.watermark_ns, given.watermark_time, given.messages) == (None, None, 0)


def test_exception_in_the_block_gives_the_leases_back_and_comes_out(site: HandSite) -> None:
    session = site.session()
    with pytest.raises(ZeroDivisionError), session.acquire("a", "b"):
        raise ZeroDivisionError
    assert len(sent(site, Relinquish)) == 2
    site.session().acquire("a", "b", timeout_s=0)


def test_closing_gives_everything_back_once(site: HandSite) -> None:
    session = site.session()
    session.acquire("a")
    leases = session.acquire("b")
    session.close()
    session.close()
    session.relinquish(leases)
    assert len(sent(site, Relinquish)) == 2
    with pytest.raises(LeaseLost) as lost:
        publish(session, leases, b"1")
    assert lost.value.code == "lease-relinquished"
    with pytest.raises(BadRequest) as closed:
        session.acquire("c")
    assert closed.value.code == "session-closed"


def test_lease_that_is_granted_while_the_session_closes_is_given_back(site: HandSite) -> None:
    session = site.session()

    def close(requests: list[Request]) -> None:
        site.transports[0].before = lambda _: None
        session.close()

    site.transports[0].before = close
    with pytest.raises(BadRequest, match="closed"):
        session.acquire("a")
    site.session().acquire("a", timeout_s=0)


def test_lease_that_expired_here_is_given_back_all_the_same(site: HandSite) -> None:
    session = site.session()
    leases = session.acquire("a")
    publish(session, leases, b"1")
    site.time.advance(site.policy.lease_term_max_ns)
    with pytest.raises(LeaseLost):
        publish(session, leases, b"2")
    session.relinquish(leases)
    (next_one,) = site.session().acquire("a")
    assert (next_one.floor_ns, next_one.settle_to_ns) == (leases[0].watermark_ns, 0)


def test_lease_under_an_attempt_that_stays_unknown_is_abandoned_to_its_expiry(site: HandSite, mount: Planted) -> None:
    session, other = site.session(storage=mount), site.session()
    leases = session.acquire("a", "b")
    publish(session, leases, b"1")
    mount.refused = f"logs/{LOG}/2026"
    assert isinstance(session.publish(LOG, [b"2"], under=leases[:1]), Unknown)
    before = site.time.midpoint_ns
    session.close()
    longest = (
        site.policy.span_ns + site.policy.grace_ns + 2 * site.policy.radius_ns_max + site.policy.attempt_timeout_ns
    )
    assert site.time.midpoint_ns - before <= longest + SECOND
    assert [lease.ended for lease in leases] == ["abandoned", "relinquished"]
    assert [given.domain for given in sent(site, Relinquish)] == ["b"]
    (next_one,) = other.acquire("a", timeout_s=20)
    assert next_one.settle_to_ns == leases[0].expiry_ns
    assert [m.payload for m in other.read(LOG, under=[next_one])] == [b"1"]


def test_relinquishing_waits_for_what_another_thread_is_writing(site: HandSite, mount: Planted) -> None:
    session, other = site.session(storage=mount), site.session()
    leases = session.acquire("a")
    seen: list[list[bytes]] = []

    def given_back_and_taken() -> None:
        session.relinquish(leases)
        with other.acquire("a", timeout_s=0) as later:
            seen.append([m.payload for m in other.read(LOG, under=later)])
            publish(other, later, b"later")

    mount.before("publish", ".msg", given_back_and_taken)
    with pytest.raises(LeaseLost) as lost:  # the attempt is late, and there is no other
        publish(session, leases, b"earlier")
    assert lost.value.code == "lease-relinquished"
    assert seen == [[]]
    assert payloads(site) == [b"later"]


def test_relinquishing_counts_what_another_thread_has_just_written(site: HandSite, mount: Planted) -> None:
    session, other = site.session(storage=mount), site.session()
    leases = session.acquire("a")

    def written_and_stopped(call: Callable[[], object]) -> object:
        result = call()
        session.relinquish(leases)
        with other.acquire("a", timeout_s=0) as later:
            assert [m.payload for m in other.read(LOG, under=later)] == [b"earlier"]
            publish(other, later, b"later")
        return result

    mount.at("publish", ".msg", written_and_stopped)
    assert publish(session, leases, b"earlier") == Committed()
    assert sent(site, Relinquish)[0].messages == 1
    assert leases[0].messages == 1
    assert payloads(site) == [b"earlier", b"later"]


def test_interrupted_write_is_accounted_for_before_the_lease_is_given_back(site: HandSite, mount: Planted) -> None:
    def interrupted(call: Callable[[], object]) -> object:
        call()
        raise KeyboardInterrupt

    session = site.session(storage=mount)
    mount.at("publish", ".msg", interrupted)
    with pytest.raises(KeyboardInterrupt), session.acquire("a") as leases:
        publish(session, leases, b"1")
    (given,) = sent(site, Relinquish)
    assert given.messages == 1
    assert payloads(site) == [b"1"]


# -- a dead or paused holder -------------------------------------------------------------------------------------------


def die(site: HandSite) -> None:
    """Let the term of whoever is stopped run out."""
    site.time.advance(site.policy.lease_term_max_ns + 2 * site.time.radius_ns + 1)


def test_log_is_settled_before_its_first_use_under_a_broken_lease(site: HandSite) -> None:
    first, second = site.session(), site.session()
    leases = first.acquire("a")
    publish(first, leases, b"1")
    die(site)
    (lease,) = second.acquire("a")
    assert lease.settle_to_ns == leases[0].expiry_ns
    book = second._logs.opened(LOG)
    assert book.horizon.reached < lease.settle_to_ns
    assert [m.payload for m in second.read(LOG, under=[lease])] == [b"1"]
    assert book.horizon.reached >= lease.settle_to_ns


@pytest.mark.parametrize("first_use", ["read", "publish"])
def test_paused_holder_that_goes_on_after_a_takeover_is_late(site: HandSite, mount: Planted, first_use: str) -> None:
    paused, other = site.session(storage=mount), site.session()
    leases = paused.acquire("a")
    publish(paused, leases, b"1")
    seen: list[list[bytes]] = []

    def taken_over() -> None:
        die(site)
        with other.acquire("a") as later:
            if first_use == "read":
                seen.append([m.payload for m in other.read(LOG, under=later)])
            publish(other, later, b"2")

    mount.before("publish", ".msg", taken_over)
    with pytest.raises(LeaseLost):
        publish(paused, leases, b"late")
    assert seen in ([], [[b"1"]])
    assert payloads(site) == [b"1", b"2"]


# The paused holder is the first to use the log: there is nothing to settle but what it might still begin.
@pytest.mark.parametrize("ending", ["/log", ".msg"])
def test_log_that_does_not_exist_yet_can_not_begin_in_the_past(site: HandSite, mount: Planted, ending: str) -> None:
    paused, other = site.session(storage=mount), site.session()
    leases = paused.acquire("a")

    def taken_over() -> None:
        die(site)
        with other.acquire("a") as later:
            assert other.read(LOG, under=later) == []
            publish(other, later, b"2")

    mount.before("publish", ending, taken_over)
    with pytest.raises(LeaseLost):
        publish(paused, leases, b"late")
    assert payloads(site) == [b"2"]


def test_every_log_is_settled_for_itself(site: HandSite, mount: Planted) -> None:
    paused, other = site.session(storage=mount), site.session()
    leases = paused.acquire("a")
    for log in ("one", "two"):
        paused.publish(log, [b"1"], under=leases)

    def taken_over() -> None:
        die(site)
        later = other.acquire("a")
        other.read("one", under=later)
        other.publish("two", [b"2"], under=later)

    mount.before("publish", ".msg", taken_over)
    with pytest.raises(LeaseLost):
        paused.publish("two", [b"late"], under=leases)
    assert [m.payload for m in site.settled("two")] == [b"1", b"2"]


def test_shard_that_died_leaves_no_gap_for_its_holders_either(site: HandSite, mount: Planted) -> None:
    paused, other = site.session(storage=mount), site.session()
    leases = paused.acquire("a")
    publish(paused, leases, b"1")

    def shard_restarted() -> None:
        site.start()
        with other.acquire("a") as later:
            assert later[0].settle_to_ns > leases[0].expiry_ns
            assert [m.payload for m in other.read(LOG, under=later)] == [b"1"]
            publish(other, later, b"2")

    mount.before("publish", ".msg", shard_restarted)
    with pytest.raises(LeaseLost):
        publish(paused, leases, b"late")
    assert payloads(site) == [b"1", b"2"]


def test_settling_is_compared_again_when_a_lease_asks_for_more(site: HandSite) -> None:
    session = site.session()
    (lease,) = leases = session.acquire("a")
    publish(session, leases, b"1")
    lease.settle_to_ns = site.time.midpoint_ns + SECOND  # as an upgrade may
    session.read(LOG, under=leases)
    assert session._logs.opened(LOG).horizon.reached >= lease.settle_to_ns


def test_lease_is_renewed_while_its_log_is_settled(site: HandSite) -> None:
    first, second = site.session(), site.session()
    publish(first, first.acquire("a"), b"1")
    site.start()
    (lease,) = second.acquire("a", record_only=True)
    granted = lease.expiry_ns
    site.transports[0].calls.clear()
    second.read(LOG, under=[lease])
    assert site.time.midpoint_ns > granted  # the wait was longer than the term
    assert len(sent(site, Renew)) >= 3
    second.check_held([lease])


# Its holder is inside publish, and that has to wait: it hangs no more than one that acquires.
def test_holder_that_has_to_get_on_keeps_its_lease_while_its_log_is_settled(site: HandSite) -> None:
    site.session("first").acquire("a")
    site.start()
    session = site.session("second")
    leases = session.acquire("a", record_only=True, progress_within_s=2)
    began = site.time.now().latest
    assert session.publish("log", [b"1"], under=leases) == Committed()
    assert site.time.now().earliest - began > 2 * SECOND + site.policy.lease_term_max_ns


def test_holder_that_has_to_get_on_keeps_its_lease_while_an_upgrade_waits_for_earlier_ones(
    site: HandSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = site.session()
    (lease,) = session.acquire("a", progress_within_s=2)

    def strengthened(*_: object) -> None:
        lease.settle_to_ns = site.time.midpoint_ns + 2 * site.policy.lease_term_max_ns

    monkeypatch.setattr(session._leasing, "strengthen", strengthened)
    session.upgrade(lease, "X")
    assert site.time.now().surely_past(lease.settle_to_ns)
    lease.check()


def test_lease_that_cannot_be_renewed_while_its_log_is_settled_is_lost(site: HandSite) -> None:
    first, second = site.session(), site.session()
    publish(first, first.acquire("a"), b"1")
    site.start()
    leases = second.acquire("a", record_only=True)
    site.transports[0].shard = None
    with pytest.raises(LeaseLost):
        second.read(LOG, under=leases)


def test_settle_to_further_ahead_than_any_ceiling_is_refused_not_waited_for(site: HandSite) -> None:
    session = site.session()
    leases = session.acquire("a")
    leases[0].settle_to_ns = site.time.midpoint_ns + 3_600 * SECOND
    with pytest.raises(BadTime) as refused:
        session.read(LOG, under=leases)
    assert refused.value.code == "floor-too-far-ahead"


def test_floor_ahead_is_waited_for_while_the_lease_is_renewed(site: HandSite) -> None:
    session = site.session()
    leases = session.acquire("a")
    leases[0].floor_ns = site.time.midpoint_ns + 11 * SECOND
    assert publish(session, leases, b"1") == Committed()
    (message,) = session.read(LOG, under=leases)
    assert message.timestamp_ns > leases[0].floor_ns
    assert sent(site, Renew)


def test_what_was_read_is_below_what_is_written_next(site: HandSite) -> None:
    reader, writer = site.session(), site.session()
    with writer.acquire("a") as leases:
        publish(writer, leases, *[b"x"] * 1_000)
    with reader.acquire("b") as leases:
        last = reader.read(LOG, under=leases)[-1].timestamp_ns
        publish(reader, leases, b"y")
        assert reader.read(LOG, under=leases)[-1].timestamp_ns == last + 1
