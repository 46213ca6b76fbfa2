"""Signed times and what people write: round trips, and nothing unknown is taken."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.values import TIME_KEY
from timeagent.errors import Damaged
from timeagent.signedtime import BODY_BYTES, TOKEN_BYTES, ClockStatus, SignedTime, TimeFlags, r1_range, sign_time
from timeagent.units import INSTANT_MAX, TimeInterval, parse_instant, parse_span, rfc3339

INSTANTS = st.integers(0, INSTANT_MAX)
U64 = st.integers(0, 2**64 - 1)


@given(INSTANTS, INSTANTS)
def test_midpoint_and_radius_cover_any_interval(one: int, other: int) -> None:
    interval = TimeInterval(min(one, other), max(one, other))
    around = TimeInterval.around(interval.midpoint, interval.radius)
    assert around.earliest <= interval.earliest
    assert interval.latest <= around.latest <= interval.latest + 1


@given(
    st.sampled_from(ClockStatus),
    INSTANTS,
    st.integers(0, 2**61),
    st.integers(0, 2**62 - 1),
    U64,
    U64,
    st.none() | st.binary(min_size=32, max_size=32),
)
def test_signed_time_is_read_back_and_verifies(
    status: ClockStatus, midpoint: int, radius: int, staleness: int, sequence: int, epoch: int, digest: bytes | None
) -> None:
    token = sign_time(
        TIME_KEY,
        TimeInterval.around(midpoint, radius),
        status=status,
        flags=TimeFlags.NONE,
        staleness_ns=staleness,
        sequence=sequence,
        clock_epoch=epoch,
        digest=digest,
    )
    again = SignedTime.decode(token.encode())
    assert again == token
    assert again.interval == TimeInterval.around(midpoint, radius)
    assert again.verified_by(TIME_KEY.verifier(), digest)
    assert midpoint in r1_range(again, 0)


@given(st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES))
def test_arbitrary_bytes_are_no_signed_time(raw: bytes) -> None:
    try:
        token = SignedTime.decode(raw)
    except Damaged:
        return
    assert token.encode() == raw


@given(st.binary(min_size=TOKEN_BYTES - 6, max_size=TOKEN_BYTES - 6))
def test_any_body_behind_a_good_head_is_its_own_encoding(rest: bytes) -> None:
    raw = b"TNST\x01\x01" + rest
    try:
        token = SignedTime.decode(raw)
    except Damaged:
        return
    assert token.encode() == raw
    assert token.body() == raw[:BODY_BYTES]
    assert not token.verified_by(TIME_KEY.verifier())


@given(INSTANTS)
def test_instant_is_read_back(instant: int) -> None:
    assert parse_instant(rfc3339(instant)) == instant
    assert parse_instant(str(instant)) == instant


@given(INSTANTS, INSTANTS)
def test_texts_sort_as_instants_do(one: int, other: int) -> None:
    assert (one < other) == (rfc3339(one) < rfc3339(other))


@given(st.integers(0, INSTANT_MAX))
def test_span_in_seconds_is_read_exactly(span: int) -> None:
    whole, rest = divmod(span, 10**9)
    assert parse_span(f"{whole}.{rest:09d}s") == parse_span(f"{span}ns") == span
