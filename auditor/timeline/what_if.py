"""One reading of a tree, frame by frame, as a lens shows it; what if: its timeline and findings, and what that changes.

Only what a clock, a grace or a late file can change is judged, by the audit's own rules: timestamps, R1 and R2, grants
and their overlaps, what came late, what was closed early. Two readings are compared that were judged alike; damage is
the same in both and is not looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from auditor.evidence.finding import FORGED, Evidence, Finding, Times, Verdict, found, in_order
from auditor.evidence.records import ClusterRecords, load_records
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.rules.chains import check_heads, cluster_facts
from auditor.rules.history import (
    EndedFact,
    LeaseHistory,
    RecordedChain,
    ceiling_chains,
    domain_history,
    head_facts,
    session_histories,
)
from auditor.rules.leases import check_domain
from auditor.rules.records import Policies
from auditor.rules.timestamps import judge_frame, stamp_after_frame
from timeagent.console import counted
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime
from timeagent.units import INSTANT_MAX, rfc3339

from ..columns.audit_file import temporary_database
from ..columns.events import AS_IT_WAS, BagClosed, WhatIf
from ..columns.index import Coverage, Index, Use
from ..columns.parts import EvidenceSource, Part
from ..walk.bags import BagWalk
from ..walk.facts import Facts, Gathering, JudgedFrame
from ..walk.shards import ShardWalk
from .timeline_reader import Timeline
from .timeline_writer import FIRST_RANK, LEDGER_RANK, EventRows, TimelineWriter, keep_findings


def read_one_by_one(
    tree: Tree,
    records: ClusterRecords,
    signatures: Signatures,
    found: Gathering,
    *,
    evidence: bool = False,
    lens: WhatIf = AS_IT_WAS,
    judged: Callable[[JudgedFrame], None] | None = None,
    progress: Callable[[int, str], None] | None = None,
) -> Part:
    """Read everything, ledgers first. ``found``: where events go to; ``judged``: told of each frame.

    Returns the evidence for rules, as it was, if that is asked for. Never raises for what is in the tree. Costs five
    times an audit, which judges most of a tree by columns.
    """
    told, done = Part(), 0
    reading = EvidenceSource(tree, records, signatures, one_by_one=True)
    if not evidence:
        reading.keep = lambda _: []
    facts = Facts(reading, found, lens=lens, base=LEDGER_RANK, judged=judged)
    shards = ShardWalk(reading, told, facts)
    found.rank = FIRST_RANK
    shards.walk_chains()
    for file in tree.ledgers():
        shards.ledger(file)
        done += 1
        if progress:
            progress(done, file.path)
    bags = BagWalk(reading, told, facts)
    for log in tree.logs():
        grid = bags.begin(log)
        if grid is None:
            continue
        for place in tree.rack_places(grid):
            if not isinstance(place, str):
                bags.rack(grid, tree.listing(grid, place))
                done += 1
                if progress:
                    progress(done, place.path)
    told.columns = [*shards.chunks(), *bags.frames.chunks()]
    return told.done()


@dataclass(frozen=True, slots=True)
class Changes:
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
    progress: Callable[[int, str], None] | None = None,
) -> tuple[Timeline, list[Finding]]:
    """Read a tree through a lens. Returns its timeline and the findings that a lens can change, in order."""
    records, _ = load_records(tree, signatures, root_key)
    told, index = EventRows(), Index(spooling=True)
    findings: list[Finding] = []
    uses: dict[tuple[str, bytes], list[Use]] = {}

    def judged(frame: JudgedFrame) -> None:
        findings.extend(_frame(frame, records, lens))
        event = frame.event
        if event.listed is not False and not frame.twice and frame.evidence.refusal is None:
            accepted, span = event.accepted_count if event.listed else 0, event.accepted_ns
            figures = event.messages, accepted, *(span or (event.first_ns, event.last_ns))
            signed_ns = event.clock.latest_ns
            for held, staying in frame.evidence.leases():
                if held.refusal is None:
                    use = Use(event.where, *figures, proven=True, settle_to_ns=0, signed_ns=signed_ns, staying=staying)
                    uses.setdefault((held.witness.domain, held.witness.correlation_id), []).append(use)

    try:
        part = read_one_by_one(
            tree, records, signatures, told, evidence=True, lens=lens, judged=judged, progress=progress
        )
        index.take(part)
        findings += _leases(index, records, part, lens, uses)
    finally:
        index.close()
    writer = TimelineWriter(temporary_database())
    writer.take(told.encoded())
    for event in writer.write().kinds(BagClosed):
        said = event.clock
        if said is not None and said.latest_ns < event.end_ns:
            reason = f"the bag was closed at {rfc3339(said.midpoint_ns)}, before its end at {rfc3339(event.end_ns)}"
            times: Times = {"the stamp": (said.earliest_ns, said.latest_ns), "the end": event.end_ns}
            reason += f"; that made {counted(event.void_files, 'file')} void" if event.void_files else ""
            verdict = Verdict.VIOLATION if event.void_files else None
            findings.append(found("premature-lock", event.where.path, reason, [event.where], times, verdict=verdict))
    ordered = in_order(findings)
    keep_findings(writer.db, ordered)
    timeline = Timeline(writer.db)
    timeline.state_at()  # folded here, where one waits anyway
    return timeline, ordered


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
    yield from (each for each in by.findings if each.code not in FORGED)
    yield from stamp_after_frame(judged.evidence, judged.closed)


# Leases: the audit's own histories and rules, with signed times and uses as the lens shows them.


def _leases(
    index: Index, records: ClusterRecords, seen: Part, lens: WhatIf, uses: Mapping[tuple[str, bytes], list[Use]]
) -> Iterator[Finding]:
    heads = {
        name: replace(fact, token=lens.token(fact.head.node, fact.token)) for name, fact in head_facts(index).items()
    }
    # What was signed before that, by a clock that had shown more, is seen as signed so much later.
    ahead_ns = max([0, *lens.shifts.values()])
    closed = {number: instant + ahead_ns for number, instant in seen.policy_closed.items()}
    ceilings, policies = ceiling_chains(index), Policies.of(records, closed)
    for name, chain in ceilings.items():
        facts = [replace(fact, token=lens.token(fact.record.node, fact.token)) for fact in chain.facts]
        ceilings[name] = RecordedChain(name, facts)
    yield from check_heads(heads.values(), ceilings, policies)
    nothing = Coverage(Index(), 0)  # says nothing about what is not there: a lens takes nothing away
    cluster = cluster_facts(heads, ceilings, records, seen.ledgers, policies, nothing)
    sessions = session_histories(index, cluster)
    domains = index.all_domains()
    for rows in (rows for bucket in index.buckets() for rows in index.rows_of(bucket, domains)):
        history = domain_history(rows, cluster, sessions)
        for lease in history.leases:
            lease.uses = uses.get((history.domain, lease.correlation_id), [])
            lease.endings = [_said(fact, lease, lens) for fact in lease.endings]
        yield from check_domain(history, cluster)


def _said(fact: EndedFact, lease: LeaseHistory, lens: WhatIf) -> EndedFact:
    """Return what was said of the end of a lease as the clocks of its shard and its holder would have had it."""
    ending, raw = fact.ending, fact.ending.watermark_time
    with suppress(Damaged):
        if raw is not None:
            token = lens.token(lease.holder.node, SignedTime.decode(raw))
            raw = msgspec.structs.replace(token, midpoint_ns=min(token.midpoint_ns, INSTANT_MAX)).encode()
    ended_ns = ending.ended_ns + lens.shifts.get(lease.first.head.node, 0)
    return replace(fact, ending=msgspec.structs.replace(ending, ended_ns=ended_ns, watermark_time=raw))
