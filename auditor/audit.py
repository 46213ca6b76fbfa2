"""The run: a tree in, a verdict out. Reads each file once, in a fixed order; the same bytes give the same verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from timeagent.signedtime import SignedTime

from .bags import BagWalk
from .chains import ceiling_chains, head_facts, runs
from .coverage import Coverage, later
from .finding import Evidence, Verdict, in_order
from .frames import FrameReader
from .history import domain_history
from .index import Index
from .records import ClusterRecords, load_records
from .rules.chains import check_ceilings, check_heads, check_layouts
from .rules.leases import Cluster, check_domain
from .rules.ledgers import check_ledgers
from .rules.registry import found
from .rules.sequences import check_sequences
from .shards import ShardWalk
from .verification import Signatures

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .chains import Run
    from .finding import Finding
    from .load import Tree
    from .rules.ledgers import LedgersSeen


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts. ``messages``: in the record, of closed bags; ``bags`` includes the ``provisional`` ones, still open."""

    messages: int
    rejected: int
    bags: int
    witnesses: int
    violations: int
    indeterminate: int
    unverifiable: int
    informational: int
    provisional: int
    ledger_gaps: int
    """Stretches of batches that the ledgers lack: what a killed shard did not write any more. No finding."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What the audit of a tree came to."""

    summary: Summary
    findings: tuple[Finding, ...]
    cluster_id: bytes
    root_key: bytes | None
    pinned: bool

    @property
    def exit_status(self) -> int:
        """0: nothing found; 3: something could not be verified, and no violation; 1: anything else."""
        if self.summary.unverifiable and not self.summary.violations:
            return 3
        return 1 if self.findings else 0


def audit(
    tree: Tree,
    *,
    root_key: bytes | None = None,
    signatures: Signatures | None = None,
    index_file: Path | None = None,
    progress: Callable[[int, str], None] | None = None,
) -> Audit:
    """Audit a tree. Never raises for what is in it; whatever is damaged there is a finding.

    ``root_key``: the raw public root key, pinned by the auditor; else the marker's own is taken. ``index_file``: where
    to keep the index, for trees that are too large for memory.
    """
    findings: list[Finding] = []
    tell = progress or _silent
    signatures = signatures or Signatures()
    records, found_records = load_records(tree, signatures, root_key)
    findings += found_records
    index = Index(index_file)
    done = 0
    # Bags come first: a lock file may name a trust record that is not there, and then no unknown key is a forger's.
    frames = FrameReader(signatures, records.cluster_id)
    bags = BagWalk(tree, records, signatures, frames, index, findings.append)
    for log in tree.logs():
        for path in bags.walk(log):
            done += 1
            tell(done, path)
    bags.finish()
    shards = ShardWalk(tree, records, signatures, index, findings.append)
    shards.walk_chains()
    for path in shards.walk_ledgers():
        done += 1
        tell(done, path)
    index.ready()
    known_runs = runs(index)
    findings += _judge(index, records, known_runs, bags.newest, shards.ledgers)
    findings += [found("unreadable", path, f"{path}: {why}", [Evidence(path)]) for path, why in tree.unreadable.items()]
    ordered = tuple(in_order(findings))
    gaps = sum(_gaps(run, torn=run.incarnation in shards.torn) for run in known_runs.values())
    gaps += len(shards.torn - known_runs.keys())
    summary = Summary(
        messages=bags.counts.messages,
        rejected=bags.counts.rejected,
        bags=bags.counts.bags,
        witnesses=index.witnesses(),
        violations=_count(ordered, Verdict.VIOLATION),
        indeterminate=_count(ordered, Verdict.INDETERMINATE),
        unverifiable=_count(ordered, Verdict.UNVERIFIABLE),
        informational=_count(ordered, Verdict.OK),
        provisional=bags.counts.provisional,
        ledger_gaps=gaps,
    )
    index.close()
    root = records.root
    return Audit(summary, ordered, records.cluster_id, root.public if root else None, records.pinned)


def _silent(_done: int, _what: str) -> None:
    pass


def _judge(
    index: Index,
    records: ClusterRecords,
    known_runs: dict[bytes, Run],
    newest: SignedTime | None,
    ledgers: LedgersSeen,
) -> list[Finding]:
    """Apply the rules that need more than one file. ``newest``: the latest signed time of frames, locks and seals."""
    ceilings = ceiling_chains(index)
    policy = records.newest_policy
    for fact, _ in head_facts(index):
        newest = later(newest, fact.token)
    for chain in ceilings.values():
        for each in chain.facts:
            newest = later(newest, SignedTime.decode(each.record.time, each.where.path))
    coverage = Coverage.of(index, policy, newest)
    cluster = Cluster(
        runs=known_runs,
        ceilings=ceilings,
        finished=frozenset(ledgers.stopped),
        maps=records.maps,
        term_ns_max=records.term_ns_max,
        r1_tolerance_ns=policy.r1_tolerance_ns if policy else None,
        coverage=coverage,
    )
    findings = list(check_heads(fact for fact, _ in head_facts(index)))
    findings += check_ceilings(ceilings)
    findings += check_layouts(ceilings, records.maps)
    findings += check_ledgers((fact for fact, _ in head_facts(index)), ceilings, ledgers, newest)
    findings += check_sequences(index, coverage)
    for domain in index.domains():
        findings += check_domain(domain_history(index, known_runs, domain), cluster)
    return findings


def _gaps(run: Run, *, torn: bool) -> int:
    """A torn last block is a gap, unless a later batch shows that gap already."""
    return run.gaps + (1 if torn and run.highest == run.ledger_end else 0)


def _count(findings: tuple[Finding, ...], verdict: Verdict) -> int:
    return sum(finding.verdict is verdict for finding in findings)
