import hashlib
import struct

import numpy as np
import pytest

from appliance.formats import framing
from appliance.formats.framing import (
    CHECKSUM_BYTES,
    FRAME_MESSAGES_MAX,
    HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    OVERHEAD_BYTES,
    PAYLOAD_BYTES_MAX,
    SEAL_BYTES_MAX,
    WITNESSES_MAX,
    Attempt,
    Frame,
    FrameHead,
    Kind,
    Piece,
    check_payloads,
    encode_frame,
    measure,
    open_frame,
    pack,
    piece_at,
    pieces,
    unpack,
)
from tests.support.values import NOW_NS, PAYLOADS, TIMESTAMPS, frame_head, frame_piece, page_token
from timeagent.canonical import encode
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


# -- frames ----------------------------------------------------------------------------------------------------------


def opened(data: bytes) -> Frame:
    piece = piece_at(data, 0)
    assert isinstance(piece, Piece), piece
    return open_frame(piece, "the frame")


def payload_of(
    head: FrameHead, timestamps: list[int], lengths: list[int], body: bytes, count: int | None = None
) -> bytes:
    raw = encode(head)
    columns = np.asarray(timestamps, "<i8").tobytes() + np.asarray(lengths, "<u4").tobytes()
    count = len(timestamps) if count is None else count
    return struct.pack("<I", len(raw)) + raw + struct.pack("<I", count) + columns + body


def attempts(*counts: int) -> tuple[Attempt, ...]:
    return tuple(Attempt(id=bytes([index]) * 16, messages=count) for index, count in enumerate(counts))


def test_frame_is_read_back() -> None:
    one = opened(frame_piece())
    assert one.head == frame_head()
    assert one.timestamps.tolist() == list(TIMESTAMPS)
    assert one.lengths.tolist() == [len(payload) for payload in PAYLOADS]
    assert tuple(one.payloads()) == PAYLOADS
    assert one.head.signed_time() == page_token()


def test_layout_is_head_then_columns_then_bytes() -> None:
    data, digest = encode_frame(frame_head(), TIMESTAMPS, PAYLOADS)
    payload = payload_of(frame_head(), list(TIMESTAMPS), [len(p) for p in PAYLOADS], b"".join(PAYLOADS))
    assert data == pack(Kind.FRAME, payload)
    assert digest == hashlib.sha256(data[:-16]).digest() == opened(data).digest


def test_every_flipped_bit_hides_the_frame() -> None:
    data = frame_piece()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert pieces(bytes(flipped))[0] == [], bit


LAST = 2**63 - 1
FIRST_OF_ALL = -(2**63)
DAMAGED = {
    "nothing": b"",
    "shorter than its head": struct.pack("<I", 1000) + b"\0" * 20,
    "no count": struct.pack("<I", len(encode(frame_head()))) + encode(frame_head()),
    "no messages": payload_of(frame_head(attempts=()), [], [], b""),
    "more messages than bytes": payload_of(frame_head(attempts=attempts(5)), [1], [1], b"x", count=5),
    "more messages than may be": payload_of(frame_head(), [], [], bytes(64), count=FRAME_MESSAGES_MAX + 1),
    "lengths below the bytes": payload_of(frame_head(attempts=attempts(1)), [1], [1], b"xy"),
    "lengths above the bytes": payload_of(frame_head(attempts=attempts(1)), [1], [3], b"xy"),
    "lengths that overflow": payload_of(frame_head(attempts=attempts(2)), [1, 2], [2**32 - 1, 3], b"xy"),
    "equal timestamps": payload_of(frame_head(attempts=attempts(2)), [1, 1], [0, 0], b""),
    "falling timestamps": payload_of(frame_head(attempts=attempts(2)), [2, 1], [0, 0], b""),
    "negative timestamp": payload_of(frame_head(attempts=attempts(1)), [-1], [0], b""),
    # their difference, computed in 64 bits, is 1
    "timestamps that wrap around": payload_of(frame_head(attempts=attempts(2)), [LAST, FIRST_OF_ALL], [0, 0], b""),
    "attempts that cover fewer": payload_of(frame_head(attempts=attempts(1)), [1, 2], [0, 0], b""),
    "attempts that cover more": payload_of(frame_head(attempts=attempts(3)), [1, 2], [0, 0], b""),
    "an attempt without messages": payload_of(frame_head(attempts=attempts(1, 0)), [1], [0], b""),
    "too many witnesses": payload_of(
        frame_head(attempts=attempts(1), witnesses=(b"",) * (WITNESSES_MAX + 1)), [1], [0], b""
    ),
    "a head that is no head": struct.pack("<I", 1) + b"\xc0" + bytes(40),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_frame_that_contradicts_itself_is_refused(name: str) -> None:
    with pytest.raises(Damaged, match="the frame"):
        opened(pack(Kind.FRAME, DAMAGED[name]))


def test_piece_of_another_kind_is_no_frame() -> None:
    payload = payload_of(frame_head(attempts=attempts(1)), [1], [0], b"")
    assert opened(pack(Kind.FRAME, payload)).timestamps.tolist() == [1]
    with pytest.raises(Damaged):
        opened(pack(Kind.LOCK, payload))


def test_smallest_and_latest_message_are_taken() -> None:
    one = opened(encode_frame(frame_head(attempts=attempts(2)), [0, LAST], [b"", b""])[0])
    assert one.timestamps.tolist() == [0, LAST]
    assert list(one.payloads()) == [b"", b""]


# One length, many of it, is cut in one call; the numbers on both sides of that call's limit.
@pytest.mark.parametrize("count", [1, 2, 1_024, 1_025])
@pytest.mark.parametrize("length", [0, 3])
def test_payloads_of_one_length_are_cut_as_others_are(count: int, length: int) -> None:
    expected = [b"%03d" % (n % 1000) if length else b"" for n in range(count)]
    one = opened(encode_frame(frame_head(attempts=attempts(count)), range(count), expected)[0])
    assert one.payloads() == expected
    assert one.payloads(1) == expected[1:]
    assert one.payloads(0, count - 1) == expected[:-1]


@pytest.mark.parametrize(
    ("timestamps", "payloads"),
    [([], []), ([1], [b"", b""]), ([2, 1], [b"", b""]), ([1, 1], [b"", b""]), ([-1, 1], [b"", b""])],
)
def test_writer_that_breaks_the_order_is_a_bug(timestamps: list[int], payloads: list[bytes]) -> None:
    with pytest.raises(AssertionError):
        encode_frame(frame_head(attempts=attempts(len(payloads))), timestamps, payloads)


@pytest.mark.parametrize("counts", [(1,), (3,), (2, 0)])
def test_writer_whose_attempts_do_not_fit_is_a_bug(counts: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        encode_frame(frame_head(attempts=attempts(*counts)), [1, 2], [b"", b""])


def code_of(payloads: list[bytes]) -> str:
    with pytest.raises(BadRequest) as refused:
        check_payloads(payloads)
    assert refused.value.hint
    return refused.value.code


def test_limits_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    check_payloads([bytes(MESSAGE_BYTES_MAX)])
    assert code_of([]) == "empty-batch"
    assert code_of([bytes(MESSAGE_BYTES_MAX + 1)]) == "message-too-large"
    check_payloads([b""] * FRAME_MESSAGES_MAX)
    assert code_of([b""] * (FRAME_MESSAGES_MAX + 1)) == "batch-too-large"
    monkeypatch.setattr(framing, "FRAME_BYTES_MAX", 100)
    check_payloads([bytes(50), bytes(50)])
    assert code_of([bytes(50), bytes(51)]) == "batch-too-large"


def test_too_many_leases_are_refused_by_name() -> None:
    encode_frame(frame_head(attempts=attempts(1), witnesses=(b"",) * WITNESSES_MAX), [NOW_NS], [b""])
    with pytest.raises(BadRequest) as refused:
        encode_frame(frame_head(attempts=attempts(1), witnesses=(b"",) * (WITNESSES_MAX + 1)), [NOW_NS], [b""])
    assert refused.value.code == "too-many-leases"


def test_head_that_nobody_could_read_is_never_written() -> None:
    with pytest.raises(AssertionError):
        encode_frame(frame_head(attempts=attempts(1), incarnation=b"short"), [NOW_NS], [b""])
