"""What if: the same tree, read as if something had been otherwise. Changes what is read, never what is on disk.

- a node's clock: every signed time of the node is moved by a span, after its signature was checked. Timestamps, floors
  and expiries stay as they were written: others have acted upon them;
- another grace: each bag is due at its end plus that. What was surely signed later than that would not be on its list,
  what was signed in time and missed the real list would be;
- drop late: what was surely signed after its bag was due is left out, whatever the list says, and so is what missed the
  list: the record as clocks alone would have it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from appliance.formats.paths import Bag
    from auditor.frames import FrameEvidence, HeldWitness
    from timeagent.signedtime import SignedTime
    from timeagent.units import Span


@dataclass(frozen=True)
class WhatIf:
    """What is taken to have been otherwise; nothing by default."""

    shifts: Mapping[str, Span] = field(default_factory=dict)
    """By node: how much more its clock would have shown."""
    grace_ns: Span | None = None
    drop_late: bool = False

    @property
    def any(self) -> bool:
        """Whether anything is otherwise."""
        return bool(self.shifts) or self.grace_ns is not None or self.drop_late

    def token(self, node: str, token: SignedTime) -> SignedTime:
        """Return a node's signed time as it would have been. Its signature does not hold any more."""
        shift = self.shifts.get(node, 0)
        return msgspec.structs.replace(token, midpoint_ns=max(0, token.midpoint_ns + shift)) if shift else token

    def stamp(self, node: str, token: SignedTime | None) -> SignedTime | None:
        """Return the same of a stamp that may not hold."""
        return None if token is None else self.token(node, token)

    def frame(self, evidence: FrameEvidence) -> FrameEvidence:
        """Return a frame with its own and its witnesses' signed times as they would have been."""
        if not self.shifts:
            return evidence
        return replace(
            evidence,
            token=self.token(evidence.frame.head.writer, evidence.token),
            witnesses=tuple(self._witness(held) for held in evidence.witnesses),
            sessions=tuple(
                replace(session, token=self.token(session.head.node, session.token)) for session in evidence.sessions
            ),
        )

    def _witness(self, held: HeldWitness) -> HeldWitness:
        return replace(held, token=self.token(held.head.node, held.token))

    def bag(self, bag: Bag) -> Bag:
        """Return a bag with the instant at which it would have been due."""
        return bag if self.grace_ns is None else msgspec.structs.replace(bag, due_ns=bag.end_ns + self.grace_ns)

    def listed(self, bag: Bag, token: SignedTime, *, listed: bool) -> bool:
        """Whether a frame would have been in its bag. ``bag``: as ``bag()`` returns it."""
        in_time = token.interval.earliest <= bag.due_ns
        if self.grace_ns is None:
            return listed and (in_time or not self.drop_late)
        return in_time and (listed or not self.drop_late)


AS_IT_WAS = WhatIf()
