"""What became of leases, counted from the ledger: by the first part of names, and by a sample where it is much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.formats.lease import LeaseOutcome
from appliance.node.hosted_shard import COUNTED_MAX, PARTS_MAX, REST, LeaseCounts, first_part
from tests.support.cluster import HandSite, hand_sites
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path)


def counted(site: HandSite) -> LeaseCounts:
    counts = LeaseCounts()
    counts.count(b"".join(site._ledgers[0].data))
    return counts


@pytest.mark.parametrize(
    ("domain", "part"),
    [
        ("account/7", "account"),
        ("deploy", "deploy"),
        ("/srv/a/b", "/srv"),
        ("/srv", "/srv"),
        ("/semaphore:gpu/4/0", "/semaphore"),
        ("/", "/"),
    ],
)
def test_first_part_of_a_name(domain: str, part: str) -> None:
    assert first_part(domain) == part


def test_leases_are_counted_with_their_ends_and_how_long_they_were_held(site: HandSite) -> None:
    session = site.session()
    for number in (1, 2):
        (lease,) = session.acquire(f"account/{number}")
        site.time.advance(2 * SECOND)
        session.relinquish([lease])
    site.session().acquire("deploy")
    counts = counted(site)
    assert dict(counts.grants) == {"account": 2, "deploy": 1}
    assert dict(counts.ends) == {("account", LeaseOutcome.RELINQUISHED): 2}
    assert counts.held_ns["account"] == pytest.approx(4 * SECOND, abs=MS)
    assert not counts.sad


def test_grant_of_what_an_earlier_holder_lost_is_counted_with_the_wait_for_it(site: HandSite) -> None:
    (lost,) = site.session().acquire("account/1")
    site.time.advance(SECOND)
    site.start()
    site.session().acquire("account/1", record_only=True)
    counts = counted(site)
    assert counts.sad["account"] == 1
    left = lost.term_ns - SECOND
    assert left <= counts.sad_ns["account"] <= left + site.policy.ceiling_ahead_ns + SECOND


def test_expired_lease_is_counted_when_another_meets_it(site: HandSite) -> None:
    (lease,) = site.session().acquire("d")
    site.time.advance(lease.term_ns + SECOND)
    site.session().acquire("d")
    assert dict(counted(site).ends) == {("d", LeaseOutcome.EXPIRED): 1}


def test_names_of_which_too_many_come_are_counted_together(site: HandSite) -> None:
    site.session().acquire(*(f"name-{number}" for number in range(PARTS_MAX)), record_only=True)
    site.session().acquire("another", "and-another", record_only=True)
    counts = counted(site)
    assert len(counts.grants) == PARTS_MAX + 1
    assert counts.grants[REST] == 2


def test_requests_that_waited_are_counted_by_what_came_of_them() -> None:
    counts = LeaseCounts()
    for domain, granted in (("account/1", True), ("account/2", True), ("account/1", False), ("deploy", True)):
        counts.waited(domain, SECOND, granted)
    assert dict(counts.waits) == {("account", True): 2, ("account", False): 1, ("deploy", True): 1}
    assert counts.waits_ns["account", True] == 2 * SECOND


def test_large_block_is_counted_by_a_sample(site: HandSite) -> None:
    many = 10 * COUNTED_MAX
    site.session().acquire(*(f"a/{number}" for number in range(many)), record_only=True)
    assert counted(site).grants["a"] == pytest.approx(many, rel=0.05)
