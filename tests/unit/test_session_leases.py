"""Leases that a session keeps together: by one renewal, dropped by one word, and none of them left behind anywhere."""

from __future__ import annotations

from threading import Event, Thread, current_thread
from typing import TYPE_CHECKING, Any

import pytest

from appliance.bag.writing import Committed, Unknown
from appliance.formats.lease import LeaseOutcome, Mode
from appliance.formats.witness import SessionEnded, SessionWitness, SignedWitness, Witness
from appliance.lease.wire import Acquire, BeginSession, DropSession, Relinquish, Renew, RenewSession, Request, Revoke
from appliance.session.session_leases import DROP_FROM
from tests.support.cluster import HandSite, hand_sites
from timeagent.canonical import decode
from timeagent.errors import BadRequest, LeaseLost, TryAgain
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.lease.wire import Reply
    from appliance.session.asking import Leases
    from appliance.session.held import Lease
    from appliance.session.session import Session

TERM = 10 * SECOND


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path, shards=2)


def together(site: HandSite) -> Session:
    return site.session(session_leases=True)


def sent(site: HandSite, *kinds: type) -> list[Request]:
    return [request for transport in site.transports for request in transport.calls if isinstance(request, kinds)]


def names_of(site: HandSite, shard: int, count: int) -> list[str]:
    return [name for name in site.domains(9 * count + 9) if site.shard_of(name) == shard][:count]


def has(site: HandSite, *domains: str) -> bool:
    """Whether somebody else can have these now."""
    other = site.session()
    try:
        other.acquire(*domains, timeout_s=0)
    except TryAgain:
        return False
    other.close()
    return True


def grow(site: HandSite, session: Session, span: int) -> None:
    """Let time pass, renewing as the session's thread would."""
    for _ in range(span // SECOND):
        site.time.advance(SECOND)
        session.renew_due()


# One thread gives all back that there is, and another asks for a lease under the same session lease just then.
def test_lease_that_is_granted_while_its_session_lease_is_about_to_be_dropped_is_held(
    site: HandSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = together(site)
    leases = session.acquire(*names_of(site, 0, DROP_FROM))
    transport, ours = site.transports[0], session._leasing.session_leases
    call, quiet, drop = transport.call, ours._quiet, session.keeper.client(0).drop_session
    granted, dropped = Event(), Event()
    found: list[Leases] = []
    asking = Thread(target=lambda: found.append(session.acquire(names_of(site, 0, DROP_FROM + 1)[-1])), daemon=True)

    def slowly(requests: list[Request], timeout_ns: int) -> list[Reply]:
        replies = call(requests, timeout_ns)
        if current_thread() is asking:
            granted.set()
            assert dropped.wait(30)
        return replies

    def looked(shard: int) -> int | None:
        monkeypatch.setattr(ours, "_quiet", quiet)
        calls = quiet(shard)
        asking.start()
        granted.wait(1)
        return calls

    def told(*arguments: Any) -> object:  # noqa: ANN401 - whatever it is given
        dropped.set()
        return drop(*arguments)

    monkeypatch.setattr(transport, "call", slowly)
    monkeypatch.setattr(ours, "_quiet", looked)
    monkeypatch.setattr(session.keeper.client(0), "drop_session", told)
    session.relinquish(leases)
    dropped.set()
    asking.join(30)
    session.check_held(found[0])


def test_leases_of_a_shard_live_by_one_small_renewal(site: HandSite) -> None:
    session = together(site)
    domains = site.domains(40)
    leases = [session.acquire(each)[0] for each in domains]
    assert len(sent(site, BeginSession)) == 2
    assert {lease.session_lease.shard for lease in leases if lease.session_lease} == {0, 1}
    before = leases[0].expiry_ns
    for transport in site.transports:
        transport.calls.clear()
    grow(site, session, 4 * SECOND)
    assert [type(each) for each in sent(site, object)] == [RenewSession, RenewSession]
    assert all(lease.expiry_ns > before for lease in leases)
    grow(site, session, 60 * SECOND)
    assert not has(site, domains[7])
    session.check_held(leases)
    assert not sent(site, Renew)


def test_messages_carry_both_witnesses_and_are_read(site: HandSite) -> None:
    session = together(site)
    leases = session.acquire(*site.domains(3))
    grow(site, session, 12 * SECOND)
    assert isinstance(session.publish("log", [b"m"], under=leases), Committed)
    pending: Any = session.publish("log", [b"n"], under=[leases[0]])
    assert isinstance(pending, Committed)
    session.close()
    site.time.advance(60 * SECOND)
    assert [each.payload for each in site.settled("log")] == [b"m", b"n"]


def test_frame_carries_the_witness_of_each_lease_and_session_once(site: HandSite) -> None:
    session = together(site)
    leases = list(session.acquire(*site.domains(6)))
    signed = [lease.signed for lease in leases]
    session_leases = {lease.session_lease.session_id for lease in leases if lease.session_lease}
    made: list[tuple[bytes, ...]] = []
    stamper: Any = session._stamper
    encoded = stamper._encoded

    def spied(*given: Any, **more: Any) -> Any:  # noqa: ANN401 - whatever it is called with
        publication = encoded(*given, **more)
        made.append(publication.file.data)
        return publication

    stamper._encoded = spied
    session.publish("log", [b"m"], under=leases)
    from appliance.formats.framing import open_frame, pieces

    (frame,) = (open_frame(piece, "f") for piece in pieces(made[0])[0])  # type: ignore[arg-type]
    said = [decode(SignedWitness, raw).statement() for raw in frame.head.witnesses]
    assert [each.correlation_id for each in said if isinstance(each, Witness)] == [
        each.witness().correlation_id for each in signed
    ]
    found = [each.session_id for each in said if isinstance(each, SessionWitness)]
    assert sorted(found) == sorted(session_leases)


def test_leases_are_dropped_with_their_session_when_there_are_many(site: HandSite) -> None:
    session = together(site)
    session._leasing.session_leases.drop_from = 3
    domains = names_of(site, 0, 4)
    leases = session.acquire(*domains)
    session.publish("log", [b"m"], under=[leases[1]])
    written = leases[1].watermark_ns
    session.relinquish(leases)
    (drop,) = sent(site, DropSession)
    assert isinstance(drop, DropSession)
    assert (drop.watermark_ns, drop.messages) == (written, 1)
    assert not sent(site, Relinquish)
    (successor,) = site.session().acquire(domains[0], timeout_s=0)
    assert (successor.floor_ns, successor.settle_to_ns) == (written, 0)
    few = session.acquire(*domains[1:3])
    session.relinquish(few)
    assert len(sent(site, DropSession)) == 1
    assert len(sent(site, Relinquish)) == 2
    assert has(site, *domains[1:3])
    session.close()
    assert len(sent(site, DropSession)) == 2


def test_lease_that_was_revoked_is_lost_before_the_next_renewal_is_used(site: HandSite) -> None:
    session = together(site)
    first, second = names_of(site, 0, 2)
    lost, kept = session.acquire(first)[0], session.acquire(second)[0]
    expiry = lost.expiry_ns
    shard = site.transports[0].shard
    assert shard is not None
    holder = lost.signed.witness().holder
    shard.turn([Revoke(request_id=bytes(16), domain=first, correlation_id=lost.correlation_id, by=holder)])
    (successor,) = site.session().acquire(first, timeout_s=0, record_only=True)
    assert (successor.floor_ns, successor.settle_to_ns) == (expiry, expiry)
    session.check_held([lost])  # it does not know yet, and what it writes lies below the floor of its successor
    grow(site, session, 4 * SECOND)
    with pytest.raises(LeaseLost) as told:
        session.check_held([lost])
    assert told.value.code == "lease-revoked"
    session.check_held([kept])
    assert isinstance(session.publish("log", [b"m"], under=[kept]), Committed)


# Its user looked at it before the renewal that came late, and was answered all the same.
def test_lease_that_was_lost_alone_is_not_kept_from_everybody_by_the_others(site: HandSite) -> None:
    session = together(site)
    lost, kept = session.acquire(*names_of(site, 0, 2))
    site.time.advance(lost.usable_until_ns(site.policy.holder_margin_ns) - site.time.now().latest)
    believed_until = lost.expiry_ns
    with pytest.raises(LeaseLost):
        lost.check()
    grow(site, session, 2 * TERM)
    kept.check()
    (successor,) = site.session().acquire(lost.domain, timeout_s=0)
    assert successor.floor_ns >= believed_until
    assert session.relinquish([lost])
    assert not has(site, lost.domain)
    session.check_held([kept])


def test_session_that_is_not_renewed_loses_all_its_leases_in_time(site: HandSite) -> None:
    session = together(site)
    leases = session.acquire(*names_of(site, 0, 2), *names_of(site, 1, 1))
    told: list[Lease] = []
    session.on_lost(lambda loss: told.append(loss.lease))
    site.transports[0].script = ["lost"] * 100
    grow(site, session, 12 * SECOND)
    assert {lease.domain for lease in told} == set(names_of(site, 0, 2))
    assert all(lease.loss is not None and lease.loss.reason == "shard unreachable" for lease in told)
    site.transports[0].script = []
    assert has(site, *names_of(site, 0, 2))
    again = session.acquire(*names_of(site, 0, 2))
    session.check_held([*again, *(lease for lease in leases if lease.shard == 1)])


def test_shard_that_starts_afresh_ends_its_session_and_the_next_lease_begins_another(site: HandSite) -> None:
    session = together(site)
    (lease,) = session.acquire(*names_of(site, 0, 1))
    site.start(0)
    grow(site, session, 4 * SECOND)
    with pytest.raises(LeaseLost) as lost:
        session.check_held([lease])
    assert lost.value.code == "lease-unknown"
    (again,) = session.acquire(lease.domain)
    site.start(0)
    (other,) = session.acquire(*names_of(site, 0, 2)[1:])  # the shard does not know the session: another is begun
    assert other.session_lease is not again.session_lease
    session.check_held([other])


# -- nothing stays behind ----------------------------------------------------------------------------------------------


def test_grant_whose_answer_was_lost_does_not_live_on_under_the_session(site: HandSite) -> None:
    session = together(site)
    first, second = names_of(site, 0, 2)
    session.acquire(first)
    site.transports[0].script = ["done"] * 3
    with pytest.raises(TryAgain):
        session.acquire(second, timeout_s=0)
    assert not has(site, second)
    grow(site, session, 4 * SECOND)
    assert has(site, second)
    assert not has(site, first)


def test_renewal_that_is_answered_after_the_end_brings_no_lease_back_and_says_nothing_of_what_was_written(
    site: HandSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = together(site)
    (domain,) = names_of(site, 0, 1)
    (lease,) = session.acquire(domain)
    assert isinstance(session.publish("log", [b"m"], under=[lease]), Committed)
    assert lease.session_lease
    over = lease.expiry_ns
    transport = site.transports[0]
    call = transport.call

    def late(requests: list[Request], *rest: Any) -> Any:  # noqa: ANN401 - whatever a transport takes and returns
        replies = call(requests, *rest)
        if isinstance(requests[0], RenewSession):
            site.time.advance(TERM // 2)
            session._renewer._end_what_is_over()  # as the thread that renews finds
        return replies

    monkeypatch.setattr(transport, "call", late)
    site.time.advance(7 * TERM // 10)
    session._leasing.session_leases.renew(lease.session_lease)
    assert lease.ended == "expired"
    assert lease.expiry_ns == over
    with pytest.raises(LeaseLost):
        session.check_held([lease])
    (successor,) = site.session().acquire(domain, timeout_s=0, record_only=True)
    assert successor.settle_to_ns >= over
    assert successor.floor_ns >= over


def test_word_that_was_lost_is_said_again_with_its_watermark(site: HandSite) -> None:
    session = together(site)
    first, second = names_of(site, 0, 2)
    session.acquire(second)
    (lease,) = session.acquire(first)
    session.publish("log", [b"m"], under=[lease])
    site.transports[0].script = ["lost"] * 3
    session.relinquish([lease])
    assert not has(site, first)
    grow(site, session, 4 * SECOND)
    (successor,) = site.session().acquire(first, timeout_s=0, record_only=True)
    assert (successor.floor_ns, successor.settle_to_ns) == (lease.watermark_ns, 0)


# While a call is out that may have brought a lease, nobody can say that it is unknown here.
def test_giving_back_that_is_interrupted_at_one_shard_is_made_good_at_the_others(site: HandSite) -> None:
    session = together(site)
    kept = session.acquire(*names_of(site, 0, 2)[1:], *names_of(site, 1, 2)[1:])
    leases = session.acquire(*names_of(site, 0, 1), *names_of(site, 1, 1))

    def interrupted(requests: list[Request]) -> None:
        site.transports[1].before = lambda _: None
        raise KeyboardInterrupt

    site.transports[1].before = interrupted
    with pytest.raises(KeyboardInterrupt):
        session.relinquish(leases)
    grow(site, session, 2 * TERM)
    assert has(site, *(each.domain for each in leases))
    session.check_held(kept)


def test_lease_that_is_on_its_way_is_not_given_back(site: HandSite) -> None:
    session = together(site)
    first, second = names_of(site, 0, 2)
    session.acquire(first)
    shard = site.transports[0].shard
    assert shard is not None
    renewed: list[bool] = []

    def renew_meanwhile(requests: list[Request]) -> None:
        if isinstance(requests[0], Acquire) and not renewed:
            renewed.append(True)
            shard.turn(requests)  # it is granted already; the answer comes after the renewal's
            site.time.advance(4 * SECOND)
            session.renew_due()

    site.transports[0].before = renew_meanwhile
    (lease,) = session.acquire(second)
    assert renewed
    session.check_held([lease])
    site.transports[0].before = lambda _: None
    grow(site, session, 20 * SECOND)
    assert not has(site, second)
    assert not sent(site, Relinquish)


def test_lease_under_which_an_attempt_is_in_doubt_is_ended_alone(
    site: HandSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = together(site)
    first, second = names_of(site, 0, 2)
    kept = session.acquire(first)[0]
    (lease,) = session.acquire(second)
    book = session._logs.opened_or_made("log")
    monkeypatch.setattr(type(book.writer), "write", lambda *_: Unknown("planted"))
    monkeypatch.setattr(type(book.writer), "resolve", lambda *_: Unknown("planted"))
    session.publish("log", [b"m"], under=[lease])
    expiry = lease.expiry_ns
    session.relinquish([lease])
    assert lease.ended == "abandoned"
    (successor,) = site.session().acquire(second, timeout_s=0, record_only=True)
    assert (successor.floor_ns, successor.settle_to_ns) == (expiry, expiry)
    grow(site, session, 4 * SECOND)
    session.check_held([kept])


def test_leases_with_an_expiry_of_their_own_are_not_under_a_session(site: HandSite) -> None:
    session = together(site)
    several: list[dict[str, Any]] = [
        {"term_s": 5},
        {"hold_s_max": 8},
        {"progress_within_s": 1},
    ]
    for more in several:
        (lease,) = session.acquire(f"alone {more}", **more)
        assert lease.session_lease is None
        with pytest.raises(BadRequest) as refused:
            session.acquire("other", session_lease=True, **more)
        assert refused.value.code == "own-expiry"
    (lease,) = session.acquire("own", session_lease=False)
    assert lease.session_lease is None
    (lease,) = site.session().acquire("together", session_lease=True)
    assert lease.session_lease is not None


def test_sticky_lease_and_stronger_mode_stay_together(site: HandSite) -> None:
    session = together(site)
    (name,) = names_of(site, 0, 1)
    (lease,) = session.acquire(name, mode=Mode.S, sticky_s=100)
    session.relinquish([lease])
    grow(site, session, 15 * SECOND)
    (again,) = session.acquire(name, mode=Mode.S, sticky_s=100)
    assert again.correlation_id == lease.correlation_id
    session.upgrade(again, Mode.X)
    grow(site, session, 15 * SECOND)
    assert isinstance(session.publish("log", [b"m"], under=[again]), Committed)
    session.close()
    site.sign_held(0)
    ended = [each for each in site.ledger_of(0) if isinstance(each, SessionEnded)]
    assert [each.outcome for each in ended] == [LeaseOutcome.DROPPED]
    assert [each.payload for each in site.settled("log")] == [b"m"]
