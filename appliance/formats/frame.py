"""A frame: a batch of messages under one set of witnesses, one signed time (docs/protocol/bag.md).

The payload of its piece: u32 length of the head, the head (a record), then columns: timestamps (i64 each), lengths (u32
each), and the messages' bytes end to end. Columns are little-endian, so that reading in bulk needs no loop per message.
"""

from __future__ import annotations

import itertools
import operator
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from timeagent.canonical import U64, Bytes8, Bytes16, Bytes32, Record, Token, decode, encode_for_ever
from timeagent.errors import BadRequest, Damaged
from timeagent.lazily import NDArray, np
from timeagent.signedtime import SignedTime

from .framing import Kind, Piece, pack_named

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
