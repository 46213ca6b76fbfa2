"""What is closed for ever: a bag by its lock file, a rack by its seal, and all of a sealed rack in its pack.

Lock file and seal are stamped by the nonce door. A pack is one sequential file (docs/protocol/formats.md):

    head      a piece: which rack of which cluster, and the digest of the seal that the pack was made from
    data      every file that the seal's lock files list, in their order, as many bytes as they list, verbatim
    index     columns of fixed width, little-endian: bags, files, frames
    trailer   ``TRAILER_BYTES``: counts, where the index begins, its digest, a checksum over the trailer

Everything in it follows from the seal and the listed bytes: all packers of one seal make the same bytes, so racing
packers are harmless, and a pack is verified by making it again from its own data. The index stands at the end, so that
a pack is written in one pass, and read by ranges: trailer, index, then what is asked for.
"""

from __future__ import annotations

import io
import itertools
import operator
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from timeagent.canonical import U64, Bytes16, Bytes32, Record, decode, encode_for_ever, made_for_ever
from timeagent.core import NDArray, np
from timeagent.errors import Damaged
from timeagent.units import SECOND

from .framing import CHECKSUM_BYTES, Kind, Piece, measure, open_frame, pack, piece_at
from .stamped import Stamped, open_stamped

RECORDS_LAG_NS: Final = 2 * SECOND
"""The records that a lock file names were the newest at some instant after its own time minus this."""


class LockEntry(Record, frozen=True, gc=False):
    """One data file: its effective size, and the SHA-256 of that many bytes."""

    name: str
    size: U64
    digest: Bytes32


class LockFile(Record, frozen=True):
    """What a bag holds for ever, and by which rules its messages are judged for ever."""

    cluster_id: Bytes16
    log: str
    bag: str
    """The bag's path under the root: a lock file copied elsewhere says so."""
    closer: str
    trust_number: U64
    policy_number: U64
    """The newest that a frame may name: each is judged by the one it names."""
    entries: tuple[LockEntry, ...]
    """In order of name, each name once."""

    def __post_init__(self) -> None:
        """Refuse (ValueError; Damaged while decoding) names out of order: one list, one encoding."""
        _check_sorted([entry.name for entry in self.entries])

    def by_name(self) -> Mapping[str, LockEntry]:
        return {entry.name: entry for entry in self.entries}


class SealEntry(Record, frozen=True):
    """One bag of the rack: its directory name and its lock file, byte by byte."""

    bag: str
    lock: bytes


class RackSeal(Record, frozen=True):
    """The bags of a rack: no other bag of that stretch of time exists."""

    cluster_id: Bytes16
    log: str
    rack: str
    """The rack's path under the root."""
    sealer: str
    entries: tuple[SealEntry, ...]
    """In order of bag name, each name once."""

    def __post_init__(self) -> None:
        """Refuse (ValueError; Damaged while decoding) bags out of order."""
        _check_sorted([entry.bag for entry in self.entries])

    def lock_of(self, bag: str) -> bytes | None:
        """Return the lock file of a bag of this rack, or None: that bag does not exist."""
        return next((entry.lock for entry in self.entries if entry.bag == bag), None)

    def lists_files(self) -> bool:
        """Whether any file is listed: a rack without files needs no pack. Raises Damaged."""
        return any(open_lock(entry.lock, f"{self.rack}/{entry.bag}")[0].entries for entry in self.entries)


def _check_sorted(names: list[str]) -> None:
    # The loop finds whom to name; most lists never come to it.
    if all(map(operator.lt, names, itertools.islice(names, 1, None))):
        return
    for before, after in itertools.pairwise(names):
        if before >= after:
            raise ValueError(f"{before!r} stands before {after!r}: names are listed in order, each once")


def made_lock(
    cluster_id: bytes,
    log: str,
    bag: str,
    closer: str,
    numbers: tuple[int, int],
    entries: Sequence[tuple[str, int, bytes]],
) -> tuple[LockFile, bytes]:
    """Return a list and its encoding, to be stamped. ``numbers``: trust, policy; ``entries``: name, size, digest."""
    return made_for_ever(LockFile, cluster_id, log, bag, closer, *numbers, entries)


def open_lock(data: bytes, where: str) -> tuple[LockFile, Stamped]:
    """Read a lock file: the list and its stamp. Raises Damaged. The signed time is not verified here."""
    stamped = open_stamped(Kind.LOCK, data, where)
    lock = decode(LockFile, stamped.body, where)
    return lock, stamped


def open_seal(data: bytes, where: str) -> tuple[RackSeal, Stamped]:
    """Read a seal: the list and its stamp. Raises Damaged. The signed time is not verified here."""
    stamped = open_stamped(Kind.SEAL, data, where)
    seal = decode(RackSeal, stamped.body, where)
    return seal, stamped


PACK: Final = "pack"
"""The file's name, in its rack's directory."""
_TRAILER: Final = struct.Struct("<4sIQQQQQQQ32s")
_MAGIC: Final = b"TNPK"
_VERSION: Final = 1
TRAILER_BYTES: Final = _TRAILER.size + CHECKSUM_BYTES
HEAD_BYTES_MAX: Final = 4096
INDEX_BYTES_MAX: Final = 1024 * 1024 * 1024
"""A bound on memory for who reads a damaged trailer."""
_DIGEST_BYTES: Final = 32
_ADVICE: Final = "delete nothing: restore the pack, or the bags, from a copy of the tree"

_FRAME_COLUMNS: Final = "QIIqqIQ"
"""A row for each piece of each file: offset in the pack, bytes, file, first and last timestamp, messages, sequence. For
who reads a pack by other means: here frames are found by cutting the files, which are checked as a whole anyway."""
_FRAME_BYTES: Final = struct.calcsize(f"<{_FRAME_COLUMNS}")

type ReadAt = Callable[[int, int], bytes | None]
"""Return at most so many bytes from an offset of the pack: (offset, length); None if there is no pack."""


class PackHead(Record, frozen=True):
    """What a pack is made from. Nothing in it depends on who made it, or when."""

    cluster_id: Bytes16
    log: str
    rack: str
    """The rack's path under the root."""
    seal_digest: Bytes32
    """SHA-256 of the rack's seal, all bytes of the file."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    bag: str
    entry: LockEntry


@dataclass(frozen=True, slots=True, eq=False)
class PackIndex:
    """A pack's head and index, checked against their checksums, and not yet against the seal."""

    head: PackHead
    data_at: int
    """Where the files begin, end to end."""
    index_at: int
    """Where they end."""
    bags: tuple[str, ...]
    """Directory names, in order."""
    bag_files: NDArray[np.int64]
    """The files of bag n are ``[bag_files[n], bag_files[n + 1])``."""
    names: tuple[str, ...]
    offsets: NDArray[np.uint64]
    sizes: NDArray[np.uint64]
    digests: bytes
    """32 bytes for each file: as in the lock file."""

    def digest(self, file: int) -> bytes:
        """Return the digest of a file, as its lock file has it."""
        return self.digests[_DIGEST_BYTES * file : _DIGEST_BYTES * (file + 1)]

    def files_of(self, bag: str) -> range:
        """Return the numbers of a bag's files; none for a bag that is not in the pack."""
        if bag not in self.bags:
            return range(0)
        number = self.bags.index(bag)
        return range(int(self.bag_files[number]), int(self.bag_files[number + 1]))

    def disagreement(
        self, seal_digest: bytes, listed: tuple[ListedFile, ...], seal_bags: tuple[str, ...]
    ) -> str | None:
        """Return how the pack differs from the seal that it should be of, or None. The bytes are not looked at."""
        if self.head.seal_digest != seal_digest:
            return f"it was made from the seal {self.head.seal_digest.hex()}, the seal is {seal_digest.hex()}"
        if self.bags != seal_bags or len(self.names) != len(listed):
            return f"it holds {len(self.names)} files of {len(self.bags)} bags; the seal lists {len(listed)} files"
        offset = self.data_at
        for number, each in enumerate(listed):
            entry = each.entry
            found = (self.names[number], int(self.offsets[number]), int(self.sizes[number]), self.digest(number))
            if number not in self.files_of(each.bag) or found != (entry.name, offset, entry.size, entry.digest):
                return f"its file {number} is {found[0]}, {found[2]} bytes; the seal lists {each.bag}/{entry.name}"
            offset += entry.size
        return None if offset == self.index_at else f"its files end at {offset}, its index begins at {self.index_at}"


class PackMaker:
    """Makes the bytes of a pack from a seal and the listed files, or proves that a pack is made of them.

    Call ``head``, then ``add`` for each of ``listed`` in order, then ``tail``. Holds the index in memory, no data.
    """

    def __init__(self, seal_raw: bytes, where: str) -> None:
        """Take the bytes of the seal's file. Raises Damaged."""
        seal, _ = open_seal(seal_raw, where)
        opened = [(each.bag, open_lock(each.lock, f"{where}, {each.bag}")[0]) for each in seal.entries]
        self.bags = tuple(bag for bag, _ in opened)
        self.listed = tuple(ListedFile(bag, entry) for bag, lock in opened for entry in lock.entries)
        self.seal_digest = sha256(seal_raw).digest()
        self.rack = seal.rack
        self._file_counts = [len(lock.entries) for _, lock in opened]
        head = PackHead(cluster_id=seal.cluster_id, log=seal.log, rack=seal.rack, seal_digest=self.seal_digest)
        self.head = pack(Kind.PACK, encode_for_ever(head))
        self._added = 0
        self._offset = len(self.head)
        self._frames: tuple[array[int], ...] = tuple(array(code) for code in _FRAME_COLUMNS)

    def add(self, data: bytes) -> None:
        """Take the next listed file. Raises Damaged if these are not the bytes that were listed."""
        each = self.listed[self._added]
        found, size, digest = measure(data)
        if not len(data) == size == each.entry.size or digest != each.entry.digest:
            raise Damaged(
                "file-altered",
                f"{self.rack}/{each.bag}/{each.entry.name}: the {each.entry.size} bytes that were listed have digest "
                f"{each.entry.digest.hex()}, found {len(data)} bytes, of whole pieces {size} with {digest.hex()}",
                hint=_ADVICE,
            )
        for piece in found:
            row = (self._offset + piece.offset, piece.end - piece.offset, self._added, *_about(piece))
            for column, value in zip(self._frames, row, strict=True):
                column.append(value)
        self._added += 1
        self._offset += len(data)

    def tail(self) -> bytes:
        assert self._added == len(self.listed), "every listed file was added"
        bag_names = [name.encode() for name in self.bags]
        names = [each.entry.name.encode() for each in self.listed]
        sizes = [each.entry.size for each in self.listed]
        parts = (
            _column("<u4", self._file_counts),
            _column("<u4", [len(name) for name in bag_names]),
            *bag_names,
            _column("<u4", [len(name) for name in names]),
            _column("<u8", np.cumsum([len(self.head), *sizes], dtype=np.uint64)[:-1]),
            _column("<u8", sizes),
            *(each.entry.digest for each in self.listed),
            *names,
            *(_column(f"<{code}", column) for code, column in zip(_FRAME_COLUMNS, self._frames, strict=True)),
        )
        index = b"".join(parts)
        counts = (len(self.bags), len(self.listed), len(self._frames[0]))
        raw_names = sum(map(len, bag_names)), sum(map(len, names))
        trailer = _TRAILER.pack(
            _MAGIC, _VERSION, len(self.head), self._offset, *counts, *raw_names, sha256(index).digest()
        )
        return index + trailer + sha256(trailer).digest()[:CHECKSUM_BYTES]


def _column(form: str, numbers: Any) -> bytes:  # noqa: ANN401 - whatever makes an array
    return np.asarray(numbers).astype(form).tobytes()


def _about(piece: Piece) -> tuple[int, int, int, int]:
    """Return first and last timestamp, messages and sequence of a frame; of nothing, where the piece is none."""
    try:
        frame = open_frame(piece, "")
    except Damaged:
        return 0, -1, 0, 0
    return int(frame.timestamps[0]), int(frame.timestamps[-1]), len(frame.timestamps), frame.head.sequence


def open_pack(read_at: ReadAt, size: int, where: str) -> PackIndex:
    """Read head and index of a pack of ``size`` bytes. Raises Damaged, naming file and offset.

    Reads the two ends only. Whether it is the pack of a seal, ``PackIndex.disagreement`` says; whether its data are
    whole, each file's digest.
    """
    trailer = _exactly(read_at, size - TRAILER_BYTES, TRAILER_BYTES, where) if size > TRAILER_BYTES else b""
    if not trailer or sha256(trailer[: _TRAILER.size]).digest()[:CHECKSUM_BYTES] != trailer[_TRAILER.size :]:
        raise _damaged(where, max(0, size - TRAILER_BYTES), "expected a trailer, whose checksum does not match")
    magic, version, data_at, index_at, bags, files, frames, bag_names, file_names, digest = _TRAILER.unpack_from(
        trailer
    )
    index_bytes = 8 * bags + bag_names + (20 + _DIGEST_BYTES) * files + file_names + _FRAME_BYTES * frames
    if magic != _MAGIC or version != _VERSION:
        raise _damaged(where, size - TRAILER_BYTES, f"no trailer of ours: {trailer[:8].hex()}")
    if not 0 < data_at <= min(index_at, HEAD_BYTES_MAX) or index_at + index_bytes + TRAILER_BYTES != size:
        raise _damaged(where, size - TRAILER_BYTES, f"{size} bytes are not what the trailer says")
    if index_bytes > INDEX_BYTES_MAX:
        raise _damaged(where, index_at, f"an index of {index_bytes} bytes exceeds {INDEX_BYTES_MAX}")
    head = piece_at(_exactly(read_at, 0, data_at, where), 0)
    if isinstance(head, str) or head.kind is not Kind.PACK or head.end != data_at:
        raise _damaged(where, 0, head if isinstance(head, str) else "expected the head of a pack")
    index = _exactly(read_at, index_at, index_bytes, where)
    if sha256(index).digest() != digest:
        raise _damaged(where, index_at, "the checksum of the index does not match")
    parsed = decode(PackHead, head.payload, where)
    try:
        return _parse(index, parsed, data_at, index_at, bags, files)
    except ValueError as problem:  # its checksum is whoever's who made it
        raise _damaged(where, index_at, f"no index of ours: {problem}") from None


def _parse(index: bytes, head: PackHead, data_at: int, index_at: int, bags: int, files: int) -> PackIndex:
    rest = io.BytesIO(index)

    def column(form: str, count: int) -> NDArray[Any]:
        return np.frombuffer(rest.read(int(form[-1]) * count), form, count)

    def texts(lengths: NDArray[Any]) -> tuple[str, ...]:
        return tuple(rest.read(length).decode() for length in lengths.tolist())

    bag_counts, bag_names = column("<u4", bags), texts(column("<u4", bags))
    lengths, offsets, sizes = column("<u4", files), column("<u8", files), column("<u8", files)
    digests = rest.read(_DIGEST_BYTES * files)
    names = texts(lengths)
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(bag_counts, dtype=np.int64)))
    return PackIndex(head, data_at, index_at, bag_names, ends, names, offsets, sizes, digests)


def _exactly(read_at: ReadAt, offset: int, length: int, where: str) -> bytes:
    data = read_at(offset, length)
    if data is None or len(data) != length:
        raise _damaged(where, offset, f"expected {length} bytes, found {len(data or b'')}")
    return data


def _damaged(where: str, offset: int, what: str) -> Damaged:
    return Damaged("pack-damaged", f"{where}, offset {offset}: {what}", hint=_ADVICE)
