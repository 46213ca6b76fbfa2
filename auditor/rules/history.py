"""What ledgers, chains and frames tell, in order: of shards, domains and session leases; and what else rules know."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from appliance.formats.chains import CeilingKind, CeilingRecord, open_ceiling
from appliance.formats.lease import Ending, Holder, LeaseOutcome, Mode, Phase
from appliance.formats.paths import chain_path
from appliance.formats.shardmap import ShardMap, shard_number
from appliance.formats.witness import (
    BatchHead,
    Ended,
    Entry,
    Half,
    Revoked,
    SessionEnded,
    SessionWitness,
    Witness,
    WitnessKind,
    decode_entry,
)
from auditor.columns.layout import HeadName, ShardName, bucket_of
from timeagent.canonical import decode
from timeagent.signedtime import SignedTime

from ..columns.index import Coverage, DomainRows, Index, Use
from ..evidence.finding import Evidence
from .records import Policies

RECORDS_KEPT: Final = 64
"""So many of the newest ceiling records are never pruned. Older slots may be free, and be taken again."""

SHARDS: Final = "shards/"
"""Where the chains are; ledgers have copies of their records."""


@dataclass(frozen=True, slots=True)
class HeadFact:
    """A batch head that verifies, and where it was found."""

    head: BatchHead
    digest: bytes
    token: SignedTime
    where: Evidence
    in_ledger: int
    """How often it stands in the ledger of its run: then ``where`` is there."""

    @property
    def name(self) -> str:
        return f"batch {self.head.sequence} of shard {self.head.shard}, run {self.head.incarnation.hex()}"


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
    def gaps(self) -> list[tuple[int, int]]:
        """First and last of each stretch of sequences that the ledger lacks, up to the highest that is known."""
        ends = [0, *(last for _, last in self.stretches)]
        starts = [*(first for first, _ in self.stretches), self.highest + 1]
        return [(end + 1, start - 1) for end, start in zip(ends, starts, strict=True) if start > end + 1]

    def whole(self, first: int, last: int) -> bool:
        """Whether the ledger holds every head from ``first`` to ``last``."""
        place = bisect_right(self.stretches, first, key=lambda each: each[0])
        return place > 0 and last <= self.stretches[place - 1][1]


def head_facts(index: Index) -> dict[HeadName, HeadFact]:
    """Return every head, run by run, in order of sequence."""
    found: dict[HeadName, HeadFact] = {}
    for row in index.heads():
        head = decode(BatchHead, row.raw)
        found[row.name] = HeadFact(head, row.name[2], head.signed_time(), Evidence(*row.where), row.in_ledger)
    return found


def runs(facts: Iterable[HeadFact]) -> dict[bytes, ShardRun]:
    """Return every run of a shard. ``facts``: all heads, in order."""
    found: dict[bytes, ShardRun] = {}
    for fact in facts:
        head = fact.head
        run = found.get(head.incarnation)
        if run is None:
            run = ShardRun(head.incarnation, (head.map_number, head.shard), head.ceiling_number)
            found[head.incarnation] = run
        run.first_ceiling = min(run.first_ceiling, head.ceiling_number)
        run.take(head.sequence, in_ledger=fact.in_ledger > 0)
    return found


@dataclass(frozen=True, slots=True)
class CeilingFact:
    """A ceiling record that verifies, and one place that holds it."""

    record: CeilingRecord
    raw: bytes
    token: SignedTime
    where: Evidence
    late: bool = False
    """Whether it may be in the slot of another that was pruned: nothing tells that its run used it, or linked more."""


class RecordedChain:
    """What is known of one shard's ceiling chain, in order of number. Pruned records may be missing."""

    def __init__(self, shard: ShardName, facts: list[CeilingFact]) -> None:
        """Take all records that are known, in order of number."""
        self.shard, self.facts = shard, facts
        self._numbered: dict[int, list[CeilingFact]] = {}
        self.floors: dict[bytes, tuple[int, int]] = {}
        """Shard floor and settle_to of each run, as its first record that is known states them."""
        self.ends: dict[bytes, CeilingFact] = {}
        """The record with which each run stopped that did so orderly."""
        for fact in facts:
            record = fact.record
            self._numbered.setdefault(record.number, []).append(fact)
            if record.kind is CeilingKind.RUNNING:
                self.floors.setdefault(record.incarnation, (record.floor_ns, record.settle_to_ns))
            else:
                self.ends.setdefault(record.incarnation, fact)
        self._highest = {fact.record.incarnation: fact.record.number for fact in facts}
        pairs = ((before.record, after.record) for before, after in itertools.pairwise(facts) if not after.late)
        self._cut_off = {
            before.incarnation
            for before, after in pairs
            if after.number == before.number + 1 and after.incarnation != before.incarnation
            if before.kind is CeilingKind.RUNNING
        }
        self._in_copy = any(fact.where.path.startswith(SHARDS) for fact in facts)
        """Whether the chain is in the copy: some record in its own place, not only in a ledger."""

    def at(self, number: int) -> list[CeilingFact]:
        """Return the records with that number: more than one is a fork."""
        return self._numbered.get(number, [])

    def has_ended_before(self, number: int) -> bool:
        """Whether no record with that number, or with a higher one, is known, though the chain is in the copy."""
        return self._in_copy and self.facts[-1].record.number < number

    @property
    def terminal(self) -> CeilingFact | None:
        """The record after which nobody links, if the chain has one."""
        return self.facts[-1] if self.facts and self.facts[-1].record.kind is CeilingKind.TERMINAL else None

    def was_cut_off(self, incarnation: bytes, later: ShardRun) -> bool:
        """Whether a run certainly ended without stopping: a record of another's follows one with which it ran.

        ``later``: a run that came after it. Where there is room between the two for a record that was pruned, that may
        have been its own, and orderly.
        """
        highest = self._highest.get(incarnation)
        no_room = highest is not None and later.shard == self.shard and later.first_ceiling <= highest + 1
        return incarnation not in self.ends and (no_room or incarnation in self._cut_off)


def ceiling_chains(index: Index) -> dict[ShardName, RecordedChain]:
    """Return every chain by shard; copies of one record count once."""
    facts: dict[ShardName, list[CeilingFact]] = {}
    for raw, where in index.ceilings():
        record, _ = open_ceiling(raw, where.path)
        fact = CeilingFact(record, raw, SignedTime.decode(record.time, where.path), where)
        facts.setdefault((record.map_number, record.shard), []).append(fact)
    under = index.ceilings_signed_under()
    return {
        name: RecordedChain(name, list(_without_late(of_shard, chain_path(*name), under)))
        for name, of_shard in facts.items()
    }


def _without_late(
    facts: list[CeilingFact], chain: str, signed_under: Collection[tuple[bytes, int]]
) -> Iterator[CeilingFact]:
    """Leave out what was linked into a pruned slot by a shard that had slept.

    Its look showed it higher numbers, so it granted nothing: no ledger has the record, and nothing was signed under it.
    A copy that listed the chain before may have read the slot after that: then the record whose slot it was is used.
    Where nothing tells which of the two it is, it is kept, and marked.
    """
    newest = max(fact.record.number for fact in facts)
    copied = {fact.raw for fact in facts if not fact.where.path.startswith(f"{chain}/")}

    def is_used(fact: CeilingFact) -> bool:
        return fact.raw in copied or (fact.record.incarnation, fact.record.number) in signed_under

    used = {fact.record.number for fact in facts if is_used(fact)}
    last = {fact.record.incarnation: fact.record.number for fact in facts}
    for fact in facts:
        number = fact.record.number
        if is_used(fact):
            yield fact
        elif number > newest - RECORDS_KEPT and number not in used:
            yield replace(fact, late=number == last[fact.record.incarnation] != newest)


def shard_of(head: BatchHead) -> int:
    return shard_number(head.map_number, head.shard)


GIVEN_BACK: Final = frozenset({LeaseOutcome.RELINQUISHED, LeaseOutcome.DROPPED})
"""How a lease ends with its holder's word about what it wrote."""

type Position = tuple[int, int, bytes, int, int]
"""Map, first ceiling number of the run, incarnation, sequence of the batch, place in it: what a shard said when."""


@dataclass(frozen=True, slots=True)
class Statement[W: (Witness, SessionWitness, SessionEnded)]:
    """One witness, or the end of a session lease, as its shard told it."""

    witness: W
    head: BatchHead
    token: SignedTime
    """The shard's signed time, by the page door: up to its staleness older than the decision."""
    position: Position
    where: Evidence


type Told = Statement[Witness]
type ToldOfSession = Statement[SessionWitness]
type SessionOver = Statement[SessionEnded]


@dataclass(frozen=True, slots=True)
class EndedFact:
    """What a shard said about the end of a lease: at once, in its ledger, or later, in a witness."""

    ending: Ending
    position: Position
    token: SignedTime
    """The shard's signed time when it said so."""
    where: Evidence
    entry: Ended | None
    """The ledger's entry; None where a later witness says it."""
    stated: bool = True
    """Whether it was said of this lease; else it follows from what was said of its session lease."""


_position: Final = attrgetter("position")


def _newest(told: Sequence[Told], position: Position) -> int:
    """Return the index of the last word that was told up to a position, and in it; of the first where none was."""
    return max(bisect_right(told, position, key=_position), 1) - 1


def _furthest[T: (Told, ToldOfSession)](told: Sequence[T]) -> list[T]:
    """Return of each word that with the latest expiry up to it: some are asked for as often as there are words."""
    return list(
        itertools.accumulate(told, lambda *two: max(two, key=lambda each: (each.witness.expiry_ns, each.position)))
    )


@dataclass(slots=True)
class LeaseHistory:
    """All that is known of one grant."""

    correlation_id: bytes
    session: SessionHistory | None = None
    """The session lease that it is under: then that one's expiry counts."""
    told: list[Told] = field(default_factory=list)
    """In order."""
    furthest: Sequence[Told] = ()
    """Of each of these that with the latest expiry up to it."""
    endings: list[EndedFact] = field(default_factory=list)
    """In order."""
    uses: list[Use] = field(default_factory=list)
    doubtful: int = 0
    """Messages in frames that name it by a witness that does not verify."""

    @property
    def first(self) -> Told:
        """The earliest witness that is known: the grant, unless that is missing."""
        return self.told[0]

    @property
    def name(self) -> str:
        return f"lease {self.correlation_id.hex()} on {self.first.witness.domain!r}"

    @property
    def fence(self) -> int:
        return self.first.witness.fence

    def mode_at(self, position: Position) -> Mode:
        """Return the mode that it had when something was told: a lease may change to a stronger one."""
        return self.told[_newest(self.told, position)].witness.mode

    @property
    def claims(self) -> list[Told]:
        """The grant and every change to another mode, as far as they are known: what excludes others from then on.

        A renewal repeats the mode of an upgrade that the ledger has lost: when that was granted nobody knows.
        """
        found = [] if self.granted is None else [self.granted]
        for before, after in itertools.pairwise(self.told):
            if after.witness.mode is not before.witness.mode and after.witness.kind is not WitnessKind.RENEWAL:
                found.append(after)
        return found

    @property
    def granted(self) -> Told | None:
        return self.first if self.first.witness.kind is WitnessKind.GRANT else None

    @property
    def held(self) -> bool:
        """Whether it was ever held: only then may its holder write."""
        return any(told.witness.phase is Phase.HELD for told in self.told)

    @property
    def words(self) -> Sequence[Told | ToldOfSession]:
        """The witnesses that say until when it lasts, in order; of its session lease those before its end."""
        if self.session is not None:
            return self.session.told[: self._counting] or self.told
        return self.told

    @property
    def _counting(self) -> int:
        """How many words on its session lease count: those before its end."""
        ended, told = self.ended, self.session.told if self.session is not None else []
        return len(told) if ended is None else bisect_left(told, ended.position, key=_position)

    @property
    def last_expiry(self) -> Told | ToldOfSession:
        count = self._counting
        return self.session.furthest[count - 1] if self.session is not None and count else self.furthest[-1]

    @property
    def whole(self) -> list[Told | ToldOfSession]:
        """Those words by which it counts by itself."""
        return [each for each in self.words if self._half(each) is Half.WHOLE]

    @property
    def staying(self) -> list[Told | ToldOfSession]:
        """Those words by which it counts without a half from a chain that comes later."""
        return [each for each in self.words if self._half(each) is not Half.LEAVING]

    def _half(self, word: Told | ToldOfSession) -> Half:
        """Return how much of a lease it was: the head that goes by the newer map says so, of equals the word's own."""
        return max(word.head, self.first.head, key=lambda head: head.going_by).half

    @property
    def holder(self) -> Holder:
        return self.first.witness.holder

    @property
    def map_number(self) -> int:
        """The map under which the chain of its shard began."""
        return self.first.head.map_number

    @property
    def expiry_ns(self) -> int:
        """The latest expiry that is known."""
        return self.last_expiry.witness.expiry_ns

    @property
    def run(self) -> bytes:
        """The incarnation of the shard that granted it."""
        return self.first.head.incarnation

    def expiry_at(self, position: Position) -> int:
        """Return the latest expiry that had been told up to a position, under a session lease of that."""
        if self.session is not None:
            count = bisect_left(self.session.told, position, key=_position)
            if count:
                return self.session.furthest[count - 1].witness.expiry_ns
        return self.furthest[_newest(self.told, position)].witness.expiry_ns

    def ended_before(self, position: Position) -> EndedFact | None:
        """Return the first word on its end that stands before, or in, what was told at a position."""
        return self.endings[0] if self.endings and self.endings[0].position <= position else None

    @property
    def ended(self) -> EndedFact | None:
        return self.endings[0] if self.endings else None

    @property
    def floor_ns(self) -> int:
        """The highest floor that it was given: what it relinquishes with where nothing was written."""
        return max(told.witness.floor_ns for told in self.told)


@dataclass(slots=True)
class DomainHistory:
    """All leases of one domain, in the order in which its shards granted them."""

    domain: str
    leases: list[LeaseHistory]
    ends: Mapping[Position, tuple[Ended, Evidence]] = MappingProxyType({})
    """What ledgers hold of ends, also of leases of which nothing else is known."""
    revocations: Mapping[Position, tuple[Revoked, Evidence]] = MappingProxyType({})
    """What ledgers hold of who revoked a lease."""

    def claims(self) -> list[tuple[LeaseHistory, Told]]:
        """Return every grant and every change of mode, in the order in which they were made."""
        found = [(lease, told) for lease in self.leases for told in lease.claims]
        return sorted(found, key=lambda each: each[1].position)

    def by_map(self) -> list[DomainHistory]:
        """Return the leases of each chain by themselves: of two that it moves between neither follows the other."""
        groups = itertools.groupby(self.leases, lambda lease: lease.map_number)
        return [DomainHistory(self.domain, list(leases)) for _, leases in groups]


def _told(rows: DomainRows, cluster: ClusterFacts) -> Iterator[tuple[Entry, HeadFact, Position, Evidence]]:
    for name, place, raw, where in rows.entries:
        fact = cluster.heads[name]
        began = cluster.runs[name[0]].first_ceiling
        yield decode_entry(raw), fact, (fact.head.map_number, began, *name[:2], place), where


def domain_history(
    rows: DomainRows, cluster: ClusterFacts, sessions: Mapping[SessionName, SessionHistory]
) -> DomainHistory:
    """Build the history of a domain. ``sessions``: all session leases that are known."""
    leases: dict[bytes, LeaseHistory] = {}
    endings: list[EndedFact] = []
    ends: dict[Position, tuple[Ended, Evidence]] = {}
    revocations: dict[Position, tuple[Revoked, Evidence]] = {}
    for entry, fact, position, where in _told(rows, cluster):
        head, token = fact.head, fact.token
        if isinstance(entry, Revoked):
            revocations[position] = entry, where
        elif isinstance(entry, Ended):
            ends[position] = entry, where
            endings.append(EndedFact(entry.ending, position, token, where, entry))
        elif isinstance(entry, Witness):
            lease = leases.setdefault(entry.correlation_id, LeaseHistory(entry.correlation_id))
            if entry.session_id is not None:
                lease.session = sessions.get((head.incarnation, entry.session_id))
            lease.told.append(Statement(entry, head, token, position, where))
            endings += [
                EndedFact(ending, position, token, where, None)
                for ending in (entry.last_ended, entry.floor_set_by)
                if ending
            ]
    for each in endings:
        known = leases.get(each.ending.correlation_id)
        if known:
            known.endings.append(each)
    for correlation_id, use in rows.uses:
        known = leases.get(correlation_id)
        if known and use.proven:
            known.uses.append(use)
        elif known:
            known.doubtful += use.messages
    for lease in leases.values():
        lease.told.sort(key=_position)
        lease.furthest = _furthest(lease.told)
        if lease.session is not None:
            lease.endings += lease.session.ends_of(lease, cluster.runs[lease.run])
        lease.endings.sort(key=_position)
    ordered = sorted(leases.values(), key=lambda lease: lease.first.position)
    return DomainHistory(rows.domain, ordered, ends, revocations)


type SessionName = tuple[bytes, bytes]
"""Incarnation of the shard, session id."""


@dataclass(slots=True)
class SessionHistory:
    """All that is known of one session lease."""

    session_id: bytes
    told: list[ToldOfSession] = field(default_factory=list)
    """In order."""
    furthest: Sequence[ToldOfSession] = ()
    """Of each of these that with the latest expiry up to it."""
    naming: dict[bytes, ToldOfSession] = field(default_factory=dict)
    """The first of them that names a lease as ended alone."""
    over: SessionOver | None = None

    @property
    def name(self) -> str:
        return f"session lease {self.session_id.hex()}"

    def ends_of(self, lease: LeaseHistory, run: ShardRun) -> Iterator[EndedFact]:
        """Yield what this says of the end of a lease under it: that it was ended alone, or that it ended with this.

        The second only where the ledger has everything in between: else it may have ended alone, or been given back.
        """
        naming = self.naming.get(lease.correlation_id)
        if naming is not None:
            ending = _ending(lease, LeaseOutcome.REVOKED, naming.token.midpoint_ns)
            yield EndedFact(ending, naming.position, naming.token, naming.where, None, stated=False)
        over = self.over
        if over is None or lease.first.position > over.position:
            return
        if run.whole(lease.first.head.sequence, over.position[3]):
            said = over.witness
            outcome = said.outcome if lease.held else LeaseOutcome.WITHDRAWN
            ending = _ending(lease, outcome, said.ended_ns, said)
            yield EndedFact(ending, over.position, over.token, over.where, None, stated=False)


def _ending(lease: LeaseHistory, outcome: LeaseOutcome, ended_ns: int, word: SessionEnded | None = None) -> Ending:
    watermark = (None, None) if word is None else (word.watermark_ns, word.watermark_time)
    return Ending(lease.correlation_id, outcome, ended_ns, *watermark, messages=0, chain_head=None)


def session_histories(index: Index, cluster: ClusterFacts) -> dict[SessionName, SessionHistory]:
    """Return every session lease that is known, in order of their names."""
    found: dict[SessionName, SessionHistory] = {}
    rows = next(index.rows_of(bucket_of(""), ("",)), DomainRows("", ()))
    for entry, fact, position, where in _told(rows, cluster):
        assert isinstance(entry, SessionWitness | SessionEnded)
        history = found.setdefault((fact.head.incarnation, entry.session_id), SessionHistory(entry.session_id))
        if isinstance(entry, SessionWitness):
            history.told.append(Statement(entry, fact.head, fact.token, position, where))
        elif history.over is None or position < history.over.position:
            history.over = Statement(entry, fact.head, fact.token, position, where)
    for history in found.values():
        history.told.sort(key=_position)
        history.furthest = _furthest(history.told)
        for told in reversed(history.told):
            history.naming |= dict.fromkeys(told.witness.ended, told)
    return dict(sorted(found.items()))


class Closings:
    """When the bags of each log were closed: of each instant, the latest closing of any bag that begins before it."""

    def __init__(self, closings: Iterable[tuple[str, int, int]] = ()) -> None:
        """Take (log, start of a bag, before which it was surely not closed), in order."""
        by_log = itertools.groupby(closings, lambda each: each[0])
        rows = {log: np.array([each[1:] for each in of_log], np.int64) for log, of_log in by_log}
        self._known = {log: (each[:, 0], np.maximum.accumulate(np.append(0, each[:, 1]))) for log, each in rows.items()}

    def of(self, log: str, before_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return of each instant that before which some bag of the log that begins before it was surely open."""
        starts, latest = self._known.get(log, (np.zeros(0, np.int64), np.zeros(1, np.int64)))
        found: NDArray[np.int64] = latest[np.searchsorted(starts, before_ns)]
        return found


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What the rules over leases know beside one domain's history."""

    runs: Mapping[bytes, ShardRun]
    heads: Mapping[HeadName, HeadFact]
    ceilings: Mapping[ShardName, RecordedChain]
    finished: frozenset[bytes]
    """Runs whose ledger says that they stopped: nothing is missing at its end."""
    maps: Mapping[int, ShardMap]
    moves: Mapping[int, Sequence[ShardMap]]
    """The maps by which a shard leaves, by its number."""
    coverage: Coverage
    closings: Closings
    """When bags were closed; none: not asked."""
    policies: Policies
    follows: Mapping[ShardName, tuple[int, int]]
    """Of chains that came by a planned move: the highest floor and settle_to with which those before them ended."""
    counts: Mapping[ShardName, HeadFact]
    """The first batch by which each such chain counts by itself."""

    def lowest(self, head: BatchHead) -> tuple[int, int]:
        """Return the floor and the settle_to below which no grant of a batch may go, as far as they are known."""
        name = head.map_number, head.shard
        chain = self.ceilings.get(name)
        begun = chain.floors.get(head.incarnation, (0, 0)) if chain else (0, 0)
        ended = self.follows.get(name, (0, 0)) if head.half is Half.WHOLE else (0, 0)
        return max(begun[0], ended[0]), max(begun[1], ended[1])
