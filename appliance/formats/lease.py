"""The words of a lease as values: mode, phase, outcome, holder, and how a lease ended."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from timeagent.canonical import U64, Bytes8, Bytes16, Bytes32, Record, Token

type Domain = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class Mode(StrEnum):
    """The multi-granularity lock modes."""

    X = "X"
    S = "S"
    IX = "IX"
    IS = "IS"
    SIX = "SIX"

    @property
    def may_write(self) -> bool:
        """Whether messages may be written under a lease of this mode."""
        return self in (Mode.X, Mode.IX, Mode.SIX)


class Phase(StrEnum):
    """Tentative: may be broken at any time by an older request, may not write."""

    TENTATIVE = "tentative"
    HELD = "held"


class LeaseOutcome(StrEnum):
    """How a lease ended."""

    RELINQUISHED = "relinquished"
    EXPIRED = "expired"
    REVOKED = "revoked"
    WITHDRAWN = "withdrawn"
    UNKNOWN = "unknown"


class Holder(Record, frozen=True):
    """Who has a lease."""

    node: str
    process: U64
    """The process id."""
    boot: Bytes16
    """The host's boot id."""
    incarnation: Bytes8
    """The writer's incarnation: the frames it writes carry the same."""
    purpose: str = ""


class Ending(Record, frozen=True):
    """How one lease ended, as its shard knew it."""

    correlation_id: Bytes16
    outcome: LeaseOutcome
    ended_ns: U64
    """The shard's midpoint when it ended the lease."""
    watermark_ns: U64 | None
    """The holder's word, with a relinquished lease only: an upper bound of its timestamps, below the expiry."""
    watermark_time: Token | None
    """The signed time of the message that set the watermark; None where nothing was written."""
    messages: U64
    """The holder's word: how many messages it wrote under the lease and knows Committed."""
    chain_head: Bytes32 | None
    """The holder's word: the digest of its last frame under the lease."""
