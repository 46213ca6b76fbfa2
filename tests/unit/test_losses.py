"""Leases that are lost: why, who is told and when, and what a holder that stood still finds out before it acts."""

from __future__ import annotations

import os
import re
from collections import deque
from threading import Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from appliance.bag.writing import Committed
from appliance.cli import leases
from appliance.formats.lease import Holder, Mode
from appliance.lease.wire import Acquire, Renew, Revoke
from appliance.session.endings import LossReason, Outlook
from appliance.session.held import Loss
from tests.support.clocks import HandTime
from tests.support.cluster import HandSite, hand_sites
from tests.support.values import NOW_NS, TIME_KEY
from timeagent.errors import BadRequest, BadTime, LeaseLost, TryAgain
from timeagent.signedtime import SignedTime
from timeagent.units import MS, SECOND, TimeInterval, rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from appliance.cluster import Cluster
    from appliance.session.held import Lease
    from appliance.session.session import Session


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path, shards=2)


def domain_of(site: HandSite, shard: int) -> str:
    return next(name for name in site.domains(60) if site.shard_of(name) == shard)


def taken(site: HandSite, session: Session, shard: int = 0) -> tuple[Lease, list[Loss]]:
    (lease,) = session.acquire(domain_of(site, shard))
    told: list[Loss] = []
    lease.on_lost(told.append)
    return lease, told


def renewals(site: HandSite, shard: int = 0) -> int:
    return sum(isinstance(each, Renew) for each in site.transports[shard].calls)


def test_holder_that_stood_still_past_its_expiry_finds_out_before_its_next_side_effect(site: HandSite) -> None:
    lease, told = taken(site, site.session())
    lease.check()
    site.time.advance(lease.term_ns)
    with pytest.raises(LeaseLost) as lost:
        lease.check()
    assert lost.value.code == "lease-expired"
    assert [(loss.lease, loss.reason) for loss in told] == [(lease, LossReason.EXPIRED)]


def test_margin_that_is_not_left_is_refused_and_the_lease_stays_held(site: HandSite) -> None:
    lease, told = taken(site, site.session())
    left = lease.expiry_ns - site.time.now().latest
    lease.check(margin_s=(left - 1) / SECOND)
    with pytest.raises(LeaseLost) as short:
        lease.check(margin_s=left / SECOND)
    assert short.value.code == "lease-too-short"
    lease.check()
    assert told == []


def test_what_remains_is_counted_to_the_policys_margin_and_never_below_nothing(site: HandSite) -> None:
    lease, _ = taken(site, site.session())
    left = lease.remaining_ns()
    assert left == lease.expiry_ns - site.policy.holder_margin_ns - site.time.now().latest
    site.time.advance(left - 1)
    assert lease.remaining_ns() == 1
    lease.check()
    site.time.advance(2)
    assert lease.remaining_ns() == 0


def test_lease_that_its_shard_has_forgotten_is_told_as_broken_once(site: HandSite) -> None:
    session = site.session()
    lease, told = taken(site, session)
    site.start(0)
    site.time.advance(site.policy.renew_period_ns)
    session.renew_due()
    session.renew_due()
    assert [(loss.reason, loss.ended) for loss in told] == [(LossReason.BROKEN, "unknown")]
    assert lease.remaining_ns() == 0


def test_lease_of_a_silent_shard_is_told_as_such_when_it_is_over_and_not_before(site: HandSite) -> None:
    session = site.session()
    lease, told = taken(site, session)
    site.transports[0].shard = None
    site.time.advance(site.policy.renew_period_ns)
    session.renew_due()
    assert told == []
    site.time.advance(lease.remaining_ns())
    session.renew_due()
    assert [loss.reason for loss in told] == [LossReason.SHARD_UNREACHABLE]


def test_lease_that_was_renewed_after_trouble_has_none_any_more(site: HandSite) -> None:
    session = site.session()
    lease, told = taken(site, session)
    site.time.advance(site.policy.renew_period_ns)
    site.transports[0].script = ["lost"] * 3
    session.renew_due()
    session.renew_due()
    site.time.advance(lease.term_ns)
    with pytest.raises(LeaseLost):
        lease.check()
    assert [loss.reason for loss in told] == [LossReason.EXPIRED]


def test_silent_shard_is_not_waited_for_beyond_the_end_of_the_lease(site: HandSite) -> None:
    session = site.session()
    lease, _ = taken(site, session)
    asked: list[int] = []
    transport = site.transports[0]

    def call(requests: object, timeout_ns: int) -> list[object]:
        asked.append(timeout_ns)
        site.time.advance(timeout_ns)
        return type(transport).call(transport, requests, timeout_ns)  # type: ignore[arg-type, return-value]

    transport.call = call  # type: ignore[method-assign, assignment]
    transport.shard = None
    site.time.advance(lease.remaining_ns() - 7 * MS)
    session.renew_due()
    assert asked == [7 * MS]
    assert lease.ended == "expired"


# Without bounded time nobody can say that the lease is held; by count it would be over.
def test_lease_that_runs_out_while_the_clock_is_unsafe_is_told_as_such(site: HandSite) -> None:
    session = site.session()
    lease, told = taken(site, session)
    left, now = lease.remaining_ns(), site.time.now

    def unsafe() -> object:
        raise BadTime("clock-disrupted", "planted")

    site.time.now = unsafe  # type: ignore[method-assign, assignment]
    site.time.advance(left - 1)
    with pytest.raises(BadTime):
        session.renew_due()
    assert told == []
    with pytest.raises(BadTime):
        lease.check()
    site.time.advance(1)
    with pytest.raises(BadTime):
        session.renew_due()
    assert [loss.reason for loss in told] == [LossReason.CLOCK_UNSAFE]
    site.time.now = now  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        lease.check()


# A process may be stopped between a look at the clock and one at the boot clock, by which it is counted on.
@pytest.mark.parametrize("while_taking", [True, False])
def test_pause_beside_a_look_at_the_clock_makes_no_lease_last_longer(site: HandSite, *, while_taking: bool) -> None:
    own = HandTime(TIME_KEY, site.time.midpoint_ns)
    session, looks = site.session(time=own), own.now_and_token

    def paused[T](look: Callable[[], T]) -> Callable[[], T]:
        def looked() -> T:
            seen = look()
            own.advance(SECOND // 10)
            return seen

        return looked

    def unsafe() -> TimeInterval:
        raise BadTime("clock-disrupted", "planted")

    if while_taking:
        answered = iter([looks, paused(looks)])  # before the request, and when the answer has come

        def answer() -> tuple[TimeInterval, SignedTime]:
            return next(answered)()

        own.now_and_token = answer  # type: ignore[method-assign]
    lease, told = taken(site, session)
    own.now_and_token = looks  # type: ignore[method-assign]
    if not while_taking:
        now = own.now
        own.now = paused(now)  # type: ignore[method-assign]
        session._renewer._due()
        own.now = now  # type: ignore[method-assign]
    left = lease.remaining_ns()
    own.now = unsafe  # type: ignore[method-assign]
    own.advance(left)
    with pytest.raises(BadTime):
        session.renew_due()
    assert [loss.reason for loss in told] == [LossReason.CLOCK_UNSAFE]


def test_witness_that_contradicts_the_clock_is_told_as_unsafe(site: HandSite) -> None:
    slow = HandTime(TIME_KEY, NOW_NS)
    session = site.session(time=slow)
    _, told = taken(site, session)
    slow.advance(site.policy.renew_period_ns)
    site.time.advance(site.policy.renew_period_ns + SECOND)
    session.renew_due()
    assert [(loss.reason, loss.ended) for loss in told] == [(LossReason.CLOCK_UNSAFE, "suspect")]


def test_lease_that_is_given_back_is_not_lost(site: HandSite) -> None:
    session = site.session()
    every: list[Loss] = []
    session.on_lost(every.append)
    lease, told = taken(site, session)
    session.relinquish([lease])
    with pytest.raises(LeaseLost):
        lease.check()
    assert told == every == []


def test_session_tells_of_every_lease_and_a_late_listener_at_once(site: HandSite) -> None:
    session = site.session()
    every: list[Loss] = []
    session.on_lost(every.append)
    first, _ = taken(site, session, 0)
    second, _ = taken(site, session, 1)
    site.time.advance(first.term_ns)
    site.transports[0].shard = site.transports[1].shard = None
    session.renew_due()
    assert {loss.lease for loss in every} == {first, second}
    late: list[Loss] = []
    first.on_lost(late.append)
    assert [loss.lease for loss in late] == [first]


def test_listener_that_fails_keeps_nobody_from_being_told(site: HandSite, caplog: pytest.LogCaptureFixture) -> None:
    session = site.session()

    def fail(loss: Loss) -> None:
        raise RuntimeError("planted")

    session.on_lost(fail)
    every: list[Loss] = []
    session.on_lost(every.append)
    lease, _ = taken(site, session)
    site.time.advance(lease.term_ns)
    with pytest.raises(LeaseLost):
        session.check_held([lease])
    assert len(every) == 1
    assert "lost-listener-failed" in caplog.text


# A listener may use the session: it is called without any lock.
def test_listener_may_acquire_anew(site: HandSite) -> None:
    session = site.session()
    lease, _ = taken(site, session)
    again: list[Lease] = []
    lease.on_lost(lambda loss: again.extend(session.acquire(loss.lease.domain)))
    site.start(0)
    site.time.advance(site.policy.renew_period_ns)
    session.renew_due()
    again[0].check()


# A signal comes while another is told, and whoever handles it finds a lease lost.
def test_loss_is_told_from_within_the_telling_of_another(site: HandSite) -> None:
    session = site.session()
    first, told = taken(site, session)
    second, told_within = taken(site, session, 1)
    losses = session.keeper.losses

    class Interrupted(deque[Loss]):
        def popleft(self) -> Loss:
            found = super().popleft()
            if found.lease is first:
                losses.tell()
            return found

    losses._found = Interrupted()
    for shard in range(2):
        site.start(shard)
    site.time.advance(site.policy.renew_period_ns)
    telling = Thread(target=session.renew_due, daemon=True)
    telling.start()
    telling.join(20)
    assert [each.lease for each in (*told, *told_within)] == [first, second]


def test_cap_on_the_hold_is_reached_to_the_nanosecond_and_not_passed(site: HandSite) -> None:
    session = site.session()
    begun = site.time.now().latest
    (lease,) = session.acquire("d", hold_s_max=25)
    ends = set()
    for _ in range(60):
        site.time.advance(500 * MS)
        session.renew_due()
        ends.add(lease.expiry_ns)
    assert max(ends) <= begun + 25 * SECOND
    assert max(ends) > begun + 25 * SECOND - 2 * site.time.radius_ns - MS
    assert lease.loss is not None
    assert lease.loss.reason is LossReason.HOLD_CAP


def test_lease_that_lasts_up_to_its_cap_is_not_renewed_in_vain(site: HandSite, monkeypatch: pytest.MonkeyPatch) -> None:
    session = site.session()
    (lease,) = session.acquire("d", hold_s_max=14)
    renew = session._leasing.renew
    asked: list[Sequence[Lease]] = []

    def counted(leases: Sequence[Lease]) -> object:
        asked.append(list(leases))
        return renew(leases)

    monkeypatch.setattr(session._renewer, "_ask", counted)
    for _ in range(26):
        site.time.advance(500 * MS)
        session.renew_due()
    assert lease.loss is None
    assert 1 <= sum(lease in each for each in asked) <= 3


# What the cap leaves is counted before the request is made, and the shard counts from when it has it.
def test_cap_on_the_hold_is_kept_by_a_renewal_that_is_under_way_for_long(
    site: HandSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = site.session()
    (lease,) = session.acquire("d", hold_s_max=14)
    cap, renew = lease.until_ns, session._leasing.renew

    def late(leases: Sequence[Lease]) -> object:
        site.time.advance(SECOND)
        return renew(leases)

    monkeypatch.setattr(session._renewer, "_ask", late)
    for _ in range(12):
        site.time.advance(SECOND)
        session.renew_due()
    assert cap is not None
    assert cap - 2 * SECOND < lease.expiry_ns <= cap


# A process that stands still between the two asks for what was right before.
def test_holder_that_gets_on_no_more_has_its_lease_no_longer_however_late_it_asks(
    site: HandSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = site.session()
    (lease,) = session.acquire("d", progress_within_s=5)
    site.time.advance(SECOND)
    lease.progress()
    cap, renew = site.time.now().latest + 5 * SECOND + lease.term_ns, session._leasing.renew

    def late(leases: Sequence[Lease]) -> object:
        site.time.advance(4 * SECOND)
        return renew(leases)

    monkeypatch.setattr(session._renewer, "_ask", late)
    site.time.advance(4 * SECOND)
    session.renew_due()
    assert lease.expiry_ns == cap


def test_cap_on_the_hold_is_kept_by_a_change_of_mode(site: HandSite) -> None:
    session = site.session()
    (lease,) = session.acquire("d", mode=Mode.S, hold_s_max=15)
    for _ in range(12):
        site.time.advance(SECOND)
        session.renew_due()
    site.time.advance(2 * SECOND)
    session.upgrade(lease, Mode.X)
    assert lease.mode is Mode.X
    assert lease.until_ns is not None
    assert lease.expiry_ns <= lease.until_ns


def test_lease_is_over_at_the_cap_on_the_hold_whatever_its_shard_gave(site: HandSite) -> None:
    session = site.session()
    (lease,) = session.acquire("d", hold_s_max=8)
    assert lease.until_ns is not None
    lease.own_expiry_ns = lease.until_ns + 5 * SECOND
    margin = site.policy.holder_margin_ns
    site.time.advance(lease.until_ns - margin - site.time.now().latest - 1)
    lease.check()
    assert lease.remaining_ns() == 1
    site.time.advance(1)
    with pytest.raises(LeaseLost, match=re.escape(rfc3339(lease.until_ns))):
        lease.check()


def test_lease_is_renewed_only_while_its_holder_gets_on(site: HandSite) -> None:
    session = site.session()
    (lease,) = session.acquire("d", progress_within_s=5)
    shard = site.shard_of("d")
    for _ in range(5):
        site.time.advance(4 * SECOND)
        lease.progress()
        session.renew_due()
    assert session.publish("log", [b"x"], under=[lease]) == Committed()
    site.time.advance(4 * SECOND)
    session.renew_due()
    kept = renewals(site, shard)
    assert kept == 6
    site.time.advance(4 * SECOND)
    session.renew_due()
    assert renewals(site, shard) == kept
    site.time.advance(lease.term_ns)
    session.renew_due()
    assert lease.ended == "expired"
    assert lease.loss is not None
    assert lease.loss.reason is LossReason.NO_PROGRESS
    with pytest.raises(LeaseLost, match="no progress"):
        lease.check()


def test_who_holds_a_lease_from_a_shell_is_told_once_that_it_is_unknown(
    site: HandSite, capsys: pytest.CaptureFixture[str]
) -> None:
    session = site.session()
    held = session.acquire("d")
    command = cast("Cluster", SimpleNamespace(time=site.time))
    for trouble in (LossReason.SHARD_UNREACHABLE, None):
        held[0].trouble = trouble
        leases._wait(command, session, held, 300 * MS)
    said = capsys.readouterr().err
    assert said.count("d: unknown (shard unreachable), good for ") == 1
    assert said.count("\n") == 1, "each call begins with a lease that is held"


def test_lease_that_ran_out_long_before_its_cap_is_not_told_as_capped(site: HandSite) -> None:
    (lease,) = site.session().acquire("d", hold_s_max=60, progress_within_s=60)
    site.time.advance(70 * SECOND)
    with pytest.raises(LeaseLost):
        lease.check()
    assert lease.loss is not None
    assert lease.loss.reason is LossReason.EXPIRED


@pytest.mark.parametrize("together", [False, True], ids=["alone", "under a session lease"])
@pytest.mark.parametrize("successors", [0, 2])
def test_holder_of_a_revoked_lease_is_told_by_whom_and_why(site: HandSite, successors: int, *, together: bool) -> None:
    session = site.session(session_leases=together)
    lease, told = taken(site, session)
    by = Holder(node="ops", process=7, boot=bytes(16), incarnation=bytes(8), purpose="node3 is on fire")
    shard = site.transports[0].shard
    assert shard is not None
    shard.turn([Revoke(request_id=bytes(16), domain=lease.domain, correlation_id=lease.correlation_id, by=by)])
    for _ in range(successors):  # the domain remembers how the last of its leases ended only
        with site.session().acquire(lease.domain, record_only=True):
            pass
    site.time.advance(site.policy.renew_period_ns)
    session.renew_due()
    assert [(loss.lease, loss.reason, loss.by) for loss in told] == [(lease, LossReason.REVOKED, by)]
    with pytest.raises(LeaseLost, match="revoked by ops/7: node3 is on fire") as lost:
        lease.check()
    assert lost.value.code == "lease-revoked"


@pytest.mark.parametrize("together", [False, True], ids=["alone", "under a session lease"])
def test_lease_of_a_silent_shard_is_unknown_with_how_long_it_is_good(site: HandSite, *, together: bool) -> None:
    session = site.session(session_leases=together)
    lease, _ = taken(site, session)
    assert lease.outlook() == Outlook("held", lease.remaining_ns(), None)
    site.transports[0].script = ["lost"] * 3
    site.time.advance(site.policy.renew_period_ns)
    session.renew_due()
    assert lease.outlook() == Outlook("unknown", lease.remaining_ns(), LossReason.SHARD_UNREACHABLE)
    lease.check()
    session.renew_due()
    assert lease.outlook() == Outlook("held", lease.remaining_ns(), None)
    site.transports[0].shard = None
    site.time.advance(site.policy.renew_period_ns)
    session.renew_due()
    site.time.advance(lease.remaining_ns())
    session.renew_due()
    assert lease.outlook() == Outlook("over", 0, LossReason.SHARD_UNREACHABLE)


def test_child_after_fork_is_told_whose_lease_it_is(site: HandSite) -> None:
    lease, _ = taken(site, site.session())
    child = os.fork()
    if child == 0:
        codes = []
        for ask in (lease.check, lease.remaining_ns):
            try:
                ask()
            except BadRequest as refused:
                codes.append(refused.code)
        os._exit(0 if codes == ["forked", "forked"] else 1)
    assert os.waitpid(child, 0)[1] == 0


# One who gives up says so to the shard: nobody waits behind a place that nobody will take.
def test_acquire_that_is_given_up_ends_soon_and_leaves_no_place_behind(site: HandSite) -> None:
    name = domain_of(site, 0)
    holder = site.session()
    holder.acquire(name)
    asked = 0

    def given_up() -> bool:
        nonlocal asked
        asked += 1
        return asked > 6

    begun = site.time.boot_ns()
    with pytest.raises(TryAgain):
        site.session().acquire(name, timeout_s=3600, given_up=given_up)
    assert site.time.boot_ns() - begun < 2 * site.policy.attempt_timeout_ns
    calls = [each for each in site.transports[0].calls if isinstance(each, Acquire)]
    assert calls[-2].keep_ns > 0
    assert (calls[-1].wait_ns, calls[-1].keep_ns) == (0, 0)
    assert calls[-1].request_id == calls[-2].request_id
