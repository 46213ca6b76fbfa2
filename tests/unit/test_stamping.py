"""Which timestamp a message gets, and what is refused instead of stamped."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from appliance.bag.ports import RecordNumbers
from appliance.bag.writing import Committed
from appliance.formats.framing import CommittedFrame, Frame, open_frame, pieces
from appliance.formats.paths import Grid
from appliance.session.endings import LossReason
from appliance.session.held import Lease
from appliance.session.stamping import AheadOfClock, FrameStamper, InForce, Publication, WriterState
from tests.support.bags import FixedRecords
from tests.support.clocks import HandTime
from tests.support.cluster import HandSite, hand_sites
from tests.support.values import CLUSTER, NODE, trust_record
from timeagent.canonical import encode
from timeagent.errors import BadTime, LeaseLost, NotTrusted
from timeagent.keys import Purpose, Signer
from timeagent.signedtime import SignedTime, r2_holds
from timeagent.trust import Keyring
from timeagent.units import MS, SECOND

ID = bytes(16)


class Desk:
    """A stamper with one held lease."""

    def __init__(self, site: HandSite) -> None:
        self.site = site
        self.time = site.time
        self.session = session = site.session()
        self.grid: Grid = session._logs.opened_or_made("log").grid
        self.lease: Lease = session.acquire("d")[0]
        self.state = WriterState(CLUSTER, NODE, session.incarnation)
        self.policies = {1: site.policy}
        self.stamper = FrameStamper(self.time, site.policy, self.state, FixedRecords(policies=self.policies))
        self.records = InForce(RecordNumbers(1, 1), session._context.records.keyring(1))
        self.margin = site.policy.holder_margin_ns

    def ask(self, count: int = 1) -> Publication | AheadOfClock:
        return self.stamper.publication(self.grid, [b"m"] * count, [self.lease], ID, self.records)

    def stamped(self, count: int = 1) -> Publication:
        made = self.ask(count)
        assert isinstance(made, Publication), made
        return made


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    for site in hand_sites(tmp_path):
        yield Desk(site)


def opened(made: Publication) -> Frame:
    (piece,), _ = pieces(made.file.data)
    return open_frame(piece, "a frame")


def test_timestamp_is_the_midpoint_of_now(desk: Desk) -> None:
    assert desk.stamped().first_ns == desk.time.midpoint_ns


def test_timestamps_of_a_batch_and_of_batches_increase_by_one_within_one_instant(desk: Desk) -> None:
    first = desk.stamped(3)
    assert (first.first_ns, first.last_ns) == (desk.time.midpoint_ns, desk.time.midpoint_ns + 2)
    assert desk.stamped().first_ns == first.last_ns + 1


def test_timestamp_lies_above_the_floor(desk: Desk) -> None:
    desk.lease.floor_ns = desk.time.midpoint_ns + 7
    assert desk.stamped().first_ns == desk.time.midpoint_ns + 8


def test_timestamp_lies_above_everything_that_was_read(desk: Desk) -> None:
    desk.state.read_ns = desk.time.midpoint_ns + 3
    assert desk.stamped().first_ns == desk.time.midpoint_ns + 4


def test_clock_that_steps_back_never_lowers_a_timestamp(desk: Desk) -> None:
    first = desk.stamped()
    desk.time.midpoint_ns -= desk.time.radius_ns - 1
    assert desk.stamped().first_ns == first.last_ns + 1


def test_batch_that_would_cross_the_end_of_its_bag_lies_in_the_next_one(desk: Desk) -> None:
    bag = desk.grid.bag(desk.time.midpoint_ns)
    desk.time.advance(bag.end_ns - 2 - desk.time.midpoint_ns)
    made = desk.stamped(3)
    assert made.first_ns == bag.end_ns
    assert made.file.bag == desk.grid.bag(bag.end_ns)


def test_batch_that_just_fits_stays_in_its_bag(desk: Desk) -> None:
    bag = desk.grid.bag(desk.time.midpoint_ns)
    desk.time.advance(bag.end_ns - 3 - desk.time.midpoint_ns)
    made = desk.stamped(3)
    assert made.last_ns == bag.end_ns - 1
    assert made.file.bag == bag


def test_floor_ahead_of_the_clock_is_waited_for_and_never_stamped(desk: Desk) -> None:
    desk.lease.floor_ns = desk.time.now().latest + 5 * MS
    assert desk.ask() == AheadOfClock(5 * MS + 1)
    assert (desk.state.sequence, desk.state.last_ns) == (0, 0)
    desk.time.advance(5 * MS + 1)
    assert desk.stamped().first_ns == desk.lease.floor_ns + 1


def test_floor_further_ahead_than_any_ceiling_is_refused(desk: Desk) -> None:
    policy = desk.site.policy
    longest = policy.lease_term_max_ns + policy.ceiling_ahead_ns + 2 * policy.radius_ns_max
    desk.lease.floor_ns = desk.time.now().latest + longest - 1
    assert isinstance(desk.ask(), AheadOfClock)
    desk.lease.floor_ns += 1
    with pytest.raises(BadTime) as refused:
        desk.ask()
    assert refused.value.code == "floor-too-far-ahead"
    assert "tenure time now" in refused.value.hint


def test_nothing_is_stamped_from_the_instant_on_at_which_the_lease_may_be_over(desk: Desk) -> None:
    last = desk.lease.expiry_ns - desk.margin - desk.time.radius_ns - 1
    desk.time.advance(last - desk.time.midpoint_ns)
    assert desk.stamped().last_ns < desk.lease.expiry_ns
    desk.time.advance(1)
    with pytest.raises(LeaseLost):
        desk.ask()
    assert desk.state.sequence == 1


# Where clocks are so good that the margin is tiny, a large batch could reach the expiry.
def test_batch_that_would_reach_the_expiry_is_a_lost_lease(desk: Desk) -> None:
    desk.stamper._policy = msgspec.structs.replace(desk.site.policy, holder_margin_ns=10)
    desk.state.last_ns = desk.time.now().latest - 1
    desk.lease.own_expiry_ns = desk.time.now().latest + 100
    with pytest.raises(LeaseLost):
        desk.ask(101)
    assert desk.lease.loss is not None
    assert desk.lease.loss.reason is LossReason.EXPIRED
    assert desk.state.sequence == 0


def test_batch_that_ends_just_below_the_expiry_is_stamped(desk: Desk) -> None:
    desk.stamper._policy = msgspec.structs.replace(desk.site.policy, holder_margin_ns=10)
    desk.state.last_ns = desk.time.now().latest - 1
    desk.lease.own_expiry_ns = desk.time.now().latest + 100
    assert desk.stamped(100).last_ns == desk.lease.expiry_ns - 1


def make_stale(desk: Desk, age_ns: int) -> None:
    """Have the signed time lie so far behind the clock."""
    real = desk.time.token

    def stale() -> SignedTime:
        with desk.time.set_back(age_ns):
            return real()

    desk.time.token = stale  # type: ignore[method-assign]


def test_signed_time_too_far_from_the_timestamp_is_refused_before_anything_is_made(desk: Desk) -> None:
    make_stale(desk, 2 * SECOND)
    with pytest.raises(BadTime) as refused:
        desk.ask()
    assert refused.value.code == "r1-would-fail"
    assert desk.state.sequence == 0


def test_frame_carries_the_newest_witness_and_names_the_last_frame_known_committed(desk: Desk) -> None:
    first = desk.stamped()
    desk.state.confirm(first)
    second, third = desk.stamped(), desk.stamped()
    desk.state.confirm(third)
    desk.state.confirm(second)
    assert desk.state.committed == CommittedFrame(sequence=3, digest=third.digest)
    frame = opened(third)
    assert frame.head.committed == CommittedFrame(sequence=1, digest=first.digest)
    assert len(frame.head.witnesses) == 1
    assert frame.digest == third.digest
    assert [first.sequence, second.sequence, third.sequence] == [1, 2, 3]


# Under one signed time most of what a frame is accepted by is the same as in the frame before.
def test_frames_with_one_signed_time_carry_what_is_new_and_are_judged_by_it(desk: Desk) -> None:
    tokens = [desk.time.token(), desk.time.token()]
    desk.time.token = lambda: tokens[0]  # type: ignore[method-assign]
    carried = [opened(desk.stamped()).head.witnesses]
    carried.append(opened(desk.stamped()).head.witnesses)
    desk.lease.signed = desk.session.acquire("e")[0].signed
    carried.append(opened(desk.stamped()).head.witnesses)
    assert carried[0] == carried[1] != carried[2] == (encode(desk.lease.signed),)
    assert opened(desk.stamped()).head.time == tokens.pop(0).encode() != tokens[0].encode()
    assert opened(desk.stamped()).head.time == tokens[0].encode()
    desk.records = InForce(RecordNumbers(1, 1), Keyring([]))
    with pytest.raises(NotTrusted):
        desk.ask()


# Its thread was held up behind the token, while another renewed: a cause that is signed after its effect is a finding.
def test_frame_carries_no_witness_that_was_signed_after_its_own_signed_time(desk: Desk) -> None:
    before = desk.lease.signed
    real = desk.time.token

    def held_up() -> SignedTime:
        token = real()
        desk.time.token = real  # type: ignore[method-assign]
        desk.time.advance(desk.site.policy.renew_period_ns)
        desk.session.renew_due()
        return token

    desk.time.token = held_up  # type: ignore[method-assign]
    frame = opened(desk.stamped())
    newer, token = desk.lease.signed, SignedTime.decode(frame.head.time, "its time")
    assert not r2_holds(newer.batch_head().signed_time(), token)
    assert frame.head.witnesses == (encode(before),)


# A frame by a key that was replaced or revoked is listed, and read by nobody: its writer must not be told "committed".
@pytest.mark.parametrize("purpose", [Purpose.TIME, Purpose.WITNESS])
@pytest.mark.parametrize("change", ["revoked", "replaced", "not yet", "unknown"])
def test_nothing_is_stamped_that_readers_would_distrust(desk: Desk, purpose: Purpose, change: str) -> None:
    now = desk.time.midpoint_ns
    every: dict[str, dict[str, object]] = {
        "revoked": {"revoked_from_ns": now},
        "replaced": {"valid_until_ns": now},
        "not yet": {"valid_from_ns": now + 1},
        "unknown": {"public": Signer.generate().public},
    }
    entries = [
        msgspec.structs.replace(entry, **every[change]) if entry.purpose is purpose else entry
        for entry in trust_record().keys
    ]
    desk.records = InForce(RecordNumbers(1, 1), Keyring(entries))
    with pytest.raises(NotTrusted, match="no reader would accept") as refused:
        desk.ask()
    assert refused.value.code == "key-not-trusted"
    assert desk.state.sequence == 0


def test_writer_looks_at_the_newest_trust_record_before_each_publication(tmp_path: Path) -> None:
    for site in hand_sites(tmp_path):
        session = site.session()
        leases = session.acquire("d")
        assert session.publish("log", [b"before"], under=leases) == Committed()
        keys = trust_record().keys
        revoked = [msgspec.structs.replace(entry, revoked_from_ns=site.time.midpoint_ns + 1) for entry in keys]
        other = Signer(b"o" * 32)
        site.records.keyrings[2] = Keyring([*revoked, msgspec.structs.replace(keys[0], public=other.public)])
        site.time.advance(MS)
        with pytest.raises(NotTrusted):
            session.publish("log", [b"after"], under=leases)
        site.time = HandTime(other, site.time.midpoint_ns + 10 * SECOND)
        assert [message.payload for message in site.settled("log")] == [b"before"]


def granted_ns(lease: Lease) -> int:
    """For how long a lease was granted, at least: by the least that its shard's clock allows."""
    time = lease.signed.batch_head().signed_time()
    return lease.expiry_ns - time.midpoint_ns - time.radius_ns


def change(desk: Desk, number: int, **numbers: int) -> None:
    desk.policies[number] = msgspec.structs.replace(desk.site.policy, number=number, **numbers)


def named(desk: Desk, newest: int, *others: Lease) -> int:
    leases = [desk.lease, *others]
    in_force = InForce(RecordNumbers(1, newest), desk.records.keyring)
    made = desk.stamper.publication(desk.grid, [b"m"], leases, ID, in_force)
    assert isinstance(made, Publication)
    return opened(made).head.policy_number


def test_frame_names_the_newest_policy_under_which_its_witnesses_are_good(desk: Desk) -> None:
    change(desk, 2, lease_term_max_ns=granted_ns(desk.lease) - 1)
    assert named(desk, 2) == 1
    change(desk, 3, lease_term_max_ns=granted_ns(desk.lease))
    assert named(desk, 3) == 3
    change(desk, 4, lease_term_max_ns=1)
    assert named(desk, 4) == 3


def test_frame_names_a_policy_that_allows_the_longest_of_its_leases(desk: Desk) -> None:
    shorter = desk.session.acquire("shorter", term_s=granted_ns(desk.lease) / SECOND / 2)[0]
    change(desk, 2, lease_term_max_ns=granted_ns(desk.lease) - 1)
    assert granted_ns(shorter) < desk.policies[2].lease_term_max_ns
    assert named(desk, 2, shorter) == 1
    change(desk, 3, lease_term_max_ns=granted_ns(desk.lease))
    assert named(desk, 3, shorter) == 3


def test_tolerance_is_that_of_the_policy_that_is_named(desk: Desk) -> None:
    change(desk, 2, r1_tolerance_ns=0)
    make_stale(desk, desk.time.radius_ns + MS)
    with pytest.raises(BadTime) as caught:
        named(desk, 2)
    assert caught.value.code == "r1-would-fail"
    assert named(desk, 1) == 1


def test_lease_for_longer_than_any_policy_allows_is_not_written_under(desk: Desk) -> None:
    desk.policies[1] = msgspec.structs.replace(desk.site.policy, lease_term_max_ns=granted_ns(desk.lease) - 1)
    with pytest.raises(NotTrusted) as caught:
        named(desk, 1)
    assert caught.value.code == "beyond-policy"


def test_frame_names_a_policy_that_allows_the_clocks_that_signed_for_it(desk: Desk) -> None:
    change(desk, 2, radius_ns_max=desk.time.radius_ns - 1)
    assert named(desk, 2) == 1
    change(desk, 3, radius_ns_max=desk.time.radius_ns)
    assert named(desk, 3) == 3
    desk.policies[1] = desk.policies[2]
    with pytest.raises(NotTrusted) as caught:
        named(desk, 2)
    assert caught.value.code == "beyond-policy"
