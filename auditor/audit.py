"""The run: a tree in, a verdict out. Reads each file once, in a fixed order; the same bytes give the same verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from timeagent.errors import Environment

from .chains import ceiling_chains, head_facts, runs
from .columns.domains import Heads
from .columns.suspects import spread_suspects
from .evidence.records import ClusterRecords, load_records
from .evidence.signatures import Signatures
from .evidence.stray_files import check_foreign
from .evidence.unknown_keys import known_until
from .index import INDEX_ERRORS, Coverage, Index, later
from .parts import WHOLE, Narrowing, check_asked
from .report.result import Audit, Summary, with_findings
from .rules.agreement import Closings, ClusterFacts
from .rules.chains import check_ceilings, check_heads, check_layouts, check_ledgers, check_records_there
from .rules.clocks import name_clocks
from .rules.domains import DomainJudge, check_domains
from .rules.finding import Evidence, in_order
from .rules.history import session_histories
from .rules.records import Policies
from .rules.registry import found
from .rules.sequences import check_sequences
from .rules.sessions import SessionNote, check_sessions
from .store import PartStore, environment
from .walk import Doubted, Walk, Way

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .chains import ShardRun
    from .evidence.tree import Tree
    from .rules.finding import Finding
    from .walk import Loaded


@dataclass(frozen=True, slots=True)
class Options:
    """How a tree is read; what is found does not depend on it, but for what is narrowed away."""

    jobs: int = 1
    """How many processes read it; 0: as many as are worth it. Other than 1 only from a program with one thread."""
    index_file: Path | None = None
    """Where the index is kept: it can be resumed, and a second run reads only what changed."""
    reread: bool = False
    """Read everything again, whatever the index file holds."""
    narrowing: Narrowing = WHOLE
    columns: bool = True
    """Whether what is clean is judged by columns. What is found does not depend on it."""
    hashed: bool = True
    """Whether every byte of data files and packs is hashed. Without that, what was altered in them may be missed."""
    timeline: bool = False
    """Whether the index file gets the timeline too, where the whole tree is read: replay and screens live from it."""


_DEFAULT: Final = Options()


def audit(
    tree: Tree,
    *,
    root_key: bytes | None = None,
    signatures: Signatures | None = None,
    options: Options = _DEFAULT,
    progress: Callable[[int, int, int, str], None] | None = None,
) -> Audit:
    """Audit a tree. Never raises for what is in it; whatever is damaged there is a finding.

    ``root_key``: the raw public root key, pinned by the auditor; else the marker's own is taken. ``progress``: told
    how many parts are done, of how many, how many messages they held, and which was the last. Raises BadRequest for an
    index file that is none, and for a domain that was asked for and that the tree does not know.
    """
    index = Index(options.index_file, shared=options.jobs != 1, spooling=options.columns)
    try:
        return _audit(tree, index, root_key, signatures or Signatures(), options, progress)
    except INDEX_ERRORS as problem:
        raise Environment(
            "index-failed",
            f"the index {options.index_file or 'of this audit'} failed: {problem}",
            hint="make room on the disk, or name another place (--db, or TMPDIR); remove the file if it was damaged",
        ) from None
    finally:
        index.close()  # what was read is kept, also of an audit that was interrupted


def _audit(
    tree: Tree,
    index: Index,
    root_key: bytes | None,
    signatures: Signatures,
    options: Options,
    progress: Callable[[int, int, int, str], None] | None,
) -> Audit:
    store = None
    if options.index_file is not None:
        state = environment(tree, root_key, columns=options.columns, hashed=options.hashed)
        store = PartStore(index, state, reread=options.reread)
    findings: list[Finding] = []
    keeps = options.timeline and store is not None and options.narrowing.whole
    told = _Halves(progress) if keeps and progress else None

    def load(jobs: int, store: PartStore | None) -> tuple[ClusterRecords, Loaded]:
        records, found_records = load_records(tree, signatures, root_key)
        findings[:] = found_records
        way = Way(
            options.narrowing,
            jobs,
            store,
            told.first if told else progress,
            columns=options.columns,
            hashed=options.hashed,
        )
        walk = Walk(tree, records, signatures, index, findings.append, way)
        return records, walk.run()

    try:
        records, loaded = load(options.jobs, store)
    except Doubted:
        index.clear()
        tree.unreadable.clear()
        store = None
        records, loaded = load(1, None)
    index.ready()
    known_runs = runs(index)
    judged, witnesses = _judge(index, records, known_runs, loaded, options, tree)
    findings += judged
    findings += check_foreign(tree)
    findings += [found("unreadable", path, f"{path}: {why}", [Evidence(path)]) for path, why in tree.unreadable.items()]
    ordered = tuple(in_order(list(name_clocks(findings, tree, records, signatures))))
    gaps = sum(_gaps(run, torn=run.incarnation in loaded.torn) for run in known_runs.values())
    gaps += len(loaded.torn - known_runs.keys())
    summary = Summary(
        messages=loaded.counts.messages,
        rejected=loaded.counts.rejected,
        bags=loaded.counts.bags,
        witnesses=witnesses,
        provisional=loaded.counts.provisional,
        ledger_gaps=gaps,
    )
    root = records.root.public if records.root else None
    result = with_findings(Audit(summary, (), records.cluster_id, root, records.pinned, options.hashed), ordered)
    if keeps:
        from .replay.timeline_writer import keep_timeline  # noqa: PLC0415 - only where it is asked for

        digest = store.digest(tree) if store else None
        step = told.second if told else None
        keep_timeline(index.db, tree, result, signatures, state=digest, root_key=root_key, progress=step)
    return result


class _Halves:
    """One progress of two passes over the same parts."""

    def __init__(self, progress: Callable[[int, int, int, str], None]) -> None:
        self._progress = progress
        self._total = self._messages = 0

    def first(self, done: int, total: int, messages: int, part: str) -> None:
        self._total, self._messages = total, messages
        self._progress(done, 2 * total, messages, part)

    def second(self, done: int, part: str) -> None:
        self._progress(self._total + done, 2 * self._total, self._messages, f"timeline: {part}")


def _judge(
    index: Index,
    records: ClusterRecords,
    known_runs: dict[bytes, ShardRun],
    loaded: Loaded,
    options: Options,
    tree: Tree,
) -> tuple[list[Finding], int]:
    """Apply the rules that need more than one file. Returns what they find, and how many witnesses are known.

    ``tree``: where a name is looked for once more.
    """
    newest, ledgers = loaded.newest, loaded.ledgers
    ceilings = ceiling_chains(index)
    policy = records.newest_policy
    for fact in head_facts(index):
        newest = later(newest, fact.token)
    for chain in ceilings.values():
        for each in chain.facts:
            newest = later(newest, each.token)
    coverage = Coverage.of(index, policy, newest)
    policies = Policies(records.widest)
    if policy:
        policies = Policies(records.widest, policy.number, known_until(loaded.policy_closed, policy.number))
    cluster = ClusterFacts(
        runs=known_runs,
        ceilings=ceilings,
        finished=frozenset(ledgers.stopped),
        maps=records.maps,
        policies=policies,
        coverage=coverage,
        closings=Closings(index.closings()),
    )
    if options.narrowing.domains:
        check_asked(options.narrowing, index.all_domains())
    in_columns = spread_suspects(index, lambda: Heads(head_facts(index), cluster), cluster, options.jobs)
    findings = [policies.judged(each.finding, each.signed_ns) for each in loaded.beyond_policy]
    findings += check_heads(head_facts(index), ceilings, policies)
    findings += check_ceilings(ceilings, policies)
    findings += check_layouts(ceilings, records.maps)
    if tree.names("shards"):
        findings += check_records_there(ceilings, lambda path: tree.hides(path) or tree.size(path) > 0)
    findings += (
        each
        for each in check_ledgers(head_facts(index), ceilings, ledgers, newest, known_runs)
        if not tree.hides(each.subject)
    )
    findings += check_sequences(index, coverage)
    sessions, notes = session_histories(index, known_runs), list[SessionNote]()
    domains = list(filter(options.narrowing.judges, index.domains()))
    findings += check_domains(DomainJudge(index, cluster, sessions), domains, options.jobs, notes)
    if options.narrowing.whole:  # of a session lease some leases alone say too little
        findings += check_sessions(sessions, notes, cluster)
    return findings, index.witnesses() + in_columns


def _gaps(run: ShardRun, *, torn: bool) -> int:
    """A torn last block is a gap, unless a later batch shows that gap already."""
    return run.gaps + (1 if torn and run.highest == run.ledger_end else 0)
