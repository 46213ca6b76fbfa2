"""The run: a tree in, a verdict out. Reads each file once, in a fixed order; the same bytes give the same verdict."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from timeagent.errors import Environment

from .chains import ceiling_chains, head_facts, runs
from .columns.suspects import spread_suspects
from .evidence.records import ClusterRecords, load_records
from .evidence.signatures import Signatures
from .evidence.stray_files import check_foreign
from .evidence.unknown_keys import known_until
from .index import INDEX_ERRORS, Coverage, Index, later, temporary_database
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
from .timeline.gathering import EventRows
from .timeline.timeline_writer import TimelineWriter, keep_timeline, written_timeline
from .timeline.what_if import read_one_by_one
from .walk import Doubted, Walk, Way

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .chains import ShardRun
    from .evidence.tree import Tree
    from .rules.finding import Finding
    from .timeline.checkpoints import Database
    from .timeline.timeline_reader import Timeline
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
    return _run(tree, root_key, signatures, options, progress, None)[0]


def audit_with_timeline(
    tree: Tree,
    *,
    root_key: bytes | None = None,
    signatures: Signatures | None = None,
    options: Options = _DEFAULT,
    findings: Sequence[Finding] | None = None,
    progress: Callable[[int, int, int, str], None] | None = None,
) -> tuple[Audit, Timeline]:
    """Audit a whole tree; return its timeline too, in a database of its own that is gone when it is closed.

    Its states are folded when the first is asked for.

    ``findings``: are placed in time instead of the audit's own. Else as ``audit``.
    """
    db = temporary_database()
    result, timeline = _run(tree, root_key, signatures, replace(options, timeline=True), progress, (db, findings))
    assert timeline is not None
    return result, timeline


def _run(
    tree: Tree,
    root_key: bytes | None,
    signatures: Signatures | None,
    options: Options,
    progress: Callable[[int, int, int, str], None] | None,
    own: tuple[Database, Sequence[Finding] | None] | None = None,
) -> tuple[Audit, Timeline | None]:
    """Audit. ``own``: where a timeline of its own goes, and the findings in it."""
    index = Index(options.index_file, shared=options.jobs != 1, spooling=True)
    try:
        store = None
        if options.index_file is not None:
            state = environment(tree, root_key, hashed=options.hashed, timeline=options.timeline)
            store = PartStore(index, state, reread=options.reread)
        staged = None
        if own or (options.timeline and store and options.narrowing.whole):
            staged = TimelineWriter(own[0] if own else index.db, index)
        run = _AuditRun(tree, index, root_key, signatures or Signatures(), options, progress, store, staged)
        result = run.audit()
        if staged is None:
            return result, None
        index.resume()
        if run.doubted:  # of a timeline ledgers come first, before anything is doubted
            told, staged = EventRows(), TimelineWriter(staged.db)
            read_one_by_one(tree, load_records(tree, run.signatures, root_key)[0], run.signatures, told)
            staged.take(told.chunks())
        if own:
            return result, written_timeline(staged, result.findings if own[1] is None else own[1])
        keep_timeline(staged, result, run.records, state=run.store.digest(tree) if run.store else None)
    except INDEX_ERRORS as problem:
        raise Environment(
            "index-failed",
            f"the index {options.index_file or 'of this audit'} failed: {problem}",
            hint="make room on the disk, or name another place (--db, or TMPDIR); remove the file if it was damaged",
        ) from None
    finally:
        index.close()  # what was read is kept, also of an audit that was interrupted
    return result, None


@dataclass(slots=True)
class _AuditRun:
    """One audit of a tree into an index."""

    tree: Tree
    index: Index
    root_key: bytes | None
    signatures: Signatures
    options: Options
    progress: Callable[[int, int, int, str], None] | None
    store: PartStore | None
    """Of what was read before; None too where nothing of this run may be kept."""
    staged: TimelineWriter | None
    records: ClusterRecords = field(init=False)
    doubted: bool = False
    """Whether a lock file names a trust record that is not there."""

    def audit(self) -> Audit:
        """Read the tree, and judge it."""
        findings: list[Finding] = []
        try:
            loaded = self._load(findings, self.options.jobs)
        except Doubted:
            self.index.clear()
            if self.staged:
                self.staged.clear()
            self.tree.unreadable.clear()
            self.store = None
            loaded = self._load(findings, 1)
        self.index.ready()
        self.doubted = loaded.doubted
        return _concluded(self, loaded, findings)

    def _load(self, findings: list[Finding], jobs: int) -> Loaded:
        self.records, found_records = load_records(self.tree, self.signatures, self.root_key)
        findings[:] = found_records
        way = Way(
            self.options.narrowing,
            jobs,
            self.store,
            self.progress,
            hashed=self.options.hashed,
            events=self.options.timeline,
            timeline=self.staged,
        )
        return Walk(self.tree, self.records, self.signatures, self.index, findings.append, way).run()


def _concluded(run: _AuditRun, loaded: Loaded, findings: list[Finding]) -> Audit:
    """Judge what was read. ``findings``: of what was read by itself."""
    tree, index, records = run.tree, run.index, run.records
    known_runs = runs(index)
    judged, witnesses = _judge(index, records, known_runs, loaded, run.options, tree)
    findings += judged
    findings += check_foreign(tree)
    findings += [found("unreadable", path, f"{path}: {why}", [Evidence(path)]) for path, why in tree.unreadable.items()]
    ordered = tuple(in_order(list(name_clocks(findings, tree, records, run.signatures))))
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
    return with_findings(Audit(summary, (), records.cluster_id, root, records.pinned, run.options.hashed), ordered)


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
    facts = list(head_facts(index))
    for fact in facts:
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
    sessions, notes = session_histories(index, known_runs), list[SessionNote]()
    in_columns = spread_suspects(index, facts, sessions, cluster, options.jobs)
    findings = [policies.judged(each.finding, each.signed_ns) for each in loaded.beyond_policy]
    findings += check_heads(facts, ceilings, policies)
    findings += check_ceilings(ceilings, policies)
    findings += check_layouts(ceilings, records.maps)
    if tree.names("shards"):
        findings += check_records_there(ceilings, lambda path: tree.hides(path) or tree.size(path) > 0)
    findings += (
        each for each in check_ledgers(facts, ceilings, ledgers, newest, known_runs) if not tree.hides(each.subject)
    )
    findings += check_sequences(index, coverage)
    domains = list(filter(options.narrowing.judges, index.domains()))
    findings += check_domains(DomainJudge(index, cluster, sessions), domains, options.jobs, notes)
    if options.narrowing.whole:  # of a session lease some leases alone say too little
        findings += check_sessions(sessions, notes, cluster)
    return findings, index.witnesses() + in_columns


def _gaps(run: ShardRun, *, torn: bool) -> int:
    """A torn last block is a gap, unless a later batch shows that gap already."""
    return run.gaps + (1 if torn and run.highest == run.ledger_end else 0)
