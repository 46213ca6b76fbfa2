"""Session leases: what a shard states about a holder's standing with it (docs/protocol/witness.md, "Session leases").

Leases that are taken under a session lease have no expiry of their own but that of its newest witness: one renewal
keeps all of them. A lease's witness names its session, and the two count only together, from one shard incarnation.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from timeagent.canonical import U64, Bytes16, Bytes32, Record, Token

from .lease import Holder, LeaseOutcome

ENDED_MAX: Final = 256
"""How many of its leases a shard may end alone under one session lease. Then it is not renewed any more."""


class SessionKind(StrEnum):
    """What a session's witness testifies."""

    GRANT = "grant"
    RENEWAL = "renewal"


class SessionWitness(Record, frozen=True, tag="session"):
    """A session lease was granted or renewed. The shard and its signed time stand in the batch head."""

    kind: SessionKind
    session_id: Bytes16
    """The shard's midpoint at the grant, 8 bytes, big-endian, and 8 random bytes."""
    holder: Holder
    expiry_ns: U64
    """Until when every lease under it may be written under, but for those that are named here."""
    ended: tuple[Bytes16, ...]
    """The leases that the shard ended alone while the session lived, in order: over for good, whatever the expiry."""


class SessionEnded(Record, frozen=True, tag="session-ended"):
    """A session lease ended, and every lease under it that was out. In the ledger only.

    Its leases end one by one when they are met again; the entries of those say the same outcome.
    """

    session_id: Bytes16
    outcome: LeaseOutcome
    """``dropped`` by its holder, or ``expired``."""
    ended_ns: U64
    """The shard's midpoint when it ended."""
    expiry_ns: U64
    """As it was last renewed: floor and settle_to of every domain, where it expired."""
    leases: U64
    """How many leases ended with it."""
    watermark_ns: U64 | None
    """The holder's word, with a dropped one only: an upper bound of all timestamps under those leases."""
    watermark_time: Token | None
    """The signed time of the message that set the watermark; None where nothing was written."""
    messages: U64
    """The holder's word: how many messages it wrote under those leases and knows Committed."""
    chain_head: Bytes32 | None
    """The holder's word: the digest of its last frame under any of them."""
