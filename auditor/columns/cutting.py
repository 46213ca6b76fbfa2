"""Data files cut into frames, all at once: where each is, its digest, its head, and what its columns say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final

import numpy as np
from numpy.typing import NDArray

from appliance.formats.frame import FRAME_MESSAGES_MAX
from appliance.formats.framing import CHECKSUM_BYTES, HEADER_BYTES, PAYLOAD_BYTES_MAX, Kind, pack
from timeagent import core
from timeagent.canonical import signed_bytes

type Column = NDArray[np.int64]

_START: Final = pack(Kind.FRAME, b"")[:8]
NO_CHECK: Final = bytes(16)
"""Behind a checksum, where that stands for a digest."""


class NotPlain(Exception):
    """Something here is not for columns: it is judged one by one."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The frames of some files, in order."""

    file: Column
    offset: Column
    """Where its piece begins in the file."""
    length: Column
    """Bytes of the piece."""
    digests: list[bytes]
    heads: list[bytes]
    counts: Column
    """How many messages."""
    first: Column
    last: Column


@lru_cache(4096)
def _prefix(length: int) -> bytes:
    """Return what stands before a payload of this length in what the digest of a frame covers."""
    return signed_bytes("frame", bytes(length))[: -length or None]


def cut(files: Sequence[bytes], *, hashed: bool = True) -> Cut:
    """Cut files into frames, check their checksums, and that they are made as frames are, but for their heads.

    ``hashed``: else no checksum is checked, and stands for the digest of its frame. Raises NotPlain where one of them
    holds anything else than whole frames.
    """
    if core.native is None:
        return _cut(files, hashed=hashed)
    found = core.native.cut(list(files), hashed, FRAME_MESSAGES_MAX, PAYLOAD_BYTES_MAX)
    if found is None:
        raise NotPlain
    rows, digests, heads = found
    file, offset, length, counts, first, last = np.ascontiguousarray(np.frombuffer(rows, "<i8").reshape(-1, 6).T)
    return Cut(file, offset, length, digests, heads, counts, first, last)


def _cut(files: Sequence[bytes], *, hashed: bool) -> Cut:
    whole = files[0] if len(files) == 1 else b"".join(files)
    view = memoryview(whole)
    begins: list[int] = []
    ends: list[int] = []
    digests: list[bytes] = []
    counts: list[int] = []
    at = end = 0
    for data in files:
        end += len(data)
        before = len(begins)
        while at < end:
            body_end = at + HEADER_BYTES + int.from_bytes(whole[at + 8 : at + HEADER_BYTES])
            after = body_end + CHECKSUM_BYTES
            if after > end or whole[at : at + 8] != _START:
                raise NotPlain
            if hashed:
                if sha256(view[at:body_end]).digest()[:CHECKSUM_BYTES] != whole[body_end:after]:
                    raise NotPlain
                body = at + HEADER_BYTES
                digests.append(sha256(_prefix(body_end - body) + view[body:body_end]).digest())
            else:
                digests.append(whole[body_end:after] + NO_CHECK)
            begins.append(at)
            ends.append(body_end)
            at = after
        counts.append(len(begins) - before)
    if not all(counts):
        raise NotPlain
    return _parse(whole, files, np.array(counts), np.array(begins), np.array(ends), digests)


def _parse(
    whole: bytes, files: Sequence[bytes], frames: Column, begins: Column, ends: Column, digests: list[bytes]
) -> Cut:
    payload = begins + HEADER_BYTES
    if (ends - payload > PAYLOAD_BYTES_MAX).any():
        raise NotPlain
    octets = np.frombuffer(whole, np.uint8)
    # Of a payload too short for it, some of the checksum is read, and the end is beyond the payload's all the same.
    head_end = payload + 4 + _u32(octets, payload)
    if (head_end + 4 > ends).any():
        raise NotPlain
    counts = _u32(octets, head_end)
    columns = head_end + 4
    middle, rest = columns + 8 * counts, columns + 12 * counts
    if (counts < 1).any() or (counts > FRAME_MESSAGES_MAX).any() or (rest > ends).any():
        raise NotPlain
    instants = np.frombuffer(_joined(whole, columns, middle), "<i8")
    lengths = np.frombuffer(_joined(whole, middle, rest), "<u4")
    starts = np.cumsum(counts) - counts
    rising = instants[1:] > instants[:-1]
    rising[starts[1:] - 1] = True
    if not rising.all() or (np.add.reduceat(lengths, starts, dtype=np.int64) != ends - rest).any():
        raise NotPlain
    sizes = np.fromiter(map(len, files), np.int64, len(files))
    file = np.repeat(np.arange(len(files)), frames)
    return Cut(
        file=file,
        offset=begins - (np.cumsum(sizes) - sizes)[file],
        length=ends + CHECKSUM_BYTES - begins,
        digests=digests,
        heads=[whole[a:b] for a, b in zip((payload + 4).tolist(), head_end.tolist(), strict=True)],
        counts=counts,
        first=instants[starts].astype(np.int64),
        last=instants[starts + counts - 1].astype(np.int64),
    )


def _u32(octets: NDArray[np.uint8], at: Column) -> Column:
    """Return the little-endian numbers that stand at some places."""
    found: Column = octets[at[:, None] + np.arange(4)].view("<u4")[:, 0].astype(np.int64)
    return found


def _joined(whole: bytes, begins: Column, ends: Column) -> bytes:
    return b"".join([whole[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)])
