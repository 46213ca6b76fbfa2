"""A record of an election on the mount: who leads, in which epoch, until when. Signed by the node."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from timeagent.canonical import U64, Bytes8, Bytes16, Record, Token, decode
from timeagent.errors import Damaged

from .framing import Kind
from .stamped import open_signed

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
