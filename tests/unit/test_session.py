"""A session over a hand-driven clock: what is in the record, in which order, whatever fails or stops in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from appliance.bag.writing import Committed
from appliance.formats.lease import Mode
from appliance.lease.wire import Acquire, Relinquish, Renew, Revoke, Unavailable
from tests.support.cluster import HandSite, hand_sites
from timeagent.errors import BadRequest, LeaseLost, ShardUnavailable, TryAgain
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from appliance.lease.shard import Shard
    from appliance.lease.wire import Reply, Request
    from appliance.session.session import Session
from tests.support.session_world import LOG, Planted, payloads, publish, sent


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path)


@pytest.fixture
def mount(site: HandSite) -> Planted:
    return Planted(site.storage)


class Clockless:
    """A shard whose node's clock has no bound."""

    def turn(self, requests: list[Request]) -> list[Reply]:
        asked = [each for each in requests if isinstance(each, Acquire)]
        return [Unavailable(each.request_id, "bad-time", "no usable time at node b: planted") for each in asked]


def test_shard_without_time_is_told_with_the_way_out_for_clocks(site: HandSite) -> None:
    site.transports[0].shard = cast("Shard", Clockless())
    with pytest.raises(ShardUnavailable) as refused:
        site.session().acquire("a", timeout_s=0)
    assert refused.value.code == "bad-time"
    assert "tenure time sources" in refused.value.hint


# -- renewing ----------------------------------------------------------------------------------------------------------


def test_lease_is_renewed_once_its_period_is_used_up_and_not_before(site: HandSite) -> None:
    session = site.session()
    leases = session.acquire("a")
    first = leases[0].expiry_ns
    site.time.advance(site.policy.renew_period_ns - site.time.radius_ns - 1)
    session.renew_due()
    assert sent(site, Renew) == []
    site.time.advance(1)
    session.renew_due()
    assert len(sent(site, Renew)) == 1
    assert leases[0].expiry_ns == first + site.policy.renew_period_ns - site.time.radius_ns


def test_message_under_a_renewed_lease_carries_the_newer_witness(site: HandSite) -> None:
    session = site.session()
    (lease,) = leases = session.acquire("a")
    first = lease.expiry_ns
    for _ in range(4):
        site.time.advance(site.policy.renew_period_ns)
        session.renew_due()
    assert site.time.midpoint_ns > first
    assert publish(session, leases, b"1") == Committed()
    session.relinquish(leases)
    assert payloads(site) == [b"1"]


def test_short_terms_are_asked_for_again_as_such(site: HandSite) -> None:
    session = site.session()
    short, long = session.acquire("a", term_s=2), session.acquire("b")
    site.time.advance(SECOND)
    session.renew_due()
    (asked,) = sent(site, Renew)
    assert asked.domain == "a"
    assert asked.term_ns == 2 * SECOND
    assert short[0].expiry_ns < long[0].expiry_ns


def test_renewal_that_is_not_answered_leaves_the_lease_as_it_is(site: HandSite) -> None:
    session = site.session()
    (lease,) = leases = session.acquire("a")
    before = lease.expiry_ns
    site.time.advance(site.policy.renew_period_ns)
    site.transports[0].script = ["lost"] * 3
    session.renew_due()
    assert (lease.expiry_ns, lease.ended) == (before, None)
    session.renew_due()
    assert lease.expiry_ns > before
    session.check_held(leases)


def test_lease_that_its_shard_does_not_know_any_more_is_lost_by_name(site: HandSite) -> None:
    session = site.session()
    leases = session.acquire("a")
    site.start()
    site.time.advance(site.policy.renew_period_ns)
    session.renew_due()
    with pytest.raises(LeaseLost) as lost:
        publish(session, leases, b"1")
    assert lost.value.code == "lease-unknown"


# -- being somebody else -----------------------------------------------------------------------------------------------


def test_child_after_fork_can_neither_write_nor_give_back(site: HandSite) -> None:
    session = site.session()
    leases = session.acquire("a")
    session.keeper.process += 1
    uses: tuple[Callable[[], object], ...] = (
        lambda: publish(session, leases, b"1"),
        lambda: session.acquire("b"),
        lambda: session.read(LOG, under=leases),
    )
    for use in uses:
        with pytest.raises(BadRequest) as refused:
            use()
        assert refused.value.code == "forked"
    session.relinquish(leases)
    session.close()
    assert sent(site, Relinquish) == []
    session.keeper.process -= 1
    assert publish(session, leases, b"1") == Committed()


@pytest.mark.parametrize(
    "use",
    [
        lambda session: session.acquire(),
        lambda session: session.acquire(""),
        lambda session: session.acquire("x" * 513),
        lambda session: session.acquire("a\nb"),
        lambda session: session.acquire("\ud800"),
        lambda session: session.acquire("a", term_s=0),
        lambda session: session.acquire("a", term_s=0.5),
        lambda session: session.read(LOG, level="all"),
        lambda session: session.read("nolog"),
        lambda session: session.horizon("nolog"),
    ],
)
def test_bad_request_is_refused_before_any_shard_is_asked(site: HandSite, use: Callable[[Session], object]) -> None:
    before = dict(site.storage.files)
    with pytest.raises(BadRequest) as refused:
        use(site.session())
    assert refused.value.hint
    assert site.transports[0].calls == []
    assert site.storage.files == before


def test_purpose_with_control_characters_is_refused(site: HandSite) -> None:
    with pytest.raises(BadRequest):
        site.session("a\tb")


def test_leases_are_a_sequence(site: HandSite) -> None:
    with site.session().acquire("a", "b", "a") as leases:
        assert len(leases) == 2
        assert [lease.domain for lease in leases[1:]] == ["b"]
        assert leases[0] in leases


def test_two_holders_never_hold_at_once(site: HandSite) -> None:
    site.session("the first").acquire("a")
    with pytest.raises(TryAgain) as busy:
        site.session().acquire("a", timeout_s=1)
    assert busy.value.code == "busy"
    assert len({request.request_id for request in sent(site, Acquire)}) == 2


# What else than messages is done under a lease is not protected by settling: the wait has to come before it begins.
def test_acquire_waits_until_no_earlier_holder_can_believe_in_his_lease(site: HandSite) -> None:
    first = site.session()
    (dead,) = first.acquire("a")
    site.time.advance(dead.expiry_ns - site.time.midpoint_ns + site.policy.radius_ns_max + MS)
    second = site.session()
    (lease,) = second.acquire("a")
    assert lease.settle_to_ns == dead.expiry_ns
    assert site.time.now().surely_past(dead.expiry_ns)


def test_lease_is_given_back_when_the_wait_for_earlier_holders_is_too_long(site: HandSite) -> None:
    site.start()
    (held,) = site.session().acquire("a")
    site.start()  # the shard's next incarnation knows nothing of it, but its floor does
    second = site.session()
    with pytest.raises(TryAgain) as waited:
        second.acquire("a", timeout_s=0.01)
    assert waited.value.code == "warming"
    assert not site.time.now().surely_past(held.expiry_ns)
    (third,) = site.session().acquire("a", timeout_s=60)
    assert site.time.now().surely_past(held.expiry_ns)
    assert third.fence > held.fence


def test_what_bounds_a_hold_counts_from_when_the_wait_for_earlier_holders_is_over(site: HandSite) -> None:
    cap = 2 * SECOND
    site.session().acquire("a")
    site.start()
    began = site.time.midpoint_ns
    (lease,) = site.session().acquire("a", hold_s_max=cap / SECOND, progress_within_s=cap / SECOND, timeout_s=60)
    assert site.time.midpoint_ns - began > 2 * cap
    assert lease.until_ns == site.time.now().latest + cap


# What acts on the world goes by its lease alone: of two runs that look at theirs first, no acts may overlap.
@pytest.mark.parametrize("ending", ["restart", "revocation", "upgrade"])
def test_acts_of_two_runs_never_overlap_whatever_ended_the_lease_of_the_first(site: HandSite, ending: str) -> None:
    shared = Mode.S if ending == "upgrade" else Mode.X
    (held,) = site.session("first").acquire("a", mode=shared)
    second = site.session("second")
    if ending == "upgrade":
        (lease,) = second.acquire("a", mode=shared)
    shard = site.transports[0].shard
    assert shard is not None
    if ending == "restart":
        site.start()
    else:
        by = held.signed.witness().holder
        shard.turn([Revoke(request_id=bytes(16), domain="a", correlation_id=held.correlation_id, by=by)])
    if ending == "upgrade":
        second.upgrade(lease, Mode.X, timeout_s=60)
    else:
        (lease,) = second.acquire("a", timeout_s=60)
    lease.check()  # from here on the second acts
    with pytest.raises(LeaseLost):
        held.check()
