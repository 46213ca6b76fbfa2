"""Self-delimiting, checksummed pieces: what every file of ours on the mount is made of (docs/protocol/formats.md).

A piece is a 12-byte header (magic, kind, version, two zero bytes, payload length), the payload, and the first 16 bytes
of the SHA-256 over both. Most files hold exactly one piece; data files and ledgers hold a run of them, and end, for
readers, where the last whole piece ends: a torn tail was never there.
"""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum
from typing import Final

import msgspec

from timeagent.errors import BadRequest, Damaged

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
        raise Damaged("piece-damaged", f"{where}, offset 0: expected a {kind.name.lower()}, but {piece}", hint=_RESTORE)
    if piece.kind is not kind:
        raise Damaged(
            "piece-damaged",
            f"{where}: expected a {kind.name.lower()}, found a {piece.kind.name.lower()}",
            hint=_RESTORE,
        )
    if piece.end != len(data):
        raise Damaged(
            "piece-damaged", f"{where}, offset {piece.end}: {len(data) - piece.end} bytes too many", hint=_RESTORE
        )
    return piece.payload


_KINDS: Final = {int(kind): kind for kind in Kind}
"""By number: a lookup takes a tenth of what asking the enum does."""
