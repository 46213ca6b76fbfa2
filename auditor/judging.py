"""What needs more than one file: the rules over domains, session leases, writers and shards.

Columns judge a bucket of domains or writers at once; domains that they do not find clean are judged by the rules, one
after another, from the same columns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from .columns import domains
from .columns.layout import ENTRIES, FRAMES, USES, HeadName
from .evidence.records import ClusterRecords, known_until
from .evidence.tree import Tree
from .index import Coverage, Index
from .parts import Narrowing, Part, check_asked, later
from .pool import in_order
from .rules.chains import (
    check_ceilings,
    check_heads,
    check_ledgers,
    check_maps,
    check_phases,
    check_records_there,
    counting,
    followed,
)
from .rules.endings import SessionNote, check_sessions, notes_of
from .rules.finding import Finding
from .rules.history import (
    Closings,
    ClusterFacts,
    HeadFact,
    SessionHistory,
    SessionName,
    ShardRun,
    ceiling_chains,
    domain_history,
    session_histories,
)
from .rules.leases import check_domain
from .rules.records import Policies
from .rules.sequences import check_sequences

_WORTH_IT: Final = 2_000_000
"""With fewer bytes of columns than this, other processes are not asked."""


def judge(
    index: Index,
    records: ClusterRecords,
    heads: Mapping[HeadName, HeadFact],
    known_runs: Mapping[bytes, ShardRun],
    whole: Part,
    tree: Tree,
    narrowing: Narrowing,
    jobs: int,
) -> tuple[list[Finding], int]:
    """Apply the rules that need more than one file. Returns what they find, and how many witnesses are known.

    ``tree``: where a name is looked for once more.
    """
    newest, ledgers = whole.newest_time(), whole.ledgers
    ceilings = ceiling_chains(index)
    policy = records.newest_policy
    facts = heads.values()
    for fact in facts:
        newest = later(newest, fact.token)
    for chain in ceilings.values():
        for each in chain.facts:
            newest = later(newest, each.token)
    coverage = Coverage.of(index, policy, newest)
    policies = Policies(records.widest)
    if policy:
        policies = Policies(records.widest, policy.number, known_until(whole.policy_closed, policy.number))
    cluster = ClusterFacts(
        runs=known_runs,
        heads=heads,
        ceilings=ceilings,
        finished=frozenset(ledgers.stopped),
        maps=records.maps,
        follows=followed(ceilings, records.maps),
        counts=counting(facts),
        policies=policies,
        coverage=coverage,
        closings=Closings(index.closings()),
    )
    if narrowing.domains:
        check_asked(narrowing, index.all_domains())
    sessions = session_histories(index, cluster)
    seen = judge_buckets(index, cluster, sessions, narrowing, jobs)
    findings = [policies.judged(each.finding, each.signed_ns) for each in whole.beyond_policy]
    findings += check_heads(facts, ceilings, policies)
    findings += check_ceilings(ceilings, policies)
    findings += check_phases(facts, ceilings, records)
    findings += check_maps(records.maps)
    if tree.names("shards"):
        findings += check_records_there(ceilings, lambda path: tree.hides(path) or tree.size(path) > 0)
    findings += (
        each for each in check_ledgers(facts, ceilings, ledgers, newest, known_runs) if not tree.hides(each.subject)
    )
    findings += seen.findings
    if narrowing.whole:  # of a session lease some leases alone say too little
        findings += check_sessions(sessions, seen.notes, cluster)
    return findings, seen.witnesses + sum(len(session.told) for session in sessions.values())


class BucketSeen(msgspec.Struct):
    """What a bucket of domains and writers comes to, or all of them together."""

    findings: list[Finding] = []
    """About leases of domains, and frames of writers."""
    notes: list[SessionNote] = []
    """What domains show of session leases."""
    witnesses: int = 0
    """How many different ones domains have."""


def judge_buckets(
    index: Index,
    cluster: ClusterFacts,
    sessions: Mapping[SessionName, SessionHistory],
    narrowing: Narrowing,
    jobs: int,
) -> BucketSeen:
    """Judge all writers and domains by columns, bucket by bucket, and the leases of suspect domains by the rules.

    ``sessions``: all that are known; ``jobs``: how many processes judge; 0: as many as are worth it.
    """
    heads = domains.Heads(cluster)
    session_columns = domains.SessionColumns(sessions, heads)

    def judged(number: int) -> bytes:
        entries, uses = (index.bucket(kind, number) for kind in (ENTRIES, USES))
        clean = domains.judge_domains(entries, uses, heads, session_columns, cluster)
        del entries, uses
        seen = BucketSeen(witnesses=clean.witnesses)
        seen.findings += check_sequences(index.bucket(FRAMES, number), cluster.coverage)
        suspects = set(clean.suspects) - {""}
        for rows in index.rows_of(number, suspects) if suspects else ():
            history = domain_history(rows, cluster, sessions)
            seen.witnesses += sum(len(lease.told) for lease in history.leases)
            if narrowing.judges(rows.domain):
                seen.notes += notes_of(history)
                seen.findings += check_domain(history, cluster)
        return msgspec.msgpack.encode(seen)

    filled, whole = index.buckets(), BucketSeen()
    jobs = 1 if index.column_bytes() < _WORTH_IT else jobs or (os.cpu_count() or 1)
    for answer in map(judged, filled) if jobs == 1 else in_order(judged, filled, jobs):
        seen = msgspec.msgpack.decode(answer, type=BucketSeen)
        whole.findings += seen.findings
        whole.notes += seen.notes
        whole.witnesses += seen.witnesses
    return whole
