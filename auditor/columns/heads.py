"""Batch heads as columns: what the rules over leases ask of the batch that a statement stands in."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from .layout import NUMBER_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from auditor.chains import HeadFact
    from auditor.rules.leases import Cluster

type HeadName = tuple[bytes, int, bytes]
"""Incarnation, sequence, digest."""


class Heads:
    """All heads that are known, in the order in which their shards signed them."""

    def __init__(self, facts: Iterable[HeadFact], cluster: Cluster) -> None:
        """Take them with everything that is known beside one domain's history."""
        runs = cluster.runs
        ordered = sorted(
            facts,
            key=lambda fact: (
                fact.head.map_number,
                runs[fact.head.incarnation].first_ceiling,
                fact.head.incarnation,
                fact.head.sequence,
            ),
        )
        claims = Counter((fact.head.incarnation, fact.head.sequence) for fact in ordered)
        self.number: dict[HeadName, int] = {
            (fact.head.incarnation, fact.head.sequence, fact.digest): place for place, fact in enumerate(ordered)
        }
        self.shards = [(fact.head.map_number, fact.head.shard) for fact in ordered]
        count = len(ordered)
        self.plain = np.zeros(count, np.bool_)
        """Whether nothing about the head itself makes a statement in it suspicious."""
        self.midpoint, self.radius, self.staleness, self.ceiling, self.floor, self.settle_to = np.zeros(
            (6, count), np.int64
        )
        self.end_floor, self.end_settle_to = np.full((2, count), NUMBER_MAX, np.int64)
        """With which the run stopped orderly, where it did."""
        for place, fact in enumerate(ordered):
            head, token = fact.head, fact.token
            floor, settle_to = _lowest(fact, cluster)
            figures = (token.midpoint_ns, token.radius_ns, token.staleness_ns, head.ceiling_ns, floor, settle_to)
            once = claims[head.incarnation, head.sequence] == 1
            if not once or max(figures) >= NUMBER_MAX:
                continue
            self.plain[place] = True
            chain = cluster.ceilings.get((head.map_number, head.shard))
            end = chain.end_of(head.incarnation) if chain else None
            if end is not None:
                self.end_floor[place] = min(end.record.floor_ns, NUMBER_MAX)
                self.end_settle_to[place] = min(end.record.settle_to_ns, NUMBER_MAX)
            for column, figure in zip(
                (self.midpoint, self.radius, self.staleness, self.ceiling, self.floor, self.settle_to),
                figures,
                strict=True,
            ):
                column[place] = figure


def _lowest(fact: HeadFact, cluster: Cluster) -> tuple[int, int]:
    """Return what no grant of the run may go below: floor and settle_to."""
    chain = cluster.ceilings.get((fact.head.map_number, fact.head.shard))
    return (chain.floor_of(fact.head.incarnation) if chain else None) or (0, 0)
