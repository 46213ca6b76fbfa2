"""Links of chains on the mount, each signed by its node: the ceilings of a shard, and the epochs of an election."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from timeagent.canonical import U64, Bytes8, Bytes16, Record, Token, decode
from timeagent.errors import Damaged

from .framing import Kind
from .stamped import Signed, open_signed


class CeilingKind(StrEnum):
    """How the chain goes on after this record."""

    RUNNING = "running"
    ORDERLY = "orderly"
    TERMINAL = "terminal"
    """Nobody links after it: the map has been replaced."""


class CeilingRecord(Record, frozen=True):
    """One link of the chain. Ceilings never fall from record to record."""

    cluster_id: Bytes16
    map_number: U64
    shard: U64
    number: U64
    node: str
    incarnation: Bytes8
    kind: CeilingKind
    ceiling_ns: U64
    """Nothing that the incarnation grants or renews expires after this."""
    floor_ns: U64
    """The shard floor of this run (running), or what a successor starts from (orderly, terminal)."""
    settle_to_ns: U64
    time: Token
    """The node's signed time, by the page door."""


def open_ceiling(data: bytes, where: str) -> tuple[CeilingRecord, Signed]:
    """Read a ceiling file: the record and its envelope. Raises Damaged. The signature is not verified here."""
    signed = open_signed(Kind.CEILING, data, where)
    return decode(CeilingRecord, signed.body, where), signed


def ceiling_of(data: bytes, of: tuple[bytes, int, int], number: int) -> CeilingRecord:
    """Read a record of a chain: cluster, map, place. Raises Damaged, also where it says that it is another."""
    cluster_id, map_number, shard = of
    where = f"record {number} of the chain of shard {shard}, map {map_number}"
    record, _ = open_ceiling(data, where)
    found = (record.cluster_id, record.map_number, record.shard, record.number)
    if found != (cluster_id, map_number, shard, number):
        what = f"record {found[3]} of shard {found[2]}, map {found[1]}"
        raise Damaged("ceiling-misplaced", f"{where} says that it is {what}")
    return record


ELECTIONS: Final = "elections"


class EpochKind(StrEnum):
    """What a leader says by a record."""

    LEADS = "leads"
    RESIGNED = "resigned"


class EpochRecord(Record, frozen=True):
    """One link of an election's chain: a leader begins, goes on, or resigns."""

    cluster_id: Bytes16
    election: str
    number: U64
    epoch: U64
    """The number of the record with which this leader began."""
    candidate: str
    node: str
    incarnation: Bytes8
    """Of this leadership."""
    kind: EpochKind
    since_ns: U64
    until_ns: U64
    """The leader leads no longer than this. Of one that resigned: until when only its successor may follow."""
    successor: str
    """Who may follow before ``until_ns`` is past; "" of one that resigned: anybody."""
    time: Token
    """The node's signed time, by the page door."""


def open_epoch(data: bytes, where: str) -> EpochRecord:
    """Read an epoch file. Raises Damaged. The signature is not verified here."""
    return decode(EpochRecord, open_signed(Kind.EPOCH, data, where).body, where)


def opened_epoch(data: bytes, where: str, cluster_id: bytes, election: str, number: int) -> EpochRecord:
    """Read the epoch file of a number of an election. Raises Damaged, also where it says that it is another."""
    record = open_epoch(data, where)
    found = (record.cluster_id, record.election, record.number)
    if found != (cluster_id, election, number):
        raise Damaged("epoch-misplaced", f"{where} says that it is record {found[2]} of {found[1]!r}")
    return record
