"""Batch heads as columns: the order in which shards signed them is what all columns know of time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from .layout import NUMBER_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from auditor.chains import HeadFact
    from auditor.rules.agreement import ClusterFacts

PLACES: Final = 2**32
"""More than there are entries in a batch."""
NEVER: Final = 2**63 - 1
"""The position of what does not happen."""
_MIXER: Final = np.uint64(0x9E3779B97F4A7C15)

type HeadName = tuple[bytes, int, bytes]
"""Incarnation, sequence, digest."""


class Heads:
    """All heads that are known, in the order in which their shards signed them."""

    def __init__(self, facts: Iterable[HeadFact], cluster: ClusterFacts) -> None:
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
        self.once = {
            (fact.head.incarnation, fact.head.sequence): place
            for place, fact in enumerate(ordered)
            if claims[fact.head.incarnation, fact.head.sequence] == 1
        }
        """Which head has a place that only one claims."""
        shards: dict[tuple[int, int], int] = {}
        self.shard = np.array(
            [shards.setdefault((fact.head.map_number, fact.head.shard), len(shards)) for fact in ordered], np.int64
        )
        self.shards = list(shards)
        """Map number and number of each shard."""
        self.runs = list(dict.fromkeys(fact.head.incarnation for fact in ordered))
        numbered = {run: number for number, run in enumerate(self.runs)}
        self.run = np.array([numbered[fact.head.incarnation] for fact in ordered], np.int64)
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
            if (head.incarnation, head.sequence) not in self.once or max(figures) >= NUMBER_MAX:
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


def _lowest(fact: HeadFact, cluster: ClusterFacts) -> tuple[int, int]:
    """Return what no grant of the run may go below: floor and settle_to."""
    chain = cluster.ceilings.get((fact.head.map_number, fact.head.shard))
    return (chain.floor_of(fact.head.incarnation) if chain else None) or (0, 0)


def marks(names: NDArray[np.int64], ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a number for each id of a lease of a domain: equal for equal ones, and mostly different for others."""
    found: NDArray[np.uint64] = (ids[:, 0] * _MIXER + ids[:, 1]) * _MIXER + names.astype(np.uint64)
    return found
