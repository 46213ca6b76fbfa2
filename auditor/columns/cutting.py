"""Data files cut into frames: where each is, its digest, its head, and what its columns say."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from operator import lt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from appliance.formats.framing import CHECKSUM_BYTES, FRAME_MESSAGES_MAX, HEADER_BYTES, PAYLOAD_BYTES_MAX, Kind, pack
from timeagent import core

from .layout import numbers

type Column = NDArray[np.int64]

_START: Final = pack(Kind.FRAME, b"")[:8]
_ROW: Final = struct.Struct("=5q")
NO_CHECK: Final = bytes(16)
"""Behind a checksum, where that stands for a digest."""


class NotPlain(Exception):
    """Something here is not for columns: it is judged one by one."""


class CutFile(NamedTuple):
    """The frames of a file, in order, as bytes that stand end to end."""

    rows: bytes
    """Of each frame five int64: where its piece begins, how long that is, messages, first and last instant."""
    digests: bytes
    """32 bytes of each."""
    heads: list[bytes]


@dataclass(frozen=True, slots=True)
class Cut:
    """The frames of some files, in order."""

    file: Column
    """Which of the files each is in."""
    offset: Column
    length: Column
    counts: Column
    """How many messages."""
    first: Column
    last: Column
    digests: NDArray[np.uint64]
    """Shape (frames, 4)."""
    heads: list[bytes]


def together(files: Sequence[CutFile | None]) -> Cut:
    """Return the frames of some files. Raises NotPlain where one of them was not cut."""
    whole = [each for each in files if each is not None]
    if len(whole) != len(files):
        raise NotPlain
    rows = np.frombuffer(b"".join([each.rows for each in whole]), np.int64).reshape(-1, 5)
    heads = [head for each in whole for head in each.heads]
    file = np.repeat(np.arange(len(whole)), [len(each.heads) for each in whole])
    digests = numbers(b"".join([each.digests for each in whole]), 4)
    offset, length, counts, first, last = np.ascontiguousarray(rows.T)
    return Cut(file, offset, length, counts, first, last, digests, heads)


def cut(data: bytes, *, hashed: bool = True) -> CutFile | None:
    """Cut a file into frames, check their checksums, and that they are made as frames are, but for their heads.

    ``hashed``: else no checksum is checked, and stands for the digest of its frame. None where it is empty, or holds
    anything else than whole frames.
    """
    if core.native is not None:
        found = core.native.cut(data, hashed, FRAME_MESSAGES_MAX, PAYLOAD_BYTES_MAX)
        return None if found is None else CutFile(*found)
    rows: list[bytes] = []
    digests: list[bytes] = []
    heads: list[bytes] = []
    at = 0
    while at < len(data):
        body = at + HEADER_BYTES
        end = body + int.from_bytes(data[at + 8 : body])
        after = end + CHECKSUM_BYTES
        if data[at : at + 8] != _START or end - body > PAYLOAD_BYTES_MAX:
            return None
        digest = sha256(data[at:end]).digest() if hashed else data[end:after] + NO_CHECK
        # Of a payload too short for it, some of the checksum is read, and the end is beyond the payload's all the same.
        head_end = body + 4 + _u32(data, body)
        columns = head_end + 4
        count = _u32(data, head_end)
        rest = columns + 12 * count
        if digest[:CHECKSUM_BYTES] != data[end:after] or not 0 < count <= FRAME_MESSAGES_MAX or rest > end:
            return None
        instants = struct.unpack_from(f"<{count}q", data, columns)
        lengths = struct.unpack_from(f"<{count}I", data, columns + 8 * count)
        if not all(map(lt, instants, instants[1:])) or sum(lengths) != end - rest:
            return None
        rows.append(_ROW.pack(at, after - at, count, instants[0], instants[-1]))
        digests.append(digest)
        heads.append(data[body + 4 : head_end])
        at = after
    return CutFile(b"".join(rows), b"".join(digests), heads) if rows else None


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")
