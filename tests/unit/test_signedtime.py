import struct

import pytest

from tests.support.values import NOW_NS, TIME_KEY, WITNESS_KEY, nonce_token, page_token
from timeagent.errors import Damaged
from timeagent.signedtime import PAGE_CONTEXT, TOKEN_BYTES, ClockStatus, SignedTime, TimeFlags, sign_time
from timeagent.units import MS, TimeInterval

DIGEST = bytes(range(32))
KEY = TIME_KEY.verifier()


def test_token_is_read_back_and_verifies_by_its_own_door_only() -> None:
    page, nonce = page_token(), nonce_token(DIGEST)
    for token in (page, nonce):
        assert len(token.encode()) == TOKEN_BYTES
        assert SignedTime.decode(token.encode()) == token
    assert page.verified_by(KEY)
    assert not page.verified_by(KEY, DIGEST)
    assert nonce.verified_by(KEY, DIGEST)
    assert not nonce.verified_by(KEY)
    assert not nonce.verified_by(KEY, bytes(32))


# A page token whose flag is turned to the other door, or back, must not be believed there.
def test_doors_have_contexts_of_their_own() -> None:
    page, nonce = bytearray(page_token().encode()), bytearray(nonce_token(DIGEST).encode())
    page[6:8] = struct.pack(">H", TimeFlags.NONCE)
    page[24:32] = bytes(8)  # the nonce door states no staleness
    nonce[6:8] = struct.pack(">H", TimeFlags.ASSUMED)
    for data in (page, nonce):
        token = SignedTime.decode(bytes(data))
        assert not token.verified_by(KEY)
        assert not token.verified_by(KEY, DIGEST)


def test_another_key_does_not_verify() -> None:
    assert not page_token().verified_by(WITNESS_KEY.verifier())


# Signed by this key, in the name of another.
def test_token_that_names_another_key_does_not_verify() -> None:
    body = page_token(signer=WITNESS_KEY).body()
    token = SignedTime.decode(body + TIME_KEY.sign(PAGE_CONTEXT, body))
    assert TIME_KEY.verifier().verifies(PAGE_CONTEXT, body, token.signature)
    assert not token.verified_by(KEY)


@pytest.mark.parametrize("door", ["page", "nonce"])
def test_every_flipped_bit_is_noticed(door: str) -> None:
    digest = DIGEST if door == "nonce" else None
    good = (nonce_token(DIGEST) if digest else page_token()).encode()
    for bit in range(8 * TOKEN_BYTES):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            token = SignedTime.decode(bytes(flipped))
        except Damaged:
            continue
        assert not token.verified_by(KEY, digest), bit


# The test above is worth nothing if a verifier that says yes to everything passes it.
def test_flipped_bits_are_found_by_the_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timeagent.keys.Verifier.verifies", lambda *_: True)
    with pytest.raises(AssertionError):
        test_every_flipped_bit_is_noticed("page")


@pytest.mark.parametrize("length", [*range(TOKEN_BYTES), TOKEN_BYTES + 1])
def test_other_lengths_are_refused(length: int) -> None:
    data = (page_token().encode() + b"\0")[:length]
    with pytest.raises(Damaged, match=f"the token has {length} bytes") as refused:
        SignedTime.decode(data, "the token")
    assert refused.value.code == "time-damaged"


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (0, b"TNSU"),  # magic
        (4, b"\0"),  # version
        (4, b"\2"),
        (5, b"\4"),  # status
        (6, b"\0\x08"),  # flags
        (6, b"\x80\0"),
        (8, b"\x80" + bytes(7)),  # midpoint 2^63
        (16, b"\x40" + bytes(7)),  # radius 2^62
        (24, b"\x40" + bytes(7)),  # staleness 2^62
        (6, b"\0\1"),  # the nonce door beside a staleness
    ],
)
def test_unknown_or_impossible_values_are_refused(offset: int, value: bytes) -> None:
    data = bytearray(page_token().encode())
    data[offset : offset + len(value)] = value
    with pytest.raises(Damaged) as refused:
        SignedTime.decode(bytes(data))
    assert refused.value.code == "time-damaged"


def test_largest_values_are_read() -> None:
    data = bytearray(page_token().encode())
    data[8:16] = struct.pack(">Q", 2**63 - 1)
    data[16:24] = data[24:32] = struct.pack(">Q", 2**62 - 1)
    token = SignedTime.decode(bytes(data))
    assert (token.midpoint_ns, token.radius_ns, token.staleness_ns) == (2**63 - 1, 2**62 - 1, 2**62 - 1)


@pytest.mark.parametrize("width", range(4))
def test_signed_interval_covers_the_one_that_was_given(width: int) -> None:
    given = TimeInterval(NOW_NS, NOW_NS + width)
    token = sign_time(
        TIME_KEY,
        given,
        status=ClockStatus.SYNCHRONIZED,
        flags=TimeFlags.NONE,
        staleness_ns=250 * MS,
        sequence=1,
        clock_epoch=1,
    )
    assert token.interval.earliest <= given.earliest
    assert given.latest <= token.interval.latest


def test_flags_say_the_door_whatever_was_asked_for() -> None:
    def flags(asked: TimeFlags, digest: bytes | None) -> TimeFlags:
        now = TimeInterval.around(NOW_NS, 1)
        status = ClockStatus.SYNCHRONIZED
        token = sign_time(
            TIME_KEY, now, status=status, flags=asked, staleness_ns=5, sequence=1, clock_epoch=1, digest=digest
        )
        assert token.staleness_ns == (0 if digest else 5)
        return token.flags

    assert flags(TimeFlags.NONCE, None) == TimeFlags.NONE
    assert flags(TimeFlags.NONE, DIGEST) == TimeFlags.NONCE
    assert flags(TimeFlags.ASSUMED, DIGEST) == TimeFlags.NONCE | TimeFlags.ASSUMED


@pytest.mark.parametrize("length", [0, 31, 33])
def test_only_32_bytes_can_be_signed_over(length: int) -> None:
    with pytest.raises(AssertionError):
        nonce_token(bytes(length))
    with pytest.raises(AssertionError):
        nonce_token(DIGEST).verified_by(KEY, bytes(length))


def test_usable_statuses_are_two() -> None:
    assert [status.name for status in ClockStatus if status.usable] == ["SYNCHRONIZED", "FREE_RUNNING"]
