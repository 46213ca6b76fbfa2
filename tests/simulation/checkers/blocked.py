"""A dead daemon blocks its node's shards for a stated time, also where an application of that node runs on (P5).

The time is that of P5 for all domains of a shard that died, counted from the last fault that can delay who takes over.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History, Tenant
    from timeagent.units import Instant

APART_NS = 3 * SECOND
"""Who asks less often than this has given up meanwhile."""

BESIDES_NS = 3 * SECOND
"""What looking at the chain, asking those before it, and the beginning take whoever takes over."""


def check(history: History, record: Record) -> Iterator[str]:
    if not history.reliable:
        return
    limit = record.policy.restart_ns() + BESIDES_NS
    asked: dict[int, list[Instant]] = defaultdict(list)
    for when, _, shard in history.visits:
        asked[shard].append(when)
    for shard, times in asked.items():
        runs = [each for each in history.tenants if each.shard == shard]
        begins = times[0]
        for before, when in pairwise(times):
            if when - before > APART_NS:
                begins = when
            since = max([begins, *(each for each in _excuses(history, runs) if each <= when)])
            if when - since > limit and not any(_serves(history, each, when) for each in runs):
                mine = [each.node for each in runs if each.application and each.told_ns is None]
                kept = f"; an application of {mine[-1]} runs it and answers no other node" if mine else ""
                yield f"shard {shard} was asked for in vain from {since} to {when}; {limit} ns are enough{kept}"
                break


def _excuses(history: History, runs: list[Tenant]) -> Iterator[Instant]:
    """Yield what lets the time begin anew: another death, the end of another fault, the end of a daemon's run."""
    for fault in history.faults:
        yield fault.from_ns
        if fault.what not in ("stopping", "down"):
            yield fault.until_ns
    for each in runs:
        if not each.application and each.told_ns is not None:
            yield each.told_ns


def _serves(history: History, tenant: Tenant, when: Instant) -> bool:
    """Whether a daemon's run of a shard goes on then."""
    if tenant.application or tenant.from_ns > when or (tenant.told_ns or when) < when:
        return False
    downs = [each for each in history.faults if each.node == tenant.node and each.what == "down"]
    return not any(tenant.from_ns < each.from_ns <= when for each in downs)
