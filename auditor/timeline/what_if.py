"""What if: the timeline and the findings of a tree as a lens shows it, and what that changes.

Only what a clock, a grace or a late file can change is judged, by the audit's own rules: timestamps, R1 and R2, grants
and their overlaps, what came late, what was closed early. Two readings are compared that were judged alike; damage is
the same in both and is not looked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from auditor.evidence.records import load_records
from auditor.index import Coverage, Index, Use
from auditor.rules.chains import check_heads
from auditor.rules.finding import Evidence, NamedInterval, found, in_order
from auditor.rules.history import (
    CeilingFact,
    ClusterFacts,
    DomainHistory,
    EndedFact,
    LeaseHistory,
    RecordedChain,
    ShardRun,
    Told,
)
from auditor.rules.leases import check_domain
from auditor.rules.records import Policies
from auditor.rules.time import judge_frame, stamp_after_frame
from timeagent.signedtime import SignedTime
from timeagent.units import rfc3339

from .events import BagClosed, FrameWritten, LeaseEnded, LeaseTold, order
from .gathering import Gathered
from .reading import read_one_by_one
from .timeline_writer import timeline_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from auditor.evidence.records import ClusterRecords
    from auditor.evidence.signatures import Signatures
    from auditor.evidence.tree import Tree
    from auditor.rules.finding import Finding, Verdict
    from auditor.rules.history import HeadFact, Position, ShardName

    from .facts import JudgedFrame
    from .gathering import WhatIf
    from .timeline_reader import Timeline


class _NothingMissing(Coverage):
    """Says nothing about what is not there: a lens takes nothing away."""

    def missing_frame(self, first_ns: int, last_ns: int) -> Verdict | None:  # noqa: ARG002 - the interface of Coverage
        return None

    def missing_within(self, first_ns: int, last_ns: int) -> Verdict | None:  # noqa: ARG002 - the interface of Coverage
        return None


@dataclass(frozen=True, slots=True)
class Changes:
    """What a lens changes."""

    appear: tuple[Finding, ...]
    """Findings that there are only as the lens shows it."""
    vanish: tuple[Finding, ...]
    """Findings that there are only as it was."""


def changes(as_it_was: list[Finding], otherwise: list[Finding]) -> Changes:
    """Compare two lists of findings of one tree by code, subject and evidence."""
    before, after = {each.id for each in as_it_was}, {each.id for each in otherwise}
    return Changes(
        tuple(each for each in otherwise if each.id not in before),
        tuple(each for each in as_it_was if each.id not in after),
    )


def judged_timeline(
    tree: Tree,
    lens: WhatIf,
    *,
    root_key: bytes | None,
    signatures: Signatures,
    progress: Callable[[int, str], None],
) -> tuple[Timeline, list[Finding]]:
    """Read a tree through a lens. Returns its timeline and the findings that a lens can change, in order."""
    records, _ = load_records(tree, signatures, root_key)
    read = Gathered()
    findings: list[Finding] = []

    def judged(frame: JudgedFrame) -> None:
        findings.extend(_frame(frame, records, lens))

    read_one_by_one(tree, records, signatures, read, lens=lens, judged=judged, progress=progress)
    for event in read.others:
        if isinstance(event, BagClosed):
            findings += _closed(event)
    findings += _leases(read, records)
    ordered = in_order(findings)
    return timeline_of(read, ordered), ordered


def _frame(judged: JudgedFrame, records: ClusterRecords, lens: WhatIf) -> Iterator[Finding]:
    event = judged.event
    if event.listed is None:
        return
    if not event.listed:
        if not lens.drop_late:
            reason = f"{event.file} is void: {event.void_because}"
            code = "ghost-bag" if judged.closed is None else "late-writer"
            yield found(code, event.file, reason, [Evidence(event.where.path)])
        return
    policy = records.judging(judged.evidence.frame.head.policy_number)
    by = judge_frame(judged.evidence, judged.bag, policy, misplaced=False, widest=records.widest)
    yield from by.findings
    yield from stamp_after_frame(judged.evidence, judged.closed)


def _closed(event: BagClosed) -> Iterator[Finding]:
    clock = event.clock
    if clock is not None and clock.latest_ns < event.end_ns:
        reason = f"the bag was closed at {rfc3339(clock.midpoint_ns)}, before its end at {rfc3339(event.end_ns)}"
        stamp = NamedInterval("the stamp", clock.earliest_ns, clock.latest_ns)
        times = [stamp, NamedInterval.at("the end", event.end_ns)]
        yield found("premature-lock", event.where.path, reason, [event.where], times)


# Leases: the audit's own histories, from events instead of from its index.


def _leases(read: Gathered, records: ClusterRecords) -> Iterator[Finding]:
    heads = list(read.heads.values())
    heads.sort(key=lambda fact: (fact.head.map_number, fact.head.shard, fact.head.incarnation, fact.head.sequence))
    ceilings = _ceilings(read)
    policies = Policies(records.widest)
    yield from check_heads(heads, ceilings, policies)
    runs = _runs(heads)
    index = Index()
    cluster = ClusterFacts(
        runs=runs,
        ceilings=ceilings,
        finished=frozenset(read.stops),
        maps=records.maps,
        coverage=_NothingMissing(index, 0),
        policies=policies,
    )
    for history in _histories(read, runs):
        yield from check_domain(history, cluster)
    index.close()


def _runs(heads: list[HeadFact]) -> dict[bytes, ShardRun]:
    runs: dict[bytes, ShardRun] = {}
    for fact in heads:
        head = fact.head
        run = runs.setdefault(
            head.incarnation, ShardRun(head.incarnation, (head.map_number, head.shard), head.ceiling_number)
        )
        run.first_ceiling = min(run.first_ceiling, head.ceiling_number)
        run.take(head.sequence, in_ledger=fact.in_ledger)
    return runs


def _ceilings(read: Gathered) -> dict[ShardName, RecordedChain]:
    chains: dict[ShardName, RecordedChain] = {}
    for raw, event in sorted(read.ceilings.items(), key=lambda each: each[1].record.number):
        chain = chains.setdefault(event.shard, RecordedChain(event.shard))
        chain.take(CeilingFact(event.record, raw, SignedTime.decode(event.record.time), event.where))
    return chains


def _histories(read: Gathered, runs: dict[bytes, ShardRun]) -> Iterator[DomainHistory]:
    def position(event: LeaseTold | LeaseEnded) -> Position:
        _, incarnation, sequence, place = event.place
        return event.shard[0], runs[incarnation].first_ceiling, incarnation, sequence, place

    tokens = {(fact.head.incarnation, fact.head.sequence): fact.token for fact in read.heads.values()}
    domains: dict[str, dict[bytes, LeaseHistory]] = {}
    for (digest, _), event in read.statements.items():
        fact = read.heads[digest]
        told = Told(event.witness, fact.head, fact.token, position(event), event.where)
        leases = domains.setdefault(event.witness.domain, {})
        identifier = event.witness.correlation_id
        leases.setdefault(identifier, LeaseHistory(identifier)).told.append(told)
    for ended in read.endings():
        known = domains.get(ended.domain, {}).get(ended.ending.correlation_id)
        if known is not None:
            token = tokens[ended.place[1:3]]
            known.endings.append(EndedFact(ended.ending, position(ended), token, ended.where, None))
    for written in sorted((each for each in read.others if isinstance(each, FrameWritten)), key=order):
        for domain, identifier in written.leases:
            known = domains.get(domain, {}).get(identifier)
            if known is not None and written.listed is not False:
                known.uses.append(_use(written))
    for name in sorted(domains):
        leases = domains[name]
        for lease in leases.values():
            lease.told.sort(key=lambda told: told.position)
        yield DomainHistory(name, sorted(leases.values(), key=lambda lease: lease.first.position))


def _use(written: FrameWritten) -> Use:
    accepted = written.accepted_count if written.listed else 0
    first, last = written.accepted_ns or (written.first_ns, written.last_ns)
    signed_ns = written.clock.latest_ns
    return Use(written.where, written.messages, accepted, first, last, proven=True, settle_to_ns=0, signed_ns=signed_ns)
