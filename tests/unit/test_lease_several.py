"""What a shard does with one lease of a domain, or of a session, it does with each of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.formats.lease import Mode
from appliance.lease.ceiling import StoppedOrderly
from appliance.lease.wire import Denied, RenewSession, Revoke
from tests.support.cluster import HandSite, hand_sites
from timeagent.errors import TryAgain
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.lease.wire import Request
    from appliance.session.session import Session

TERM = 10 * SECOND


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path)


def together(site: HandSite, count: int) -> list[Session]:
    return [site.session(session_leases=True) for _ in range(count)]


def grow(site: HandSite, sessions: list[Session], span: int) -> None:
    """Let time pass, renewing as the threads of these sessions would."""
    for _ in range(span // SECOND):
        site.time.advance(SECOND)
        for session in sessions:
            session.renew_due()


def busy(site: HandSite, domain: str = "a") -> None:
    with pytest.raises(TryAgain):
        site.session("rival").acquire(domain, timeout_s=0)


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_each_of_those_who_share_a_domain_lives_as_long_as_its_own_session_lease(site: HandSite, dead: int) -> None:
    sessions = together(site, 3)
    leases = [each.acquire("a", mode=Mode.S)[0] for each in sessions]
    over = leases[dead].expiry_ns
    living = [each for number, each in enumerate(sessions) if number != dead]
    grow(site, living, 2 * TERM)
    busy(site)
    for session in living:
        session.check_held([lease for lease in leases if lease.keeper is session.keeper])
    living[0].close()
    busy(site)
    living[1].close()
    (after,) = site.session("rival").acquire("a", timeout_s=0)
    assert (after.floor_ns, after.settle_to_ns) == (over, over)


def test_all_who_share_a_domain_and_died_are_ended_for_the_next(site: HandSite) -> None:
    leases = [each.acquire("a", mode=Mode.S)[0] for each in together(site, 3)]
    site.time.advance(2 * TERM)
    (after,) = site.session("rival").acquire("a", timeout_s=0)
    assert after.settle_to_ns == max(lease.expiry_ns for lease in leases)


# Each session has a lease that is ended alone: each is told of its own, and of no other.
@pytest.mark.parametrize("which", [0, 1, 2])
def test_who_of_several_is_ended_alone_hears_of_it_and_the_others_do_not(site: HandSite, which: int) -> None:
    sessions = together(site, 3)
    leases = [each.acquire("a", mode=Mode.S)[0] for each in sessions]
    others = [each.acquire(f"own{number}")[0] for number, each in enumerate(sessions)]
    request = Revoke(
        request_id=site.chance.randbytes(16),
        domain="a",
        correlation_id=leases[which].correlation_id,
        by=leases[which].signed.witness().holder,
    )
    site.transports[0].call([request], SECOND)
    grow(site, sessions, 4 * SECOND)
    assert [lease.ended for lease in leases] == [("revoked" if number == which else None) for number in range(3)]
    for session, other in zip(sessions, others, strict=True):
        session.check_held([other])


def test_orderly_stop_waits_for_the_leases_of_every_session(site: HandSite) -> None:
    sessions = together(site, 3)
    for number, session in enumerate(sessions):
        session.acquire("a", mode=Mode.S)
        session.acquire(f"own{number}")
    shard = site.transports[0].shard
    assert shard is not None
    for session in sessions:
        assert not isinstance(shard.stop_orderly(), StoppedOrderly)
        session.close()
    assert isinstance(shard.stop_orderly(), StoppedOrderly)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_who_is_refused_is_told_of_the_lease_that_is_in_the_way_for_longest(
    site: HandSite, order: tuple[int, ...]
) -> None:
    terms = [2 * SECOND, 5 * SECOND, 9 * SECOND]
    leases = [site.session().acquire("a", mode=Mode.S, term_s=terms[number] / SECOND)[0] for number in order]
    (denied,) = site.session("rival").keeper.client(0).acquire(["a"])
    assert isinstance(denied, Denied)
    assert denied.until_ns == max(lease.expiry_ns for lease in leases)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_renewal_changes_the_lease_that_is_renewed_and_no_other(site: HandSite, which: int) -> None:
    sessions = [site.session() for _ in range(3)]
    leases = [each.acquire("a", mode=Mode.S)[0] for each in sessions]
    grow(site, [sessions[which]], 2 * TERM)
    sessions[which].check_held([leases[which]])
    busy(site)
    sessions[which].close()
    (after,) = site.session("rival").acquire("a", timeout_s=0)
    assert after.settle_to_ns == max(lease.expiry_ns for lease in leases if lease is not leases[which])


def test_everybody_who_died_under_a_session_lease_of_one_turn_is_remembered(site: HandSite) -> None:
    sessions = together(site, 3)
    leases = [each.acquire(f"own{number}")[0] for number, each in enumerate(sessions)]
    transport = site.transports[0]
    requests: list[Request] = [
        RenewSession(
            map_number=1,
            request_id=site.chance.randbytes(16),
            session_id=lease.session_lease.session_id,
            term_ns=TERM,
            expiry_ns_max=site.time.midpoint_ns + 9 * TERM,
        )
        for lease in leases
        if lease.session_lease is not None
    ]
    site.time.advance(5 * SECOND)
    assert len(transport.call(requests, SECOND)) == 3  # in one turn
    site.time.advance(8 * SECOND)
    for number in range(3):
        busy(site, f"own{number}")
