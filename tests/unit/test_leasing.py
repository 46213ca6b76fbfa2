"""Taking several leases over several shards: all or none, the older set first, and a denial that says who has what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.bag.writing import Committed
from appliance.formats.lease import Mode
from appliance.lease.wire import Acquire, Age, Relinquish, Request, Upgrade
from tests.support.clocks import HandTime
from tests.support.cluster import HandSite, hand_sites
from tests.support.values import TIME_KEY
from timeagent.errors import BadRequest, BadTime, LeaseLost, ShardUnavailable, TryAgain
from timeagent.signedtime import ClockStatus
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path, shards=3)


def of_shards(site: HandSite, *shards: int) -> list[str]:
    """One domain of each of these shards."""
    names = site.domains(60)
    return [next(name for name in names if site.shard_of(name) == shard) for shard in shards]


def free(site: HandSite, *domains: str) -> bool:
    """Whether somebody else can have all of them at once."""
    other = site.session()
    site.time.advance(1)  # younger than whoever asked before: it breaks no tentative lease
    try:
        other.acquire(*domains, timeout_s=0)
    except TryAgain:
        return False
    other.close()
    return True


def test_set_over_all_shards_is_taken_tentatively_and_then_held(site: HandSite) -> None:
    domains = of_shards(site, 0, 1, 2)
    leases = site.session().acquire(*domains)
    assert [lease.domain for lease in leases] == sorted(domains)
    assert {lease.signed.witness().kind for lease in leases} == {"upgrade"}
    for transport in site.transports:
        assert [type(request) for request in transport.calls] == [Acquire, Upgrade]


def test_single_domain_is_taken_at_once(site: HandSite) -> None:
    (lease,) = site.session().acquire("d")
    assert lease.signed.witness().kind == "grant"
    assert lease.signed.witness().phase == "held"


def test_set_with_one_obstacle_takes_nothing(site: HandSite) -> None:
    domains = of_shards(site, 0, 1, 2)
    site.session().acquire(domains[2])
    with pytest.raises(TryAgain):
        site.session().acquire(*domains, timeout_s=0)
    assert free(site, *domains[:2])


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_set_with_one_silent_shard_takes_nothing_and_says_which(site: HandSite, silent: int) -> None:
    domains = of_shards(site, 0, 1, 2)
    shard, site.transports[silent].shard = site.transports[silent].shard, None
    with pytest.raises(ShardUnavailable) as refused:
        site.session().acquire(*domains, timeout_s=0)
    assert repr(domains[silent]) in refused.value.message
    assert refused.value.exit_status == 69
    site.transports[silent].shard = shard
    assert free(site, *(domain for domain in domains if domain != domains[silent]))


def test_shard_that_falls_silent_between_taking_and_upgrading_leaves_nothing_held(site: HandSite) -> None:
    domains = of_shards(site, 0, 1, 2)

    def fall_silent(requests: list[Request]) -> None:
        if isinstance(requests[0], Upgrade):
            site.transports[1].script = ["lost"] * 6
            site.transports[1].before = lambda _: None

    site.transports[1].before = fall_silent
    with pytest.raises(TryAgain):
        site.session().acquire(*domains, timeout_s=0)
    assert free(site, *(domain for domain in domains if site.shard_of(domain) != 1))


def test_whatever_stops_a_set_gives_back_what_it_has(site: HandSite) -> None:
    domains = of_shards(site, 0, 1)

    def interrupted(_: list[Request]) -> None:
        site.transports[1].before = lambda _: None
        raise KeyboardInterrupt

    site.transports[1].before = interrupted
    with pytest.raises(KeyboardInterrupt):
        site.session().acquire(*domains)
    assert free(site, *domains)


def test_clock_that_fails_in_the_middle_of_a_set_gives_back_what_it_has(site: HandSite) -> None:
    domains = of_shards(site, 0, 1)
    session = site.session()
    transport = session.keeper.routes.transport

    def no_time(shard: int) -> object:
        if shard == 1:
            raise BadTime("no-time", "planted")
        return transport(shard)

    session.keeper.routes.transport = no_time  # type: ignore[method-assign, assignment]
    with pytest.raises(BadTime):
        session.acquire(*domains)
    del site.transport
    assert free(site, *domains)


def test_lost_answer_is_asked_for_again_under_the_same_id(site: HandSite) -> None:
    transport = site.transports[0]
    transport.script = ["done", "done", "done"]
    site.session().acquire(*of_shards(site, 0))
    asked = [request.request_id for request in transport.calls if isinstance(request, Acquire)]
    assert len(asked) == 4
    assert len(set(asked)) == 1


# The answer came too late to be of use, and the lease was given back: its request gets nothing any more.
def test_answer_that_comes_too_late_is_followed_by_a_new_request(site: HandSite) -> None:
    transport = site.transports[0]

    def slow(requests: list[Request]) -> None:
        if isinstance(requests[0], Acquire):
            transport.before = lambda _: None
            shard = transport.shard
            assert shard is not None
            turn = shard.turn

            def late(asked: list[Request]) -> object:
                replies = turn(asked)
                site.time.advance(site.policy.lease_term_max_ns - 100 * MS)
                shard.turn = turn  # type: ignore[method-assign]
                return replies

            shard.turn = late  # type: ignore[method-assign, assignment]

    transport.before = slow
    (domain,) = of_shards(site, 0)
    leases = site.session().acquire(domain, timeout_s=30)
    asked = {request.request_id for request in transport.calls if isinstance(request, Acquire)}
    assert len(asked) == 2
    assert any(isinstance(request, Relinquish) for request in transport.calls)
    leases[0].check_held(site.time.now(), site.policy.holder_margin_ns)


def test_denied_set_keeps_its_age_while_it_asks_again(site: HandSite) -> None:
    first, second = of_shards(site, 0, 1)
    holder = site.session()
    holder.acquire(second)
    ages: set[Age] = set()

    def watch(requests: list[Request]) -> None:
        ages.update(request.age for request in requests if isinstance(request, Acquire))

    for transport in site.transports[:2]:
        transport.before = watch
    with pytest.raises(TryAgain):
        site.session().acquire(first, second, timeout_s=1)
    assert len(ages) == 1
    asked = [[each for each in line.calls if isinstance(each, Acquire)] for line in site.transports[:2]]
    assert len(asked[0]) == 1  # what it has it keeps while it waits for the rest
    assert len(asked[1]) > 3
    assert len({each.request_id for each in asked[1][1:]}) == 1


def test_older_set_wounds_the_younger_one_which_wins_later(site: HandSite) -> None:
    low, high = of_shards(site, 0, 2)
    older, younger = site.session("older"), site.session("younger")
    won: list[str] = []

    # The younger set has both tentatively when the older one, asked for a moment before, comes to take them.
    ask = older.keeper.client(0).ask(low)
    site.time.advance(MS)

    def older_comes(requests: list[Request]) -> None:
        if isinstance(requests[0], Upgrade):
            site.transports[0].before = lambda _: None
            site.transports[2].before = lambda _: None
            client = older.keeper.client
            client(0).ask = lambda *_: ask  # type: ignore[method-assign]
            with older.acquire(low, high, timeout_s=0):
                won.append("older")

    site.transports[0].before = older_comes
    with younger.acquire(low, high, timeout_s=5):
        won.append("younger")
    assert won == ["older", "younger"]


def test_younger_set_cannot_take_what_an_older_one_has_tentatively(site: HandSite) -> None:
    low, high = of_shards(site, 0, 2)
    older, younger = site.session(), site.session()

    def younger_comes(requests: list[Request]) -> None:
        if isinstance(requests[0], Upgrade):
            site.transports[0].before = lambda _: None
            site.time.advance(MS)
            with pytest.raises(TryAgain, match="tentative"):
                younger.acquire(low, high, timeout_s=0)

    site.transports[0].before = younger_comes
    older.acquire(low, high, timeout_s=0)
    older.check_held(list(older.keeper.held))


def test_busy_names_who_has_it_why_since_when_and_until_when(site: HandSite) -> None:
    (lease,) = site.session("month end").acquire("account/7")
    witness = lease.signed.witness()
    with pytest.raises(TryAgain) as busy:
        site.session().acquire("account/7", timeout_s=2)
    text = busy.value.message
    assert busy.value.code == "busy"
    assert busy.value.exit_status == 75
    assert "'account/7' is held by" in text
    assert f"{witness.holder.node}/{witness.holder.process} (month end)" in text
    assert "since 2026-11-20T22:10:07.5" in text
    assert "until 2026-11-20T22:10:17.5" in text
    assert "waited 2 s" in text
    assert busy.value.hint


def test_waiting_ends_with_its_time_out_and_does_not_hammer(site: HandSite) -> None:
    site.session().acquire("d")
    begun = site.time.boot_ns()
    transport = site.transports[site.shard_of("d")]
    transport.calls.clear()
    with pytest.raises(TryAgain):
        site.session().acquire("d", timeout_s=5)
    assert 5 * SECOND <= site.time.boot_ns() - begun < 6 * SECOND
    assert 20 < len(transport.calls) < 80


def test_domain_is_had_as_soon_as_its_holder_expired_or_gave_it_back(site: HandSite) -> None:
    holder = site.session()
    leases = holder.acquire("d")
    transport = site.transports[site.shard_of("d")]

    def give_back_after_three(requests: list[Request]) -> None:
        if len(transport.calls) == 4:
            transport.before = lambda _: None
            holder.relinquish(leases)

    transport.calls.clear()
    transport.before = give_back_after_three
    begun = site.time.boot_ns()
    other = site.session()
    other.acquire("d")
    assert site.time.boot_ns() - begun < SECOND
    third = site.session()
    third.acquire("d", timeout_s=20)
    assert site.time.boot_ns() - begun < 12 * SECOND


def test_suspect_witness_is_refused_by_name_and_given_back(site: HandSite) -> None:
    (domain,) = of_shards(site, 0)
    ahead = HandTime(TIME_KEY, site.time.midpoint_ns + 3_600 * SECOND)
    with pytest.raises(BadTime) as refused:
        site.session(time=ahead).acquire(domain)
    assert refused.value.code == "suspect-witness"
    assert domain in refused.value.message
    assert free(site, domain)


def test_shard_without_usable_time_is_unavailable_and_says_so(site: HandSite) -> None:
    site.time.status = ClockStatus.DISRUPTED
    with pytest.raises(ShardUnavailable, match="disrupted"):
        site.session().acquire("d", timeout_s=0)


def test_giving_back_to_a_silent_shard_raises_nothing(site: HandSite) -> None:
    session = site.session()
    leases = session.acquire(*of_shards(site, 0, 1))
    site.transports[0].shard = None
    session.relinquish(leases)
    assert [type(request) for request in site.transports[1].calls][-1] is Relinquish


# -- modes -------------------------------------------------------------------------------------------------------------


def test_readers_share_a_domain_and_write_nothing(site: HandSite) -> None:
    sessions = [site.session(), site.session()]
    first, second = (session.acquire("d", mode=Mode.S)[0] for session in sessions)
    assert first.mode is second.mode is Mode.S
    code = ""
    try:
        sessions[0].publish("log", [b"x"], under=[first])
    except BadRequest as problem:
        code = problem.code
    assert code == "mode-may-not-write"
    assert not free(site, "d")


def test_each_domain_of_a_set_can_have_a_mode_of_its_own(site: HandSite) -> None:
    root, part = of_shards(site, 0, 1)
    leases = site.session().acquire(root, part, mode={root: Mode.IX, part: Mode.X})
    assert {lease.domain: lease.mode for lease in leases} == {root: Mode.IX, part: Mode.X}
    site.session().acquire(root, mode=Mode.IS)
    for bad in ("XX", {root: Mode.X}):
        with pytest.raises(BadRequest) as refused:
            site.session().acquire(root, part, mode=bad)
        assert refused.value.code == "bad-mode"


def test_reader_becomes_a_writer_when_the_other_readers_have_gone(site: HandSite) -> None:
    mine, other = site.session(), site.session()
    (lease,) = mine.acquire("d", mode=Mode.S)
    theirs = other.acquire("d", mode=Mode.S)
    with pytest.raises(TryAgain) as busy:
        mine.upgrade(lease, Mode.X, timeout_s=2)
    assert busy.value.code == "busy"
    assert lease.mode is Mode.S
    other.relinquish(theirs)
    fence = lease.fence
    mine.upgrade(lease, Mode.X)
    assert str(lease.mode) == "X"
    assert lease.fence > max(fence, theirs[0].fence)
    assert isinstance(mine.publish("log", [b"x"], under=[lease]), Committed)
    mine.relinquish([lease])
    assert free(site, "d")


def test_change_to_a_mode_that_is_not_stronger_is_refused_and_the_lease_stays(site: HandSite) -> None:
    session = site.session()
    (lease,) = session.acquire("d", mode=Mode.SIX)
    with pytest.raises(BadRequest) as refused:
        session.upgrade(lease, Mode.S)
    assert refused.value.code == "mode-not-stronger"
    session.check_held([lease])


def test_change_of_mode_of_a_lease_that_is_over_says_so(site: HandSite) -> None:
    session = site.session()
    (lease,) = session.acquire("d", mode=Mode.S)
    site.start(site.shard_of("d"))
    with pytest.raises(LeaseLost):
        session.upgrade(lease, Mode.X)
