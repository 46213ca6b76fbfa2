"""Heads of batches and session leases, as columns: made once, and known beside one domain's leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from appliance.formats.shardmap import chain_of
from appliance.formats.witness import Half
from auditor.rules.grants import signed_within
from auditor.rules.history import ClusterFacts, HeadFact, Position, SessionHistory, SessionName, shard_of

from .layout import NOTHING, NUMBER_MAX, HeadName, numbers

PLACES: Final = 2**32
"""More than there are entries in a batch."""
NEVER: Final = 2**63 - 1
"""The position of what does not happen."""
_MIXER: Final = np.uint64(0x9E3779B97F4A7C15)


type Column = NDArray[np.int64]


class Heads:
    """All heads that are known, in the order in which their shards signed them."""

    def __init__(self, cluster: ClusterFacts) -> None:
        """Take what is known beside one domain's history."""
        runs = cluster.runs
        ordered = sorted(
            cluster.heads.values(),
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
            [shards.setdefault((shard_of(fact.head), fact.head.going_by), len(shards)) for fact in ordered], np.int64
        )
        self.shards = list(shards)
        """The number of each shard, and by which map it goes."""
        maps: dict[int, int] = {}
        self.map = np.array([maps.setdefault(fact.head.map_number, len(maps)) for fact in ordered], np.int64)
        """Which map the chain of its shard began under: these are numbered in order."""
        self.whole = np.array([fact.head.half is Half.WHOLE for fact in ordered], np.bool_)
        """Whether the leases in it need no other half."""
        self.leaving = np.array([fact.head.half is Half.LEAVING for fact in ordered], np.bool_)
        self.runs = list(dict.fromkeys(fact.head.incarnation for fact in ordered))
        numbered = {run: number for number, run in enumerate(self.runs)}
        self.run = np.array([numbered[fact.head.incarnation] for fact in ordered], np.int64)
        count = len(ordered)
        self.overtaken = np.array([_overtaken(fact, cluster) for fact in ordered], np.int64)
        """Before this a chain that follows counted by itself; NEVER where none did."""
        self.plain = np.zeros(count, np.bool_)
        """Whether nothing about the head itself makes a statement in it suspicious."""
        self.midpoint, self.radius, self.staleness, self.ceiling, self.floor, self.settle_to = np.zeros(
            (6, count), np.int64
        )
        self.end_floor, self.end_settle_to = np.full((2, count), NUMBER_MAX, np.int64)
        """With which the run stopped orderly, where it did."""
        for place, fact in enumerate(ordered):
            head, token = fact.head, fact.token
            floor, settle_to = cluster.lowest(head)
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


def _overtaken(fact: HeadFact, cluster: ClusterFacts) -> int:
    own = shard_of(fact.head)
    coming = [each.layout.shards for each in cluster.maps.values() if own in each.leaving]
    facts = [cluster.counts[name] for shards in coming for each in shards if (name := chain_of(each)) in cluster.counts]
    return min((signed_within(each.token)[1] for each in facts), default=NEVER)


def marks(names: NDArray[np.int64], ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a number for each id of a lease of a domain: equal for equal ones, and mostly different for others."""
    found: NDArray[np.uint64] = (ids[:, 0] * _MIXER + ids[:, 1]) * _MIXER + names.astype(np.uint64)
    return found


class SessionColumns:
    """All session leases that are known, and behind them, in the last place, one that stands for all others."""

    def __init__(self, known: Mapping[SessionName, SessionHistory], heads: Heads) -> None:
        self._heads = heads
        self._number = {name: number for number, name in enumerate(known)}
        self.over = np.full(len(known) + 1, NEVER)
        """Position of the end of each; NEVER: it is not over."""
        self.suspect = np.zeros(len(known) + 1, np.bool_)
        """Whether something is told of it where more is told than once, or with numbers that are too large."""
        self.suspect[-1] = True
        ends, position, expiry = [0], [NOTHING], [NOTHING]
        ended: list[bytes] = []
        for number, history in enumerate(known.values()):
            highest = 0
            for told in history.told:
                highest = max(highest, told.witness.expiry_ns)
                position.append(self._place(told.position, number))
                expiry.append(min(highest, NUMBER_MAX))
                ended += told.witness.ended
            self.suspect[number] |= highest >= NUMBER_MAX
            ends.append(len(position) - 1)
            if history.over is not None:
                self.over[number] = self._place(history.over.position, number)
        self._ends = np.array([*ends, ends[-1]], np.int64)
        """Where in the columns the last word of each stands that was told before the next one's first."""
        self._position, self._expiry = np.array(position, np.int64), np.array(expiry, np.int64)
        each = numbers(b"".join(ended), 2)
        self.ended = np.unique(marks(np.zeros(len(each), np.int64), each))
        """Marks of the leases that were ended alone."""

    def _place(self, position: Position, number: int) -> int:
        """Return a position as columns have it."""
        *_, incarnation, sequence, place = position
        head = self._heads.once.get((incarnation, sequence))
        if head is None or not self._heads.plain[head] or place >= PLACES:
            self.suspect[number] = True
            return 0
        return head * PLACES + place

    def of(self, run: Column, ids: NDArray[np.uint64]) -> Column:
        """Return the number of the session lease of each run with each id; that of the last place if none is known."""
        keys, first, which = np.unique(marks(run, ids), return_index=True, return_inverse=True)
        found = np.full(len(keys), len(self._number))
        for number, at in enumerate(first.tolist()):
            name = (self._heads.runs[int(run[at])], ids[at].tobytes())
            found[number] = self._number.get(name, len(self._number))
        same = (run == run[first][which]) & (ids == ids[first][which]).all(axis=1)
        return np.where(same, found[which], len(self._number))

    def expiry_before(self, session: Column, position: Column) -> Column:
        """Return the latest expiry that was told of each session lease before a position; NOTHING where none was."""
        low, high = self._ends[session].copy(), self._ends[session + 1].copy()
        while (low < high).any():
            middle = (low + high + 1) // 2
            before = self._position[middle] < position
            low = np.where(before & (low < high), middle, low)
            high = np.where(~before & (low < high), middle - 1, high)
        return np.where(low > self._ends[session], self._expiry[low], NOTHING)
