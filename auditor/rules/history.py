"""One ordered history per domain and session lease: what ledgers and frames tell of leases, by correlation id."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from appliance.formats.lease import Ending, LeaseOutcome, Phase
from appliance.formats.sessionlease import SessionEnded, SessionWitness
from appliance.formats.witness import BatchHead, Ended, Revoked, Witness, WitnessKind, decode_entry
from timeagent.canonical import decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from appliance.formats.lease import Mode
    from auditor.chains import ShardRun
    from auditor.index import Index, Use
    from timeagent.signedtime import SignedTime

    from .finding import Evidence

GIVEN_BACK: Final = frozenset({LeaseOutcome.RELINQUISHED, LeaseOutcome.DROPPED})
"""How a lease ends with its holder's word about what it wrote."""

type Position = tuple[int, int, bytes, int, int]
"""Map, first ceiling number of the run, incarnation, sequence of the batch, place in it: what a shard said when."""


@dataclass(frozen=True, slots=True)
class Told:
    """One witness, as its shard told it."""

    witness: Witness
    head: BatchHead
    token: SignedTime
    """The shard's signed time, by the page door: up to its staleness older than the decision."""
    position: Position
    where: Evidence


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


@dataclass(slots=True)
class LeaseHistory:
    """All that is known of one grant."""

    correlation_id: bytes
    session: SessionHistory | None = None
    """The session lease that it is under: then that one's expiry counts."""
    told: list[Told] = field(default_factory=list)
    endings: list[EndedFact] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    doubtful: int = 0
    """Messages in frames that name it by a witness that does not verify."""

    @property
    def first(self) -> Told:
        """The earliest witness that is known: the grant, unless that is missing."""
        return self.told[0]

    @property
    def name(self) -> str:
        """How a finding names it."""
        return f"lease {self.correlation_id.hex()} on {self.first.witness.domain!r}"

    @property
    def fence(self) -> int:
        """Its fence."""
        return self.first.witness.fence

    def mode_at(self, position: Position) -> Mode:
        """Return the mode that it had when something was told: a lease may change to a stronger one."""
        known = [told for told in self.told if told.position <= position]
        return known[-1].witness.mode if known else self.first.witness.mode

    @property
    def claims(self) -> list[Told]:
        """The grant, as far as it is known, and every change to another mode: what excludes others from then on."""
        found = [] if self.granted is None else [self.granted]
        for before, after in itertools.pairwise(self.told):
            if after.witness.mode is not before.witness.mode:
                found.append(after)
        return found

    @property
    def granted(self) -> Told | None:
        """The grant itself."""
        return self.first if self.first.witness.kind is WitnessKind.GRANT else None

    @property
    def held(self) -> bool:
        """Whether it was ever held: only then may its holder write."""
        return any(told.witness.phase is Phase.HELD for told in self.told)

    @property
    def last_expiry(self) -> Told | SessionWitnessFact:
        """The witness with the latest expiry that is known; of its session lease none that was told after its end."""
        if self.session is not None:
            ended = self.ended
            told = [each for each in self.session.told if ended is None or each.position < ended.position]
            if told:
                return max(told, key=lambda each: (each.witness.expiry_ns, each.position))
        return max(self.told, key=lambda told: (told.witness.expiry_ns, told.position))

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
        known = [told.witness.expiry_ns for told in self.told if told.position <= position]
        if self.session is not None:
            known = [told.witness.expiry_ns for told in self.session.told if told.position < position] or known
        return max(known, default=self.first.witness.expiry_ns)

    def ended_before(self, position: Position) -> EndedFact | None:
        """Return the first word on its end that stands before, or in, what was told at a position."""
        known = [fact for fact in self.endings if fact.position <= position]
        return min(known, key=lambda fact: fact.position, default=None)

    @property
    def ended(self) -> EndedFact | None:
        """The first word on its end."""
        return min(self.endings, key=lambda fact: fact.position, default=None)

    @property
    def relinquished(self) -> EndedFact | None:
        """The first word on its end, if it says that the holder relinquished it, alone or with its session lease."""
        fact = self.ended
        return fact if fact is not None and fact.ending.outcome in GIVEN_BACK else None

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

    def by_id(self) -> Mapping[bytes, LeaseHistory]:
        """Return the leases by correlation id."""
        return {lease.correlation_id: lease for lease in self.leases}


@lru_cache(maxsize=4096)
def _opened(raw_head: bytes) -> tuple[BatchHead, SignedTime]:
    """Read a head once for all the domains that its batch is about."""
    head = decode(BatchHead, raw_head)
    return head, head.signed_time()


def domain_history(
    index: Index,
    runs: Mapping[bytes, ShardRun],
    domain: str,
    sessions: Mapping[SessionName, SessionHistory] = MappingProxyType({}),
) -> DomainHistory:
    """Build the history of a domain from the index. ``sessions``: all session leases that are known."""
    leases: dict[bytes, LeaseHistory] = {}
    endings: list[EndedFact] = []
    ends: dict[Position, tuple[Ended, Evidence]] = {}
    revocations: dict[Position, tuple[Revoked, Evidence]] = {}
    for raw_head, place, raw, where in index.entries(domain):
        head, token = _opened(raw_head)
        run = runs[head.incarnation]
        position = (head.map_number, run.first_ceiling, head.incarnation, head.sequence, place)
        entry = decode_entry(raw)
        if isinstance(entry, Revoked):
            revocations[position] = entry, where
        elif isinstance(entry, Ended):
            ends[position] = entry, where
            endings.append(EndedFact(entry.ending, position, token, where, entry))
        elif isinstance(entry, Witness):
            lease = leases.setdefault(entry.correlation_id, LeaseHistory(entry.correlation_id))
            if entry.session_id is not None:
                lease.session = sessions.get((head.incarnation, entry.session_id))
            lease.told.append(Told(entry, head, token, position, where))
            endings += [
                EndedFact(ending, position, token, where, None)
                for ending in (entry.last_ended, entry.floor_set_by)
                if ending
            ]
    for fact in endings:
        known = leases.get(fact.ending.correlation_id)
        if known:
            known.endings.append(fact)
    for correlation_id, use in index.uses(domain):
        known = leases.get(correlation_id)
        if known and use.proven:
            known.uses.append(use)
        elif known:
            known.doubtful += use.messages
    for lease in leases.values():
        lease.told.sort(key=lambda told: told.position)
        if lease.session is not None:
            lease.endings += lease.session.ends_of(lease, runs[lease.run])
    ordered = sorted(leases.values(), key=lambda lease: lease.first.position)
    return DomainHistory(domain, ordered, ends, revocations)


type SessionName = tuple[bytes, bytes]
"""Incarnation of the shard, session id."""


@dataclass(frozen=True, slots=True)
class SessionWitnessFact:
    """One witness of a session lease, as its shard told it."""

    witness: SessionWitness
    head: BatchHead
    token: SignedTime
    position: Position
    where: Evidence


@dataclass(frozen=True, slots=True)
class SessionEndFact:
    """What a shard said about the end of a session lease."""

    entry: SessionEnded
    token: SignedTime
    position: Position
    where: Evidence


@dataclass(slots=True)
class SessionHistory:
    """All that is known of one session lease."""

    session_id: bytes
    told: list[SessionWitnessFact] = field(default_factory=list)
    """In order."""
    over: SessionEndFact | None = None

    @property
    def name(self) -> str:
        """How a finding names it."""
        return f"session lease {self.session_id.hex()}"

    def ends_of(self, lease: LeaseHistory, run: ShardRun) -> Iterator[EndedFact]:
        """Yield what this says of the end of a lease under it: that it was ended alone, or that it ended with this.

        The second only where the ledger has everything in between: else it may have ended alone, or been given back.
        """
        naming = next((told for told in self.told if lease.correlation_id in told.witness.ended), None)
        if naming is not None:
            yield EndedFact(
                _ending(lease, LeaseOutcome.REVOKED, naming.token.midpoint_ns),
                naming.position,
                naming.token,
                naming.where,
                None,
                stated=False,
            )
        over = self.over
        if over is None or lease.first.position > over.position:
            return
        if run.whole(lease.first.head.sequence, over.position[3]):
            outcome = over.entry.outcome if lease.held else LeaseOutcome.WITHDRAWN
            ending = _ending(lease, outcome, over.entry.ended_ns, over.entry)
            yield EndedFact(ending, over.position, over.token, over.where, None, stated=False)


def _ending(lease: LeaseHistory, outcome: LeaseOutcome, ended_ns: int, word: SessionEnded | None = None) -> Ending:
    return Ending(
        correlation_id=lease.correlation_id,
        outcome=outcome,
        ended_ns=ended_ns,
        watermark_ns=None if word is None else word.watermark_ns,
        watermark_time=None if word is None else word.watermark_time,
        messages=0,
        chain_head=None,
    )


def session_histories(index: Index, runs: Mapping[bytes, ShardRun]) -> dict[SessionName, SessionHistory]:
    """Return every session lease that is known, in order of their names."""
    found: dict[SessionName, SessionHistory] = {}
    for raw_head, place, raw, where in index.entries(""):
        head = decode(BatchHead, raw_head)
        run = runs[head.incarnation]
        position = (head.map_number, run.first_ceiling, head.incarnation, head.sequence, place)
        entry = decode_entry(raw)
        assert isinstance(entry, SessionWitness | SessionEnded)
        history = found.setdefault((head.incarnation, entry.session_id), SessionHistory(entry.session_id))
        if isinstance(entry, SessionWitness):
            history.told.append(SessionWitnessFact(entry, head, head.signed_time(), position, where))
        elif history.over is None or position < history.over.position:
            history.over = SessionEndFact(entry, head.signed_time(), position, where)
    for history in found.values():
        history.told.sort(key=lambda told: told.position)
    return dict(sorted(found.items()))
