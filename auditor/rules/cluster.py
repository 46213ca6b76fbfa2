"""What rules over leases know beside one domain's history: of shards, maps, policies, and when bags were closed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from appliance.formats.shardmap import ShardMap
from appliance.formats.witness import BatchHead, Half
from auditor.index import Coverage

from .history import HeadFact, RecordedChain, ShardName, ShardRun
from .records import Policies


class Closings:
    """When the bags of each log were closed: of each instant, the latest closing of any bag that begins before it."""

    def __init__(self, closings: Iterable[tuple[str, int, int]] = ()) -> None:
        """Take (log, start of a bag, before which it was surely not closed), in order."""
        self._starts: dict[str, list[int]] = {}
        self._latest: dict[str, list[int]] = {}
        for log, start, closed in closings:
            latest = self._latest.setdefault(log, [])
            latest.append(max(closed, latest[-1]) if latest else closed)
            self._starts.setdefault(log, []).append(start)

    def of_many(self, log: str, before_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same for many instants."""
        starts, latest = self._starts.get(log, []), self._latest.get(log, [])
        count = np.searchsorted(np.array(starts, np.int64), before_ns)
        return np.array([0, *latest], np.int64)[count]

    def of(self, log: str, before_ns: int) -> int:
        """Return the instant before which some bag of the log that begins before ``before_ns`` was surely open."""
        count = bisect_left(self._starts.get(log, ()), before_ns)
        return self._latest[log][count - 1] if count else 0


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What the rules over leases know beside one domain's history."""

    runs: Mapping[bytes, ShardRun]
    ceilings: Mapping[ShardName, RecordedChain]
    finished: frozenset[bytes]
    """Runs whose ledger says that they stopped: nothing is missing at its end."""
    maps: Mapping[int, ShardMap]
    coverage: Coverage
    closings: Closings = field(default_factory=Closings)
    """When bags were closed; none: not asked."""
    policies: Policies = field(default_factory=Policies)
    follows: Mapping[ShardName, tuple[int, int]] = MappingProxyType({})
    """Of chains that came by a planned move: the highest floor and settle_to with which those before them ended."""

    counts: Mapping[ShardName, HeadFact] = MappingProxyType({})
    """The first batch by which each such chain counts by itself."""

    def lowest(self, head: BatchHead) -> tuple[int, int]:
        """Return the floor and the settle_to below which no grant of a batch may go, as far as they are known."""
        name = head.map_number, head.shard
        chain = self.ceilings.get(name)
        begun = (chain.floor_of(head.incarnation) if chain else None) or (0, 0)
        ended = self.follows.get(name, (0, 0)) if head.half is Half.WHOLE else (0, 0)
        return max(begun[0], ended[0]), max(begun[1], ended[1])
