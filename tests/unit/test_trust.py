import msgspec
import pytest

from tests.support.values import NODE, NOW_NS, ROOT_KEY, TIME_KEY, WITNESS_KEY, nonce_token, page_token, trust_record
from timeagent.canonical import decode, encode
from timeagent.errors import Damaged
from timeagent.keys import Purpose
from timeagent.signedtime import ClockStatus, TimeFlags, sign_time
from timeagent.trust import KeyEntry, Keyring, TrustRecord
from timeagent.units import TimeInterval


def entry(**changes: object) -> KeyEntry:
    whole = KeyEntry(node=NODE, purpose=Purpose.TIME, public=TIME_KEY.public, valid_from_ns=100, valid_until_ns=200)
    return msgspec.structs.replace(whole, **changes)


@pytest.mark.parametrize(("at", "refused"), [(99, True), (100, False), (199, False), (200, True)])
def test_key_is_valid_from_its_first_instant_and_not_at_its_last(at: int, refused: bool) -> None:  # noqa: FBT001
    reason = Keyring([entry()]).refuses(TIME_KEY.id, Purpose.TIME, at)
    assert (reason is not None) is refused
    if reason:
        assert f"not valid at 1970-01-01T00:00:00.{at:09d}Z" in reason


@pytest.mark.parametrize(("at", "refused"), [(149, False), (150, True), (199, True)])
def test_revocation_counts_from_its_instant(at: int, refused: bool) -> None:  # noqa: FBT001
    reason = Keyring([entry(revoked_from_ns=150)]).refuses(TIME_KEY.id, Purpose.TIME, at)
    assert (reason is not None) is refused
    if reason:
        assert "revoked from 1970-01-01T00:00:00.000000150Z" in reason


def test_key_of_another_purpose_is_refused_by_name() -> None:
    reason = Keyring([entry()]).refuses(TIME_KEY.id, Purpose.WITNESS, 150)
    assert reason is not None
    assert "is for time, not for witness" in reason


def test_unknown_key_is_refused_and_belongs_to_nobody() -> None:
    ring = Keyring([entry()])
    reason = ring.refuses(ROOT_KEY.id, Purpose.TIME, 150)
    assert reason is not None
    assert "not in the trust record" in reason
    assert ring.node_of(ROOT_KEY.id) is None
    assert ring.verifier(ROOT_KEY.id) is None
    assert ring.node_of(TIME_KEY.id) == NODE


# Whether a key was valid is one question, whether it signed is another.
def test_verifier_is_given_also_after_its_validity() -> None:
    verifier = Keyring([entry(valid_until_ns=101)]).verifier(TIME_KEY.id)
    assert verifier is not None
    assert verifier.public == TIME_KEY.public


def test_signature_is_refused_for_its_key_and_for_its_bytes() -> None:
    ring = Keyring([entry()])
    signature = TIME_KEY.sign("c", b"p")
    assert ring.refuses_signature(TIME_KEY.id, Purpose.TIME, 150, "c", b"p", signature) is None
    for reason in (
        ring.refuses_signature(TIME_KEY.id, Purpose.TIME, 150, "c", b"q", signature),
        ring.refuses_signature(TIME_KEY.id, Purpose.TIME, 150, "d", b"p", signature),
        ring.refuses_signature(TIME_KEY.id, Purpose.TIME, 150, "c", b"p", bytes(64)),
    ):
        assert reason is not None
        assert "does not verify" in reason
    late = ring.refuses_signature(TIME_KEY.id, Purpose.TIME, 200, "c", b"p", signature)
    assert late is not None
    assert "not valid" in late


def test_signed_time_is_taken_by_its_own_door() -> None:
    ring = Keyring(trust_record().keys)
    digest = bytes(32)
    assert ring.refuses_time(page_token()) is None
    assert ring.refuses_time(nonce_token(digest), digest) is None
    assert ring.refuses_time(nonce_token(digest)) is not None
    assert ring.refuses_time(page_token(), digest) is not None
    assert ring.refuses_time(page_token(signer=ROOT_KEY)) is not None
    assert ring.refuses_time(page_token(signer=WITNESS_KEY)) is not None
    assert ring.refuses_time(page_token(NOW_NS - 10**15)) is not None


@pytest.mark.parametrize("status", ClockStatus)
def test_signed_time_without_a_usable_clock_is_refused(status: ClockStatus) -> None:
    token = sign_time(
        TIME_KEY,
        TimeInterval.around(NOW_NS, 1),
        status=status,
        flags=TimeFlags.NONE,
        staleness_ns=0,
        sequence=1,
        clock_epoch=1,
    )
    assert (Keyring(trust_record().keys).refuses_time(token) is None) is status.usable


# Which of two entries counts would be a guess.
def test_key_stands_once_in_a_trust_record() -> None:
    good = trust_record()
    twice = (good.keys[0], msgspec.structs.replace(good.keys[0], node="node-b"))
    with pytest.raises(ValueError, match="stands twice"):
        TrustRecord(number=1, cluster_id=bytes(16), keys=twice)
    raw = encode(good)
    one = encode(good.keys[0])
    two = encode(good.keys[1])
    assert decode(TrustRecord, raw) == good
    with pytest.raises(Damaged, match="stands twice"):
        decode(TrustRecord, raw.replace(two, one))
