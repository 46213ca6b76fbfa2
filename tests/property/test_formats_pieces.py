"""Pieces, frames and stamped files: whatever happens to the bytes, it is noticed, and nothing before it is lost."""

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from appliance.formats.birth import LogBirth
from appliance.formats.chains import open_ceiling
from appliance.formats.closed import open_lock, open_seal
from appliance.formats.framing import (
    Attempt,
    Kind,
    Piece,
    encode_frame,
    measure,
    open_frame,
    pack,
    piece_at,
    pieces,
    unpack,
)
from appliance.formats.stamped import body_digest, open_signed, open_stamped
from tests.support.values import ROOT_KEY, TIME_KEY, WITNESS_KEY, all_files, birth, frame_head
from timeagent.canonical import decode
from timeagent.errors import Damaged
from timeagent.units import INSTANT_MAX

FILES = all_files()
ONE_PIECE = {
    "policy": Kind.POLICY,
    "trust": Kind.TRUST,
    "map": Kind.MAP,
    "birth": Kind.BIRTH,
    "placed-birth": Kind.BIRTH,
    "ceiling": Kind.CEILING,
    "epoch": Kind.EPOCH,
    "ledger": Kind.LEDGER,
    "frame": Kind.FRAME,
    "lock": Kind.LOCK,
    "seal": Kind.SEAL,
    "view": Kind.VIEW,
}
PAYLOADS = st.binary(max_size=60)


@given(st.lists(st.tuples(st.sampled_from(Kind), PAYLOADS), max_size=5))
def test_run_of_pieces_is_read_back(run: list[tuple[Kind, bytes]]) -> None:
    data = b"".join(pack(kind, payload) for kind, payload in run)
    found, rest = pieces(data)
    assert [(piece.kind, piece.payload) for piece in found] == run
    assert rest == ""
    assert measure(data)[1] == len(data)


@given(st.lists(PAYLOADS, min_size=1, max_size=4), st.data())
def test_flipped_bit_or_cut_keeps_exactly_the_pieces_before_it(payloads: list[bytes], data: st.DataObject) -> None:
    packed = [pack(Kind.FRAME, payload) for payload in payloads]
    ends = list(itertools.accumulate(map(len, packed)))
    raw = b"".join(packed)
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    flipped = bytearray(raw)
    flipped[bit // 8] ^= 1 << bit % 8
    before = [payload for payload, end in zip(payloads, ends, strict=True) if end <= bit // 8]
    assert [piece.payload for piece in pieces(bytes(flipped))[0]] == before
    assert [piece.payload for piece in pieces(raw[: bit // 8])[0]] == before


# A list names the bytes of a file by size and digest: whatever else has both would be taken for it.
@given(st.lists(st.tuples(st.sampled_from(Kind), PAYLOADS), max_size=3), st.binary(max_size=40), st.data())
def test_no_other_bytes_have_size_and_digest_of_a_run(
    run: list[tuple[Kind, bytes]], rest: bytes, data: st.DataObject
) -> None:
    raw = b"".join(pack(kind, payload) for kind, payload in run)
    _, *named = measure(raw + rest)
    assume(named[0] == len(raw))
    other = bytearray(raw)
    if raw and data.draw(st.booleans()):
        bit = data.draw(st.integers(0, 8 * len(raw) - 1))
        other[bit // 8] ^= 1 << bit % 8
    cut = bytes(other[: data.draw(st.integers(0, len(other)))]) if data.draw(st.booleans()) else bytes(other)
    assert (measure(cut)[1:] == tuple(named)) == (cut == raw)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_hold_no_piece_and_raise_nothing(raw: bytes) -> None:
    found, rest = pieces(raw)
    assert found == []
    assert bool(rest) == bool(raw)
    assert measure(raw)[1] == 0


@pytest.mark.parametrize("name", ONE_PIECE)
def test_every_flipped_bit_and_every_cut_of_a_file_is_noticed(name: str) -> None:
    raw, kind = FILES[name], ONE_PIECE[name]
    assert unpack(raw, kind, name)
    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            unpack(bytes(flipped), kind, name)
    for cut in range(len(raw)):
        with pytest.raises(Damaged):
            unpack(raw[:cut], kind, name)


# A checksum notices accidents; a payload that was changed and packed again is noticed by the signature.
@pytest.mark.parametrize("name", ["policy", "trust", "map", "ceiling", "birth", "placed-birth", "lock", "seal"])
def test_every_flipped_bit_under_a_new_checksum_is_noticed_by_the_signature(name: str) -> None:
    kind = ONE_PIECE[name]
    payload = unpack(FILES[name], kind, name)
    assert signature_good(name, pack(kind, payload))
    for bit in range(8 * len(payload)):
        flipped = bytearray(payload)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not signature_good(name, pack(kind, bytes(flipped))), bit


def signature_good(name: str, data: bytes) -> bool:
    kind = ONE_PIECE[name]
    try:
        match name:
            case "policy" | "trust" | "map":
                return open_signed(kind, data, name).verified_by(kind, ROOT_KEY.verifier())
            case "ceiling":
                return open_ceiling(data, name)[1].verified_by(kind, WITNESS_KEY.verifier())
            case "lock":
                stamped = open_lock(data, name)[1]
            case "seal":
                stamped = open_seal(data, name)[1]
            case _:
                stamped = open_stamped(kind, data, name)
        token = stamped.signed_time(name)
        return token.verified_by(TIME_KEY.verifier(), body_digest(kind, stamped.body))
    except Damaged:
        return False


def test_birth_record_is_in_its_stamp() -> None:
    assert decode(LogBirth, open_stamped(Kind.BIRTH, FILES["birth"], "f").body) == birth()


@given(
    st.lists(st.integers(0, INSTANT_MAX), min_size=1, max_size=12, unique=True).map(sorted),
    st.lists(st.binary(max_size=30), min_size=12, max_size=12),
    st.data(),
)
def test_frame_is_read_back(timestamps: list[int], payloads: list[bytes], data: st.DataObject) -> None:
    payloads = payloads[: len(timestamps)]
    cut = data.draw(st.integers(0, len(timestamps)))
    counts = [count for count in (cut, len(timestamps) - cut) if count]
    attempts = tuple(Attempt(id=bytes([index]) * 16, messages=count) for index, count in enumerate(counts))
    head = frame_head(attempts=attempts)
    raw, digest = encode_frame(head, timestamps, payloads)
    piece = piece_at(raw, 0)
    assert isinstance(piece, Piece)
    frame = open_frame(piece, "f")
    assert frame.head == head
    assert frame.timestamps.tolist() == timestamps
    assert frame.payloads() == payloads
    assert [frame.payloads(n, n + 2) for n in range(len(payloads))] == [
        payloads[n : n + 2] for n in range(len(payloads))
    ]
    assert frame.digest == digest


# Whatever a payload holds, it is a frame in its only encoding, or it is refused by name.
@given(st.data())
def test_changed_frame_payload_is_another_frame_or_refused(data: st.DataObject) -> None:
    payload = bytearray(unpack(FILES["frame"], Kind.FRAME, "f"))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    assume(bytes(payload) != unpack(FILES["frame"], Kind.FRAME, "f"))
    piece = piece_at(pack(Kind.FRAME, bytes(payload)), 0)
    assert isinstance(piece, Piece)
    try:
        frame = open_frame(piece, "f")
    except Damaged:
        return
    again, digest = encode_frame(frame.head, frame.timestamps.tolist(), list(frame.payloads()))
    assert again == pack(Kind.FRAME, bytes(payload))
    assert digest == frame.digest
