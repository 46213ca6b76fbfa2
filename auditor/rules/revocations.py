"""Rules about revocations: the ledger says who ended a lease, and why, right behind the word that it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.formats.lease import LeaseOutcome

from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from auditor.finding import Finding
    from auditor.history import DomainHistory


def check_revocations(history: DomainHistory) -> Iterator[Finding]:
    """revocation-incomplete: a lease that was revoked by nobody, or who revoked one that did not end then."""
    for position, (ended, where) in history.ends.items():
        name = ended.ending.correlation_id
        behind = history.revocations.get((*position[:4], position[4] + 1))
        if ended.ending.outcome is LeaseOutcome.REVOKED and (behind is None or behind[0].correlation_id != name):
            lease = f"lease {name.hex()} on {ended.domain!r}"
            reason = f"{lease} was revoked, and the entry behind that in its batch does not say by whom"
            yield found("revocation-incomplete", lease, reason, [where])
    for position, (revoked, where) in history.revocations.items():
        name = revoked.correlation_id
        before = history.ends.get((*position[:4], position[4] - 1))
        if before is None or before[0].ending.correlation_id != name:
            lease = f"lease {name.hex()} on {revoked.domain!r}"
            reason = (
                f"{revoked.by.node} revoked {lease}, and the entry before that in its batch does not say that it ended"
            )
            yield found("revocation-incomplete", lease, reason, [where])
