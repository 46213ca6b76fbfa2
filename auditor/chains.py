"""The chains of a shard: the batch heads of each of its runs, and its ceiling records."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from appliance.formats.ceiling import CeilingKind, open_ceiling
from appliance.formats.paths import chain_path
from appliance.formats.witness import BatchHead
from timeagent.canonical import decode
from timeagent.signedtime import SignedTime

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from appliance.formats.ceiling import CeilingRecord
    from appliance.formats.shardmap import ShardMap

    from .index import Index
    from .rules.finding import Evidence

RECORDS_KEPT: Final = 64
"""So many of the newest ceiling records are never pruned. Older slots may be free, and be taken again."""

SHARDS: Final = "shards/"
"""Where the chains are; ledgers have copies of their records."""

type ShardName = tuple[int, int]
"""Map number and shard."""


@dataclass(frozen=True, slots=True)
class HeadFact:
    """A batch head that verifies, and where it was found first."""

    head: BatchHead
    digest: bytes
    token: SignedTime
    where: Evidence
    in_ledger: bool
    """Whether it stands in the ledger of its run: then ``where`` is there."""


@dataclass(slots=True)
class ShardRun:
    """One incarnation of a shard, as far as its heads are known."""

    incarnation: bytes
    shard: ShardName
    first_ceiling: int
    """The lowest ceiling number of its heads: runs of one shard lie in this order."""
    highest: int = 0
    """The highest sequence that any head has, in the ledger or in a frame."""
    stretches: list[tuple[int, int]] = field(default_factory=list)
    """First and last of each unbroken stretch of sequences in the ledger."""

    def take(self, sequence: int, *, in_ledger: bool) -> None:
        """Count one head; they come in order of sequence."""
        self.highest = max(self.highest, sequence)
        if not in_ledger:
            return
        if self.stretches and sequence <= self.stretches[-1][1] + 1:
            self.stretches[-1] = (self.stretches[-1][0], max(sequence, self.stretches[-1][1]))
        else:
            self.stretches.append((sequence, sequence))

    @property
    def ledger_end(self) -> int:
        """The highest sequence in the ledger; 0 where it holds nothing."""
        return self.stretches[-1][1] if self.stretches else 0

    @property
    def gaps(self) -> int:
        """How many stretches of sequences the ledger lacks, up to the highest that is known."""
        ends = [0, *(last for _, last in self.stretches)]
        starts = [*(first for first, _ in self.stretches), self.highest + 1]
        return sum(start > end + 1 for end, start in zip(ends, starts, strict=True))

    def whole(self, first: int, last: int) -> bool:
        """Whether the ledger holds every head from ``first`` to ``last``."""
        return any(low <= first and last <= high for low, high in self.stretches)


def head_facts(index: Index) -> Iterator[HeadFact]:
    """Yield every head, run by run, in order of sequence."""
    for _, _, digest, in_ledger, raw, where in index.heads():
        head = decode(BatchHead, raw)
        yield HeadFact(head, digest, head.signed_time(), where, in_ledger)


def runs(index: Index) -> dict[bytes, ShardRun]:
    """Return every run by incarnation."""
    found: dict[bytes, ShardRun] = {}
    for fact in head_facts(index):
        head = fact.head
        run = found.get(head.incarnation)
        if run is None:
            run = ShardRun(head.incarnation, (head.map_number, head.shard), head.ceiling_number)
            found[head.incarnation] = run
        run.first_ceiling = min(run.first_ceiling, head.ceiling_number)
        run.take(head.sequence, in_ledger=fact.in_ledger)
    return found


@dataclass(frozen=True, slots=True)
class CeilingFact:
    """A ceiling record that verifies, and one place that holds it."""

    record: CeilingRecord
    raw: bytes
    token: SignedTime
    where: Evidence


@dataclass(slots=True)
class RecordedChain:
    """What is known of one shard's ceiling chain, in order of number. Pruned records may be missing."""

    shard: ShardName
    facts: list[CeilingFact] = field(default_factory=list)
    _numbered: dict[int, list[CeilingFact]] = field(default_factory=dict)
    _floors: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    _ends: dict[bytes, CeilingFact] = field(default_factory=dict)
    _cut_off: set[bytes] = field(default_factory=set)
    _highest: dict[bytes, int] = field(default_factory=dict)

    def take(self, fact: CeilingFact) -> None:
        """Add the next record; they come in order of number."""
        record = fact.record
        before = self.facts[-1].record if self.facts else record
        follows = record.number == before.number + 1 and record.incarnation != before.incarnation
        if follows and before.kind is CeilingKind.RUNNING:
            self._cut_off.add(before.incarnation)
        self._highest[record.incarnation] = record.number
        self.facts.append(fact)
        self._numbered.setdefault(record.number, []).append(fact)
        if record.kind is CeilingKind.RUNNING:
            self._floors.setdefault(record.incarnation, (record.floor_ns, record.settle_to_ns))
        else:
            self._ends.setdefault(record.incarnation, fact)

    def at(self, number: int) -> list[CeilingFact]:
        """Return the records with that number: more than one is a fork."""
        return self._numbered.get(number, [])

    def floor_of(self, incarnation: bytes) -> tuple[int, int] | None:
        """Return shard floor and settle_to of a run, as its first record that is known states them."""
        return self._floors.get(incarnation)

    def has_ended_before(self, number: int) -> bool:
        """Whether no record with that number, or with a higher one, is known, though the chain is in the copy."""
        there = any(fact.where.path.startswith(SHARDS) for fact in self.facts)
        return there and self.facts[-1].record.number < number

    @property
    def terminal(self) -> CeilingFact | None:
        """The record after which nobody links, if the chain has one."""
        return self.facts[-1] if self.facts and self.facts[-1].record.kind is CeilingKind.TERMINAL else None

    def stopped_orderly(self, incarnation: bytes) -> bool:
        """Whether the run's last record says that it stopped orderly."""
        return incarnation in self._ends

    def was_cut_off(self, incarnation: bytes, later: ShardRun) -> bool:
        """Whether a run certainly ended without stopping: a record of another's follows one with which it ran.

        ``later``: a run that came after it. Where there is room between the two for a record that was pruned, that may
        have been its own, and orderly.
        """
        highest = self._highest.get(incarnation)
        no_room = highest is not None and later.shard == self.shard and later.first_ceiling <= highest + 1
        return incarnation not in self._ends and (no_room or incarnation in self._cut_off)

    def end_of(self, incarnation: bytes) -> CeilingFact | None:
        """Return the record with which a run stopped orderly, if there is one."""
        return self._ends.get(incarnation)


def layouts(maps: Mapping[int, ShardMap]) -> list[ShardMap]:
    """Return the maps that have chains of their own, in order, up to the first map that is missing.

    A map with as many shards as the one before goes on with its chains.
    """
    found: list[ShardMap] = []
    for number in itertools.count(1):
        each = maps.get(number)
        if each is None:
            return found
        if not found or len(found[-1].owners) != len(each.owners):
            found.append(each)
    return found


def ceiling_chains(index: Index) -> dict[ShardName, RecordedChain]:
    """Return every chain by shard; copies of one record count once."""
    facts: dict[ShardName, list[CeilingFact]] = {}
    for raw, where in index.ceilings():
        record, _ = open_ceiling(raw, where.path)
        facts.setdefault((record.map_number, record.shard), []).append(
            CeilingFact(record, raw, SignedTime.decode(record.time, where.path), where)
        )
    signed_under = index.ceilings_signed_under()
    chains = {name: RecordedChain(name) for name in facts}
    for name, chain in chains.items():
        for fact in _without_late(facts[name], chain_path(*name), signed_under):
            chain.take(fact)
    return chains


def _without_late(
    facts: list[CeilingFact], chain: str, signed_under: Collection[tuple[bytes, int]]
) -> Iterator[CeilingFact]:
    """Leave out what was linked into a pruned slot by a shard that had slept.

    Its look showed it higher numbers, so it granted nothing: no ledger has the record, and nothing was signed under it.
    """
    kept_from = max(fact.record.number for fact in facts) - RECORDS_KEPT
    copied = {fact.raw for fact in facts if not fact.where.path.startswith(f"{chain}/")}
    for fact in facts:
        record = fact.record
        used = fact.raw in copied or (record.incarnation, record.number) in signed_under
        if used or record.number > kept_from:
            yield fact
