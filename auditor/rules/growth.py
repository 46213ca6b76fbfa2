"""Rules about what only grows from one word on a domain to the next: the fence, the floor, settle_to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from appliance.formats.lease import LeaseOutcome
from auditor.history import GIVEN_BACK
from timeagent.units import bound_text

from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from auditor.finding import Evidence, Finding
    from auditor.history import DomainHistory, EndedFact, LeaseHistory, Position, Told


class _Statement(NamedTuple):
    """What a shard said of a domain's numbers: with a grant, a change of mode, or the end of a lease."""

    position: Position
    lease: str
    floor_ns: int
    settle_to_ns: int
    where: Evidence
    is_end: bool = False


def claims(history: DomainHistory) -> list[tuple[LeaseHistory, Told]]:
    """Return every grant and every change of mode, in the order in which they were made."""
    found = [(lease, told) for lease in history.leases for told in lease.claims]
    return sorted(found, key=lambda each: each[1].position)


def check_growth(history: DomainHistory) -> Iterator[Finding]:
    """fence-not-growing and floor-fell: each statement against those before it, and each end against its lease."""
    last: Told | None = None
    for lease, told in claims(history):
        if last is not None and told.witness.fence <= last.witness.fence:
            reason = f"{lease.name} has the fence {told.witness.fence}, the grant before it {last.witness.fence}"
            yield found("fence-not-growing", lease.name, reason, [last.where, told.where])
        last = told
    claimed: _Statement | None = None
    ended: _Statement | None = None
    for each in _statements(history):
        # What a grant owes to the end of an earlier lease is asked, with its verdict, where grants follow each other.
        before = [high for high in ((claimed, ended) if each.is_end else (claimed,)) if high is not None]
        high = max(before, key=lambda one: (one.floor_ns, one.settle_to_ns), default=None)
        if high is not None and (each.floor_ns < high.floor_ns or each.settle_to_ns < high.settle_to_ns):
            reason = (
                f"{each.lease} states floor {bound_text(each.floor_ns)} and settle_to "
                f"{bound_text(each.settle_to_ns)}; {high.lease} before it stated {bound_text(high.floor_ns)} and "
                f"{bound_text(high.settle_to_ns)}"
            )
            yield found("floor-fell", each.lease, reason, [high.where, each.where])
        elif each.is_end:
            ended = each
        else:
            claimed = each
    for lease in history.leases:
        for fact in lease.endings:
            yield from _end(lease, fact)


def _statements(history: DomainHistory) -> list[_Statement]:
    found = [
        _Statement(told.position, lease.name, told.witness.floor_ns, told.witness.settle_to_ns, told.where)
        for lease, told in claims(history)
    ]
    for lease in history.leases:
        for fact in lease.endings:
            if fact.entry is not None:
                name, numbers = f"the end of {lease.name}", (fact.entry.floor_ns, fact.entry.settle_to_ns)
                found.append(_Statement(fact.position, name, *numbers, fact.where, is_end=True))
    return sorted(found, key=lambda each: each.position)


def _end(lease: LeaseHistory, fact: EndedFact) -> Iterator[Finding]:
    """floor-fell: the numbers with which a lease ended are at least what it leaves: its watermark, or its expiry."""
    entry, outcome = fact.entry, fact.ending.outcome
    if entry is None or outcome is LeaseOutcome.WITHDRAWN or not lease.held:
        return
    given_back = outcome in GIVEN_BACK
    floor = (fact.ending.watermark_ns or 0) if given_back else lease.expiry_at(fact.position)
    settle_to = 0 if given_back else floor
    if entry.floor_ns < floor or entry.settle_to_ns < settle_to:
        what = "its watermark" if given_back else "its expiry, for floor and settle_to"
        reason = (
            f"{lease.name} ended as {outcome} with floor {bound_text(entry.floor_ns)} and settle_to "
            f"{bound_text(entry.settle_to_ns)}; it leaves {bound_text(floor)}, {what}"
        )
        yield found("floor-fell", f"{lease.name}, end", reason, [lease.last_expiry.where, fact.where])
