import msgspec
import pytest

from appliance.formats.framing import Kind, pack
from appliance.formats.shardmap import ShardMap
from appliance.formats.stamped import CONTEXTS, Stamped, body_digest, open_signed, open_stamped, sign, stamp
from tests.support.values import CLUSTER, ROOT_KEY, TIME_KEY, WITNESS_KEY, birth, hand_time, page_token, shard_map
from timeagent.canonical import decode, encode
from timeagent.errors import Damaged

STAMPED = stamp(Kind.BIRTH, birth(), hand_time())
SIGNED = sign(Kind.MAP, shard_map(), ROOT_KEY)


def test_stamp_covers_the_body_as_its_kind() -> None:
    opened = open_stamped(Kind.BIRTH, STAMPED, "f")
    assert opened.body == encode(birth())
    token = opened.signed_time("f")
    key = TIME_KEY.verifier()
    assert token.verified_by(key, body_digest(Kind.BIRTH, opened.body))
    assert not token.verified_by(key, body_digest(Kind.LOCK, opened.body))
    assert not token.verified_by(key, body_digest(Kind.BIRTH, opened.body + b"\0"))
    assert not token.verified_by(key)


def test_signature_covers_the_body_as_its_kind() -> None:
    opened = open_signed(Kind.MAP, SIGNED, "f")
    assert decode(ShardMap, opened.body) == shard_map()
    assert opened.verified_by(Kind.MAP, ROOT_KEY.verifier())
    assert not opened.verified_by(Kind.POLICY, ROOT_KEY.verifier())
    assert not opened.verified_by(Kind.MAP, WITNESS_KEY.verifier())
    other = msgspec.structs.replace(opened, body=opened.body + b"\0")
    assert not other.verified_by(Kind.MAP, ROOT_KEY.verifier())
    named = msgspec.structs.replace(opened, key_id=WITNESS_KEY.id)
    assert not named.verified_by(Kind.MAP, ROOT_KEY.verifier())


def test_no_two_kinds_share_a_context() -> None:
    assert len(set(CONTEXTS.values())) == len(CONTEXTS)
    assert not {"signed time", "signed time over digest", "witness batch", "witness batch head"} & set(
        CONTEXTS.values()
    )


@pytest.mark.parametrize("data", [STAMPED, SIGNED])
def test_file_of_another_kind_or_envelope_is_refused(data: bytes) -> None:
    with pytest.raises(Damaged, match="the file"):
        open_stamped(Kind.SEAL, data, "the file")
    with pytest.raises(Damaged, match="the file"):
        open_signed(Kind.POLICY, data, "the file")
    kind = Kind.BIRTH if data is STAMPED else Kind.MAP
    wrong = open_signed if data is STAMPED else open_stamped
    with pytest.raises(Damaged, match="the file"):
        wrong(kind, data, "the file")


def test_stamp_whose_time_is_no_signed_time_is_found_when_it_is_read() -> None:
    token = page_token().encode()
    raw = pack(Kind.BIRTH, encode(Stamped(body=encode(birth()), time=b"XXXX" + token[4:])))
    opened = open_stamped(Kind.BIRTH, raw, "the file")
    with pytest.raises(Damaged, match="the file"):
        opened.signed_time("the file")


# The first link wins for ever: what nobody could read must not get that far.
def test_body_that_nobody_could_read_is_never_written() -> None:
    bad = msgspec.structs.replace(birth(), cluster_id=CLUSTER[:-1])
    with pytest.raises(AssertionError):
        stamp(Kind.BIRTH, bad, hand_time())
    with pytest.raises(AssertionError):
        sign(Kind.BIRTH, bad, ROOT_KEY)
