"""The lock file of a bag and the seal of a rack: what exists, for ever. Both are stamped by the nonce door."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Final

from timeagent.canonical import U64, Bytes16, Bytes32, Record, decode, made_for_ever
from timeagent.units import SECOND

from .framing import Kind
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
