"""A shard as its holders see it: every transition, every boundary to the nanosecond."""

import pytest

from appliance.formats.lease import LeaseOutcome, Mode, Phase
from appliance.formats.witness import NO_HEAD, CeilingCopy, Ended, Witness, WitnessKind, head_digest
from appliance.lease.ceiling import Extended, StoppedOrderly
from appliance.lease.wire import (
    AskClock,
    ClockTold,
    Denied,
    Hello,
    Inspect,
    LeasePage,
    Over,
    Reason,
    Refused,
    Unavailable,
    Welcome,
)
from tests.support.shards import (
    HOLDER,
    POLICY,
    RIVAL,
    TERM,
    World,
    acquire,
    ceiling_of,
    ended,
    granted,
    one,
    opened,
    relinquish,
    renew,
    upgrade,
)
from tests.support.values import CLUSTER, NOW_NS, page_token, trust_record, witness_refused
from timeagent.errors import BadTime
from timeagent.signedtime import ClockStatus, SignedTime
from timeagent.trust import Keyring
from timeagent.units import HOUR, MS, SECOND, TimeInterval

# -- grants ------------------------------------------------------------------------------------------------------------


def test_grant_states_everything_a_holder_needs(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    assert lease.kind is WitnessKind.GRANT
    assert (lease.domain, lease.mode, lease.phase, lease.holder) == ("a", Mode.X, Phase.HELD, HOLDER)
    assert lease.expiry_ns == NOW_NS + TERM
    assert lease.fence == NOW_NS + 1
    assert lease.correlation_id[:8] == lease.fence.to_bytes(8, "big")
    assert (lease.floor_ns, lease.settle_to_ns, lease.previous_id, lease.last_ended) == (0, 0, None, None)


def test_witness_verifies_against_the_trust_record(world: World) -> None:
    shard = world.started()
    replies = shard.turn([acquire(world, f"d{n}") for n in range(5)])
    keyring = Keyring(trust_record().keys)
    for reply in replies:
        signed, _ = opened(reply)
        assert witness_refused(signed, keyring, CLUSTER) is None


def test_term_is_a_maximum_and_the_policy_has_the_last_word(world: World) -> None:
    shard = world.started()
    assert granted(shard, acquire(world, "a", term_ns=SECOND)).expiry_ns == NOW_NS + SECOND
    assert granted(shard, acquire(world, "b", term_ns=100 * TERM)).expiry_ns == NOW_NS + TERM


# A request that was on its way for long gets what is left of what was asked for, and nothing if that is nothing.
def test_delayed_request_never_yields_a_later_expiry_than_asked(world: World) -> None:
    shard = world.started()
    until = NOW_NS + 3 * SECOND
    assert granted(shard, acquire(world, "a", until_ns=until)).expiry_ns == until
    radius = world.time.radius_ns
    late = one(shard, acquire(world, "b", until_ns=NOW_NS + radius))
    assert isinstance(late, Unavailable)
    assert late.code == "late"
    assert granted(shard, acquire(world, "b", until_ns=NOW_NS + radius + 1)).expiry_ns == NOW_NS + radius + 1


# Readers refuse an expiry beyond signed time + longest term + radius, and the signed time is a little older than now.
def test_expiry_stays_within_what_readers_accept_with_an_older_signed_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = world.started()
    old = page_token(NOW_NS - 200 * MS)
    monkeypatch.setattr(world.time, "token", lambda: old)
    assert granted(shard, acquire(world, "a")).expiry_ns == old.midpoint_ns + TERM + old.radius_ns


def test_expiry_never_exceeds_the_own_ceiling(world: World) -> None:
    shard = world.started()
    ceiling = ceiling_of(world)
    world.time.advance(5 * SECOND)
    world.chain.faults["link"] = ["lost"]
    assert granted(shard, acquire(world, "a")).expiry_ns == ceiling
    assert ceiling < world.time.midpoint_ns + TERM


def test_nothing_is_granted_at_the_ceiling_itself(world: World) -> None:
    shard = world.started()
    world.time.midpoint_ns = ceiling_of(world) - world.time.radius_ns
    world.chain.faults["link"] = ["lost", "lost"]
    answer = one(shard, acquire(world, "a"))
    assert isinstance(answer, Unavailable)
    assert answer.code in {"ceiling", "fence-above-ceiling"}
    world.time.midpoint_ns -= 1
    assert granted(shard, acquire(world, "a")).expiry_ns == ceiling_of(world)


def test_idle_shard_extends_its_ceiling_before_it_shortens_a_term(world: World) -> None:
    shard = world.started()
    world.time.advance(3600 * SECOND)
    assert granted(shard, acquire(world, "a")).expiry_ns == world.time.midpoint_ns + TERM
    assert sorted(world.chain.records) == [1, 2]


@pytest.mark.parametrize("mode", [Mode.X, Mode.S])
def test_fences_grow_even_when_the_clock_goes_back(world: World, mode: Mode) -> None:
    shard = world.started()
    first = granted(shard, acquire(world, "a", mode=mode))
    one(shard, relinquish(world, first))
    world.time.midpoint_ns -= 100 * MS
    second = granted(shard, acquire(world, "a", mode=mode))
    assert second.fence == first.fence + 1
    assert second.correlation_id != first.correlation_id


# Two ways out: an extension where the clock allows one, a denial where it does not.
def test_fence_above_the_ceiling_is_not_granted(world: World) -> None:
    world.started()
    world.time.midpoint_ns -= 3600 * SECOND
    shard = world.started()
    answer = one(shard, acquire(world, "a"))
    assert isinstance(answer, Unavailable)
    assert answer.code == "fence-above-ceiling"
    world.time.midpoint_ns += 3600 * SECOND + 1
    lease = granted(shard, acquire(world, "a"))
    assert lease.fence == ceiling_of(world, 1) + 1
    assert lease.fence <= ceiling_of(world)


# -- time --------------------------------------------------------------------------------------------------------------


def test_shard_tells_what_time_it_is_there_and_nothing_where_it_has_no_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = world.started()
    now = world.time.now()
    told = one(shard, AskClock())
    assert isinstance(told, ClockTold)
    assert (told.earliest_ns, told.latest_ns, told.problem) == (now.earliest, now.latest, "")
    page = one(shard, Inspect(after_domain="", leases_max=1))
    assert isinstance(page, LeasePage)
    assert told.node == page.numbers.node
    assert told.token is not None
    assert SignedTime.decode(told.token).status is ClockStatus.SYNCHRONIZED
    world.time.advance(HOUR)
    fast = one(shard, AskClock())
    assert isinstance(fast, ClockTold)
    assert fast.earliest_ns == now.earliest + HOUR

    def no_time() -> TimeInterval:
        raise BadTime("no-time", "no source has a bound")

    monkeypatch.setattr(world.time, "now", no_time)
    without = one(shard, AskClock())
    assert isinstance(without, ClockTold)
    assert (without.earliest_ns, without.latest_ns, without.problem) == (None, None, "no source has a bound")


def test_shard_without_usable_time_answers_by_name_and_still_shows_its_leases(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))

    def no_time() -> TimeInterval:
        raise BadTime("no-time", "no source has a bound")

    monkeypatch.setattr(world.time, "now", no_time)
    hello = Hello(version=1, cluster_id=CLUSTER)
    answer, page, welcome = shard.turn(
        [acquire(world, "b", until_ns=NOW_NS), Inspect(after_domain="", leases_max=9), hello]
    )
    assert isinstance(answer, Unavailable)
    assert answer.code == "bad-time"
    assert isinstance(page, LeasePage)
    assert len(page.leases) == 1
    assert isinstance(welcome, Welcome)
    assert shard.housekeeping() is None


@pytest.mark.parametrize("status", [ClockStatus.UNKNOWN, ClockStatus.DISRUPTED])
def test_status_that_is_not_usable_grants_nothing(world: World, status: ClockStatus) -> None:
    shard = world.started()
    world.time.status = status
    answer = one(shard, acquire(world, "a"))
    assert isinstance(answer, Unavailable)
    assert answer.code == "bad-time"


def test_radius_beyond_the_policy_grants_nothing(world: World) -> None:
    shard = world.started()
    world.time.radius_ns = POLICY.radius_ns_max
    granted(shard, acquire(world, "a"))
    world.time.radius_ns += 1
    assert isinstance(one(shard, acquire(world, "b")), Unavailable)


# -- conflicts ---------------------------------------------------------------------------------------------------------


def test_denial_names_the_holder_and_the_first_instant_that_can_help(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    world.time.advance(SECOND)
    denied = one(shard, acquire(world, "a", holder=RIVAL))
    assert isinstance(denied, Denied)
    assert (denied.reason, denied.holder, denied.since_ns, denied.until_ns) == (
        Reason.HELD,
        HOLDER,
        NOW_NS,
        lease.expiry_ns,
    )
    world.time.midpoint_ns = denied.earliest_ns - 1
    assert isinstance(one(shard, acquire(world, "a", holder=RIVAL)), Denied)
    world.time.midpoint_ns = denied.earliest_ns
    assert granted(shard, acquire(world, "a", holder=RIVAL)).holder == RIVAL


def test_lease_is_broken_only_when_surely_past_and_in_somebodys_way(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    world.time.midpoint_ns = lease.expiry_ns + world.time.radius_ns
    assert not world.time.now().surely_past(lease.expiry_ns)
    assert isinstance(one(shard, acquire(world, "a", holder=RIVAL)), Denied)
    assert ended(world) == []
    world.time.midpoint_ns += 1
    assert ended(world) == []
    successor = granted(shard, acquire(world, "a", holder=RIVAL))
    assert successor.previous_id == lease.correlation_id
    assert successor.last_ended is not None
    assert (successor.last_ended.outcome, successor.last_ended.watermark_ns) == (LeaseOutcome.EXPIRED, None)
    assert (successor.floor_ns, successor.settle_to_ns) == (lease.expiry_ns, lease.expiry_ns)
    assert [each.correlation_id for each in ended(world)] == [lease.correlation_id]


def test_broken_lease_answers_its_holder_with_expired(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    world.time.advance(TERM + SECOND)
    granted(shard, acquire(world, "a", holder=RIVAL))
    for request in (relinquish(world, lease), renew(world, lease), upgrade(world, lease)):
        over = one(shard, request)
        assert isinstance(over, Over)
        assert over.outcome is LeaseOutcome.EXPIRED


def test_relinquishing_and_acquiring_in_one_turn_hands_over(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    next_one, over = shard.turn([acquire(world, "a", holder=RIVAL), relinquish(world, lease)])
    assert isinstance(over, Over)
    assert opened(next_one)[1].holder == RIVAL
    kinds = [type(entry) for entry in world.ledger.entries()]
    assert kinds == [CeilingCopy, Witness, Ended, Witness]


# -- tentative, then held ----------------------------------------------------------------------------------------------


def test_older_request_withdraws_a_tentative_lease_at_once_and_moves_nothing(world: World) -> None:
    shard = world.started()
    young = granted(shard, acquire(world, "a", phase=Phase.TENTATIVE, age_ns=NOW_NS))
    old = granted(shard, acquire(world, "a", holder=RIVAL, age_ns=NOW_NS - 1))
    assert (old.floor_ns, old.settle_to_ns) == (young.floor_ns, young.settle_to_ns)
    assert old.last_ended is not None
    assert old.last_ended.outcome is LeaseOutcome.WITHDRAWN
    over = one(shard, upgrade(world, young))
    assert isinstance(over, Over)
    assert over.outcome is LeaseOutcome.WITHDRAWN


def test_younger_request_does_not_touch_a_tentative_lease(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a", phase=Phase.TENTATIVE, age_ns=NOW_NS))
    denied = one(shard, acquire(world, "a", holder=RIVAL, age_ns=NOW_NS + 1))
    assert isinstance(denied, Denied)
    assert denied.reason is Reason.TENTATIVE


def test_age_is_a_total_order_by_the_request_id(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a", phase=Phase.TENTATIVE, age_ns=NOW_NS, request_id=b"\1" * 16))
    assert isinstance(
        one(shard, acquire(world, "a", holder=RIVAL, age_ns=NOW_NS, request_id=b"\2" * 16)),
        Denied,
    )
    granted(shard, acquire(world, "a", holder=RIVAL, age_ns=NOW_NS, request_id=b"\0" * 15 + b"\1"))


def test_held_lease_is_not_withdrawn_by_an_older_request(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a", phase=Phase.TENTATIVE))
    upgraded = granted(shard, upgrade(world, lease))
    assert (upgraded.kind, upgraded.phase, upgraded.fence) == (WitnessKind.UPGRADE, Phase.HELD, lease.fence)
    assert isinstance(one(shard, acquire(world, "a", holder=RIVAL, age_ns=1)), Denied)


def test_expired_tentative_lease_ends_as_withdrawn_and_moves_nothing(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a", phase=Phase.TENTATIVE))
    world.time.advance(TERM + SECOND)
    successor = granted(shard, acquire(world, "a", holder=RIVAL, age_ns=NOW_NS + 1))
    assert successor.last_ended is not None
    assert successor.last_ended.outcome is LeaseOutcome.WITHDRAWN
    assert (successor.floor_ns, successor.settle_to_ns) == (0, 0)


def test_tentative_lease_is_given_up_without_a_watermark_only(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a", phase=Phase.TENTATIVE))
    refused = one(shard, relinquish(world, lease, watermark_ns=NOW_NS + 1))
    assert isinstance(refused, Refused)
    assert refused.code == "tentative-written"
    over = one(shard, relinquish(world, lease))
    assert isinstance(over, Over)
    assert over.outcome is LeaseOutcome.WITHDRAWN


def test_held_lease_is_not_upgraded_again(world: World) -> None:
    shard = world.started()
    refused = one(shard, upgrade(world, granted(shard, acquire(world, "a"))))
    assert isinstance(refused, Refused)
    assert refused.code == "already-held"


# -- pages -------------------------------------------------------------------------------------------------------------


def test_leases_are_shown_in_pages(world: World) -> None:
    shard = world.started()
    shard.turn([acquire(world, f"d{n}") for n in range(5)])
    seen: list[str] = []
    after, more = "", True
    while more:
        page = one(shard, Inspect(after_domain=after, leases_max=2))
        assert isinstance(page, LeasePage)
        seen += [each.domain for each in page.leases]
        after, more = seen[-1], page.more
        assert page.numbers.leases == 5
    assert seen == [f"d{n}" for n in range(5)]


# -- ledger ------------------------------------------------------------------------------------------------------------


def test_heads_of_an_incarnation_are_a_chain_and_nothing_is_signed_for_nothing(world: World) -> None:
    shard = world.started()
    for n in range(3):
        granted(shard, acquire(world, f"d{n}"))
        one(shard, Inspect(after_domain="", leases_max=1))
        one(shard, acquire(world, f"d{n}"))
    previous, blocks = NO_HEAD, world.ledger.blocks()
    assert len(blocks) == 4
    for sequence, block in enumerate(blocks, 1):
        head = block.batch_head("a block")
        assert (head.previous, head.sequence) == (previous, sequence)
        assert block.entries_match(head)
        previous = head_digest(block.head)


def test_ledger_that_fails_stops_nobody(world: World) -> None:
    shard = world.started()
    world.ledger.broken = True
    granted(shard, acquire(world, "a"))
    world.ledger.broken = False
    granted(shard, acquire(world, "b"))
    page = one(shard, Inspect(after_domain="", leases_max=1))
    assert isinstance(page, LeasePage)
    assert page.numbers.blocks_lost == 1
    assert [block.batch_head("a block").sequence for block in world.ledger.blocks()] == [1, 3]


def test_every_linked_record_is_copied_to_the_ledger(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    for _ in range(3):
        world.time.advance(POLICY.ceiling_period_ns)
        assert isinstance(shard.housekeeping(), Extended)
    world.time.advance(2 * TERM)
    assert isinstance(shard.stop_orderly(), StoppedOrderly)
    copies = [entry.record for entry in world.ledger.entries() if isinstance(entry, CeilingCopy)]
    assert copies == [world.chain.records[number] for number in sorted(world.chain.records)]
    assert len(copies) == 5
