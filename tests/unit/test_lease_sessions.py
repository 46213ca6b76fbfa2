"""Session leases as their holders and rivals see them: one expiry for all, and every way in which that can end."""

import msgspec
import pytest

from appliance.formats.lease import LeaseOutcome, Mode, Phase
from appliance.formats.witness import (
    ENDED_MAX,
    CeilingCopy,
    Ended,
    SessionEnded,
    SessionKind,
    SessionWitness,
    SignedWitness,
    Witness,
)
from appliance.lease import sessions as sessions_module
from appliance.lease.ceiling import NotYet, StoppedOrderly
from appliance.lease.shard import Shard
from appliance.lease.wire import (
    Denied,
    Granted,
    Inspect,
    LeasePage,
    Over,
    Refused,
    Reply,
    Revoke,
    SessionGranted,
    Unavailable,
)
from tests.support.sessions import begin, drop, prolong, session_of, stated, under
from tests.support.shards import HOLDER, RIVAL, TERM, Caller, World, acquire, granted, one, relinquish, renew, upgrade
from tests.support.values import CLUSTER, NOW_NS, trust_record, witness_refused
from timeagent.canonical import decode
from timeagent.errors import Environment
from timeagent.trust import Keyring
from timeagent.units import MS, SECOND


def revoke(world: World, lease: Witness) -> Revoke:
    return Revoke(request_id=world.request_id(), domain=lease.domain, correlation_id=lease.correlation_id, by=RIVAL)


def code(reply: Reply) -> str:
    assert isinstance(reply, Refused | Unavailable), reply
    return reply.code


def lived_to(world: World, expiry_ns: int) -> None:
    """Set the clock to the first instant at which an expiry is surely past."""
    world.time.advance(expiry_ns + world.time.radius_ns + 1 - world.time.midpoint_ns)


# -- one renewal for all -----------------------------------------------------------------------------------------------


def test_session_lease_states_its_holder_and_expiry_and_verifies(world: World) -> None:
    shard = world.started()
    reply = one(shard, begin(world))
    session = stated(reply)
    assert (session.kind, session.holder, session.expiry_ns) == (SessionKind.GRANT, HOLDER, NOW_NS + TERM)
    assert session.session_id[:8] == NOW_NS.to_bytes(8, "big")
    assert session.ended == ()
    assert isinstance(reply, SessionGranted)
    keyring = Keyring(trust_record().keys)
    assert witness_refused(decode(SignedWitness, reply.signed), keyring, CLUSTER) is None


def test_one_renewal_keeps_every_lease_and_touches_none(world: World) -> None:
    shard = world.started()
    session = session_of(shard, world)
    leases = [granted(shard, under(world, session, f"d{n}")) for n in range(50)]
    assert all((each.session_id, each.expiry_ns) == (session.session_id, session.expiry_ns) for each in leases)
    entries, states = len(world.ledger.entries()), [world.stores[0].read(each.domain) for each in leases]
    world.time.advance(TERM - SECOND)
    reply = one(shard, prolong(world, session))
    later = stated(reply)
    assert isinstance(reply, SessionGranted)
    assert (later.kind, later.expiry_ns, reply.leases) == (SessionKind.RENEWAL, NOW_NS + 2 * TERM - SECOND, 50)
    assert [each for each in world.ledger.entries()[entries:] if not isinstance(each, CeilingCopy)] == [later]
    assert [world.stores[0].read(each.domain) for each in leases] == states
    world.time.advance(SECOND + MS)
    denied = one(shard, acquire(world, "d7", holder=RIVAL))
    assert isinstance(denied, Denied)
    assert denied.until_ns == later.expiry_ns


def test_lease_that_is_under_a_session_is_not_renewed_alone(world: World) -> None:
    shard = world.started()
    lease = granted(shard, under(world, session_of(shard, world), "a"))
    assert code(one(shard, renew(world, lease))) == "in-session"


def test_tentative_lease_and_stronger_mode_stay_under_their_session(world: World) -> None:
    shard = world.started()
    session = session_of(shard, world)
    first = granted(shard, under(world, session, "a", phase=Phase.TENTATIVE, mode=Mode.S))
    world.time.advance(SECOND)
    held = granted(shard, upgrade(world, first))
    assert (held.phase, held.session_id, held.expiry_ns) == (Phase.HELD, session.session_id, session.expiry_ns)
    stronger = granted(shard, msgspec.structs.replace(upgrade(world, first), mode=Mode.X))
    assert (stronger.mode, stronger.session_id, stronger.expiry_ns) == (Mode.X, session.session_id, session.expiry_ns)


def test_same_request_about_a_session_has_the_same_answer(world: World) -> None:
    shard = world.started()
    asked = begin(world)
    first = stated(one(shard, asked))
    renewal = prolong(world, first)
    world.time.advance(SECOND)
    assert stated(one(shard, asked)) == msgspec.structs.replace(first, kind=SessionKind.RENEWAL)
    later = stated(one(shard, renewal))
    world.time.advance(SECOND)
    assert stated(one(shard, renewal)) == later
    assert [stated(each) for each in shard.turn([renewal, renewal])] == [later, later]
    assert len(world.stores[0].sessions) == 1
    request = under(world, first, "a")
    before = granted(shard, request)
    assert granted(shard, request).correlation_id == before.correlation_id
    assert stated(one(shard, prolong(world, first))).expiry_ns > later.expiry_ns


def test_expiry_of_a_session_is_bounded_as_that_of_a_lease(world: World) -> None:
    shard = world.started()
    session = session_of(shard, world, term_ns=10 * TERM)
    assert session.expiry_ns == NOW_NS + TERM
    world.time.advance(SECOND)
    asked = prolong(world, session, until_ns=NOW_NS + TERM + 5)
    assert stated(one(shard, asked)).expiry_ns == NOW_NS + TERM + 5
    # Never earlier than any witness before.
    assert stated(one(shard, prolong(world, session, term_ns=SECOND))).expiry_ns == NOW_NS + TERM + 5
    world.time.midpoint_ns -= 5 * SECOND
    assert code(one(shard, prolong(world, session))) == "no-later-expiry"
    assert code(one(shard, begin(world, term_ns=1))) == "late"


def test_expiry_of_a_session_stays_below_the_ceiling(world: World) -> None:
    shard = world.started()
    session = session_of(shard, world)
    world.chain.faults.setdefault("link", []).extend(["lost"] * 9)
    world.time.advance(5 * SECOND)
    later = stated(one(shard, prolong(world, session)))
    assert later.expiry_ns == shard._chain.ceiling_ns < NOW_NS + 5 * SECOND + TERM


# -- the end of a session ----------------------------------------------------------------------------------------------


def test_all_leases_are_over_when_their_session_is_surely_past_and_not_before(world: World) -> None:
    shard = world.started()
    session = session_of(shard, world)
    leases = [granted(shard, under(world, session, each)) for each in "abc"]
    world.time.advance(4 * SECOND)
    later = stated(one(shard, prolong(world, session)))
    lived_to(world, later.expiry_ns)
    world.time.midpoint_ns -= 1
    assert isinstance(one(shard, acquire(world, "a", holder=RIVAL)), Denied)
    world.time.midpoint_ns += 1
    successor = granted(shard, acquire(world, "a", holder=RIVAL))
    assert (successor.floor_ns, successor.settle_to_ns) == (later.expiry_ns, later.expiry_ns)
    assert successor.last_ended is not None
    assert (successor.last_ended.outcome, successor.last_ended.correlation_id) == (
        LeaseOutcome.EXPIRED,
        leases[0].correlation_id,
    )
    over = one(shard, prolong(world, session))
    assert isinstance(over, Over)
    assert over.outcome is LeaseOutcome.EXPIRED
    given = one(shard, relinquish(world, leases[1], watermark_ns=NOW_NS + 1))
    assert isinstance(given, Over)
    assert given.outcome is LeaseOutcome.EXPIRED
    third = granted(shard, acquire(world, "c", holder=RIVAL))
    assert (third.floor_ns, third.settle_to_ns) == (later.expiry_ns, later.expiry_ns)
    assert (world.stores[0].leases, world.stores[0].dead_leases, len(world.stores[0].sessions)) == (2, 0, 0)
    ended = [entry for entry in world.ledger.entries() if isinstance(entry, SessionEnded)]
    assert [(each.outcome, each.leases, each.expiry_ns) for each in ended] == [
        (LeaseOutcome.EXPIRED, 3, later.expiry_ns)
    ]


# As with other leases: whoever comes late, and before anybody was in the way, has lost nothing.
def test_session_is_renewed_and_its_leases_are_given_back_after_the_expiry_until_somebody_meets_it(
    world: World,
) -> None:
    shard = world.started()
    session = session_of(shard, world)
    first, second = (granted(shard, under(world, session, each)) for each in "ab")
    lived_to(world, session.expiry_ns)
    reply = one(shard, relinquish(world, first))
    assert isinstance(reply, Over)
    assert reply.outcome is LeaseOutcome.RELINQUISHED
    assert isinstance(one(shard, Inspect(after_domain="", leases_max=9)), LeasePage)
    later = stated(one(shard, prolong(world, session)))
    denied = one(shard, acquire(world, second.domain, holder=RIVAL))
    assert isinstance(denied, Denied)
    assert denied.until_ns == later.expiry_ns


def test_session_that_was_dropped_leaves_one_watermark_everywhere(world: World) -> None:
    shard = world.started()
    session = session_of(shard, world)
    for domain in "abc":
        granted(shard, under(world, session, domain, mode=Mode.S if domain == "c" else Mode.X))
    granted(shard, under(world, session, "t", phase=Phase.TENTATIVE))
    beside = granted(shard, acquire(world, "c", holder=RIVAL, mode=Mode.S))
    world.time.advance(SECOND)
    watermark = world.time.midpoint_ns
    entries = len(world.ledger.entries())
    asked = drop(world, session, watermark)
    reply = one(shard, asked)
    assert isinstance(reply, Over)
    assert reply.outcome is LeaseOutcome.DROPPED
    world.sign_held(shard)
    said, *_ = world.ledger.entries()[entries:]
    assert isinstance(said, SessionEnded)
    assert (said.outcome, said.leases, said.messages, said.watermark_ns) == (LeaseOutcome.DROPPED, 4, 3, watermark)
    assert (world.stores[0].leases, world.stores[0].dead_leases) == (1, 4)
    for domain in "ab":
        successor = granted(shard, acquire(world, domain, holder=RIVAL))
        assert (successor.floor_ns, successor.settle_to_ns) == (watermark, 0)
        assert successor.last_ended is not None
        assert successor.last_ended.outcome is LeaseOutcome.DROPPED
        assert (successor.last_ended.watermark_ns, successor.last_ended.messages) == (watermark, 0)
    stronger = granted(shard, msgspec.structs.replace(upgrade(world, beside), mode=Mode.X))
    assert stronger.floor_ns == watermark
    untouched = granted(shard, acquire(world, "t", holder=RIVAL))
    assert (untouched.floor_ns, untouched.settle_to_ns) == (0, 0)
    assert untouched.last_ended is not None
    assert untouched.last_ended.outcome is LeaseOutcome.WITHDRAWN
    assert (world.stores[0].dead_leases, len(world.stores[0].sessions)) == (0, 0)
    assert isinstance(one(shard, asked), Over)


def test_dropped_session_that_wrote_nothing_moves_no_floor(world: World) -> None:
    shard = world.started()
    session = session_of(shard, world)
    granted(shard, under(world, session, "a"))
    one(shard, drop(world, session))
    successor = granted(shard, acquire(world, "a", holder=RIVAL))
    assert (successor.floor_ns, successor.settle_to_ns) == (0, 0)


def test_drop_with_a_watermark_that_cannot_be_is_refused_and_ends_nothing(world: World) -> None:
    shard = world.started()
    session = session_of(shard, world)
    granted(shard, under(world, session, "a"))
    good = drop(world, session, NOW_NS)
    wrong = {
        "watermark-not-below-expiry": msgspec.structs.replace(good, watermark_ns=session.expiry_ns),
        "watermark-incomplete": msgspec.structs.replace(good, watermark_time=None),
        "watermark-time-damaged": msgspec.structs.replace(good, watermark_time=bytes(128)),
        "watermark-breaks-r1": msgspec.structs.replace(good, watermark_ns=NOW_NS - 2 * SECOND),
    }
    for expected, request in wrong.items():
        assert code(one(shard, request)) == expected
    assert isinstance(one(shard, acquire(world, "a", holder=RIVAL)), Denied)


def test_requests_about_a_session_that_nobody_knows_are_over(world: World) -> None:
    shard = world.started()
    session = session_of(shard, world)
    granted(shard, under(world, session, "a"))
    other = world.started()  # afresh: it knows of nothing
    for request in (prolong(world, session), drop(world, session)):
        reply = one(other, request)
        assert isinstance(reply, Over)
        assert reply.outcome is LeaseOutcome.UNKNOWN
    assert code(one(other, under(world, session, "a"))) == "no-session"


def test_lease_is_not_granted_under_a_session_of_another_or_one_that_is_nearly_over(world: World) -> None:
    shard = world.started()
    session = session_of(shard, world)
    foreign = msgspec.structs.replace(acquire(world, "a", holder=RIVAL), session_id=session.session_id)
    assert code(one(shard, foreign)) == "foreign-session"
    world.time.midpoint_ns = session.expiry_ns - world.time.radius_ns
    assert code(one(shard, under(world, session, "a"))) == "session-too-short"
    world.time.midpoint_ns -= 1
    granted(shard, under(world, session, "a"))
    delayed = msgspec.structs.replace(under(world, session, "b"), expiry_ns_max=world.time.midpoint_ns)
    assert code(one(shard, delayed)) == "late"
    one(shard, drop(world, session))
    assert code(one(shard, under(world, session, "c"))) == "no-session"


# -- a lease that ends alone -------------------------------------------------------------------------------------------


def test_lease_that_the_shard_ends_alone_is_named_by_every_later_witness(world: World) -> None:
    shard = world.started()
    session = session_of(shard, world)
    first, second = (granted(shard, under(world, session, each)) for each in "ab")
    world.time.advance(2 * SECOND)
    renewed = stated(one(shard, prolong(world, session)))
    assert renewed.ended == ()
    one(shard, revoke(world, first))
    successor = granted(shard, acquire(world, "a", holder=RIVAL))
    assert (successor.floor_ns, successor.settle_to_ns) == (renewed.expiry_ns, renewed.expiry_ns)
    world.time.advance(2 * SECOND)
    later = stated(one(shard, prolong(world, session)))
    assert later.ended == (first.correlation_id,)
    assert later.expiry_ns > successor.floor_ns
    abandoned = msgspec.structs.replace(relinquish(world, second), abandoned=True)
    reply = one(shard, abandoned)
    assert isinstance(reply, Over)
    assert reply.outcome is LeaseOutcome.ABANDONED
    after = granted(shard, acquire(world, "b", holder=RIVAL))
    assert (after.floor_ns, after.settle_to_ns) == (later.expiry_ns, later.expiry_ns)
    assert stated(one(shard, prolong(world, session))).ended == (first.correlation_id, second.correlation_id)


# In one turn they can come in either order: the floor is what was renewed last, or the witness names the lease.
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_renewal_and_revocation_in_one_turn_leave_no_gap(world: World, order: tuple[int, int]) -> None:
    shard = world.started()
    session = session_of(shard, world)
    lease = granted(shard, under(world, session, "a"))
    world.time.advance(SECOND)
    both = (prolong(world, session), revoke(world, lease))
    replies = shard.turn([both[order[0]], both[order[1]]])
    (renewal,) = (stated(each) for each in replies if isinstance(each, SessionGranted))
    floor = granted(shard, acquire(world, "a", holder=RIVAL)).floor_ns
    assert renewal.ended == (lease.correlation_id,) or floor == renewal.expiry_ns
    assert stated(one(shard, prolong(world, session))).ended == (lease.correlation_id,)


def test_lease_that_is_given_back_or_was_never_held_is_not_named(world: World) -> None:
    shard = world.started()
    session = session_of(shard, world)
    given = granted(shard, under(world, session, "a"))
    one(shard, relinquish(world, given, watermark_ns=NOW_NS + 1))
    granted(shard, under(world, session, "b", phase=Phase.TENTATIVE))
    older = acquire(world, "b", holder=RIVAL, age_ns=NOW_NS - SECOND)
    assert granted(shard, older).last_ended is not None
    reply = one(shard, prolong(world, session))
    assert stated(reply).ended == ()
    assert isinstance(reply, SessionGranted)
    assert reply.leases == 0
    assert granted(shard, acquire(world, "a", holder=RIVAL)).floor_ns == NOW_NS + 1


def test_session_under_which_too_many_ended_alone_is_renewed_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ENDED_MAX == 256
    monkeypatch.setattr("appliance.lease.sessions.ENDED_MAX", 2)
    shard = world.started()
    session = session_of(shard, world)
    for domain in "ab":
        assert stated(one(shard, prolong(world, session)))
        one(shard, revoke(world, granted(shard, under(world, session, domain))))
    assert code(one(shard, prolong(world, session))) == "session-worn"


# -- waiters, room, stop -----------------------------------------------------------------------------------------------


def wait_for(shard: Shard, world: World, domain: str) -> Caller:
    caller = Caller()
    request = msgspec.structs.replace(acquire(world, domain, holder=RIVAL), wait_ns=30 * SECOND)
    assert shard.serve([request], {0: caller}) == [None]
    return caller


def test_everybody_who_waits_for_a_lease_of_a_session_is_woken_by_its_end(world: World) -> None:
    shard = world.started()
    session = session_of(shard, world)
    other = session_of(shard, world)
    for domain in "abc":
        granted(shard, under(world, other if domain == "c" else session, domain))
    callers = [wait_for(shard, world, each) for each in "abc"]
    one(shard, drop(world, session))
    assert [len(each.replies) for each in callers] == [1, 1, 0]
    assert all(isinstance(each.replies[0], Granted) for each in callers[:2])
    lived_to(world, other.expiry_ns)
    shard.serve([])
    assert isinstance(callers[2].replies[0], Granted)


def test_orderly_stop_waits_for_sessions_and_counts_leases_that_nobody_met(world: World) -> None:
    shard = world.started()
    dropped, kept = session_of(shard, world), session_of(shard, world)
    for session, domain in ((dropped, "a"), (kept, "b")):
        granted(shard, under(world, session, domain))
    world.time.advance(SECOND)
    kept = stated(one(shard, prolong(world, kept)))
    one(shard, drop(world, dropped, world.time.midpoint_ns))
    waiting = shard.stop_orderly()
    assert isinstance(waiting, NotYet)
    assert (waiting.leases, waiting.until_ns) == (1, kept.expiry_ns + world.time.radius_ns + 1)
    assert code(one(shard, prolong(world, kept))) == "stopping"
    assert code(one(shard, begin(world))) == "stopping"
    lived_to(world, kept.expiry_ns)
    assert shard.stop_orderly() == StoppedOrderly(kept.expiry_ns, kept.expiry_ns)


def test_numbers_of_an_orderly_stop_hold_for_what_a_dropped_session_wrote(world: World) -> None:
    shard = world.started()
    session = session_of(shard, world)
    lease = granted(shard, under(world, session, "a"))
    world.time.advance(SECOND)
    one(shard, drop(world, session, world.time.midpoint_ns))
    assert world.time.midpoint_ns > lease.fence
    assert shard.stop_orderly() == StoppedOrderly(world.time.midpoint_ns, 0)


def test_leases_of_a_dead_session_make_room_for_others(world: World) -> None:
    world.domains_max = 4
    shard = world.started()
    session = session_of(shard, world)
    for domain in "abcd":
        granted(shard, under(world, session, domain))
    assert code(one(shard, acquire(world, "e", holder=RIVAL))) == "busy"
    world.time.midpoint_ns = session.expiry_ns + 60 * SECOND
    assert code(one(shard, acquire(world, "e", holder=RIVAL))) == "busy"  # ends them: they may be forgotten now
    assert granted(shard, acquire(world, "e", holder=RIVAL)).floor_ns >= session.expiry_ns
    assert world.stores[0].dead_leases == 0


def test_all_sessions_of_a_domain_that_are_past_are_over_for_who_comes_next(world: World) -> None:
    shard = world.started()
    sessions = [session_of(shard, world) for _ in range(3)]
    for each in sessions:
        granted(shard, under(world, each, "a", mode=Mode.S))
    lived_to(world, sessions[0].expiry_ns)
    granted(shard, acquire(world, "a", holder=RIVAL))
    over = [each.session_id for each in world.ledger.entries() if isinstance(each, SessionEnded)]
    assert sorted(over) == sorted(each.session_id for each in sessions)


def test_sessions_that_are_past_make_room_for_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "SESSIONS_MAX", 2)
    shard = world.started()
    first = [session_of(shard, world) for _ in range(2)]
    assert code(one(shard, begin(world))) == "busy"
    lived_to(world, first[0].expiry_ns)
    session_of(shard, world)
    assert len(world.stores[0].sessions) == 1


def test_turn_that_cannot_be_written_leaves_sessions_as_they_were(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = world.started()
    session = session_of(shard, world)
    lease = granted(shard, under(world, session, "a"))

    def full(*_: object) -> None:
        raise Environment("store-full", "planted", hint="")

    monkeypatch.setattr(shard._batch_signer, "hold", full)
    with pytest.raises(Environment):
        shard.turn([drop(world, session), under(world, session, "b")])
    monkeypatch.undo()
    assert (world.stores[0].leases, world.stores[0].dead_leases, len(world.stores[0].sessions)) == (1, 0, 1)
    reply = one(shard, prolong(world, session))
    assert isinstance(reply, SessionGranted)
    assert reply.leases == 1
    assert isinstance(one(shard, acquire(world, lease.domain, holder=RIVAL)), Denied)


def test_page_shows_leases_as_their_sessions_are(world: World) -> None:
    shard = world.started()
    session, other = session_of(shard, world), session_of(shard, world)
    for domain in "ace":
        granted(shard, under(world, session, domain))
    granted(shard, under(world, other, "b"))
    granted(shard, acquire(world, "d"))
    world.time.advance(SECOND)
    later = stated(one(shard, prolong(world, session)))
    one(shard, drop(world, other))

    def page(session_id: bytes | None = None, after: str = "") -> LeasePage:
        reply = one(shard, Inspect(after_domain=after, leases_max=9, session_id=session_id))
        assert isinstance(reply, LeasePage)
        return reply

    shown = [(each.domain, each.session_id, each.expiry_ns) for each in page().leases]
    mine = (session.session_id, later.expiry_ns)
    assert shown == [("a", *mine), ("c", *mine), ("d", None, NOW_NS + TERM), ("e", *mine)]
    assert [each.domain for each in page(session.session_id).leases] == ["a", "c", "e"]
    assert page(session.session_id).after_domain == "e"
    assert [each.domain for each in page(session.session_id, "c").leases] == ["e"]
    assert (page().numbers.leases, page().numbers.sessions) == (4, 2)


def test_ledger_has_a_witness_for_each_renewal_and_an_end_for_each_lease_that_was_met(world: World) -> None:
    shard = world.started()
    session = session_of(shard, world)
    for domain in "ab":
        granted(shard, under(world, session, domain))
    one(shard, prolong(world, session))
    one(shard, drop(world, session))
    granted(shard, acquire(world, "a", holder=RIVAL))
    kinds = [type(entry) for entry in world.ledger.entries()]
    expected = [SessionWitness, Witness, Witness, SessionWitness, SessionEnded, Ended, Witness]
    assert [kind for kind in kinds if kind in set(expected)] == expected
