"""Self-delimiting, checksummed pieces, what every file of ours on the mount is made of; and those of messages, frames.

A piece is a 12-byte header (magic, kind, version, two zero bytes, payload length), the payload, and the first 16 bytes
of the SHA-256 over both (docs/protocol/formats.md). Most files hold exactly one piece; data files and ledgers hold a
run of them, and end, for readers, where the last whole piece ends: a torn tail was never there.

A frame is a batch of messages under one set of witnesses, one signed time (docs/protocol/bag.md). The payload of its
piece: u32 length of the head, the head (a record), then columns: timestamps (i64 each), lengths (u32 each), and the
messages' bytes end to end. Columns are little-endian, so that reading in bulk needs no loop per message.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Final

import msgspec

from timeagent.canonical import U64, Bytes8, Bytes16, Bytes32, Record, Token, decode, encode_for_ever
from timeagent.core import NDArray, np
from timeagent.errors import BadRequest, Damaged
from timeagent.signedtime import SignedTime

VERSION: Final = 1
PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""A bound on memory for who reads a damaged length; frames stay far below it."""
SEAL_BYTES_MAX: Final = 1024 * 1024 * 1024
"""The same for a seal, which holds the lists of all bags of a rack: some 72 bytes for each file of ten minutes.

A seal that could not be made would stop its log for ever: this is 24,000 files a second.
"""

_HEADER: Final = struct.Struct(">4sBBHI")
HEADER_BYTES: Final = _HEADER.size
CHECKSUM_BYTES: Final = 16
OVERHEAD_BYTES: Final = HEADER_BYTES + CHECKSUM_BYTES
PIECE_BYTES_MAX: Final = PAYLOAD_BYTES_MAX + OVERHEAD_BYTES
"""Up to so many all bytes of a file are read; of a larger one what is whole, as who closes its bag lists it."""
_MAGIC: Final = b"TNUR"
_COPIED_MAX: Final = 8 * 1024


class Kind(IntEnum):
    """What a piece holds. Numbers are for ever."""

    FRAME = 1
    LOCK = 2
    SEAL = 3
    LEDGER = 4
    BIRTH = 5
    POLICY = 6
    TRUST = 7
    MAP = 8
    CEILING = 9
    PACK = 10
    VIEW = 11
    EPOCH = 12


class Piece(msgspec.Struct, frozen=True):
    """One whole piece inside some bytes: payload at ``[offset + HEADER_BYTES, end - CHECKSUM_BYTES)``."""

    kind: Kind
    offset: int
    end: int
    payload: bytes
    digest: bytes
    """SHA-256 of header and payload: names them. The checksum is its first half."""


_RESTORE: Final = "restore the file from a copy of the tree"


def pack(kind: Kind, payload: bytes) -> bytes:
    """Return the piece's bytes. Raises BadRequest above PAYLOAD_BYTES_MAX, or SEAL_BYTES_MAX for a seal."""
    return pack_named(kind, payload)[0]


def pack_named(kind: Kind, payload: bytes) -> tuple[bytes, bytes]:
    """Return the piece's bytes, as ``pack`` does, and its digest."""
    if _too_large(kind, len(payload)):
        limit = SEAL_BYTES_MAX if kind is Kind.SEAL else PAYLOAD_BYTES_MAX
        raise BadRequest("piece-too-large", f"{len(payload)} bytes exceed the limit of {limit}", hint="split the batch")
    head = _HEADER.pack(_MAGIC, kind, VERSION, 0, len(payload)) + payload
    digest = hashlib.sha256(head).digest()
    return head + digest[:CHECKSUM_BYTES], digest


def _too_large(kind: int, length: int) -> bool:
    return length > PAYLOAD_BYTES_MAX and (kind != Kind.SEAL or length > SEAL_BYTES_MAX)


def piece_at(data: bytes, offset: int) -> Piece | str:
    """Return the whole piece that begins there, or why there is none."""
    if len(data) - offset < HEADER_BYTES:
        return f"{len(data) - offset} bytes are too few for a header"
    magic, kind, version, zero, length = _HEADER.unpack_from(data, offset)
    if magic != _MAGIC or version != VERSION or zero or kind not in _KINDS or _too_large(kind, length):
        return f"no header of ours: {data[offset : offset + HEADER_BYTES].hex()}"
    body_end = offset + HEADER_BYTES + length
    end = body_end + CHECKSUM_BYTES
    if end > len(data):
        return f"the piece needs {end - offset} bytes, {len(data) - offset} are there"
    covered = data[offset:body_end] if length < _COPIED_MAX else memoryview(data)[offset:body_end]
    digest = hashlib.sha256(covered).digest()
    if digest[:CHECKSUM_BYTES] != data[body_end:end]:
        return "the checksum does not match"
    return Piece(_KINDS[kind], offset, end, data[offset + HEADER_BYTES : body_end], digest)


def pieces(data: bytes) -> tuple[list[Piece], str]:
    """Parse from the beginning: the whole pieces, and why the rest is none ("" when nothing is left over).

    The effective size of the bytes is the end of the last piece. Never raises.
    """
    found: list[Piece] = []
    offset = 0
    while offset < len(data):
        piece = piece_at(data, offset)
        if isinstance(piece, str):
            return found, piece
        found.append(piece)
        offset = piece.end
    return found, ""


def whole_pieces(read: Callable[[int, int], bytes]) -> Iterator[bytes]:
    """Yield the pieces that a large file begins with, or its beginning: one with holes may state any size.

    ``read``: returns what is there from an offset on, at most so many bytes.
    """
    offset = 0
    while found := pieces(data := read(offset, PIECE_BYTES_MAX))[0]:
        yield data[: found[-1].end]
        offset += found[-1].end
    if not offset:
        yield read(0, SEAL_BYTES_MAX + OVERHEAD_BYTES) if data[4:5] == bytes((Kind.SEAL,)) else data


def digest_of(digests: bytes) -> bytes:
    """Return the digest of a run of pieces. ``digests``: theirs, end to end.

    It names all bytes of the run: each digest names header and payload, and these say how long a piece is and what its
    checksum. So it is compared only with runs whose pieces are whole, and fill the bytes that they are said to.
    """
    return hashlib.sha256(digests).digest()


def measure(data: bytes) -> tuple[list[Piece], int, bytes]:
    """Return the whole pieces, the effective size of the bytes, and the digest of that many of them. Never raises."""
    found = pieces(data)[0]
    return found, found[-1].end if found else 0, digest_of(b"".join([piece.digest for piece in found]))


def unpack(data: bytes, kind: Kind, where: str) -> bytes:
    """Return the payload of a file that holds exactly one piece. Raises Damaged: file, offset, expected, found."""
    piece = piece_at(data, 0)
    if isinstance(piece, str):
        wrong = f", offset 0: expected a {kind.name.lower()}, but {piece}"
    elif piece.kind is not kind:
        wrong = f": expected a {kind.name.lower()}, found a {piece.kind.name.lower()}"
    elif piece.end != len(data):
        wrong = f", offset {piece.end}: {len(data) - piece.end} bytes too many"
    else:
        return piece.payload
    raise Damaged("piece-damaged", f"{where}{wrong}", hint=_RESTORE)


_KINDS: Final = {int(kind): kind for kind in Kind}
"""By number: a lookup takes a tenth of what asking the enum does."""


MESSAGE_BYTES_MAX: Final = 1024 * 1024
"""The largest message. Larger things belong in a file of their own, whose name and digest a message can carry."""
FRAME_MESSAGES_MAX: Final = 65_536
FRAME_BYTES_MAX: Final = 32 * 1024 * 1024
LEASES_MAX: Final = 64
"""How many leases one frame may be written under."""
WITNESSES_MAX: Final = 4 * LEASES_MAX
"""How many witnesses a frame may carry: of each lease, or its two halves, and of the session leases they are under."""

_U32: Final = struct.Struct("<I")


class Attempt(Record, frozen=True):
    """One try to write: its id, and how many of the frame's next messages belong to it."""

    id: Bytes16
    messages: U64


class CommittedFrame(Record, frozen=True):
    """The writer's last frame that it knew Committed when it built this one."""

    sequence: U64
    digest: Bytes32


class FrameHead(Record, frozen=True):
    """Everything that the messages of a frame share."""

    cluster_id: Bytes16
    log: str
    writer: str
    incarnation: Bytes8
    sequence: U64
    attempts: tuple[Attempt, ...]
    committed: CommittedFrame | None
    time: Token
    witnesses: tuple[bytes, ...]
    """The newest SignedWitness of each lease that the frame is written under, encoded; behind them those of session
    leases, each once, in which some of the leases are."""
    trust_number: U64
    policy_number: U64

    def signed_time(self, where: str = "a frame") -> SignedTime:
        """Return the signed time of the messages. Raises Damaged."""
        return SignedTime.decode(self.time, where)


class Frame(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A decoded frame. Columns are views of the bytes read."""

    head: FrameHead
    timestamps: NDArray[np.int64]
    """Shape (messages,), strictly increasing, nanoseconds."""
    lengths: NDArray[np.uint32]
    raw: bytes
    """The payload of the frame's piece."""
    body_at: int
    """Where in ``raw`` the messages' bytes begin, end to end, up to its end."""
    digest: bytes
    """Of the piece: what the writer's later frames name this one by."""

    def payloads(self, first: int = 0, end: int | None = None) -> list[bytes]:
        """Return the bytes of the messages from ``first`` up to and without ``end`` (all), in order."""
        lengths: list[int] = self.lengths.tolist()
        offset = self.body_at + sum(lengths[:first])
        chosen = lengths[first:end]
        if 1 < len(chosen) <= _EQUAL_PARTS_MAX and chosen.count(chosen[0]) == len(chosen):
            return list(_equal_parts(chosen[0], len(chosen)).unpack_from(self.raw, offset))
        bounds = list(itertools.accumulate(chosen, initial=offset))
        raw = self.raw
        return [raw[begin:stop] for begin, stop in itertools.pairwise(bounds)]


_EQUAL_PARTS_MAX: Final = 1_024


@lru_cache(128)
def _equal_parts(length: int, count: int) -> struct.Struct:
    """Return what cuts bytes into parts of one length in one call: three times as fast as slices."""
    return struct.Struct(f"{length}s" * count)


def encode_frame(head: FrameHead, timestamps: Sequence[int], payloads: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the frame's piece and its digest. Raises BadRequest for what is over a limit."""
    assert len(timestamps) == len(payloads) > 0
    assert timestamps[0] >= 0
    assert all(a < b for a, b in itertools.pairwise(timestamps)), "timestamps increase strictly"
    assert sum(attempt.messages for attempt in head.attempts) == len(payloads)
    assert all(attempt.messages > 0 for attempt in head.attempts)
    check_payloads(payloads)
    if len(head.witnesses) > WITNESSES_MAX:
        raise BadRequest(
            "too-many-leases",
            f"a frame with {len(head.witnesses)} witnesses exceeds the limit of {WITNESSES_MAX}",
            hint="publish under fewer leases at once, or take one lease that covers them",
        )
    raw_head = encode_for_ever(head)
    count = len(payloads)
    columns = struct.pack(f"<{count}q{count}I", *timestamps, *map(len, payloads))
    payload = b"".join((_U32.pack(len(raw_head)), raw_head, _U32.pack(count), columns, *payloads))
    return pack_named(Kind.FRAME, payload)


def check_payloads(payloads: Sequence[bytes]) -> None:
    """Raise BadRequest for an empty batch, a message or a batch over its limit."""
    if not payloads:
        raise BadRequest("empty-batch", "a publication holds at least one message", hint="publish something")
    largest = max(map(len, payloads))
    if largest > MESSAGE_BYTES_MAX:
        raise BadRequest(
            "message-too-large",
            f"a message of {largest} bytes exceeds the limit of {MESSAGE_BYTES_MAX}",
            hint="put it in a file and publish its name and digest",
        )
    if len(payloads) > FRAME_MESSAGES_MAX or sum(map(len, payloads)) > FRAME_BYTES_MAX:
        raise BadRequest(
            "batch-too-large",
            f"{len(payloads)} messages of {sum(map(len, payloads))} bytes exceed {FRAME_MESSAGES_MAX} messages "
            f"or {FRAME_BYTES_MAX} bytes",
            hint="publish in several calls",
        )


_FEW: Final = 64
"""So few numbers are looked at one by one sooner than as a column."""


def _total(lengths: NDArray[np.uint32]) -> int:
    return sum(lengths.tolist()) if len(lengths) <= _FEW else int(lengths.sum(dtype=np.uint64))


def _increase(timestamps: NDArray[np.int64]) -> bool:
    """Whether timestamps are none below zero, and each above the one before."""
    if len(timestamps) > _FEW:
        return int(timestamps[0]) >= 0 and not bool((timestamps[1:] <= timestamps[:-1]).any())
    few: list[int] = timestamps.tolist()
    return few[0] >= 0 and all(map(operator.lt, few, few[1:]))


def open_frame(piece: Piece, where: str) -> Frame:
    """Read a frame from its piece. Raises Damaged, naming ``where``. No signature is checked here."""
    payload = piece.payload
    try:
        (head_bytes,) = _U32.unpack_from(payload, 0)
        head = decode(FrameHead, payload[4 : 4 + head_bytes], where)
        (count,) = _U32.unpack_from(payload, 4 + head_bytes)
    except struct.error:
        raise Damaged("frame-damaged", f"{where}: the frame is too short for its head") from None
    columns = 8 + head_bytes
    body = columns + 12 * count
    if piece.kind is not Kind.FRAME or not 0 < count <= FRAME_MESSAGES_MAX or body > len(payload):
        raise Damaged("frame-damaged", f"{where}: a frame of {count} messages does not fit {len(payload)} bytes")
    timestamps = np.frombuffer(payload, "<i8", count, columns)
    lengths = np.frombuffer(payload, "<u4", count, columns + 8 * count)
    if _total(lengths) != len(payload) - body:
        raise Damaged("frame-damaged", f"{where}: the lengths do not add up to {len(payload) - body} bytes")
    if not _increase(timestamps):
        raise Damaged("frame-damaged", f"{where}: the timestamps do not increase")
    if sum(attempt.messages for attempt in head.attempts) != count or any(a.messages == 0 for a in head.attempts):
        raise Damaged("frame-damaged", f"{where}: the attempts do not cover {count} messages")
    if len(head.witnesses) > WITNESSES_MAX:
        raise Damaged("frame-damaged", f"{where}: {len(head.witnesses)} witnesses exceed {WITNESSES_MAX}")
    return Frame(head, timestamps, lengths, payload, body, piece.digest)
