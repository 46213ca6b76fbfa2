"""How a lease of a holder may end: what was chosen for when another asks for it, and what takes it against its will."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from timeagent.units import Span


class Recall(StrEnum):
    """What a session does with a lease that another asks for."""

    IGNORE = "ignore"
    """It is kept until its holder gives it back."""
    YIELD = "yield"
    """So too, but it is given back where its session and an older request may wait for each other (``recalls.py``)."""
    FINISH = "finish"
    """Its holder is told, and it is given back when the holder has finished: at the end of its block."""
    FLUSH = "flush"
    """Its holder's functions are called, in a thread, and may publish under it; then it is given back."""
    RELINQUISH = "relinquish"
    """It is given back at once: nothing more is begun under it."""


KEPT: Final = frozenset({Recall.IGNORE, Recall.YIELD})
"""With these nothing is done when another asks: nobody listens for it."""


class LossReason(StrEnum):
    """Why a lease is over against its holder's will."""

    EXPIRED = "expired"
    """It was not renewed in time: the process, or its renewal thread, stood still."""
    HOLD_CAP = "hold cap"
    """It was held for as long as it was taken for (``hold_s_max``)."""
    NO_PROGRESS = "no progress"
    """Its holder did not get on (``progress_within_s``), so it was not renewed."""
    REVOKED = "revoked"
    """An operator has ended it: ``Loss.by`` says who and why."""
    BROKEN = "broken"
    """Its shard has ended it, or does not know it any more."""
    SHARD_UNREACHABLE = "shard unreachable"
    """It expired while its shard did not answer."""
    CLOCK_UNSAFE = "clock unsafe"
    """It expired, or may have, while this node had no bounded time; or its shard's witness contradicts this clock."""
    RECALLED = "recalled"
    """Another asked for it, and it is given back, as was chosen when it was taken."""


UNKNOWN: Final = frozenset({LossReason.SHARD_UNREACHABLE, LossReason.CLOCK_UNSAFE})
"""What leaves it open whether the shard still has a lease that is not over here."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a holder knows of its lease at an instant."""

    state: Literal["held", "unknown", "over"]
    """``unknown``: the last renewal failed, so nobody here can tell what its shard knows of it."""
    good_ns: Span
    """How long it may still be used, whatever its shard does: 0 if it is over."""
    reason: LossReason | None
    """Why it is unknown, or over against its holder's will."""
