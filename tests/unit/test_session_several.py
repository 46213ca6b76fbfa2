"""What a session does with one message, lease, shard or attempt it does with several: with each, and by the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.bag.outcome import Committed, NotCommitted, Unknown
from appliance.lease.sessionwire import DropSession
from appliance.lease.wire import Relinquish
from appliance.session.losses import Reason
from tests.support.cluster import HandSite, hand_sites
from tests.support.session_world import LOG
from timeagent.errors import LeaseLost, TryAgain
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from appliance.bag.outcome import Outcome
    from appliance.lease.wire import Request
    from appliance.session.held import Lease
    from appliance.session.session import Session


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path, shards=2)


def in_shard(site: HandSite, shard: int, count: int = 1) -> list[str]:
    return [name for name in site.domains(9 * count + 9) if site.shard_of(name) == shard][:count]


def sent[R: Request](site: HandSite, kind: type[R]) -> list[R]:
    return [request for transport in site.transports for request in transport.calls if isinstance(request, kind)]


def write(session: Session, under: Sequence[Lease], *batch: bytes) -> None:
    assert isinstance(session.publish(LOG, batch, under=under), Committed)


# -- watermarks --------------------------------------------------------------------------------------------------------


def test_watermark_of_a_lease_is_the_last_message_of_its_batches(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a", "b") as leases:
        write(session, leases, b"1", b"2", b"3")
        last = session.read(LOG, under=leases)[-1].timestamp_ns
        assert [lease.watermark_ns for lease in leases] == [last, last]
    assert [each.watermark_ns for each in sent(site, Relinquish)] == [last, last]
    assert [lease.floor_ns for lease in site.session().acquire("a", "b")] == [last, last]


def test_session_lease_is_dropped_with_the_highest_watermark_and_all_that_was_written(site: HandSite) -> None:
    session = site.session(session_leases=True)
    leases = [session.acquire(name)[0] for name in in_shard(site, 0, session._leasing.standings.drop_from)]
    for number, which in enumerate((0, -1, 3, 7, 5), 1):
        write(session, [leases[which]], *[b"m"] * number)
    last = leases[5].watermark_ns
    assert last == max(lease.watermark_ns or 0 for lease in leases)
    session.close()
    dropped = next(each for each in sent(site, DropSession) if each.messages)
    assert (dropped.watermark_ns, dropped.watermark_time) == (last, leases[5].watermark_time)
    assert (dropped.messages, dropped.chain_head) == (15, leases[5].chain_head)
    assert site.session().acquire(leases[0].domain)[0].floor_ns == last


# -- several leases under one batch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 1])
def test_timestamps_lie_above_the_floor_of_each_lease(site: HandSite, ahead: int) -> None:
    session = site.session()
    leases = session.acquire("a", "b")
    leases[ahead].floor_ns = floor = site.time.midpoint_ns + MS
    write(session, leases, b"m")
    assert leases[0].watermark_ns == leases[1].watermark_ns == floor + 1


@pytest.mark.parametrize("over", [0, 1])
def test_nothing_is_done_under_leases_one_of_which_is_over(site: HandSite, over: int) -> None:
    session = site.session()
    leases = session.acquire("a", "b")
    leases[over].own_expiry_ns = site.time.midpoint_ns + site.policy.holder_margin_ns
    with pytest.raises(LeaseLost):
        session.check_held(leases)
    with pytest.raises(LeaseLost):
        session.publish(LOG, [b"m"], under=leases)
    with pytest.raises(LeaseLost):
        session.read(LOG, under=leases)


@pytest.mark.parametrize("restarted", [0, 1])
def test_log_is_settled_as_far_as_any_of_its_leases_asks(site: HandSite, restarted: int) -> None:
    domains = [in_shard(site, shard)[0] for shard in (0, 1)]
    site.start(restarted)
    session = site.session()
    leases = session.acquire(*domains)
    asked = [lease.settle_to_ns for lease in leases]
    assert max(asked) > site.time.midpoint_ns
    assert min(asked) == 0
    write(session, leases, b"m")
    assert session._logs.opened(LOG).horizon.reached >= max(asked)


def test_each_lease_of_a_batch_knows_what_was_written_under_it(site: HandSite) -> None:
    session = site.session()
    leases = session.acquire("a", "b")
    for lease in leases:
        lease.progress_boot_ns = -1
    write(session, leases, b"1", b"2")
    assert [(each.messages, len(each.own.places), each.progress_boot_ns >= 0) for each in leases] == [(2, 1, True)] * 2
    assert len({each.chain_head for each in leases}) == 1


# -- work outside the record -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [0, 1])
def test_work_outside_the_record_waits_for_the_last_of_the_earlier_holders_of_all_its_domains(
    site: HandSite, restarted: int
) -> None:
    domains = [in_shard(site, shard)[0] for shard in (0, 1)]
    (held,) = site.session().acquire(domains[restarted])
    site.start(restarted)
    leases = site.session().acquire(*domains, outside_record=True, timeout_ns=60 * SECOND)
    assert {lease.settle_to_ns for lease in leases} == {0, max(lease.settle_to_ns for lease in leases)}
    assert site.time.now().surely_past(max(held.expiry_ns, *(lease.settle_to_ns for lease in leases)))


@pytest.mark.parametrize("restarted", [0, 1])
def test_all_leases_are_given_back_where_work_outside_the_record_cannot_wait(site: HandSite, restarted: int) -> None:
    domains = [in_shard(site, shard)[0] for shard in (0, 1)]
    site.start(restarted)
    with pytest.raises(TryAgain, match="may believe"):
        site.session().acquire(*domains, outside_record=True, timeout_ns=MS)
    assert len(site.session().acquire(*domains, timeout_ns=0)) == 2


@pytest.mark.parametrize("lost", [0, 1])
def test_lease_that_is_lost_while_work_outside_the_record_waits_ends_the_wait(site: HandSite, lost: int) -> None:
    domains = [in_shard(site, shard)[0] for shard in (0, 1)]
    site.start(0)
    session = site.session()

    def lose() -> bool:
        held = {site.shard_of(lease.domain): lease for lease in session._keeping.held}
        if lost in held:
            held[lost].lose("revoked", Reason.BROKEN)
        return False

    with pytest.raises(LeaseLost):
        session.acquire(*domains, outside_record=True, timeout_ns=60 * SECOND, given_up=lose)


# -- several attempts --------------------------------------------------------------------------------------------------

YES, NO, NOBODY_KNOWS = Committed(), NotCommitted("late"), Unknown("planted")


@pytest.fixture
def doubted(site: HandSite, monkeypatch: pytest.MonkeyPatch) -> dict[int, Outcome]:
    """What becomes of attempts, by their sequence: each is in doubt until it is asked for."""
    found: dict[int, Outcome] = {}
    writer = type(site.session()._logs.opened_or_made(LOG).writer)
    monkeypatch.setattr(writer, "write", lambda *_: NOBODY_KNOWS)
    monkeypatch.setattr(writer, "resolve", lambda _, file, *__: found.get(file.name.sequence, NOBODY_KNOWS))
    return found


@pytest.mark.parametrize(
    ("outcomes", "together"),
    [
        ((YES, YES), Committed),
        ((YES, NO), NotCommitted),
        ((NO, YES), NotCommitted),
        ((NO, NOBODY_KNOWS), Unknown),
        ((NOBODY_KNOWS, NO), Unknown),
        ((NOBODY_KNOWS, YES), Unknown),
        ((YES, NOBODY_KNOWS), Unknown),
    ],
)
def test_what_became_of_several_attempts_is_the_least_that_is_known(
    site: HandSite, doubted: dict[int, Outcome], outcomes: Sequence[Outcome], together: type
) -> None:
    session = site.session()
    leases = session.acquire("a")
    for each in outcomes:
        assert session.publish(LOG, [b"m"], under=leases) == NOBODY_KNOWS
        doubted[len(doubted) + 1] = each
    assert isinstance(session.resolve(LOG, leases), together)
    assert leases[0].messages == outcomes.count(YES)


@pytest.mark.parametrize("which", [0, 1])
def test_attempt_in_doubt_is_one_of_each_lease_that_it_was_made_under(
    site: HandSite, doubted: dict[int, Outcome], which: int
) -> None:
    session = site.session()
    leases = session.acquire("a", "b")
    assert session.publish(LOG, [b"m"], under=leases) == NOBODY_KNOWS
    assert isinstance(session.resolve(LOG, [leases[which]]), Unknown)
    session.relinquish([leases[which]])
    assert leases[which].ended == "abandoned"
    assert leases[1 - which].ended is None


def test_every_lease_of_an_attempt_that_stays_in_doubt_is_abandoned(
    site: HandSite, doubted: dict[int, Outcome]
) -> None:
    session = site.session()
    leases = session.acquire("a", "b", "c")
    assert session.publish(LOG, [b"m"], under=leases[:2]) == NOBODY_KNOWS
    session.relinquish(leases)
    assert [each.ended for each in leases] == ["abandoned", "abandoned", "relinquished"]
    assert [each.domain for each in sent(site, Relinquish)] == ["c"]


# Logs keep the span and the grace of the policy under which they began.
@pytest.mark.parametrize("order", [("quick", "slow"), ("slow", "quick")])
def test_outcomes_are_waited_for_as_long_as_the_slowest_log_needs(
    site: HandSite, monkeypatch: pytest.MonkeyPatch, order: Sequence[str]
) -> None:
    session = site.session()
    quick = session._logs.opened_or_made("quick").writer
    slower = msgspec.structs.replace(site.policy, number=2, grace_ns=site.policy.grace_ns + 20 * SECOND)
    site.records.policies[2] = slower
    session._logs.opened_or_made("slow")
    until: list[int] = []
    monkeypatch.setattr(type(quick), "write", lambda *_: NOBODY_KNOWS)
    monkeypatch.setattr(type(quick), "resolve", lambda _, __, deadline: until.append(deadline) or NOBODY_KNOWS)
    leases = session.acquire("a")
    for log in order:
        session.publish(log, [b"m"], under=leases)
    began = site.time.boot_ns()
    session.relinquish(leases)
    assert len(until) == 2
    assert min(until) - began >= slower.span_ns + slower.grace_ns
