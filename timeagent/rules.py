"""R1 and R2: the two rules that tie instants to signed times. One pure function each.

R1 is used by writer, shard, reader and auditor alike. R2 is used by holders, who refuse a witness that breaks it, and
by the auditor; it never makes a reader drop a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .signedtime import TimeFlags
from .units import SECOND

if TYPE_CHECKING:
    from .signedtime import SignedTime
    from .units import Instant, Span

R1_TOLERANCE_NS: Final[Span] = SECOND
"""How far a timestamp may be from the midpoint of its signed time, beyond the radius: a token that was signed up to its
staleness ago, and a batch that was stamped up to the longest batch ago. The policy's value is the one that counts."""


def r1_holds(timestamp: Instant, token: SignedTime, tolerance_ns: Span = R1_TOLERANCE_NS) -> bool:
    """Whether |timestamp - signed midpoint| <= tolerance + radius, for a message or a watermark with its own time."""
    return abs(timestamp - token.midpoint_ns) <= tolerance_ns + token.radius_ns


def r2_holds(cause: SignedTime, effect: SignedTime, *, effect_covers_cause: bool = False) -> bool:
    """Whether what came after was not signed wholly before: ``effect.latest + staleness >= cause.earliest``.

    ``effect_covers_cause``: the effect's token came by the nonce door over a digest that covers the cause; only then
    is the allowance for tokens signed ahead of use left out. False means that one of two clocks broke its bound, and
    the pair of tokens is the proof.
    """
    assert not effect_covers_cause or effect.flags & TimeFlags.NONCE
    allowance = 0 if effect_covers_cause else effect.staleness_ns
    return effect.interval.latest + allowance >= cause.interval.earliest
