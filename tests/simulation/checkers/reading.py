"""A reader of the tree's files of its own, written from docs/protocol/formats.md (and the layout of signed times).

It imports nothing of the code that is judged: what that gets wrong in reading and writing alike is seen here. What the
page refuses raises Broken; whoever asks says whether that is a loss or a breach.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.simulation.checkers.forms import (
    BatchHead,
    Broken,
    CeilingRecord,
    Entry,
    FrameHead,
    LedgerBlock,
    LockFile,
    PackHead,
    RackSeal,
    SessionWitness,
    Signed,
    SignedWitness,
    Stamped,
    Witness,
    need,
    read,
    read_entry,
)

FRAME, LOCK, SEAL, LEDGER, BIRTH, POLICY, TRUST, MAP, CEILING, PACK = range(1, 11)
"""Kinds of pieces."""
NONCE_DOOR: Final = 1
"""The flag of a signed time that covers what its caller had."""
_HEAD: Final = struct.Struct(">4sBBHI")
_AROUND: Final = 28
_PAYLOAD_MAX: Final = 64 << 20
_SEAL_MAX: Final = 1 << 30
_MESSAGE_MAX: Final = 1 << 20
_MESSAGES_MAX: Final = 32 << 20
_COUNT_MAX: Final = 65_536
_LEASES_MAX: Final = 64


class Piece(NamedTuple):
    kind: int
    payload: bytes
    offset: int
    end: int
    digest: bytes


def pieces(data: bytes) -> list[Piece]:
    """Return the whole pieces at the beginning of a file: where none begins, the run ends."""
    found: list[Piece] = []
    at = 0
    while at + _AROUND <= len(data):
        magic, kind, version, zero, length = _HEAD.unpack_from(data, at)
        end = at + _AROUND + length
        known = magic == b"TNUR" and 1 <= kind <= 11 and version == 1 and not zero
        if not known or length > (_SEAL_MAX if kind == SEAL else _PAYLOAD_MAX) or end > len(data):
            break
        digest = hashlib.sha256(data[at : end - 16]).digest()
        if digest[:16] != data[end - 16 : end]:
            break
        found.append(Piece(kind, data[at + 12 : end - 16], at, end, digest))
        at = end
    return found


def digest_of(data: bytes) -> bytes | None:
    """Return the digest by which lists name a file of whole pieces; None for what is no such file."""
    found = pieces(data)
    if sum(each.end - each.offset for each in found) != len(data):
        return None
    return hashlib.sha256(b"".join(each.digest for each in found)).digest()


def only_piece(kind: int, data: bytes) -> bytes:
    """Return the payload of a file of one piece of a kind."""
    found = pieces(data)
    need(len(found) == 1 and found[0].kind == kind and found[0].end == len(data), f"not one piece of kind {kind}")
    return found[0].payload


def stamped[R](kind: int, form: type[R], data: bytes) -> R:
    """Read a birth record, a lock file or a seal."""
    envelope = read(Stamped, only_piece(kind, data))
    need(bool(time_of(envelope.time).flags & NONCE_DOOR), "a stamp that was signed ahead")
    return read(form, envelope.body)


def signed[R](kind: int, form: type[R], data: bytes) -> R:
    """Read a policy, trust, map or ceiling record."""
    return read(form, read(Signed, only_piece(kind, data)).body)


def lock_file(data: bytes) -> LockFile:
    lock = stamped(LOCK, LockFile, data)
    names = [each.name for each in lock.entries]
    need(names == sorted(set(names)), "names out of order")
    return lock


def seal_file(data: bytes) -> RackSeal:
    seal = stamped(SEAL, RackSeal, data)
    names = [each.bag for each in seal.entries]
    need(names == sorted(set(names)), "bags out of order")
    return seal


def ceiling(data: bytes) -> CeilingRecord:
    return signed(CEILING, CeilingRecord, data)


# -- what is signed ----------------------------------------------------------------------------------------------------


def signed_bytes(context: str, payload: bytes) -> bytes:
    return b"tenure v1 " + context.encode() + b"\0" + struct.pack(">Q", len(payload)) + payload


@lru_cache(maxsize=4_096)
def verified(public: bytes, context: str, payload: bytes, signature: bytes, *, real: bool) -> bool:
    """Whether a signature is by this key: ``real``: Ed25519; else the hash that simulations have in its place."""
    over = signed_bytes(context, payload)
    if not real:
        return hashlib.blake2b(over, key=public).digest() == signature
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, over)
    except InvalidSignature:
        return False
    return True


@lru_cache(maxsize=1_024)
def key_id(public: bytes) -> bytes:
    return hashlib.sha512(b"\xff" + public).digest()[:16]


class Time(NamedTuple):
    """The 128 bytes of a signed time."""

    status: int
    flags: int
    midpoint_ns: int
    radius_ns: int
    key_id: bytes
    body: bytes
    signature: bytes


_TIME: Final = struct.Struct(">4sBBHQQQQQ16s64s")


def time_of(data: bytes) -> Time:
    need(len(data) == _TIME.size, "a signed time has 128 bytes")
    magic, version, status, flags, midpoint, radius, staleness, _, _, key, signature = _TIME.unpack(data)
    good = magic == b"TNST" and version == 1 and status <= 3 and flags <= 7
    good = good and midpoint < 2**63 and radius < 2**62 and staleness < 2**62 and not (flags & 1 and staleness)
    need(good, "no signed time")
    return Time(status, flags, midpoint, radius, key, data[:64], signature)


# -- batches -----------------------------------------------------------------------------------------------------------


def _leaf(data: bytes) -> bytes:
    return hashlib.sha256(b"\0" + data).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def _split(count: int) -> int:
    """Return the largest power of two below a number of leaves."""
    return 1 << (count - 1).bit_length() - 1


def root_over(leaves: tuple[bytes, ...]) -> bytes:
    """Return the tree hash of RFC 6962, section 2.1."""
    if len(leaves) == 1:
        return _leaf(leaves[0])
    middle = _split(len(leaves))
    return _node(root_over(leaves[:middle]), root_over(leaves[middle:]))


def root_by_path(leaf: bytes, index: int, count: int, path: tuple[bytes, ...]) -> bytes:
    """Return the root to which an audit path of RFC 6962, section 2.1.1, leads."""
    need(index < count, "an index beyond the batch")
    if count == 1:
        need(not path, "a path that is too long")
        return _leaf(leaf)
    need(bool(path), "a path that is too short")
    middle = _split(count)
    if index < middle:
        return _node(root_by_path(leaf, index, middle, path[:-1]), path[-1])
    return _node(path[-1], root_by_path(leaf, index - middle, count - middle, path[:-1]))


class Stated(NamedTuple):
    """A witness in its batch: it is one of those that the head names."""

    said: Witness | SessionWitness
    head: BatchHead
    time: Time
    raw_head: bytes
    signature: bytes


@lru_cache(maxsize=4_096)
def stated(data: bytes) -> Stated:
    """Read a signed witness, and hold its path against the root."""
    witness = read(SignedWitness, data)
    said, head = read_entry(witness.entry), read(BatchHead, witness.head)
    if not isinstance(said, Witness | SessionWitness):
        raise Broken("no witness")
    need(root_by_path(witness.entry, witness.index, head.count, witness.path) == head.root, "not of this batch")
    return Stated(said, head, time_of(head.time), witness.head, witness.signature)


def block(data: bytes) -> tuple[BatchHead, tuple[Entry, ...]]:
    """Read a block of a ledger."""
    ledger = read(LedgerBlock, only_piece(LEDGER, data))
    head = read(BatchHead, ledger.head)
    need(head.count == len(ledger.entries) > 0 and root_over(ledger.entries) == head.root, "other entries")
    return head, tuple(map(read_entry, ledger.entries))


# -- frames ------------------------------------------------------------------------------------------------------------


class Frame(NamedTuple):
    head: FrameHead
    time: Time
    timestamps: tuple[int, ...]
    messages: tuple[bytes, ...]


def frame(payload: bytes) -> Frame:
    """Read a frame: its head, and its columns."""
    need(len(payload) >= 8, "too short")
    (head_length,) = struct.unpack_from("<I", payload)
    need(8 + head_length <= len(payload), "a head beyond the end")
    head = read(FrameHead, payload[4 : 4 + head_length])
    at = 4 + head_length
    (count,) = struct.unpack_from("<I", payload, at)
    need(1 <= count <= _COUNT_MAX and at + 4 + 12 * count <= len(payload), "columns beyond the end")
    timestamps = struct.unpack_from(f"<{count}q", payload, at + 4)
    lengths = struct.unpack_from(f"<{count}I", payload, at + 4 + 8 * count)
    at += 4 + 12 * count
    need(timestamps[0] >= 0 and all(a < b for a, b in pairwise(timestamps)), "out of order")
    need(max(lengths) <= _MESSAGE_MAX and sum(lengths) <= _MESSAGES_MAX, "too long")
    need(at + sum(lengths) == len(payload), "other lengths than there are bytes")
    need(all(each.messages for each in head.attempts), "an attempt without messages")
    need(sum(each.messages for each in head.attempts) == count, "attempts of other messages")
    messages = []
    for length in lengths:
        messages.append(payload[at : at + length])
        at += length
    return Frame(head, time_of(head.time), timestamps, tuple(messages))


# -- packs -------------------------------------------------------------------------------------------------------------

_TRAILER: Final = struct.Struct("<4sI7Q32s16s")


def pack_files(data: bytes) -> tuple[PackHead, dict[tuple[str, str], bytes]]:
    """Return the head of a pack, and what it holds, by bag and file."""
    need(len(data) >= _TRAILER.size, "too short")
    trailer = data[-_TRAILER.size :]
    magic, version, head_bytes, index_at, bags, files, frames, bag_bytes, name_bytes, digest, check = _TRAILER.unpack(
        trailer
    )
    need(magic == b"TNPK" and version == 1, "no pack")
    need(hashlib.sha256(trailer[:-16]).digest()[:16] == check, "a damaged trailer")
    index = data[index_at : -_TRAILER.size]
    size = 8 * bags + bag_bytes + 52 * files + name_bytes + 44 * frames
    need(len(index) == size and hashlib.sha256(index).digest() == digest, "a damaged index")
    at = 0

    def column(kind: str, count: int) -> tuple[int, ...]:
        nonlocal at
        found = struct.unpack_from(f"<{count}{kind}", index, at)
        at += struct.calcsize(f"<{count}{kind}")
        return found

    def names(lengths: tuple[int, ...], total: int) -> list[str]:
        nonlocal at
        need(sum(lengths) == total, "names of other lengths")
        found = []
        for length in lengths:
            found.append(index[at : at + length].decode())
            at += length
        return found

    counts = column("I", bags)
    bag_names = names(column("I", bags), bag_bytes)
    lengths, offsets, sizes = column("I", files), column("Q", files), column("Q", files)
    digests = [index[at + 32 * n : at + 32 * n + 32] for n in range(files)]
    at += 32 * files
    file_names = names(lengths, name_bytes)
    need(sum(counts) == files, "files of no bag")
    head = read(PackHead, only_piece(PACK, data[:head_bytes]))
    owners = [bag for bag, count in zip(bag_names, counts, strict=True) for _ in range(count)]
    found = {
        (bag, name): data[offset : offset + length]
        for bag, name, offset, length in zip(owners, file_names, offsets, sizes, strict=True)
    }
    need([digest_of(each) for each in found.values()] == digests, "other files than the index says")
    return head, found
