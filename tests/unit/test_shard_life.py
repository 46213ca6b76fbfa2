"""A shard from its first ceiling record to its last, and what it remembers and forgets meanwhile."""

import msgspec
import pytest

from appliance.formats.chains import CeilingKind, open_ceiling
from appliance.formats.lease import LeaseOutcome, Phase
from appliance.formats.witness import (
    Entry,
    Stopped,
)
from appliance.lease.ceiling import Deposed, Extended, InDoubt, NotYet, StoppedOrderly
from appliance.lease.wire import (
    Denied,
    Granted,
    Over,
    Unavailable,
)
from tests.support.shards import (
    POLICY,
    RIVAL,
    TERM,
    Caller,
    World,
    acquire,
    ceiling_of,
    ended,
    granted,
    one,
    opened,
    relinquish,
    renew,
)
from tests.support.values import CLUSTER, NOW_NS, TIME_KEY, trust_record, witness_refused
from timeagent.errors import BadTime
from timeagent.keys import Signer
from timeagent.signedtime import SignedTime
from timeagent.trust import Keyring
from timeagent.units import SECOND

# -- housekeeping and the end ------------------------------------------------------------------------------------------


def test_ceiling_is_extended_once_in_a_period_and_only_while_leases_are_out(world: World) -> None:
    shard = world.started()
    world.time.advance(10 * SECOND)
    assert shard.housekeeping() is None
    lease = granted(shard, acquire(world, "a"))
    linked = len(world.chain.records)
    assert shard.housekeeping() is None
    world.time.advance(POLICY.ceiling_period_ns - 1)
    assert shard.housekeeping() is None
    world.time.advance(1)
    assert isinstance(shard.housekeeping(), Extended)
    assert len(world.chain.records) == linked + 1
    one(shard, relinquish(world, lease))
    world.time.advance(10 * SECOND)
    assert shard.housekeeping() is None


# Whoever let them run out may never come back, and nobody else need ask for them.
def test_ceiling_is_not_extended_for_leases_that_have_run_out(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    for turn in range(30):
        world.time.advance(POLICY.ceiling_period_ns)
        assert (shard.housekeeping() is None) is world.time.now().surely_past(lease.expiry_ns)
        if turn == 3:
            lease = granted(shard, acquire(world, "b"))
    linked = len(world.chain.records)
    granted(shard, acquire(world, "c"))
    world.time.advance(POLICY.ceiling_period_ns)
    assert isinstance(shard.housekeeping(), Extended)
    assert len(world.chain.records) == linked + 2


def test_orderly_stop_waits_for_holders_and_leaves_two_numbers(world: World) -> None:
    shard = world.started()
    written = granted(shard, acquire(world, "a"))
    kept = granted(shard, acquire(world, "b"))
    granted(shard, acquire(world, "c", phase=Phase.TENTATIVE))
    waiting = shard.stop_orderly()
    assert isinstance(waiting, NotYet)
    assert (waiting.until_ns, waiting.leases) == (kept.expiry_ns + world.time.radius_ns + 1, 2)
    for request in (acquire(world, "d"), renew(world, kept)):
        answer = one(shard, request)
        assert isinstance(answer, Unavailable)
        assert answer.code == "stopping"
    watermark = NOW_NS + 7 * SECOND
    world.time.advance(7 * SECOND)
    assert isinstance(one(shard, relinquish(world, written, watermark_ns=watermark)), Over)
    world.time.midpoint_ns = waiting.until_ns - 1
    assert isinstance(shard.stop_orderly(), NotYet)
    world.time.midpoint_ns = waiting.until_ns
    stopped = shard.stop_orderly()
    assert stopped == StoppedOrderly(kept.expiry_ns, kept.expiry_ns)
    assert shard.stop_orderly() == stopped
    record, _ = open_ceiling(world.chain.records[max(world.chain.records)], "the chain")
    assert (record.kind, record.floor_ns, record.settle_to_ns) == (
        CeilingKind.ORDERLY,
        kept.expiry_ns,
        kept.expiry_ns,
    )
    last: Entry = world.ledger.entries()[-1]
    assert last == Stopped(floor_ns=kept.expiry_ns, settle_to_ns=kept.expiry_ns)
    answer = one(shard, acquire(world, "e"))
    assert isinstance(answer, Unavailable)
    assert answer.code == "not-running"


def test_shard_closes_for_a_hand_over_only_while_nobody_holds_a_lease(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    assert shard.closes_if_free() is False
    assert isinstance(one(shard, renew(world, lease)), Granted)
    one(shard, relinquish(world, lease))
    assert shard.closes_if_free() is True
    refused = one(shard, acquire(world, "a"))
    assert isinstance(refused, Unavailable)
    assert refused.code == "stopping"
    assert isinstance(shard.stop_orderly(), StoppedOrderly)


# The lease that was in its way is past, and no turn has met it yet.
def test_who_waits_is_sent_away_by_a_shard_that_closes_for_a_hand_over(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    caller = Caller()
    waits = msgspec.structs.replace(acquire(world, "a", holder=RIVAL, until_ns=2**62), wait_ns=60 * SECOND)
    assert shard.serve([waits], {0: caller}) == [None]
    assert shard.closes_if_free() is False
    shard.serve([])
    assert caller.replies == []
    world.time.advance(lease.expiry_ns + world.time.radius_ns + 1 - world.time.midpoint_ns)
    assert shard.closes_if_free() is True
    assert shard.closes_if_free() is True
    shard.serve([])
    (refused,) = caller.replies
    assert isinstance(refused, Unavailable)
    assert refused.code == "stopping"
    assert isinstance(shard.stop_orderly(), StoppedOrderly)


# Its record stands: whoever audits the ledger could not tell this run from one whose last blocks were lost.
def test_orderly_stop_without_usable_time_is_asked_again_for_the_end_of_its_ledger(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = world.started()
    token = world.time.token

    def none_behind_the_last_record() -> SignedTime:
        if len(world.chain.records) > 1:
            raise BadTime("clock-unsteady", "somebody sets the clock", hint="wait")
        return token()

    with monkeypatch.context() as patch:
        patch.setattr(world.time, "token", none_behind_the_last_record)
        with pytest.raises(BadTime):
            shard.stop_orderly()
    stopped = shard.stop_orderly()
    assert isinstance(stopped, StoppedOrderly)
    assert shard.stop_orderly() == stopped
    assert len(world.chain.records) == 2
    told = [entry for entry in world.ledger.entries() if isinstance(entry, Stopped)]
    assert told == [Stopped(floor_ns=stopped.floor_ns, settle_to_ns=stopped.settle_to_ns)]


# Fences would repeat otherwise: a successor's start from the shard floor.
def test_orderly_record_covers_every_fence(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    one(shard, relinquish(world, lease))
    stopped = shard.stop_orderly()
    assert isinstance(stopped, StoppedOrderly)
    assert (stopped.floor_ns, stopped.settle_to_ns) == (lease.fence, 0)
    world.time.midpoint_ns -= SECOND
    successor = granted(world.started(), acquire(world, "a"))
    assert successor.fence > lease.fence


def test_nobody_waits_after_an_orderly_stop(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    one(shard, relinquish(world, lease, watermark_ns=NOW_NS + 5))
    shard.stop_orderly()
    successor = granted(world.started(), acquire(world, "a"))
    assert (successor.floor_ns, successor.settle_to_ns) == (NOW_NS + 5, 0)
    assert successor.last_ended is None


def test_shard_that_died_leaves_its_ceiling_as_floor_and_settle_to(world: World) -> None:
    granted(world.started(), acquire(world, "a"))
    old_ceiling = ceiling_of(world)
    world.time.advance(1)
    successor = world.started()
    lease = granted(successor, acquire(world, "z"))
    assert (lease.floor_ns, lease.settle_to_ns) == (old_ceiling, old_ceiling)
    assert lease.fence == old_ceiling + 1


def test_deposed_shard_forgets_everything_and_grants_nothing(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    world.time.advance(2 * SECOND)
    world.started("node-b")
    assert isinstance(shard.housekeeping(), Deposed)
    for request in (acquire(world, "b"), renew(world, lease), relinquish(world, lease)):
        answer = one(shard, request)
        assert isinstance(answer, Unavailable)
        assert answer.code == "deposed"
    assert world.stores[0].domains == 0
    assert isinstance(shard.stop_orderly(), Deposed)


def test_stop_in_doubt_is_finished_by_asking_again(world: World) -> None:
    shard = world.started()
    world.chain.faults["link"] = ["done"]
    assert isinstance(shard.stop_orderly(), InDoubt)
    assert isinstance(shard.stop_orderly(), StoppedOrderly)
    assert len(world.chain.records) == 2


# -- memory ------------------------------------------------------------------------------------------------------------


def test_full_shard_answers_busy_and_evicts_what_is_long_past(world: World) -> None:
    world.domains_max = 3
    shard = world.started()
    leases = [granted(shard, acquire(world, f"d{n}")) for n in range(3)]
    busy = one(shard, acquire(world, "new"))
    assert isinstance(busy, Unavailable)
    assert busy.code == "busy"
    for lease in leases[:2]:
        one(shard, relinquish(world, lease, watermark_ns=lease.fence + 1))
    assert isinstance(one(shard, acquire(world, "new")), Unavailable)
    aged = POLICY.span_ns + POLICY.grace_ns + 4 * POLICY.radius_ns_max + world.time.radius_ns
    newest = max(lease.fence + 1 for lease in leases[:2])
    world.time.midpoint_ns = newest + aged
    assert isinstance(one(shard, acquire(world, "new")), Unavailable)
    world.time.midpoint_ns += 1
    lease = granted(shard, acquire(world, "new"))
    assert lease.floor_ns == newest
    assert lease.settle_to_ns == 0
    assert isinstance(one(shard, acquire(world, "d2")), Denied)


def test_evicted_domain_comes_back_above_everything_it_was(world: World) -> None:
    world.domains_max = 1
    shard = world.started()
    first = granted(shard, acquire(world, "a"))
    world.time.advance(2 * TERM)
    assert isinstance(one(shard, acquire(world, "b")), Unavailable)
    world.sign_held(shard)
    assert [each.outcome for each in ended(world)] == [LeaseOutcome.EXPIRED]
    granted(shard, acquire(world, "b"))
    world.time.advance(3 * TERM)
    assert isinstance(one(shard, acquire(world, "a")), Unavailable)
    again = granted(shard, acquire(world, "a"))
    assert again.fence > first.fence
    assert again.floor_ns >= first.expiry_ns
    assert again.settle_to_ns >= first.expiry_ns


def test_many_new_domains_in_one_turn_do_not_exceed_the_budget(world: World) -> None:
    world.domains_max = 3
    replies = world.started().turn([acquire(world, f"d{n}") for n in range(5)])
    assert [type(reply) for reply in replies] == [Granted] * 3 + [Unavailable] * 2


def test_other_key_does_not_pass_for_the_shards(world: World) -> None:
    signed, _ = opened(one(world.started(), acquire(world, "a")))
    forged = msgspec.structs.replace(signed, signature=Signer(bytes(32)).sign("witness batch", signed.head))
    assert witness_refused(forged, Keyring(trust_record().keys), CLUSTER) is not None
    assert TIME_KEY.id != Signer(bytes(32)).id
