"""With honest clocks, no sub-lease outlives the lease that it is of: not its expiry, nor its being given back.

A daemon that has died renews nothing: so none outlives what that knew last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    for lent in history.lent:
        leases = [
            hold
            for hold in history.holds
            if (hold.who, hold.domain, hold.mode) == (lent.lender, lent.domain, lent.mode) and hold.fence <= lent.fence
        ]
        if not leases:
            yield f"{lent.who} had {lent.domain} from {lent.lender}, which never had it"
            continue
        hold = max(leases, key=lambda each: each.fence)
        ends = hold.lease.expiry_ns - record.policy.holder_margin_ns
        if hold.until_ns is not None:
            ends = min(ends, hold.until_ns)
        if lent.until_ns > ends:
            yield f"{lent.who} believed to have {lent.domain} until {lent.until_ns}; {lent.lender} had it until {ends}"
