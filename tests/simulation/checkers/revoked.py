"""With clocks that keep their bounds, a lease that an operator revoked is believed in for no longer than a term."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeagent.units import MS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History

SLACK_NS = 100 * MS
"""Clocks that are wrong within their bounds."""


def check(history: History, record: Record) -> Iterator[str]:
    for lease, revoked_ns in history.revocations:
        together = lease.session_lease
        term = max(lease.term_ns, 0 if together is None else together.term_ns)
        for hold in history.holds:
            believed = hold.believed_until_ns(record.policy.holder_margin_ns)
            if hold.lease is lease and believed > revoked_ns + term + SLACK_NS:
                yield (
                    f"{hold.who} believed to have {hold.domain} until {believed}; it was revoked at {revoked_ns}, and "
                    f"is good for {term} ns at a time"
                )
