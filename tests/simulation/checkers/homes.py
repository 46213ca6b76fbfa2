"""Once all faults have ended, each shard soon runs at one node, its own if that is there, and stays.

Who stands in for a node that is back keeps its shard as long as a lease of it is out.

Where the own node never came back, some other runs it, if anybody asks: one, and it moves once at most, to an earlier
heir that is back, when nothing in it is held.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, _: Record) -> Iterator[str]:
    calm = history.calm
    if calm is None:
        return
    for shard, owner in calm.owners.items():
        nodes = calm.runs.get(shard, [])
        if owner in calm.nodes:
            stands_in = shard in calm.held and len(nodes) == 1
            if nodes != [owner] and not stands_in:
                yield f"shard {shard} of {owner} runs at {nodes or 'no node'}, long after the last fault"
            continue
        gave_way = {
            each.node for each in history.tenants if each.shard == shard and calm.judged_ns < (each.told_ns or 0)
        }
        if len(set(nodes) - gave_way) > 1 or (not nodes and shard in calm.missed):
            yield f"shard {shard}, whose node is gone, runs at {nodes or 'no node'}, long after the last fault"
    for shard, owner in calm.owners.items():
        begun, ended = (
            [each.node for each in history.tenants if each.shard == shard and calm.judged_ns < (when(each) or 0)]
            for when in (attrgetter("from_ns"), attrgetter("told_ns"))
        )
        if (begun or ended) and shard not in calm.held and (owner in calm.nodes or max(len(begun), len(ended)) > 1):
            yield f"long after the last fault, shard {shard} of {owner} began at {begun} and ended at {ended}"
