"""Ends that no answer needs a witness of: the next batch signs them, soon, and never by a time before they were."""

from typing import Never

import pytest

from appliance.formats.shardmap import ShardMap
from appliance.formats.witness import CeilingCopy, Ended, Witness
from appliance.lease.ceiling import Deposed, Extended
from appliance.lease.shard import Shard
from appliance.lease.wire import Over, Unavailable
from appliance.lease.witness_ledger import HELD_MAX, HOLD_NS
from tests.support.shards import ListLedger, World, acquire, ceiling_of, ended, granted, one, relinquish
from tests.support.values import CLUSTER, NODE
from timeagent.errors import BadTime
from timeagent.units import MS, SECOND


def given_back(world: World, shard: Shard, domain: str = "a") -> None:
    lease = granted(shard, acquire(world, domain))
    before = world.ledger.blocks()
    assert isinstance(one(shard, relinquish(world, lease)), Over)
    assert world.ledger.blocks() == before


def assert_heads_name_their_right(world: World, ledger: ListLedger) -> None:
    """The auditor compares each head with its record."""
    for head in [each.batch_head("a head") for each in ledger.blocks()]:
        assert head.ceiling_ns == ceiling_of(world, head.ceiling_number)


def test_end_is_signed_with_the_next_grant_and_stands_before_it(world: World) -> None:
    shard = world.started()
    given_back(world, shard)
    world.time.advance(MS)
    granted(shard, acquire(world, "a"))
    last = world.ledger.blocks()[-1].decoded("the last")
    assert [type(each) for each in last] == [Ended, Witness]


def test_end_is_signed_soon_where_nothing_else_comes(world: World) -> None:
    shard = world.started()
    given_back(world, shard)
    assert shard.due_in() == HOLD_NS
    world.time.advance(HOLD_NS - 1)
    assert shard.due_in() == 1
    given = granted(shard, acquire(world, "b"))
    assert shard.due_in() is None
    one(shard, relinquish(world, given))
    world.time.advance(HOLD_NS)
    assert shard.due_in() == 0
    assert shard.turn([]) == []
    assert len(ended(world)) == 2
    assert shard.due_in() is None


def test_end_is_signed_by_whoever_keeps_house_where_nobody_serves(world: World) -> None:
    shard = world.started()
    given_back(world, shard)
    shard.housekeeping()
    assert not ended(world)
    world.sign_held(shard)
    assert len(ended(world)) == 1


def test_many_that_are_given_back_one_after_the_other_wait_no_longer_than_the_first(world: World) -> None:
    shard = world.started()
    leases = [granted(shard, acquire(world, f"d{n}")) for n in range(3)]
    for lease in leases:
        one(shard, relinquish(world, lease))
        world.time.advance(HOLD_NS // 2)
    assert len(ended(world)) == 3


def test_no_more_than_some_hundred_wait(world: World) -> None:
    shard = world.started()
    leases = [granted(shard, acquire(world, f"d{n}")) for n in range(HELD_MAX + 1)]
    shard.turn([relinquish(world, each) for each in leases])
    assert len(ended(world)) == HELD_MAX + 1


def test_clock_that_steps_back_signs_what_ended_by_the_time_of_its_end(world: World) -> None:
    shard = world.started()
    given_back(world, shard)
    then = world.time.midpoint_ns
    world.time.midpoint_ns -= SECOND
    granted(shard, acquire(world, "b"))
    *_, ends, grant = world.ledger.blocks()
    assert [type(each) for each in ends.decoded("the ends")] == [Ended]
    assert ends.batch_head("a head").signed_time().midpoint_ns == then
    assert grant.batch_head("a head").signed_time().midpoint_ns == then - SECOND


def test_clock_that_nobody_may_use_signs_what_ended_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = world.started()
    given_back(world, shard)

    def unusable() -> Never:
        raise BadTime("planted", "no bound")

    monkeypatch.setattr(world.time, "now", unusable)
    world.time.advance(HOLD_NS)
    assert isinstance(one(shard, acquire(world, "b")), Unavailable)
    assert len(ended(world)) == 1
    assert shard.due_in() is None


def test_shard_that_is_deposed_signs_what_ended_before(world: World) -> None:
    shard, ledger = world.started(), world.ledger
    lease = granted(shard, acquire(world, "a"))
    other = granted(shard, acquire(world, "b"))
    world.time.advance(2 * SECOND)
    shard.housekeeping()
    world.time.advance(2 * SECOND)
    world.started("node-b")
    one(shard, relinquish(world, lease))
    assert isinstance(shard.housekeeping(), Deposed)
    ends = [each for each in ledger.entries() if isinstance(each, Ended)]
    assert [each.ending.correlation_id for each in ends] == [lease.correlation_id]
    assert isinstance(one(shard, relinquish(world, other)), Unavailable)
    assert_heads_name_their_right(world, ledger)


# Whoever grants finds the chain taken before the end is due.
def test_head_over_what_ended_before_names_the_right_of_then(world: World) -> None:
    shard, ledger = world.started(), world.ledger
    lease = granted(shard, acquire(world, "a"))
    world.time.advance(4 * SECOND)
    world.started("node-b")
    one(shard, relinquish(world, lease))
    world.time.advance(5 * MS)
    assert isinstance(one(shard, acquire(world, "c")), Unavailable)
    assert len([each for each in ledger.entries() if isinstance(each, Ended)]) == 1
    assert_heads_name_their_right(world, ledger)


def test_record_that_was_linked_meanwhile_is_left_to_the_turn_that_knows_of_it(world: World) -> None:
    shard = world.started()
    given_back(world, shard)
    world.time.advance(MS)
    before = world.chain.records.copy()
    assert isinstance(shard._linked(shard._chain.extend()), Extended)
    world.time.midpoint_ns -= SECOND
    granted(shard, acquire(world, "b"))
    *_, ends, grant = world.ledger.blocks()
    assert ends.batch_head("a head").ceiling_number == max(before)
    assert [type(each) for each in ends.decoded("the ends")] == [Ended]
    assert [type(each) for each in grant.decoded("the grant")] == [CeilingCopy, Witness]


def test_what_ended_by_a_map_is_signed_by_it(world: World) -> None:
    shard = world.started()
    given_back(world, shard)
    assert shard.go_by(ShardMap(number=2, cluster_id=CLUSTER, owners=(NODE,)))
    assert [each.batch_head("a head").going_by for each in world.ledger.blocks()][-1] == 1
    assert len(ended(world)) == 1


# The copy of a record goes to the next batch; here the clock fails first, and is well again when another is the owner.
def test_copy_that_waited_for_the_clock_is_not_signed_once_another_owns_the_chain(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, ledger = world.started(), world.ledger
    granted(shard, acquire(world, "a"))
    world.time.advance(world.policy.ceiling_period_ns + MS)

    def seen() -> list[int]:
        world.time.radius_ns = world.policy.radius_ns_max + 1
        return sorted(world.chain.records)

    good = world.time.radius_ns
    with monkeypatch.context() as failing:
        failing.setattr(world.chain, "list_afresh", seen)
        assert isinstance(shard.housekeeping(), Extended)
    world.time.radius_ns = good
    world.started("node-b")
    world.time.advance(world.policy.ceiling_period_ns + MS)
    assert isinstance(shard.housekeeping(), Deposed)
    assert_heads_name_their_right(world, ledger)
