"""Recall: the holder in the way hears of it, once, whatever was lost; and an operator's word ends a lease."""

import msgspec
import pytest

from appliance.formats.hints import nothing_known
from appliance.formats.lease import Holder, LeaseOutcome, Mode, Phase
from appliance.formats.witness import Ended, Revoked, Witness
from appliance.lease import recall
from appliance.lease.ceiling import NotYet, StoppedOrderly
from appliance.lease.domain import Free, Grant, Memory
from appliance.lease.recall import ATTEND_NS_MAX, asked_back
from appliance.lease.shard import Shard
from appliance.lease.wire import Age, Attend, Denied, Over, Recalled, Refused, Reply, Revoke, Unavailable
from tests.support.shards import HOLDER, RIVAL, Caller, World, acquire, granted, one, relinquish, renew, upgrade
from tests.unit.test_lease_waiting import wait_for, waiting
from timeagent.errors import BadTime
from timeagent.units import SECOND, TimeInterval

OTHER = Holder(node="node-o", process=9, boot=bytes(16), incarnation=bytes(8), purpose="other")


def attend(
    world: World, holder: Holder = HOLDER, *, heard: Recalled | None = None, wait_ns: int = 20 * SECOND
) -> Attend:
    run, number = (bytes(8), 0) if heard is None else (heard.run, heard.heard)
    return Attend(request_id=world.request_id(), holder=holder, run=run, heard=number, wait_ns=wait_ns)


def listen(shard: Shard, request: Attend) -> Caller:
    caller = Caller()
    assert shard.serve([request], {0: caller}) == [None]
    return caller


def test_who_listens_is_answered_in_time_even_while_there_is_no_usable_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = world.started()
    caller = listen(shard, attend(world, wait_ns=SECOND))

    def no_time() -> TimeInterval:
        raise BadTime("no-time", "no source has a bound")

    monkeypatch.setattr(world.time, "now", no_time)
    assert shard.due_in() == SECOND
    world.time.advance(SECOND)
    assert shard.serve([]) == []
    assert heard(caller).wanted == ()
    assert shard.due_in() is None, "or the server's loop does not rest"


def heard(caller: Caller) -> Recalled:
    (reply,) = caller.replies
    assert isinstance(reply, Recalled), reply
    return reply


def asked(reply: Reply | None) -> Recalled:
    assert isinstance(reply, Recalled), reply
    return reply


def revoke(world: World, lease: Witness, by: Holder = OTHER) -> Revoke:
    return Revoke(request_id=world.request_id(), domain=lease.domain, correlation_id=lease.correlation_id, by=by)


# -- recall ------------------------------------------------------------------------------------------------------------


def test_holder_is_told_in_the_turn_in_which_another_asks(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    caller = listen(shard, attend(world))
    assert caller.replies == []
    wait_for(shard, waiting(world))
    (wanted,) = heard(caller).wanted
    assert (wanted.domain, wanted.correlation_id, wanted.mode, wanted.by) == ("a", lease.correlation_id, Mode.X, RIVAL)
    assert wanted.since_ns == world.time.midpoint_ns


def test_recall_made_before_the_holder_listens_is_told_at_once(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    assert isinstance(one(shard, acquire(world, "a", holder=RIVAL)), Denied)
    assert [each.domain for each in asked(one(shard, attend(world, wait_ns=0))).wanted] == ["a"]


def test_lost_answer_is_given_again_and_nothing_is_told_twice(world: World) -> None:
    shard = world.started()
    for domain in ("a", "b"):
        granted(shard, acquire(world, domain))
    one(shard, acquire(world, "a", holder=RIVAL))
    first = asked(one(shard, attend(world)))
    assert asked(one(shard, attend(world))).wanted == first.wanted
    caller = listen(shard, attend(world, heard=first))
    one(shard, acquire(world, "b", holder=RIVAL))
    assert [each.domain for each in heard(caller).wanted] == ["b"]


def test_lease_is_recalled_once_however_many_ask(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    for _ in range(3):
        one(shard, acquire(world, "a", holder=RIVAL))
    told = asked(one(shard, attend(world)))
    assert (len(told.wanted), told.heard) == (1, 1)


# A circle of waiters is found by it: it must be true of now, and of others.
def test_holder_that_asks_is_told_the_oldest_of_the_others_that_wait_now(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))

    def oldest() -> Age | None:
        (wanted,) = asked(one(shard, attend(world, wait_ns=0))).wanted
        return wanted.oldest

    one(shard, acquire(world, "a", holder=RIVAL))
    assert oldest() is None, "it was denied, and waits no more"
    wait_for(shard, msgspec.structs.replace(waiting(world), holder=HOLDER))
    assert oldest() is None, "its own request"
    world.time.advance(SECOND)
    younger, older = waiting(world), waiting(world, mode=Mode.S, age_ns=1)
    older = msgspec.structs.replace(older, holder=OTHER)
    wait_for(shard, younger)
    assert oldest() == younger.age
    caller = wait_for(shard, older)
    assert oldest() == older.age
    shard.abandon([caller])
    assert oldest() == younger.age


def test_denial_says_since_when_the_holder_knows(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    first = one(shard, acquire(world, "a", holder=RIVAL))
    assert isinstance(first, Denied)
    assert first.recalled_ns == 0, "its holder does not listen"
    one(shard, attend(world, wait_ns=0))
    told_ns = world.time.midpoint_ns
    world.time.advance(SECOND)
    again = one(shard, acquire(world, "a", holder=RIVAL))
    assert isinstance(again, Denied)
    assert again.recalled_ns == told_ns


def test_listener_whose_connection_is_closed_is_not_told_and_not_counted_as_told(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    caller = listen(shard, attend(world))
    caller.gone = True
    denied = one(shard, acquire(world, "a", holder=RIVAL))
    assert isinstance(denied, Denied)
    assert (denied.recalled_ns, caller.replies) == (0, [])
    shard.abandon([caller])
    assert shard.due_in() is None
    assert [each.domain for each in asked(one(shard, attend(world))).wanted] == ["a"]


def test_tentative_leases_are_not_recalled_until_they_are_held(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a", phase=Phase.TENTATIVE))
    caller = listen(shard, attend(world))
    world.time.advance(1)
    wait_for(shard, waiting(world))
    assert caller.replies == []
    granted(shard, upgrade(world, lease))
    assert [each.domain for each in heard(caller).wanted] == ["a"]


def test_shared_leases_are_recalled_by_whoever_excludes_them_and_by_nobody_else(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a", mode=Mode.S))
    granted(shard, acquire(world, "a", mode=Mode.IS, holder=OTHER))
    mine, others = listen(shard, attend(world)), listen(shard, attend(world, OTHER))
    one(shard, acquire(world, "a", mode=Mode.IX, holder=RIVAL))
    assert [each.mode for each in heard(mine).wanted] == [Mode.IX]
    assert others.replies == []
    one(shard, acquire(world, "a", mode=Mode.X, holder=RIVAL))
    assert [each.mode for each in heard(others).wanted] == [Mode.X]


def test_upgrade_recalls_those_beside_it_and_not_itself(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a", mode=Mode.S))
    granted(shard, acquire(world, "a", mode=Mode.S, holder=RIVAL))
    mine, rivals = listen(shard, attend(world)), listen(shard, attend(world, RIVAL))
    one(shard, msgspec.structs.replace(upgrade(world, lease), mode=Mode.X))
    assert [each.by for each in heard(rivals).wanted] == [HOLDER]
    assert mine.replies == []


def test_next_holder_is_asked_at_its_grant_for_those_who_wait_behind_it(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    first, second = wait_for(shard, waiting(world)), wait_for(shard, waiting(world))
    one(shard, relinquish(world, lease))
    assert first.witness.holder == RIVAL
    assert second.replies == []
    told = asked(one(shard, attend(world, RIVAL)))
    assert [each.correlation_id for each in told.wanted] == [first.witness.correlation_id]


def test_what_has_ended_is_asked_for_no_more(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    one(shard, acquire(world, "a", holder=RIVAL))
    one(shard, relinquish(world, lease))
    assert asked(one(shard, attend(world, wait_ns=0))).wanted == ()


def test_listener_is_answered_when_its_time_is_up(world: World) -> None:
    shard = world.started()
    caller = listen(shard, attend(world, wait_ns=ATTEND_NS_MAX + SECOND))
    assert shard.due_in() == ATTEND_NS_MAX
    world.time.advance(ATTEND_NS_MAX)
    assert shard.serve([]) == []
    assert heard(caller).wanted == ()
    assert shard.due_in() is None


def test_newer_call_of_a_holder_ends_the_one_before(world: World) -> None:
    shard = world.started()
    first = listen(shard, attend(world))
    assert asked(one(shard, attend(world, wait_ns=0))).wanted == ()
    assert heard(first).wanted == ()
    assert shard.due_in() is None


def test_successor_of_the_shard_tells_what_it_recalls_whatever_was_heard_before(world: World) -> None:
    shard = world.started()
    for domain in ("a", "b"):
        granted(shard, acquire(world, domain))
        one(shard, acquire(world, domain, holder=RIVAL))
    before = asked(one(shard, attend(world)))
    assert before.heard == 2
    world.time.advance(20 * SECOND)
    shard = world.started()
    granted(shard, acquire(world, "a"))
    one(shard, acquire(world, "a", holder=RIVAL))
    assert [each.domain for each in asked(one(shard, attend(world, heard=before))).wanted] == ["a"]


def test_orderly_stop_asks_for_everything_back_and_holders_who_answer_end_it(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    caller = listen(shard, attend(world))
    assert isinstance(shard.stop_orderly(), NotYet)
    assert heard(caller).stopping
    assert asked(one(shard, attend(world))).stopping, "who asks then is told at once"
    one(shard, relinquish(world, lease))
    assert isinstance(shard.stop_orderly(), StoppedOrderly)


def test_deposed_shard_sends_listeners_away(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    caller = listen(shard, attend(world))
    world.started("node-2")
    world.time.advance(2 * SECOND)
    shard.housekeeping()
    (reply,) = caller.replies
    assert isinstance(reply, Unavailable)
    assert reply.code == "deposed"


def test_answers_name_so_many_leases_and_the_next_the_rest(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "TOLD_MAX", 2)
    shard = world.started()
    for domain in "abc":
        granted(shard, acquire(world, domain))
        one(shard, acquire(world, domain, holder=RIVAL))
    first = asked(one(shard, attend(world)))
    second = asked(one(shard, attend(world, heard=first)))
    assert [each.domain for each in (*first.wanted, *second.wanted)] == ["a", "b", "c"]


# What has ended meanwhile is left out, what was lost is said again, and a denial names when its holder was really told.
def test_many_leases_that_are_asked_for_are_told_page_by_page(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recall, "TOLD_MAX", 5)
        shard = world.started()
        names = [f"d{number:02}" for number in range(40)]
        leases = {name: granted(shard, acquire(world, name)) for name in names}
        for name in names:
            one(shard, acquire(world, name, holder=RIVAL))
        told: list[str] = []
        last: Recalled | None = None
        while (page := asked(one(shard, attend(world, heard=last, wait_ns=0)))).wanted:
            if last is not None:
                assert asked(one(shard, attend(world, heard=last, wait_ns=0))).wanted == page.wanted
            told += [each.domain for each in page.wanted]
            assert len(page.wanted) <= 5
            since = [one(shard, acquire(world, name, holder=OTHER)) for name in names if name in leases]
            known = [each.domain for each in since if isinstance(each, Denied) and each.recalled_ns]
            assert known == [name for name in told if name in leases]
            for name in (told[0], names[-len(told)]):  # one that was told, and one that was not yet
                if name in leases:
                    one(shard, relinquish(world, leases.pop(name)))
            last = page
        assert told == sorted(told)
        assert leases.keys() <= set(told)
        assert len(told) < len(names)


def test_more_listeners_than_a_shard_has_room_for_are_answered_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "ATTENDERS_MAX", 1)
    shard = world.started()
    listen(shard, attend(world))
    assert isinstance(shard.serve([attend(world, RIVAL)], {0: Caller()})[0], Recalled)


def test_free_domain_has_nobody_to_ask(world: World) -> None:
    request = acquire(world, "a")
    free = Free(memory=Memory(fence=0, floor_ns=0, settle_to_ns=0, hints=nothing_known(0)))
    assert asked_back(free, Grant(request, bytes(8))) == (request.holder, request.mode, [])


# -- revocation --------------------------------------------------------------------------------------------------------


def test_revoked_lease_is_over_and_its_successor_lies_above_its_expiry(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    reply = one(shard, revoke(world, lease))
    assert isinstance(reply, Over)
    assert reply.outcome is LeaseOutcome.REVOKED
    later = granted(shard, acquire(world, "a", holder=RIVAL))
    assert (later.floor_ns, later.settle_to_ns) == (lease.expiry_ns, lease.expiry_ns)
    assert later.last_ended is not None
    assert later.last_ended.outcome is LeaseOutcome.REVOKED


def test_holder_of_a_revoked_lease_learns_it_at_its_renewal(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    one(shard, revoke(world, lease))
    for late in (renew(world, lease), relinquish(world, lease, lease.expiry_ns - 1)):
        reply = one(shard, late)
        assert isinstance(reply, Over)
        assert reply.outcome is LeaseOutcome.REVOKED


def test_revocation_wakes_whoever_waits(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    caller = wait_for(shard, waiting(world))
    one(shard, revoke(world, lease))
    assert caller.witness.floor_ns == lease.expiry_ns


def test_ledger_says_who_revoked_and_why_once(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    request = revoke(world, lease, msgspec.structs.replace(OTHER, purpose="node-h burns"))
    first, again = one(shard, request), one(shard, request)
    assert first == again
    world.sign_held(shard)
    said = [each for each in world.ledger.entries() if isinstance(each, Ended | Revoked)]
    assert [type(each) for each in said] == [Ended, Revoked]
    assert isinstance(said[1], Revoked)
    assert (said[1].domain, said[1].correlation_id) == ("a", lease.correlation_id)
    assert said[1].by.purpose == "node-h burns"


def test_only_the_grant_that_is_named_is_revoked(world: World) -> None:
    shard = world.started()
    first = granted(shard, acquire(world, "a"))
    one(shard, relinquish(world, first))
    second = granted(shard, acquire(world, "a", holder=RIVAL))
    reply = one(shard, revoke(world, first))
    assert isinstance(reply, Over)
    assert reply.outcome is LeaseOutcome.RELINQUISHED
    granted(shard, renew(world, second))
    assert not [each for each in world.ledger.entries() if isinstance(each, Revoked)]


def test_tentative_lease_that_is_revoked_moves_nothing(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a", phase=Phase.TENTATIVE))
    reply = one(shard, revoke(world, lease))
    assert isinstance(reply, Over)
    assert reply.outcome is LeaseOutcome.WITHDRAWN
    assert granted(shard, acquire(world, "a", holder=RIVAL)).settle_to_ns == lease.settle_to_ns


def test_reason_that_is_no_plain_text_is_refused(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    reply = one(shard, revoke(world, lease, msgspec.structs.replace(OTHER, purpose="a\nb")))
    assert isinstance(reply, Refused)
    assert reply.code == "bad-purpose"
    granted(shard, renew(world, lease))
