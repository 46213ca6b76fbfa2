"""The holder's side of one lease, to the nanosecond."""

import pytest

from appliance.formats.hints import PLACES_MAX, HintedFile
from appliance.formats.lease import Mode
from appliance.formats.witness import SignedWitness, Witness
from appliance.session.endings import LossReason
from appliance.session.held import Lease
from tests.support.values import NOW_NS, batch, witness
from timeagent.errors import LeaseLost
from timeagent.units import MS, SECOND, TimeInterval

MARGIN = 500 * MS


def signed(given: Witness) -> SignedWitness:
    return batch([given]).signed_witness(0)


def changed(**changes: int) -> Witness:
    fields = {name: getattr(witness(), name) for name in Witness.__struct_fields__}
    return Witness(**(fields | changes))


@pytest.fixture
def lease() -> Lease:
    given = witness("d")
    return Lease(
        domain="d",
        shard=0,
        own_mode=Mode.X,
        correlation_id=given.correlation_id,
        fence=given.fence,
        stated_fence=given.fence,
        own_expiry_ns=given.expiry_ns,
        floor_ns=given.floor_ns,
        settle_to_ns=given.settle_to_ns,
        signed=signed(given),
        term_ns=10 * SECOND,
    )


def test_lease_is_held_until_the_clock_may_have_reached_its_expiry_minus_the_margin(lease: Lease) -> None:
    last = lease.expiry_ns - MARGIN - 1
    lease.check_held(TimeInterval(last - SECOND, last), MARGIN)
    with pytest.raises(LeaseLost) as lost:
        lease.check_held(TimeInterval(last - SECOND, last + 1), MARGIN)
    assert lost.value.code == "lease-expired"
    assert "'d'" in lost.value.message
    assert str(lease.fence) in lost.value.message
    assert "2026-11-20T22:10:17.500000000Z" in lost.value.message


def test_lease_says_in_a_line_what_it_is_and_once_why_it_is_over(lease: Lease) -> None:
    assert repr(lease).startswith(f"<Lease 'd' X fence {lease.fence} until 2026-11-20T22:10:17.5")
    assert len(repr(lease)) < 200
    lease.lose("expired", LossReason.EXPIRED)
    assert lease.over_text() == "the lease on 'd' is expired"
    assert repr(lease).endswith("over: expired>")


def test_lease_that_is_revoked_says_by_whom_once(lease: Lease) -> None:
    lease.lose("revoked", LossReason.REVOKED)
    assert lease.over_text() == "the lease on 'd' is revoked"


def test_lost_lease_stays_lost_whatever_the_clock_says_later(lease: Lease) -> None:
    with pytest.raises(LeaseLost):
        lease.check_held(TimeInterval.around(lease.expiry_ns, 0), MARGIN)
    with pytest.raises(LeaseLost):
        lease.check_held(TimeInterval.around(NOW_NS, 0), MARGIN)


def test_newer_witness_moves_expiry_and_witness_together(lease: Lease) -> None:
    newer = changed(expiry_ns=lease.expiry_ns + SECOND)
    lease.take(signed(newer), newer)
    assert lease.expiry_ns == newer.expiry_ns
    assert lease.signed.witness().expiry_ns == newer.expiry_ns


# A frame is judged by the witness that it carries: the two must never come apart.
def test_late_answer_with_an_earlier_expiry_changes_neither(lease: Lease) -> None:
    before = lease.signed
    older = changed(expiry_ns=lease.expiry_ns - 1)
    lease.take(signed(older), older)
    assert lease.signed is before
    assert lease.expiry_ns == before.witness().expiry_ns


def test_floor_and_settle_to_only_grow(lease: Lease) -> None:
    floor, settle_to = lease.floor_ns, lease.settle_to_ns
    higher = changed(floor_ns=floor + 1, settle_to_ns=settle_to + 1)
    lease.take(signed(higher), higher)
    assert (lease.floor_ns, lease.settle_to_ns) == (floor + 1, settle_to + 1)
    lower = changed(floor_ns=0, settle_to_ns=0)
    lease.take(signed(lower), lower)
    assert (lease.floor_ns, lease.settle_to_ns) == (floor + 1, settle_to + 1)


def test_witness_of_another_grant_is_never_taken(lease: Lease) -> None:
    lease.correlation_id = bytes(16)
    with pytest.raises(AssertionError):
        lease.take(lease.signed, lease.signed.witness())


def test_watermark_keeps_the_signed_time_of_the_highest_message(lease: Lease) -> None:
    lease.wrote(5, b"five")
    lease.wrote(4, b"four")
    assert (lease.watermark_ns, lease.watermark_time) == (5, b"five")


def test_chain_head_is_the_last_frame_however_late_an_earlier_one_is_resolved(lease: Lease) -> None:
    place = HintedFile(log="log", bag_start_ns=1, file_name="*", last_ns=2)
    lease.committed(2, b"second", 2, place)
    lease.committed(1, b"first", 1, place)
    assert (lease.messages, lease.chain_head) == (3, b"second")


def test_what_the_shard_has_not_heard_of_where_it_wrote_is_said_once(lease: Lease) -> None:
    assert lease.unsaid() is None
    lease.committed(1, b"first", 1, HintedFile(log="log", bag_start_ns=1, file_name="f", last_ns=2))
    sent = lease.unsaid()
    assert sent == lease.own
    lease.committed(1, b"second", 2, HintedFile(log="log", bag_start_ns=1, file_name="g", last_ns=3))
    assert sent is not None
    lease.told = sent
    assert lease.unsaid() == lease.own
    lease.told = lease.own
    assert lease.unsaid() is None


def test_places_beyond_the_limit_are_forgotten_from_the_oldest_on(lease: Lease) -> None:
    for number in range(1, 5 * PLACES_MAX):
        lease.committed(1, b"", number, HintedFile(log="log", bag_start_ns=1, file_name=f"{number}", last_ns=number))
        assert len(lease._written[1]) <= PLACES_MAX
        assert lease.own.reach_ns("log") == max(0, number - PLACES_MAX)
        assert [place.last_ns for place in lease.own.places] == list(range(1, number + 1))[-PLACES_MAX:]


def test_two_leases_with_the_same_numbers_are_two(lease: Lease) -> None:
    twin = Lease(
        lease.domain,
        lease.shard,
        lease.mode,
        lease.correlation_id,
        lease.fence,
        lease.stated_fence,
        lease.expiry_ns,
        lease.floor_ns,
        lease.settle_to_ns,
        lease.signed,
        lease.term_ns,
    )
    assert len({lease, twin}) == 2
