"""Leases that are renewed, given back, and asked for again: once each, whatever is lost and repeated."""

import msgspec
import pytest

from appliance.formats.lease import LeaseOutcome, Phase
from appliance.formats.witness import (
    Witness,
    WitnessKind,
)
from appliance.lease.wire import (
    Denied,
    Over,
    Refused,
    Unavailable,
)
from tests.support.shards import (
    RIVAL,
    TERM,
    World,
    acquire,
    granted,
    one,
    relinquish,
    renew,
    repeated,
    upgrade,
)
from tests.support.values import NOW_NS, page_token
from timeagent.units import MS, SECOND

# -- renewal -----------------------------------------------------------------------------------------------------------


def test_renewal_moves_the_expiry_and_repeats_floor_and_settle_to(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    world.time.advance(3 * SECOND)
    shard.housekeeping()
    renewed = granted(shard, renew(world, lease))
    assert renewed.kind is WitnessKind.RENEWAL
    assert renewed.expiry_ns == world.time.midpoint_ns + TERM
    same = ("fence", "correlation_id", "floor_ns", "settle_to_ns", "previous_id", "last_ended", "phase")
    assert [getattr(renewed, name) for name in same] == [getattr(lease, name) for name in same]


# The witness before may be in a frame already: what it promises cannot be taken back.
def test_renewal_never_states_an_earlier_expiry(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    world.time.advance(SECOND)
    assert granted(shard, renew(world, lease, term_ns=SECOND)).expiry_ns == lease.expiry_ns
    world.time.midpoint_ns = lease.expiry_ns + world.time.radius_ns + 1
    successor = granted(shard, acquire(world, "a", holder=RIVAL))
    assert successor.floor_ns == lease.expiry_ns


def test_expired_lease_is_renewed_until_it_is_broken(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    world.time.advance(2 * TERM)
    assert granted(shard, renew(world, lease)).expiry_ns == world.time.midpoint_ns + TERM
    world.time.advance(2 * TERM)
    granted(shard, acquire(world, "a", holder=RIVAL))
    assert isinstance(one(shard, renew(world, lease)), Over)


def test_renewal_whose_clock_went_back_leaves_the_lease_as_it_is(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    world.time.midpoint_ns -= 2 * world.time.radius_ns
    answer = one(shard, renew(world, lease))
    assert isinstance(answer, Unavailable)
    assert answer.code == "no-later-expiry"


# -- relinquishing -----------------------------------------------------------------------------------------------------


def test_watermark_becomes_the_floor_and_settle_to_stays(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    watermark = NOW_NS + 10
    over = one(shard, relinquish(world, lease, watermark_ns=watermark))
    assert isinstance(over, Over)
    assert over.outcome is LeaseOutcome.RELINQUISHED
    successor = granted(shard, acquire(world, "a", holder=RIVAL))
    assert (successor.floor_ns, successor.settle_to_ns) == (watermark, 0)
    assert successor.last_ended == over.ending
    assert successor.last_ended is not None
    assert (successor.last_ended.watermark_ns, successor.last_ended.messages) == (watermark, 3)


def test_watermark_is_carried_through_holders_that_wrote_nothing(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    one(shard, relinquish(world, lease, watermark_ns=NOW_NS + 10))
    idle = granted(shard, acquire(world, "a", holder=RIVAL))
    given = relinquish(world, idle)
    one(shard, msgspec.structs.replace(given, watermark_ns=idle.floor_ns))
    third = granted(shard, acquire(world, "a"))
    assert third.floor_ns == NOW_NS + 10
    assert third.last_ended is not None
    assert (third.last_ended.correlation_id, third.last_ended.watermark_ns) == (idle.correlation_id, None)
    assert third.floor_set_by is not None
    assert (third.floor_set_by.correlation_id, third.floor_set_by.watermark_ns) == (lease.correlation_id, NOW_NS + 10)


def test_floor_is_cumulative_over_holders(world: World) -> None:
    shard = world.started()
    broken = granted(shard, acquire(world, "a"))
    world.time.midpoint_ns = broken.expiry_ns + world.time.radius_ns + 1
    second = granted(shard, acquire(world, "a", holder=RIVAL))
    one(shard, relinquish(world, second))
    third = granted(shard, acquire(world, "a"))
    assert (third.floor_ns, third.settle_to_ns) == (broken.expiry_ns, broken.expiry_ns)
    watermark = world.time.midpoint_ns + 5
    one(shard, relinquish(world, third, watermark_ns=watermark))
    fourth = granted(shard, acquire(world, "a"))
    assert (fourth.floor_ns, fourth.settle_to_ns) == (watermark, broken.expiry_ns)


WRONG_WATERMARKS = [
    ("watermark-not-below-expiry", TERM, {}),
    ("watermark-below-floor", -1, {}),
    ("watermark-below-floor", 0, {}),
    ("watermark-incomplete", 1, {"watermark_time": None}),
    ("watermark-time-damaged", 1, {"watermark_time": bytes(128)}),
    ("watermark-breaks-r1", 1, {"watermark_time": page_token(NOW_NS - 1005 * MS).encode()}),
]


@pytest.mark.parametrize(("code", "offset", "changes"), WRONG_WATERMARKS)
def test_wrong_watermark_is_refused_and_the_lease_stays(
    world: World, code: str, offset: int, changes: dict[str, bytes | None]
) -> None:
    shard = world.started()
    first = granted(shard, acquire(world, "a"))
    one(shard, relinquish(world, first, watermark_ns=NOW_NS + 1))
    lease = granted(shard, acquire(world, "a"))
    # The floor is NOW_NS + 1; an offset counts from there, one of a whole term from the start of the lease.
    watermark = NOW_NS + offset + (0 if offset == TERM else 1)
    refused = one(shard, msgspec.structs.replace(relinquish(world, lease, watermark_ns=watermark), **changes))
    assert isinstance(refused, Refused)
    assert refused.code == code
    assert isinstance(one(shard, acquire(world, "a", holder=RIVAL)), Denied)


def test_watermarks_at_the_edges_are_taken(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    world.time.midpoint_ns = lease.expiry_ns
    over = one(shard, relinquish(world, lease, watermark_ns=lease.expiry_ns - 1))
    assert isinstance(over, Over)
    assert over.outcome is LeaseOutcome.RELINQUISHED


def test_messages_without_a_watermark_are_refused(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    refused = one(shard, msgspec.structs.replace(relinquish(world, lease), messages=1))
    assert isinstance(refused, Refused)
    assert refused.code == "watermark-missing"


def test_lease_is_relinquished_even_after_its_expiry_until_it_is_broken(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    world.time.advance(2 * TERM)
    over = one(shard, relinquish(world, lease))
    assert isinstance(over, Over)
    assert over.outcome is LeaseOutcome.RELINQUISHED


# -- the same again ----------------------------------------------------------------------------------------------------


def test_retried_acquire_has_the_same_answer_in_the_same_turn_and_later(world: World) -> None:
    shard = world.started()
    request = acquire(world, "a")
    first, second = shard.turn([request, request])
    assert first == second
    world.time.advance(SECOND)
    repeated(first, one(shard, request))
    assert sum(isinstance(entry, Witness) for entry in world.ledger.entries()) == 2


def test_retried_renewal_and_upgrade_have_the_same_answer(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a", phase=Phase.TENTATIVE))
    for request in (upgrade(world, lease), renew(world, lease)):
        world.time.advance(SECOND)
        first = one(shard, request)
        world.time.advance(MS)
        repeated(first, one(shard, request))


def test_retried_relinquish_has_the_same_answer_also_under_the_next_lease(world: World) -> None:
    shard = world.started()
    request = relinquish(world, granted(shard, acquire(world, "a")), watermark_ns=NOW_NS + 1)
    first = one(shard, request)
    assert one(shard, request) == first
    granted(shard, acquire(world, "a", holder=RIVAL))
    assert one(shard, request) == first


def test_late_duplicate_of_an_acquire_grants_nothing_anew(world: World) -> None:
    shard = world.started()
    request = acquire(world, "a")
    lease = granted(shard, request)
    one(shard, relinquish(world, lease))
    over = one(shard, request)
    assert isinstance(over, Over)
    assert over.outcome is LeaseOutcome.RELINQUISHED
    rival = granted(shard, acquire(world, "a", holder=RIVAL))
    assert isinstance(one(shard, request), Over)
    for late in (relinquish(world, lease), renew(world, lease)):
        assert isinstance(one(shard, late), Over)
    assert granted(shard, renew(world, rival)).correlation_id == rival.correlation_id


def test_what_is_unknown_is_answered_with_unknown(world: World) -> None:
    lease = granted(world.started(), acquire(world, "a"))
    shard = world.started()
    for request in (relinquish(world, lease), renew(world, lease), upgrade(world, lease)):
        over = one(shard, request)
        assert isinstance(over, Over)
        assert (over.outcome, over.ending) == (LeaseOutcome.UNKNOWN, None)
