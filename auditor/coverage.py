"""How far a copy reaches: whether what is missing from it is gone, or was not there yet when the copy passed by.

A copy is made one file after another while the cluster goes on, so each log, rack and bag is copied at another
instant, and ledgers and frames may tell of what came after. What is in no bag is told where every bag of the copy that
could hold it is there and closed, or its rack is sealed; and it is never proved to be gone. It may be in a log that the
copy lacks whole: one that was born after the names of the logs had been listed, or that the copying never reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from timeagent.units import SECOND

from .finding import Verdict

if TYPE_CHECKING:
    from appliance.formats.policy import Policy
    from timeagent.signedtime import SignedTime

    from .index import Index

SLACK_NS: Final = 2 * SECOND
"""For whoever closes bags: so late it may look at one that is due."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What of a span of time is in the copy."""

    index: Index
    settled_ns: int
    """What is not older than this had perhaps not been closed, when the last was signed that is in the copy."""

    @classmethod
    def of(cls, index: Index, policy: Policy | None, newest: SignedTime | None) -> Coverage:
        """Take what is known when all files are read. ``newest``: the latest signed time that holds."""
        if newest is None:
            return cls(index, 0)
        bag_ns = policy.span_ns + policy.grace_ns if policy else 0
        return cls(index, newest.interval.earliest - bag_ns - 4 * newest.radius_ns - SLACK_NS)

    def missing_frame(self, first_ns: int, last_ns: int) -> Verdict | None:
        """Return what it means that a frame with timestamps in [first, last] is in no bag; None: nothing yet."""
        _, blind = self.index.bags_within(first_ns, last_ns)
        closed = not blind and self.index.all_closed(first_ns, last_ns)
        return Verdict.INDETERMINATE if closed or last_ns < self.settled_ns else None

    def missing_within(self, first_ns: int, last_ns: int) -> Verdict | None:
        """The same of a message, of which nothing is said either where a bag that is there may hold it unseen."""
        still_open, blind = self.index.bags_within(first_ns, last_ns)
        return None if still_open or blind else self.missing_frame(first_ns, last_ns)


def later(one: SignedTime | None, other: SignedTime | None) -> SignedTime | None:
    """Return the one of two signed times that surely was reached later; of equals the less exact."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda token: (token.interval.earliest, token.radius_ns))
