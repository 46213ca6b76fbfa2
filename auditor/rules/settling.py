"""Rules about settling: before a holder first writes to a log it closes what an earlier holder may still write to."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from auditor.finding import NamedInterval
from timeagent.units import rfc3339

from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from auditor.finding import Finding
    from auditor.history import DomainHistory, LeaseHistory
    from auditor.rows import Use


class Closings:
    """When the bags of each log were closed: of each instant, the latest closing of any bag that begins before it."""

    def __init__(self, closings: Iterable[tuple[str, int, int]] = ()) -> None:
        """Take (log, start of a bag, before which it was surely not closed), in order."""
        self._starts: dict[str, list[int]] = {}
        self._latest: dict[str, list[int]] = {}
        for log, start, closed in closings:
            latest = self._latest.setdefault(log, [])
            latest.append(max(closed, latest[-1]) if latest else closed)
            self._starts.setdefault(log, []).append(start)

    def of_many(self, log: str, before_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same for many instants."""
        starts, latest = self._starts.get(log, []), self._latest.get(log, [])
        count = np.searchsorted(np.array(starts, np.int64), before_ns)
        return np.array([0, *latest], np.int64)[count]

    def of(self, log: str, before_ns: int) -> int:
        """Return the instant before which some bag of the log that begins before ``before_ns`` was surely open."""
        count = bisect_left(self._starts.get(log, ()), before_ns)
        return self._latest[log][count - 1] if count else 0


def check_settling(history: DomainHistory, closings: Closings) -> Iterator[Finding]:
    """unsettled-write: a message was stamped surely before a bag was closed that its lease asks to be closed first.

    A lock file is signed before it counts, so that a holder that settles signs its message later. A bag without one is
    none of this rule's business: a copy may have passed by before it was closed.
    """
    for lease in history.leases:
        told: set[str] = set()
        for use in sorted(lease.uses, key=lambda each: (each.first_ns, each.where)):
            if use.accepted and use.log not in told:
                told.add(use.log)
                yield from _first_use(lease, use, closings.of(use.log, use.settle_to_ns))


def _first_use(lease: LeaseHistory, use: Use, closed_ns: int) -> Iterator[Finding]:
    if closed_ns <= use.signed_ns:
        return
    reason = (
        f"{lease.name} asks for log {use.log} to be settled to {rfc3339(use.settle_to_ns)}; its first message there "
        f"was stamped by {rfc3339(use.signed_ns)}, and a bag before that was closed at {rfc3339(closed_ns)} or later"
    )
    times = [
        NamedInterval("the message", use.first_ns, use.signed_ns, node=lease.first.witness.holder.node),
        NamedInterval.at("settle_to", use.settle_to_ns),
        NamedInterval.at("the closing, at the earliest", closed_ns),
    ]
    yield found("unsettled-write", lease.name, reason, [lease.first.where, use.where], times)
