"""Rules about an orderly stop: its two numbers cover whatever the run granted, or its successor begins too low."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.formats.lease import LeaseOutcome
from auditor.history import GIVEN_BACK
from timeagent.units import bound_text

from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from auditor.finding import Finding
    from auditor.history import DomainHistory, LeaseHistory

    from .leases import Cluster


def check_stops(history: DomainHistory, cluster: Cluster) -> Iterator[Finding]:
    """floor-fell: the last record of a run states less than a lease of the run asks of whoever comes next."""
    for lease in history.leases:
        chain = cluster.ceilings.get(cluster.runs[lease.run].shard)
        end = chain.end_of(lease.run) if chain else None
        if end is None or lease.first.head.ceiling_number > end.record.number:  # that was granted without right
            continue
        floor, settle_to = _asked(lease, cluster)
        record = end.record
        if record.floor_ns < floor or record.settle_to_ns < settle_to:
            reason = (
                f"{end.where.path} ends run {lease.run.hex()} with floor {bound_text(record.floor_ns)} and settle_to "
                f"{bound_text(record.settle_to_ns)}; {lease.name} of that run asks for {bound_text(floor)} and "
                f"{bound_text(settle_to)}"
            )
            yield found("floor-fell", lease.name, reason, [lease.last_expiry.where, end.where])


def _asked(lease: LeaseHistory, cluster: Cluster) -> tuple[int, int]:
    """Return floor and settle_to that a lease asks of a later run, as far as it is known how it ended."""
    stated = [told.witness for told in lease.told]
    floor = max(max(each.floor_ns, each.fence) for each in stated)
    settle_to = max(each.settle_to_ns for each in stated)
    ended = lease.ended
    outcome = ended.ending.outcome if ended else None
    if not lease.held or outcome is LeaseOutcome.WITHDRAWN:
        return floor, settle_to
    if ended is not None and outcome in GIVEN_BACK:
        return max(floor, ended.ending.watermark_ns or 0), settle_to
    run = cluster.runs[lease.run]
    if ended is None and not (lease.run in cluster.finished and run.whole(lease.first.head.sequence, run.highest)):
        return floor, settle_to
    return max(floor, lease.expiry_ns), max(settle_to, lease.expiry_ns)
