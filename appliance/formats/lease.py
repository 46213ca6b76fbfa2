"""The words of a lease as values: mode, phase, outcome, holder, and how a lease ended; which modes exclude which."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from timeagent.canonical import U64, Bytes8, Bytes16, Bytes32, Record, Token

type Domain = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class Mode(StrEnum):
    """The multi-granularity lock modes: on a domain, and with intention (I) on one that others are parts of."""

    X = "X"
    S = "S"
    IX = "IX"
    IS = "IS"
    SIX = "SIX"

    def __init__(self, word: str) -> None:
        self.may_write = word in ("X", "IX", "SIX")
        """Whether messages may be written under a lease of this mode."""
        self.reads_all = word in ("X", "S", "SIX")
        """Whether nobody else may write messages of the domain under a lease beside this one."""


_BESIDE: Final = {
    Mode.IS: frozenset({Mode.IS, Mode.IX, Mode.S, Mode.SIX}),
    Mode.IX: frozenset({Mode.IS, Mode.IX}),
    Mode.S: frozenset({Mode.IS, Mode.S}),
    Mode.SIX: frozenset({Mode.IS}),
    Mode.X: frozenset[Mode](),
}
"""Which modes another holder may have on the domain at once."""

_COVERS: Final = {
    Mode.IS: frozenset({Mode.IS}),
    Mode.IX: frozenset({Mode.IX, Mode.IS}),
    Mode.S: frozenset({Mode.S, Mode.IS}),
    Mode.SIX: frozenset({Mode.SIX, Mode.S, Mode.IX, Mode.IS}),
    Mode.X: frozenset(Mode),
}


def conflicts(one: Mode, other: Mode) -> bool:
    """Whether two holders may not have these modes on one domain at once."""
    return other not in _BESIDE[one]


def covers(stronger: Mode, weaker: Mode) -> bool:
    """Whether who has the first may do all that the second allows."""
    return weaker in _COVERS[stronger]


class Phase(StrEnum):
    """Tentative: may be broken at any time by an older request, may not write."""

    TENTATIVE = "tentative"
    HELD = "held"


class LeaseOutcome(StrEnum):
    RELINQUISHED = "relinquished"
    EXPIRED = "expired"
    REVOKED = "revoked"
    WITHDRAWN = "withdrawn"
    DROPPED = "dropped"
    """Given back with the whole session lease that it was taken under, with one watermark for all."""
    ABANDONED = "abandoned"
    """Given up by its holder, which cannot say what it wrote. Only under a session lease that lives on."""
    UNKNOWN = "unknown"


class Holder(Record, frozen=True):
    node: str
    process: U64
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
