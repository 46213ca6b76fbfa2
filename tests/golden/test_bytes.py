"""The bytes of each format are what they were: fixed values encode to them, and they decode to fixed values."""

from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.formats.birth import LogBirth, decode_marker, open_birth, store_of
from appliance.formats.chains import open_ceiling, open_epoch
from appliance.formats.closed import open_lock, open_seal
from appliance.formats.framing import Kind, open_frame, pieces
from appliance.formats.policy import Policy
from appliance.formats.shardmap import ShardMap
from appliance.formats.stamped import body_digest, open_signed
from appliance.formats.view import open_checkpoint
from appliance.formats.witness import SignedWitness, open_block
from tests.support import values
from tests.support.values import witness_refused
from timeagent.canonical import decode
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime
from timeagent.trust import TrustRecord

FILES = values.all_files()
FOLDER = Path(__file__).parent / "bytes"
ROOT_KEY = values.ROOT_KEY.verifier()
TIME_KEY = values.TIME_KEY.verifier()


def golden(name: str) -> bytes:
    return bytes.fromhex((FOLDER / f"{name}.hex").read_text(encoding="ascii"))


def test_folder_and_formats_name_the_same_files() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(f"{name}.hex" for name in FILES)


@pytest.mark.parametrize("name", FILES)
def test_fixed_value_encodes_to_the_golden_bytes(name: str) -> None:
    assert FILES[name] == golden(name), "see tests/golden/make_bytes.py before you change anything"


def marker(data: bytes) -> None:
    opened = decode_marker(data, "f")
    assert (opened.cluster_id, opened.root_key) == (values.CLUSTER, values.ROOT_KEY.public)


def time_page(data: bytes) -> None:
    token = SignedTime.decode(data)
    assert token == values.page_token()
    assert token.verified_by(TIME_KEY)


def time_nonce(data: bytes) -> None:
    token = SignedTime.decode(data)
    assert (token.midpoint_ns, token.radius_ns, token.staleness_ns) == (values.NOW_NS, 5_000_000, 0)
    assert token.verified_by(TIME_KEY, values.COVERED)


def policy(data: bytes) -> None:
    signed = open_signed(Kind.POLICY, data, "f")
    assert signed.verified_by(Kind.POLICY, ROOT_KEY)
    assert decode(Policy, signed.body) == Policy(number=1, cluster_id=values.CLUSTER)


def trust(data: bytes) -> None:
    signed = open_signed(Kind.TRUST, data, "f")
    assert signed.verified_by(Kind.TRUST, ROOT_KEY)
    assert decode(TrustRecord, signed.body) == values.trust_record()


def shard_map(data: bytes) -> None:
    signed = open_signed(Kind.MAP, data, "f")
    assert signed.verified_by(Kind.MAP, ROOT_KEY)
    assert decode(ShardMap, signed.body) == values.shard_map()


def birth(data: bytes) -> None:
    _birth(data, values.birth(), "")


def placed_birth(data: bytes) -> None:
    _birth(data, values.placed_birth(), "s3://acme-bags/archive")


def _birth(data: bytes, expected: LogBirth, store: str) -> None:
    found, stamped = open_birth(data, "f")
    assert found == expected
    assert store_of(found) == store
    assert stamped.signed_time("f").verified_by(TIME_KEY, body_digest(Kind.BIRTH, stamped.body))


def ceiling(data: bytes) -> None:
    record, signed = open_ceiling(data, "f")
    assert record == values.ceiling_record()
    assert signed.verified_by(Kind.CEILING, values.WITNESS_KEY.verifier())


def epoch(data: bytes) -> None:
    assert open_epoch(data, "f") == values.epoch_record()
    assert open_signed(Kind.EPOCH, data, "f").verified_by(Kind.EPOCH, values.WITNESS_KEY.verifier())


def witness(data: bytes) -> None:
    signed = decode(SignedWitness, data)
    assert signed.witness() == values.witness()
    assert witness_refused(signed, values.keyring(), values.CLUSTER) is None


def ledger(data: bytes) -> None:
    block = open_block(pieces(data)[0][0], "f")
    assert list(block.decoded("f")) == values.entries()
    assert block.entries_match(block.batch_head("f"))


def frame(data: bytes) -> None:
    opened = open_frame(pieces(data)[0][0], "f")
    assert opened.head == values.frame_head()
    assert tuple(opened.timestamps.tolist()) == values.TIMESTAMPS
    assert tuple(opened.payloads()) == values.PAYLOADS


def session(data: bytes) -> None:
    signed = decode(SignedWitness, data)
    assert signed.statement() == values.session_entries()[1]
    assert witness_refused(signed, values.keyring(), values.CLUSTER) is None


def session_ledger(data: bytes) -> None:
    block = open_block(pieces(data)[0][0], "f")
    assert list(block.decoded("f")) == values.session_entries()
    assert block.entries_match(block.batch_head("f"))


def session_frame(data: bytes) -> None:
    opened = open_frame(pieces(data)[0][0], "f")
    assert opened.head == values.session_frame_head()
    assert tuple(opened.payloads()) == values.PAYLOADS


def lock(data: bytes) -> None:
    opened, stamped = open_lock(data, "f")
    assert opened == values.lock()
    assert stamped.signed_time("f").verified_by(TIME_KEY, body_digest(Kind.LOCK, stamped.body))


def seal(data: bytes) -> None:
    opened, stamped = open_seal(data, "f")
    assert opened == values.seal()
    assert stamped.signed_time("f").verified_by(TIME_KEY, body_digest(Kind.SEAL, stamped.body))


def view(data: bytes) -> None:
    opened = open_checkpoint(data, f"views/totals/{values.fold_identity().digest().hex()}/{values.NOW_NS + 10**9}")
    assert opened == values.checkpoint()


READERS: dict[str, Callable[[bytes], None]] = {
    "marker": marker,
    "time-page": time_page,
    "time-nonce": time_nonce,
    "policy": policy,
    "trust": trust,
    "map": shard_map,
    "birth": birth,
    "placed-birth": placed_birth,
    "ceiling": ceiling,
    "epoch": epoch,
    "witness": witness,
    "ledger": ledger,
    "frame": frame,
    "session": session,
    "session-ledger": session_ledger,
    "session-frame": session_frame,
    "lock": lock,
    "seal": seal,
    "view": view,
}


@pytest.mark.parametrize("name", FILES)
def test_golden_bytes_are_read_as_the_fixed_value(name: str) -> None:
    READERS[name](golden(name))


# Shown to be a test of something: one bit of difference is not the fixed value any more.
@pytest.mark.parametrize("name", FILES)
def test_other_bytes_are_not_read_as_the_fixed_value(name: str) -> None:
    data = bytearray(golden(name))
    data[len(data) // 2] ^= 1
    with pytest.raises((AssertionError, Damaged, IndexError)):
        READERS[name](bytes(data))
