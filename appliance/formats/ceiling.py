"""A record of the ceiling chain: the right of one incarnation to grant until an instant. Signed by the node."""

from __future__ import annotations

from enum import StrEnum

from timeagent.canonical import U64, Bytes8, Bytes16, Record, Token, decode

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
