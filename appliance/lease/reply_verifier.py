"""What a holder believes of an answer: a witness, unless it breaks what the holder knows itself.

All witnesses of an answer share a few heads, and all that were asked for together one signed time: what the clocks say
of each other is judged once for each pair of these, and only the expiry for each witness.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from timeagent.canonical import decode, decode_all
from timeagent.errors import Damaged
from timeagent.interval import TimeInterval
from timeagent.signedtime import SignedTime, r2_holds
from timeagent.units import rfc3339

from ..formats.witness import SignedWitness, Witness, decode_entries
from . import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from timeagent.clock import NodeTime
    from timeagent.units import Instant

    from ..formats.policy import PolicyNumbers
    from .wire import Reply


type Opened = tuple[SignedWitness, Witness]


class Reading(msgspec.Struct, frozen=True, gc=False):
    """One look at this holder's clock."""

    boot_ns: int
    """CLOCK_BOOTTIME before it: who counts on from here counts no instant as earlier than it is."""
    now: TimeInterval
    token: SignedTime

    @classmethod
    def of(cls, time: NodeTime) -> Reading:
        """Look. Raises BadTime."""
        return cls(time.boot_ns(), *time.now_and_token())


class ReplyVerifier:
    """An answer that has come: when, by this holder's own clock. For one thread, and for this answer alone."""

    __slots__ = ("_clocks", "_expiry_max_ns", "came", "heads")

    def __init__(self, came: Reading, policy: PolicyNumbers) -> None:
        """Take what the clock said when it had come."""
        self.came = came
        self._expiry_max_ns = came.now.latest + policy.granted_ns_max
        self.heads: dict[bytes, SignedTime] = {}
        """The shard's signed times, by the heads that were read."""
        self._clocks: dict[tuple[int, int], str | None] = {}
        """By the objects: whoever asks has them until the answer is judged."""

    def head_time(self, signed: SignedWitness, where: str) -> SignedTime:
        """Return the shard's signed time of a witness. Raises Damaged."""
        found = self.heads.get(signed.head)
        if found is None:
            found = self.heads[signed.head] = signed.batch_head(where).signed_time(where)
        return found

    def suspicion(self, expiry_ns: Instant, head_time: SignedTime, before: SignedTime) -> str | None:
        """Return why this holder must refuse a witness, or None.

        ``before`` was signed before the request was sent, the witness before it had come: R2 holds between each two of
        the three, or a clock is out of its bounds. The expiry is no later than any honest shard's clock could make it.
        """
        both = id(head_time), id(before)
        if both not in self._clocks:
            self._clocks[both] = self._contradiction(head_time, before)
        why = self._clocks[both]
        if why is None and expiry_ns > self._expiry_max_ns:
            return f"its expiry {rfc3339(expiry_ns)} lies beyond {rfc3339(self._expiry_max_ns)}"
        return why

    def _contradiction(self, head_time: SignedTime, before: SignedTime) -> str | None:
        if not r2_holds(before, head_time):
            return (
                f"the shard signed at {rfc3339(head_time.interval.latest)} at the latest what was asked for "
                f"at {rfc3339(before.interval.earliest)} at the earliest"
            )
        if not r2_holds(head_time, self.came.token):
            return (
                f"the shard signed at {rfc3339(head_time.interval.earliest)} at the earliest what was here "
                f"at {rfc3339(self.came.token.interval.latest)} at the latest"
            )
        return None


def opened(replies: Sequence[Reply]) -> list[Opened | None]:
    """Return each granted reply's witness, read together; None where there is none, or something is wrong with any."""
    raw = [each.signed for each in replies if isinstance(each, wire.Granted)]
    nothing: list[Opened | None] = [None] * len(replies)
    try:
        signed = decode_all(SignedWitness, raw)
        entries = decode_entries([each.entry for each in signed])
    except Damaged:
        return nothing  # each is looked at alone
    if not all(isinstance(each, Witness) for each in entries):
        return nothing
    both = iter(zip(signed, entries, strict=True))
    return [next(both) if isinstance(each, wire.Granted) else None for each in replies]  # type: ignore[misc]


def opened_alone(raw: bytes, where: str) -> Opened:
    """Return one witness. Raises Damaged, naming ``where``."""
    signed = decode(SignedWitness, raw, where)
    return signed, signed.witness(where)
