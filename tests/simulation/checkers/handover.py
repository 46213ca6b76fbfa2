"""How a shard ends at a node that lives on: at once only where another has its chain, else in good order.

While the map is the same, it is given away only to the node that it belongs to, and only while that can be asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checkers.patient import linked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History, Tenant

HARMLESS = ("mount", "stopping")
"""A node that is told to stop answers until it has stopped."""


def check(history: History, record: Record) -> Iterator[str]:
    for tenant in history.tenants:
        told = tenant.told_ns
        if tenant.how == "dropped" and told is not None:
            chain = linked(record, tenant.shard)
            own = max((each.number for _, each in chain if each.incarnation == tenant.incarnation), default=0)
            twin = history.clones.get(tenant.node, told) < told  # of the same incarnation, may have deposed it
            if not twin and not any(each.number > own and born <= told for born, each in chain):
                yield f"{tenant.node} dropped shard {tenant.shard} at {told}, which nobody else had"
        if tenant.how == "left" and told is not None and tenant.shard in history.shards:
            yield from _given_away(history, tenant, told)


def _given_away(history: History, tenant: Tenant, told: int) -> Iterator[str]:
    owner = history.owners[tenant.shard]
    if tenant.node == owner:
        yield f"{tenant.node} gave its own shard {tenant.shard} away at {told}"
    harmless = (*HARMLESS, *(("down",) if history.clones.get(owner, told) < told else ()))
    for fault in history.faults:
        concerned = fault.node == owner or (fault.node == tenant.node and fault.what == "cut")
        if (
            concerned
            and fault.what not in harmless
            and fault.from_ns < told - history.asked_before_ns
            and told < fault.until_ns
        ):
            yield f"{tenant.node} gave shard {tenant.shard} at {told} to {owner}, which was {fault.what}"
