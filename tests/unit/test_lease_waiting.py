"""Queues: first come, first served, woken by the shard, and nothing for those who are gone."""

import msgspec
import pytest

from appliance.formats.lease import Mode, Phase
from appliance.formats.witness import Witness
from appliance.lease import waiting as waiting_module
from appliance.lease.ceiling import StoppedOrderly
from appliance.lease.shard import Shard
from appliance.lease.waiting import KEEP_NS_MAX, WAIT_NS_MAX
from appliance.lease.wire import Acquire, Denied, Granted, Inspect, LeasePage, Over, Reason, Unavailable, Upgrade
from appliance.lease.witness_ledger import BatchSigner
from tests.support.shards import (
    HOLDER,
    RIVAL,
    TERM,
    Caller,
    World,
    acquire,
    granted,
    one,
    relinquish,
    renew,
    repeated,
    upgrade,
)
from tests.support.values import NOW_NS
from timeagent.errors import BadTime
from timeagent.units import MS, SECOND, TimeInterval


def waiting(
    world: World,
    domain: str = "a",
    *,
    mode: Mode = Mode.X,
    phase: Phase = Phase.HELD,
    wait_ns: int = 20 * SECOND,
    keep_ns: int = 0,
    request_id: bytes | None = None,
    age_ns: int | None = None,
) -> Acquire:
    request_id = request_id or world.request_id()
    plain = acquire(
        world, domain, mode=mode, phase=phase, holder=RIVAL, request_id=request_id, age_ns=age_ns, until_ns=2**62
    )
    return msgspec.structs.replace(plain, wait_ns=wait_ns, keep_ns=keep_ns)


class Raising:
    """In the place of what fails within a turn."""

    def __call__(self, *_: object) -> None:
        raise ZeroDivisionError


def wait_for(shard: Shard, request: Acquire | Upgrade) -> Caller:
    """Ask, and be held back."""
    caller = Caller()
    assert shard.serve([request], {0: caller}) == [None]
    assert caller.replies == []
    return caller


def look(shard: Shard) -> None:
    """What the loop around a shard does when it says so."""
    while shard.due_in() == 0:
        assert shard.serve([]) == []


def queued(shard: Shard) -> int:
    page = one(shard, Inspect(after_domain="", leases_max=9))
    assert isinstance(page, LeasePage)
    return page.numbers.waiting


# -- first come, first served ------------------------------------------------------------------------------------------


def test_waiters_get_the_domain_in_the_order_in_which_they_came(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    callers = []
    for _ in range(3):
        world.time.advance(MS)
        callers.append(wait_for(shard, waiting(world)))
    assert queued(shard) == 3
    for number, caller in enumerate(callers):
        one(shard, relinquish(world, lease))
        assert [len(each.replies) for each in callers] == [1] * (number + 1) + [0] * (2 - number)
        lease = caller.witness
    assert queued(shard) == 0


def test_it_is_told_how_long_each_has_waited_and_whether_it_was_granted(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    wait_for(shard, waiting(world))
    world.time.advance(SECOND)
    wait_for(shard, waiting(world, wait_ns=2 * SECOND))
    kept = waiting(world, wait_ns=SECOND, keep_ns=SECOND)
    wait_for(shard, kept)
    world.time.advance(SECOND)
    look(shard)
    assert world.waited == [], "its place is kept for its next call"
    wait_for(shard, kept)
    world.time.advance(SECOND)
    look(shard)
    assert world.waited == [("a", 2 * SECOND, False)]
    one(shard, relinquish(world, lease))
    assert world.waited[1:] == [("a", 3 * SECOND, True)]


def test_grant_is_made_when_the_waiter_is_woken(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    caller = wait_for(shard, waiting(world))
    world.time.advance(5 * SECOND)
    one(shard, relinquish(world, lease, NOW_NS + 5 * SECOND))
    assert caller.witness.fence > NOW_NS + 5 * SECOND
    assert caller.witness.expiry_ns == NOW_NS + 5 * SECOND + TERM
    assert caller.witness.floor_ns == NOW_NS + 5 * SECOND


def test_waiter_is_woken_when_the_lease_in_its_way_is_surely_past(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    caller = wait_for(shard, waiting(world))
    due = shard.due_in()
    assert due == lease.expiry_ns + world.time.radius_ns + 1 - NOW_NS
    world.time.advance(due - 1)
    look(shard)
    assert caller.replies == []
    world.time.advance(1)
    look(shard)
    assert caller.witness.settle_to_ns == lease.expiry_ns


def test_each_waiter_is_answered_when_its_own_time_is_over(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    callers = [wait_for(shard, waiting(world, wait_ns=seconds * SECOND)) for seconds in (2, 3, 1)]
    for over in (1, 2, 3):
        assert shard.due_in() == SECOND
        world.time.advance(SECOND)
        look(shard)
        assert sum(len(each.replies) for each in callers) == over
    assert [each.denied.place for each in callers] == [1, 1, 3]
    assert queued(shard) == 0


def test_holder_that_renews_keeps_the_waiter_waiting(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    caller = wait_for(shard, waiting(world))
    world.time.advance(6 * SECOND)
    renewed = granted(shard, renew(world, lease))
    world.time.advance(6 * SECOND)
    look(shard)
    assert caller.replies == []
    world.time.midpoint_ns = renewed.expiry_ns + world.time.radius_ns + 1
    world.time._boot_ns += 10 * SECOND
    look(shard)
    assert isinstance(caller.replies[0], Granted)


# A stream of readers does not keep a writer out: who comes after it is behind it.
def test_reader_that_comes_after_a_waiting_writer_waits_behind_it(world: World) -> None:
    shard = world.started()
    reader = granted(shard, acquire(world, "a", mode=Mode.S))
    writer = wait_for(shard, waiting(world))
    later = [wait_for(shard, waiting(world, mode=Mode.S)) for _ in range(2)]
    refused = one(shard, acquire(world, "a", mode=Mode.S))
    assert isinstance(refused, Denied)
    assert (refused.reason, refused.place, refused.holder) == (Reason.QUEUED, 4, RIVAL)
    one(shard, relinquish(world, reader))
    assert [len(each.replies) for each in (writer, *later)] == [1, 0, 0]
    one(shard, relinquish(world, writer.witness))
    assert [len(each.replies) for each in later] == [1, 1]


def test_who_comes_in_the_turn_that_frees_a_domain_does_not_pass_those_who_wait(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    caller = wait_for(shard, waiting(world))
    over, late = shard.serve([relinquish(world, lease), acquire(world, "a")])
    assert isinstance(over, Over)
    assert isinstance(late, Denied)
    assert isinstance(caller.replies[0], Granted)


def test_denial_says_the_place_and_whom_the_first_waits_for(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    first = wait_for(shard, waiting(world, wait_ns=2 * SECOND))
    world.time.advance(10 * MS)
    second = wait_for(shard, waiting(world, wait_ns=SECOND))
    world.time.advance(SECOND)
    look(shard)
    world.time.advance(SECOND)
    look(shard)
    assert (first.denied.reason, first.denied.place, first.denied.holder) == (Reason.HELD, 1, HOLDER)
    assert (first.denied.since_ns, first.denied.until_ns) == (NOW_NS, lease.expiry_ns)
    assert (second.denied.place, second.denied.holder) == (2, HOLDER)
    assert second.denied.earliest_ns > lease.expiry_ns
    assert queued(shard) == 0


# -- those who are gone ------------------------------------------------------------------------------------------------


def test_waiter_whose_connection_has_closed_gets_nothing_and_is_in_nobodys_way(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    dead, alive = wait_for(shard, waiting(world)), wait_for(shard, waiting(world))
    dead.gone = True
    shard.abandon([dead])
    assert queued(shard) == 1
    one(shard, relinquish(world, lease))
    assert dead.replies == []
    assert isinstance(alive.replies[0], Granted)


def test_those_behind_a_closed_connection_are_looked_at_at_once(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a", mode=Mode.S))
    writer, reader = wait_for(shard, waiting(world)), wait_for(shard, waiting(world, mode=Mode.S))
    writer.gone = True
    shard.abandon([writer])
    look(shard)
    assert reader.witness.mode is Mode.S


# What it was to be told is of a turn that never was: the next one's witnesses are about others.
def test_who_was_woken_in_a_turn_that_raises_is_told_nothing_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    request = waiting(world)
    caller = wait_for(shard, request)
    with monkeypatch.context() as broken:
        broken.setattr(BatchSigner, "sign", Raising())
        with pytest.raises(ZeroDivisionError):
            shard.turn([relinquish(world, lease)])
    granted(shard, acquire(world, "b"))
    assert caller.replies == []
    again = wait_for(shard, request)
    one(shard, relinquish(world, lease))
    assert again.witness.domain == "a"


# The shell has not noticed yet that the connection is closed: it is asked once more before a grant.
def test_waiter_that_is_gone_when_its_turn_comes_gets_nothing(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    dead, alive = wait_for(shard, waiting(world)), wait_for(shard, waiting(world))
    dead.gone = True
    one(shard, relinquish(world, lease))
    assert dead.replies == []
    assert isinstance(alive.replies[0], Granted)


# A free domain, its first waiter dead: the one behind must not wait for anything else to happen.
def test_those_behind_a_place_that_was_kept_in_vain_are_served_when_its_time_is_over(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    first = wait_for(shard, waiting(world, wait_ns=SECOND, keep_ns=KEEP_NS_MAX))
    second = wait_for(shard, waiting(world))
    world.time.advance(SECOND)
    look(shard)
    assert first.denied.place == 1
    one(shard, relinquish(world, lease))
    assert second.replies == []
    world.time.advance(KEEP_NS_MAX - 1)
    look(shard)
    assert second.replies == []
    world.time.advance(1)
    look(shard)
    assert isinstance(second.replies[0], Granted)


def test_place_is_kept_between_two_calls_of_the_same_request(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    request = waiting(world, wait_ns=SECOND, keep_ns=SECOND)
    first = wait_for(shard, request)
    second = wait_for(shard, waiting(world))
    world.time.advance(SECOND)
    look(shard)
    assert isinstance(first.replies[0], Denied)
    again = wait_for(shard, request)
    one(shard, relinquish(world, lease))
    assert isinstance(again.replies[0], Granted)
    assert second.replies == []


def test_place_that_is_asked_for_once_more_without_waiting_is_given_up(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    wait_for(shard, request := waiting(world))
    second = wait_for(shard, waiting(world))
    assert isinstance(one(shard, waiting(world, wait_ns=0, request_id=request.request_id)), Denied)
    assert queued(shard) == 1
    one(shard, relinquish(world, lease))
    assert isinstance(second.replies[0], Granted)


def test_repeated_call_takes_the_place_over_and_the_first_is_answered(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    first = wait_for(shard, request := waiting(world))
    second = wait_for(shard, request)
    assert isinstance(first.replies[0], Denied)
    assert queued(shard) == 1
    one(shard, relinquish(world, lease))
    assert isinstance(second.replies[0], Granted)
    repeated(second.replies[0], one(shard, request))


def test_who_does_not_wait_has_no_place(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    assert isinstance(one(shard, waiting(world)), Denied)  # nobody takes an answer that is held back
    assert queued(shard) == 0


def test_waits_and_keeps_have_a_longest(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    caller = wait_for(shard, waiting(world, wait_ns=2**62, keep_ns=2**62))
    while caller.replies == []:
        due = shard.due_in()
        assert due is not None
        world.time.advance(due)
        lease = granted(shard, renew(world, lease))
        look(shard)
    assert world.time.midpoint_ns == NOW_NS + WAIT_NS_MAX
    world.time.advance(KEEP_NS_MAX)
    look(shard)
    assert queued(shard) == 0


def test_queue_has_an_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_module, "QUEUE_MAX", 2)
    shard = world.started()
    granted(shard, acquire(world, "a"))
    for _ in range(2):
        wait_for(shard, waiting(world))
    caller = Caller()
    (denied,) = shard.serve([waiting(world)], {0: caller})
    assert isinstance(denied, Denied)
    assert denied.place == 3


# -- tentative leases --------------------------------------------------------------------------------------------------


def test_older_set_wounds_past_younger_ones_that_wait(world: World) -> None:
    shard = world.started()
    young = granted(shard, acquire(world, "a", phase=Phase.TENTATIVE, age_ns=NOW_NS))
    caller = wait_for(shard, waiting(world, phase=Phase.TENTATIVE, age_ns=NOW_NS + 1))
    oldest = granted(shard, acquire(world, "a", phase=Phase.TENTATIVE, age_ns=NOW_NS - 1))
    assert oldest.last_ended is not None
    assert oldest.last_ended.correlation_id == young.correlation_id
    assert caller.replies == []
    one(shard, relinquish(world, oldest))
    assert isinstance(caller.replies[0], Granted)


def test_oldest_passes_as_soon_as_the_first_waits_for_somebody_who_may_be_waiting_too(world: World) -> None:
    shard = world.started()
    held = granted(shard, acquire(world, "a"))
    reader, writer, oldest = (
        wait_for(shard, waiting(world, mode=mode, phase=Phase.TENTATIVE, age_ns=NOW_NS + age))
        for mode, age in ((Mode.S, 1), (Mode.X, 2), (Mode.S, 0))
    )
    one(shard, relinquish(world, held))
    assert [len(each.replies) for each in (reader, writer, oldest)] == [1, 0, 1]
    assert oldest.witness.others == 0
    one(shard, relinquish(world, reader.witness))
    one(shard, relinquish(world, oldest.witness))
    assert isinstance(writer.replies[0], Granted)


def test_oldest_that_is_gone_or_between_two_calls_does_not_pass(world: World) -> None:
    shard = world.started()
    held = granted(shard, acquire(world, "a"))
    reader, writer, oldest = (
        wait_for(shard, waiting(world, mode=mode, phase=Phase.TENTATIVE, age_ns=NOW_NS + age))
        for mode, age in ((Mode.S, 1), (Mode.X, 2), (Mode.S, 0))
    )
    oldest.gone = True
    one(shard, relinquish(world, held))
    assert [len(each.replies) for each in (reader, writer, oldest)] == [1, 0, 0]
    assert queued(shard) == 1


# -- a stronger mode ---------------------------------------------------------------------------------------------------


def stronger(world: World, lease: Witness, mode: Mode = Mode.X, wait_ns: int = 20 * SECOND) -> Upgrade:
    plain = upgrade(world, lease)
    return Upgrade(
        map_number=1,
        request_id=plain.request_id,
        domain=lease.domain,
        correlation_id=lease.correlation_id,
        term_ns=TERM,
        expiry_ns_max=2**62,
        mode=mode,
        wait_ns=wait_ns,
    )


def test_change_of_mode_waits_for_the_other_holders(world: World) -> None:
    shard = world.started()
    mine, yours = (granted(shard, acquire(world, "a", mode=Mode.S)) for _ in range(2))
    caller = wait_for(shard, stronger(world, mine))
    one(shard, relinquish(world, yours))
    assert (caller.witness.mode, caller.witness.correlation_id) == (Mode.X, mine.correlation_id)
    assert caller.witness.fence > yours.fence


# Two holders that both want more would wait for each other for ever.
def test_change_of_mode_is_denied_at_once_where_another_waits(world: World) -> None:
    shard = world.started()
    mine, yours = (granted(shard, acquire(world, "a", mode=Mode.S)) for _ in range(2))
    first = wait_for(shard, stronger(world, mine))
    (second,) = shard.serve([stronger(world, yours)], {0: Caller()})
    assert isinstance(second, Denied)
    assert second.place == 2
    one(shard, relinquish(world, yours))
    assert first.witness.mode is Mode.X


def test_change_of_mode_that_needs_no_waiting_passes_those_who_do(world: World) -> None:
    shard = world.started()
    mine = granted(shard, acquire(world, "a", mode=Mode.S))
    caller = wait_for(shard, waiting(world))
    assert granted(shard, stronger(world, mine)).mode is Mode.X
    assert caller.replies == []


def test_change_of_mode_whose_lease_has_ended_is_answered_when_its_turn_comes(world: World) -> None:
    shard = world.started()
    mine, yours = (granted(shard, acquire(world, "a", mode=Mode.S)) for _ in range(2))
    caller = wait_for(shard, stronger(world, mine))
    one(shard, relinquish(world, mine))
    (over,) = caller.replies
    assert isinstance(over, Over)
    assert queued(shard) == 0
    assert granted(shard, renew(world, yours)).mode is Mode.S


# -- when the shard cannot ---------------------------------------------------------------------------------------------


def test_shard_that_stops_sends_everybody_away(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    caller = wait_for(shard, waiting(world))
    shard.stop_orderly()
    (reply,) = caller.replies
    assert isinstance(reply, Unavailable)
    assert reply.code == "stopping"
    one(shard, relinquish(world, lease))
    assert isinstance(shard.stop_orderly(), StoppedOrderly)
    assert shard.due_in() is None


def test_deposed_shard_sends_everybody_away(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    caller = wait_for(shard, waiting(world))
    world.started()
    world.time.advance(SECOND)
    shard.housekeeping()
    (reply,) = caller.replies
    assert isinstance(reply, Unavailable)
    assert reply.code == "deposed"


def test_wait_ends_even_while_there_is_no_usable_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    caller = wait_for(shard, waiting(world, wait_ns=SECOND))
    next_one = wait_for(shard, waiting(world, wait_ns=SECOND + 10 * MS))
    behind = wait_for(shard, waiting(world, wait_ns=8 * SECOND))

    def no_time() -> TimeInterval:
        raise BadTime("no-time", "no source has a bound")

    monkeypatch.setattr(world.time, "now", no_time)
    world.time.advance(SECOND)
    look(shard)
    (reply,) = caller.replies
    assert isinstance(reply, Unavailable)
    assert reply.code == "bad-time"
    assert shard.due_in() == 10 * MS
    world.time.advance(10 * MS)
    look(shard)
    assert len(next_one.replies) == 1
    assert behind.replies == []
    assert shard.due_in()
