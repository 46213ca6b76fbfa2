"""A shard as its holders see it: every transition, every boundary to the nanosecond."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from appliance.formats.ceiling import CeilingKind, open_ceiling
from appliance.formats.lease import Ending, LeaseOutcome, Mode, Phase
from appliance.formats.witness import (
    NO_HEAD,
    CeilingCopy,
    Ended,
    Entry,
    Stopped,
    Witness,
    WitnessKind,
    head_digest,
)
from appliance.lease.ceiling import Deposed, Extended, InDoubt, NotYet, StoppedOrderly
from appliance.lease.wire import (
    AskClock,
    ClockTold,
    Denied,
    Granted,
    Hello,
    Inspect,
    Over,
    Page,
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
    granted,
    one,
    opened,
    relinquish,
    renew,
    repeated,
    upgrade,
)
from tests.support.values import CLUSTER, NOW_NS, TIME_KEY, page_token, trust_record
from timeagent.errors import BadTime
from timeagent.interval import TimeInterval
from timeagent.keys import Signer
from timeagent.signedtime import ClockStatus, SignedTime
from timeagent.trust import Keyring
from timeagent.units import HOUR, MS, SECOND


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    each = World(tmp_path)
    yield each
    each.close()


def ended(world: World) -> list[Ending]:
    return [entry.ending for entry in world.ledger.entries() if isinstance(entry, Ended)]


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
        assert signed.refused_by(keyring, CLUSTER) is None


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


def ceiling_of(world: World, number: int = -1) -> int:
    number = max(world.chain.records) if number < 0 else number
    return open_ceiling(world.chain.records[number], "the chain")[0].ceiling_ns


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
    assert isinstance(page, Page)
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
    assert isinstance(page, Page)
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


# -- refusals ----------------------------------------------------------------------------------------------------------


# -- several holders ---------------------------------------------------------------------------------------------------


def test_readers_share_a_domain_and_each_has_its_own_witness(world: World) -> None:
    shard = world.started()
    asked = [acquire(world, "a", mode=Mode.S, holder=holder) for holder in (HOLDER, RIVAL)]
    first, second = (granted(shard, each) for each in asked)
    assert first.correlation_id != second.correlation_id
    assert second.fence > first.fence
    assert second.previous_id == first.correlation_id
    again = [granted(shard, each) for each in asked]
    assert again == [msgspec.structs.replace(each, kind=WitnessKind.RENEWAL) for each in (first, second)]
    denied = one(shard, acquire(world, "a"))
    assert isinstance(denied, Denied)
    page = one(shard, Inspect(after_domain="", leases_max=1))
    assert isinstance(page, Page)
    assert [each.correlation_id for each in page.leases] == [first.correlation_id, second.correlation_id]
    assert (page.numbers.domains, page.numbers.leases, page.more) == (1, 2, False)


def test_each_of_several_leases_is_renewed_and_given_back_by_its_own_name(world: World) -> None:
    shard = world.started()
    one_, two = (granted(shard, acquire(world, "a", mode=Mode.IX)) for _ in range(2))
    world.time.advance(SECOND)
    renewed = granted(shard, renew(world, one_))
    assert renewed.expiry_ns == one_.expiry_ns + SECOND
    assert (renewed.fence, renewed.last_ended) == (one_.fence, one_.last_ended)
    over = one(shard, relinquish(world, two, NOW_NS + 10))
    assert isinstance(over, Over)
    writer = one(shard, acquire(world, "a"))
    assert isinstance(writer, Denied)
    assert writer.until_ns == renewed.expiry_ns
    one(shard, relinquish(world, one_, NOW_NS + 5))
    last = granted(shard, acquire(world, "a"))
    assert last.floor_ns == NOW_NS + 10
    assert last.floor_set_by is not None
    assert last.floor_set_by.correlation_id == two.correlation_id
    assert [each.correlation_id for each in ended(world)] == [two.correlation_id, one_.correlation_id]


def test_broken_reader_leaves_its_expiry_as_floor_and_settle_to(world: World) -> None:
    shard = world.started()
    readers = [granted(shard, acquire(world, "a", mode=Mode.S, term_ns=n * SECOND)) for n in (2, 3)]
    world.time.advance(4 * SECOND)
    writer = granted(shard, acquire(world, "a"))
    assert (writer.floor_ns, writer.settle_to_ns) == (readers[1].expiry_ns, readers[1].expiry_ns)
    assert len(ended(world)) == 2


def test_what_a_broken_lease_left_reaches_all_that_are_granted_beside_each_other(world: World) -> None:
    shard = world.started()
    broken = granted(shard, acquire(world, "a", mode=Mode.IX))
    world.time.advance(TERM + SECOND)
    for _ in range(3):
        reader = granted(shard, acquire(world, "a", mode=Mode.S))
        assert (reader.floor_ns, reader.settle_to_ns) == (broken.expiry_ns, broken.expiry_ns)


def test_two_grants_of_one_domain_in_one_turn_are_both_kept(world: World) -> None:
    shard = world.started()
    replies = shard.turn([acquire(world, "a", mode=Mode.S), acquire(world, "a", mode=Mode.S), acquire(world, "a")])
    first, second = (opened(each)[1] for each in replies[:2])
    assert isinstance(replies[2], Denied)
    for lease in (first, second):
        assert granted(shard, renew(world, lease)).correlation_id == lease.correlation_id


def test_stopping_shard_breaks_each_of_several_when_it_is_past(world: World) -> None:
    shard = world.started()
    for seconds in (2, 5):
        granted(shard, acquire(world, "a", mode=Mode.S, term_ns=seconds * SECOND))
    world.time.advance(3 * SECOND)
    assert isinstance(shard.stop_orderly(), NotYet)
    assert len(ended(world)) == 1
    world.time.advance(3 * SECOND)
    stopped = shard.stop_orderly()
    assert isinstance(stopped, StoppedOrderly)
    assert stopped.settle_to_ns == NOW_NS + 5 * SECOND


def test_bad_domain_and_bad_holder_are_refused_by_name(world: World) -> None:
    shard = world.started()
    bad = [
        acquire(world, "a\nb"),
        acquire(world, "ä" * 300),
        acquire(world, "a", holder=msgspec.structs.replace(HOLDER, node="No Name")),
        acquire(world, "a", holder=msgspec.structs.replace(HOLDER, purpose="a\0b")),
    ]
    codes = [reply.code for reply in shard.turn(bad) if isinstance(reply, Refused)]
    assert codes == ["bad-domain", "bad-domain", "bad-node-name", "bad-purpose"]


def test_domain_of_another_shard_is_refused(world: World) -> None:
    world.shards = 2
    replies = world.started().turn([acquire(world, f"d{n}") for n in range(20)])
    assert {getattr(reply, "code", "granted") for reply in replies} == {"granted", "wrong-shard"}


def test_greeting_names_version_and_cluster(world: World) -> None:
    shard = world.started()
    welcome, version, cluster = shard.turn(
        [
            Hello(version=1, cluster_id=CLUSTER),
            Hello(version=2, cluster_id=CLUSTER),
            Hello(version=1, cluster_id=bytes(16)),
        ]
    )
    assert isinstance(welcome, Welcome)
    assert isinstance(version, Refused)
    assert isinstance(cluster, Refused)
    assert (version.code, cluster.code) == ("protocol-version", "other-cluster")


def test_shard_that_was_not_started_grants_nothing(world: World) -> None:
    answer = one(world.shard(), acquire(world, "a"))
    assert isinstance(answer, Unavailable)
    assert answer.code == "not-running"


# -- pages -------------------------------------------------------------------------------------------------------------


def test_leases_are_shown_in_pages(world: World) -> None:
    shard = world.started()
    shard.turn([acquire(world, f"d{n}") for n in range(5)])
    seen: list[str] = []
    after, more = "", True
    while more:
        page = one(shard, Inspect(after_domain=after, leases_max=2))
        assert isinstance(page, Page)
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
    assert isinstance(page, Page)
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
    assert forged.refused_by(Keyring(trust_record().keys), CLUSTER) is not None
    assert TIME_KEY.id != Signer(bytes(32)).id
