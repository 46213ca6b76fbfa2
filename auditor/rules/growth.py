"""Rules about what only grows from one claim on a domain to the next: the fence, the floor, settle_to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeagent.units import bound_text

from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from auditor.finding import Finding
    from auditor.history import DomainHistory, LeaseHistory, Told


def claims(history: DomainHistory) -> list[tuple[LeaseHistory, Told]]:
    """Return every grant and every change of mode, in the order in which they were made."""
    found = [(lease, told) for lease in history.leases for told in lease.claims]
    return sorted(found, key=lambda each: each[1].position)


def check_growth(history: DomainHistory) -> Iterator[Finding]:
    """fence-not-growing and floor-fell: each claim against those before it."""
    last: Told | None = None
    high: Told | None = None
    for lease, told in claims(history):
        if last is not None and told.witness.fence <= last.witness.fence:
            reason = f"{lease.name} has the fence {told.witness.fence}, the grant before it {last.witness.fence}"
            yield found("fence-not-growing", lease.name, reason, [last.where, told.where])
        if high is not None and _numbers_fell(high, told):
            reason = (
                f"{lease.name} states floor {bound_text(told.witness.floor_ns)} and settle_to "
                f"{bound_text(told.witness.settle_to_ns)}; a grant before it stated "
                f"{bound_text(high.witness.floor_ns)} and {bound_text(high.witness.settle_to_ns)}"
            )
            yield found("floor-fell", lease.name, reason, [high.where, told.where])
        else:
            high = told
        last = told


def _numbers_fell(before: Told, after: Told) -> bool:
    return after.witness.floor_ns < before.witness.floor_ns or after.witness.settle_to_ns < before.witness.settle_to_ns
