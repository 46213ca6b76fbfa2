"""Who takes over another node's shard was asked for it, and none of those before it could be asked.

The order is the one of the protocol: the owner, then the other nodes by a digest of shard and name, highest first. Who
goes on after a restart with what it had taken over asks nobody.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import Fault, History, Tenant

COUNTS_NS = 16 * SECOND
"""So long it counts that somebody asked, by the node's own clocks; and a little for what the decision takes."""

BEFORE_NS = 2 * SECOND
"""So long before it was decided that a shard begins, others may have been asked."""


def check(history: History, _: Record) -> Iterator[str]:
    began: set[bytes] = set()
    for tenant in history.tenants:
        owner = history.owners[tenant.shard]
        if tenant.node == owner or tenant.incarnation in began:
            continue
        began.add(tenant.incarnation)
        still = sum(span for node, from_ns, span in history.stops if node == tenant.node and from_ns < tenant.from_ns)
        since = tenant.considered_ns - COUNTS_NS - still
        if not any(
            since <= when <= tenant.from_ns and (node, shard) == (tenant.node, tenant.shard)
            for when, node, shard in history.visits
        ):
            yield f"{tenant.node} took shard {tenant.shard} over at {tenant.from_ns}, and nobody had asked it to"
        if not history.reliable:
            continue
        order = [owner, *sorted(set(history.answering) - {owner}, key=lambda node: _weight(tenant, node), reverse=True)]
        for node in order[: order.index(tenant.node)]:
            excused = any(_excuses(fault, tenant, node) for fault in history.faults)
            if not excused and not _was_leaving(history, tenant, node):
                yield (
                    f"{tenant.node} took shard {tenant.shard} over at {tenant.from_ns}, and {node} stood before it and "
                    f"answered"
                )


def _weight(tenant: Tenant, node: str) -> bytes:
    return hashlib.sha256(f"{tenant.shard}\0heir\0{node}".encode()).digest()


def _was_leaving(history: History, tenant: Tenant, node: str) -> bool:
    """Whether the shard ended in order at a node that was asked for it just then: its door took the question along."""
    since = tenant.considered_ns - BEFORE_NS
    return any(
        each.told_ns is not None and each.how == "left" and since <= each.told_ns <= tenant.considered_ns
        for each in history.tenants
        if (each.shard, each.node) == (tenant.shard, node)
    )


def _excuses(fault: Fault, tenant: Tenant, node: str) -> bool:
    """Whether a fault kept a node from answering, or the heir from hearing it.

    One that is cut off from the mount may be silent here: its shard links the records of its chain between two answers.
    """
    concerned = fault.node == node or (fault.node == tenant.node and fault.what in ("cut", "paused"))
    return concerned and fault.from_ns <= tenant.considered_ns and fault.until_ns >= tenant.considered_ns - BEFORE_NS
