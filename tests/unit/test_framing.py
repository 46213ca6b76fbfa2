import hashlib
import struct

import pytest

from appliance.formats.framing import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    PAYLOAD_BYTES_MAX,
    SEAL_BYTES_MAX,
    Kind,
    measure,
    pack,
    piece_at,
    pieces,
    unpack,
)
from timeagent.errors import BadRequest, Damaged

ONE, TWO = pack(Kind.FRAME, b"one"), pack(Kind.FRAME, b"")


def test_piece_is_header_payload_and_checksum() -> None:
    head = b"TNUR" + bytes([Kind.FRAME, 1, 0, 0]) + struct.pack(">I", 3) + b"one"
    assert head + hashlib.sha256(head).digest()[:CHECKSUM_BYTES] == ONE
    assert len(ONE) == OVERHEAD_BYTES + 3
    assert (HEADER_BYTES, CHECKSUM_BYTES) == (12, 16)


def test_run_of_pieces_is_read_in_order() -> None:
    found, rest = pieces(ONE + TWO + ONE)
    assert [piece.payload for piece in found] == [b"one", b"", b"one"]
    assert [piece.offset for piece in found] == [0, len(ONE), len(ONE + TWO)]
    assert rest == ""
    assert measure(ONE + TWO + ONE)[1] == len(ONE + TWO + ONE)


@pytest.mark.parametrize("data", [b"", ONE, ONE + TWO, ONE + TWO[:-1], ONE[:-1], ONE[:-1] + b"?", ONE + b"\0" * 99])
def test_digest_is_that_of_the_digests_of_the_whole_pieces(data: bytes) -> None:
    found, size, digest = measure(data)
    digests = [hashlib.sha256(data[piece.offset : piece.end - CHECKSUM_BYTES]).digest() for piece in found]
    assert digests == [piece.digest for piece in found]
    assert (found, size) == (pieces(data)[0], sum(OVERHEAD_BYTES + len(piece.payload) for piece in found))
    assert digest == hashlib.sha256(b"".join(digests)).digest()


def test_nothing_is_a_run_of_no_pieces() -> None:
    assert pieces(b"") == ([], "")
    assert measure(b"")[1] == 0


# A torn tail was never there; what is before it stays.
@pytest.mark.parametrize("cut", range(1, len(ONE) + 1))
def test_torn_tail_ends_the_run_where_the_last_whole_piece_ends(cut: int) -> None:
    data = ONE + ONE[:-cut]
    found, rest = pieces(data)
    assert [piece.payload for piece in found] == [b"one"]
    assert bool(rest) == (cut < len(ONE))
    assert measure(data)[1] == len(ONE)
    with pytest.raises(Damaged):
        unpack(ONE[:-cut], Kind.FRAME, "f")


def test_every_flipped_bit_hides_exactly_the_piece_it_is_in_and_what_follows() -> None:
    data = ONE + TWO + ONE
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        whole = 0 if bit // 8 < len(ONE) else 1 if bit // 8 < len(ONE + TWO) else 2
        assert len(pieces(bytes(flipped))[0]) == whole, bit


# The test above is worth nothing if it passes without a checksum.
def test_flipped_bits_are_found_by_the_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    class Agreeable(bytes):
        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = bytes.__hash__

        def __getitem__(self, index: object) -> bytes:  # type: ignore[override]
            return self

    class Digest:
        def digest(self) -> bytes:
            return Agreeable()

    monkeypatch.setattr("appliance.formats.framing.hashlib.sha256", lambda _: Digest())
    with pytest.raises(AssertionError):
        test_every_flipped_bit_hides_exactly_the_piece_it_is_in_and_what_follows()


@pytest.mark.parametrize(
    ("offset", "byte"), [(0, 0), (4, 0), (4, max(Kind) + 1), (5, 0), (5, 2), (6, 1), (7, 1), (8, 0x80)]
)
def test_header_that_is_not_ours_is_refused_though_the_checksum_fits(offset: int, byte: int) -> None:
    head = bytearray(ONE[:-CHECKSUM_BYTES])
    head[offset] = byte
    data = bytes(head) + hashlib.sha256(head).digest()[:CHECKSUM_BYTES]
    reason = piece_at(data, 0)
    assert isinstance(reason, str)
    assert reason.startswith("no header of ours")


def test_length_above_the_limit_is_refused_before_it_is_believed() -> None:
    head = b"TNUR" + bytes([Kind.FRAME, 1, 0, 0]) + struct.pack(">I", PAYLOAD_BYTES_MAX + 1)
    assert str(piece_at(head + bytes(100), 0)).startswith("no header of ours")
    with pytest.raises(BadRequest) as refused:
        pack(Kind.FRAME, bytes(PAYLOAD_BYTES_MAX + 1))
    assert refused.value.code == "piece-too-large"


def test_seal_may_be_larger_because_one_that_cannot_be_made_stops_its_log() -> None:
    large = bytes(PAYLOAD_BYTES_MAX + 1)
    assert unpack(pack(Kind.SEAL, large), Kind.SEAL, "seal") == large
    head = b"TNUR" + bytes([Kind.SEAL, 1, 0, 0]) + struct.pack(">I", SEAL_BYTES_MAX + 1)
    assert str(piece_at(head + bytes(100), 0)).startswith("no header of ours")


def test_file_of_one_piece_holds_exactly_one_of_its_kind() -> None:
    assert unpack(ONE, Kind.FRAME, "f") == b"one"
    for data, what in (
        (ONE + b"\0", "1 bytes too many"),
        (ONE + ONE, f"{len(ONE)} bytes too many"),
        (pack(Kind.LOCK, b"one"), "expected a frame, found a lock"),
        (b"", "too few for a header"),
        (b"\0" * 40, "no header of ours"),
    ):
        with pytest.raises(Damaged, match="the file") as refused:
            unpack(data, Kind.FRAME, "the file")
        assert (refused.value.code, refused.value.hint) == ("piece-damaged", "restore the file from a copy of the tree")
        assert what in refused.value.message


def test_numbers_of_kinds_are_for_ever() -> None:
    names = ["FRAME", "LOCK", "SEAL", "LEDGER", "BIRTH", "POLICY", "TRUST", "MAP", "CEILING", "PACK", "VIEW", "EPOCH"]
    assert {kind.name: int(kind) for kind in Kind} == {name: n for n, name in enumerate(names, 1)}
