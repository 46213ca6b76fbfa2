"""The run: a tree in, a verdict out. Reads each file once, in a fixed order; the same bytes give the same verdict.

Racks first, then ceiling chains, then ledgers: a lock file may name a trust record that is not there, and then no
unknown key is a forger's. From such a lock file on, every part means something else than by itself; a tree with one is
therefore read again, by one process, in order, and nothing of it is kept.

What needs more than one file is judged when all are read: domains, session leases, writers and shards. Columns judge a
bucket of domains or writers at once; domains that they do not find clean are judged by the rules, one after another,
from the same columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from appliance.formats.paths import LOGS, Grid, Rack
from auditor.rules import suspects

from .columns.audit_file import (
    INDEX_ERRORS,
    Database,
    PartStore,
    close_index,
    environment,
    index_problem,
    keep_index,
    temporary_database,
    write_index,
)
from .columns.index import PART_RANKS, Coverage, Index
from .columns.layout import ENTRIES, FRAMES, USES
from .columns.parts import (
    PARTS,
    WHOLE,
    EvidenceSource,
    Narrowing,
    Part,
    Unit,
    check_asked,
    default_jobs,
    in_order,
)
from .evidence.finding import Evidence, Finding, found
from .evidence.finding import in_order as once_each
from .evidence.records import ClusterRecords, judge_strangers, load_records
from .evidence.signatures import PartialKeyring, Signatures
from .evidence.signers import doubted
from .evidence.tree import Tree
from .rules.bags import SealOrder
from .rules.chains import (
    check_ceilings,
    check_heads,
    check_ledgers,
    check_maps,
    check_phases,
    check_records_there,
    cluster_facts,
)
from .rules.endings import SessionNote, check_sessions, notes_of
from .rules.history import (
    Closings,
    ClusterFacts,
    SessionHistory,
    SessionName,
    ceiling_chains,
    domain_history,
    head_facts,
    session_histories,
)
from .rules.leases import check_domain
from .rules.records import Policies
from .rules.result import Audit, Summary, with_findings
from .rules.sequences import check_sequences
from .timeline.clocks import name_clocks
from .timeline.timeline_reader import Timeline
from .timeline.timeline_writer import (
    FIRST_RANK,
    LEDGER_RANK,
    EventRows,
    TimelineWriter,
    keep_timeline,
)
from .timeline.what_if import read_one_by_one
from .walk.bags import BagWalk, check_foreign
from .walk.facts import Facts
from .walk.shards import ShardWalk


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
    return _run(tree, root_key, signatures, options, progress)[0]


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

    Its states are folded when the first is asked for. ``findings``: stand in it instead of the audit's own.
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
    db, index = None if options.index_file is None else write_index(options.index_file), Index(spooling=True)
    try:
        state = environment(tree, root_key, hashed=options.hashed, timeline=options.timeline) if db else b""
        store = PartStore(db, state, reread=options.reread) if db else None
        into = own[0] if own else db if options.timeline and options.narrowing.whole else None
        staged = TimelineWriter(into, index) if into else None
        run = _AuditRun(tree, index, root_key, signatures or Signatures(), options, progress, store, staged)
        result = run.audit()
        if staged and run.whole.doubted:  # of a timeline ledgers come first, before anything is doubted
            told, staged = EventRows(), TimelineWriter(staged.db)
            read_one_by_one(tree, load_records(tree, run.signatures, root_key)[0], run.signatures, told)
            staged.take(told.encoded())
        if own and staged:
            return result, staged.write(result.findings if own[1] is None else own[1])
        if staged:
            keep_timeline(staged, result, run.records, state=run.store.digest() if run.store else None)
        if db:
            keep_index(db)
    except INDEX_ERRORS as problem:
        raise index_problem(options.index_file, problem) from None
    finally:
        if db is not None:
            close_index(db)  # what was read is kept, also of an audit that was interrupted
        index.close()
    return result, None


class Doubted(Exception):
    """A lock file names a trust record that is not there: several processes, or an earlier run, may have missed it."""


@dataclass(slots=True)
class _AuditRun:
    """One audit of a tree into an index: which parts there are, who reads them, and how they are put together."""

    tree: Tree
    index: Index
    root_key: bytes | None
    signatures: Signatures
    options: Options
    progress: Callable[[int, int, int, str], None] | None
    store: PartStore | None
    """Of what was read before; None too where nothing of this run may be kept."""
    staged: TimelineWriter | None
    """Where events go to."""
    whole: Part = field(default_factory=Part)
    records: ClusterRecords = field(init=False)
    _jobs: int = 1
    """As in ``options``, but one where it has to be read again."""
    _reading: EvidenceSource = field(init=False)
    _grids: dict[str, Grid] = field(default_factory=dict)
    """Of the logs that are read: known before the first rack is."""
    _taken: int = 0

    def audit(self) -> Audit:
        """Read the tree, and judge it."""
        try:
            self._load(self.options.jobs)
        except Doubted:
            self.index.clear()
            if self.staged:
                self.staged.clear()
            self.tree.unreadable.clear()
            self.store = None
            self._load(1)
        return self._concluded()

    def _load(self, jobs: int) -> None:
        """Read everything. Raises Doubted where several processes, or an earlier run, may have read it differently."""
        self.records, findings = load_records(self.tree, self.signatures, self.root_key)
        self._jobs, self._grids, self.whole, self._taken = jobs, {}, Part(findings=findings), 0
        # What is kept for the next audit holds its columns itself.
        spool, hashed = None if self.store else self.index.spool, self.options.hashed
        keep = spool.keep if spool else list
        self._reading = EvidenceSource(self.tree, self.records, self.signatures, hashed=hashed, keep=keep)
        births, told = Part(), EventRows()
        bags = BagWalk(self._reading, births, self._facts(told))
        logs = [(log, places) for log in self.tree.logs() if (places := list(self._places(log, bags)))]
        for path in self.tree.barred(LOGS):
            bags.barred(path.removeprefix(f"{LOGS}/"))
        units: list[Unit] = [place for _, places in logs for place in places if not isinstance(place, str)]
        units += self.tree.ledgers()
        if self.store:
            self.store.see_chains(self.tree)
        # One after the other from the same processes: who read the frames under a batch knows its signature already.
        parts = self._parts(units)
        for log, places in logs:
            order = SealOrder(self.tree, self._grids[log])
            for place in places:
                if isinstance(place, str):
                    bags.off_grid(place)
                else:
                    part = next(parts)
                    self._take(part, self._taken * PART_RANKS)
                    self.whole.findings += order.take(place, part.seal, has_seal=part.has_seal)
        self._take(births.done(), FIRST_RANK)
        whole = self.whole
        chains = Part()
        ShardWalk(self._reading, chains, self._facts(told)).walk_chains()
        self._take(chains.done(), FIRST_RANK)
        for part in parts:
            self._take(part, self._taken * PART_RANKS + LEDGER_RANK, -1)
        if self.staged:
            self.staged.take(told.encoded(), FIRST_RANK)
        whole.findings += judge_strangers(self.records, whole.unknown_keys, whole.trust_closed, whole.trust_named)
        if self.store and self.options.narrowing.whole:  # of the others nobody said that they are gone
            self.store.keep_only(unit.path for unit in units)

    def _facts(self, events: EventRows) -> Facts | None:
        return Facts(self._reading, events) if self.options.timeline else None

    def _places(self, log: str, bags: BagWalk) -> Iterator[Rack | str]:
        """Yield a log's racks that are read; the path of each directory that is no rack."""
        narrowing = self.options.narrowing
        if not narrowing.reads_log(log):
            bags.blind(log)
            return
        grid = bags.begin(log)
        if grid is None:
            return
        self._grids[log] = grid
        for place in self.tree.rack_places(grid):
            if isinstance(place, str) or narrowing.reads_rack(place):
                yield place
            else:
                bags.pass_over(place)
        days = {path.rpartition("/")[0] for path in self.tree.unreadable if path.startswith(f"{grid.log_path}/")}
        if any(self.tree.barred(day) for day in (grid.log_path, *days)):
            bags.barred(log)

    def _parts(self, units: Sequence[Unit]) -> Iterator[Part]:
        """Yield each unit's part, in order: from the store where nothing changed, else read."""
        store, progress = self.store, self.progress
        states = {unit.path: store.state(self.tree, unit) for unit in units} if store else {}
        changed = [unit for unit in units if not store or not store.has(unit.path, states[unit.path])]
        jobs = self._jobs or default_jobs(len(changed))
        read = in_order(lambda unit: msgspec.msgpack.encode(self._part(unit)), changed, jobs) if jobs != 1 else None
        fresh = map(self._part, changed) if read is None else map(PARTS.decode, read)
        missing = {unit.path for unit in changed}
        for done, unit in enumerate(units, 1):
            if unit.path in missing:
                part = next(fresh)
                if store and not part.doubted:
                    store.keep(unit.path, states[unit.path], msgspec.msgpack.encode(part))
            else:
                assert store is not None
                part = store.get(unit.path)
            if part.doubted and (store or self._jobs != 1):
                raise Doubted
            if progress:
                progress(done, len(units), self.whole.counts.messages, unit.path)
            yield part

    def _part(self, unit: Unit) -> Part:
        """Read one part, in any process. Blocks; never raises for what is in it."""
        before, told, events = len(self.tree.unreadable), Part(), EventRows()
        if isinstance(unit, Rack):
            grid = self._grids[unit.log]
            listing = self.tree.listing(grid, unit)
            bags = BagWalk(self._reading, told, self._facts(events))
            told.has_seal, told.seal = listing.sealed, bags.rack(grid, listing)
            columns = bags.frames.chunks()
        else:
            shards = ShardWalk(self._reading, told, self._facts(events))
            shards.ledger(unit)
            columns = shards.chunks()
        told.columns, told.timeline = self._reading.keep(columns), events.encoded()
        found = reversed(self.tree.unreadable.items())  # the newest first: all before may be many
        told.unreadable = dict([*itertools.islice(found, len(self.tree.unreadable) - before)][::-1])
        return told.done()

    def _take(self, part: Part, event_rank: int, sign: int = 1) -> None:
        """Add the next part. ``event_rank``: added to the ranks of its events; ``sign``: of those of its rows."""
        self.whole.take(part)
        for path, why in part.unreadable.items():
            self.tree.unreadable[path] = why
        self.index.take(part, sign * self._taken * PART_RANKS)
        if self.staged:
            self.staged.take(part.timeline, event_rank)
        self._taken += 1

    def _concluded(self) -> Audit:
        """Judge what was read."""
        records, counts, torn = self.records, self.whole.counts, self.whole.ledgers.torn
        cluster = self._known()
        judged, witnesses = self._judged(cluster)
        findings = [*self.whole.findings, *judged, *check_foreign(self.tree)]
        findings += [
            found("unreadable", path, f"{path}: {why}", [Evidence(path)]) for path, why in self.tree.unreadable.items()
        ]
        stale = max((fact.token.staleness_ns for fact in cluster.heads.values()), default=0)
        if records.keys is None or isinstance(records.keys, PartialKeyring):
            findings = list(doubted(findings, self.tree, records.keys))
        ordered = once_each(list(name_clocks(findings, self.tree, records, self.signatures, stale)))
        known = cluster.runs
        # A torn last block is a gap, unless a later batch shows that gap already.
        cut_off = {each for each in torn & known.keys() if known[each].highest == known[each].ledger_end}
        summary = Summary(
            messages=counts.messages,
            rejected=counts.rejected,
            bags=counts.bags,
            witnesses=witnesses,
            provisional=counts.provisional,
            ledger_gaps=sum(len(run.gaps) for run in known.values()) + len(torn - known.keys() | cut_off),
        )
        root = records.root.public if records.root else None
        return with_findings(Audit(summary, (), records.cluster_id, root, records.pinned, self.options.hashed), ordered)

    def _known(self) -> ClusterFacts:
        """Put together what rules need that look at more than one file."""
        index, records, whole = self.index, self.records, self.whole
        heads, ceilings = head_facts(index), ceiling_chains(index)
        of_ceilings = (each.token for every in ceilings.values() for each in every.facts)
        for token in itertools.chain((fact.token for fact in heads.values()), of_ceilings):
            whole.saw(token)
        policies = Policies.of(records, whole.policy_closed)
        coverage, closings = Coverage.of(index, records.newest_policy, whole.latest), Closings(index.closings())
        return cluster_facts(heads, ceilings, records, whole.ledgers, policies, coverage, closings)

    def _judged(self, cluster: ClusterFacts) -> tuple[list[Finding], int]:
        """Apply the rules that need more than one file. Returns what they find, and how many witnesses are known."""
        index, tree, narrowing, policies = self.index, self.tree, self.options.narrowing, cluster.policies
        facts, ceilings, whole = cluster.heads.values(), cluster.ceilings, self.whole
        if narrowing.domains:
            check_asked(narrowing, index.all_domains())
        sessions = session_histories(index, cluster)
        seen = judge_buckets(index, cluster, sessions, narrowing, self.options.jobs)
        findings = [policies.judged(each.finding, each.signed_ns) for each in whole.beyond_policy]
        findings += check_heads(facts, ceilings, policies)
        findings += check_ceilings(ceilings, policies)
        findings += check_phases(facts, ceilings, self.records)
        findings += check_maps(cluster.maps)
        if tree.names("shards"):
            findings += check_records_there(ceilings, lambda path: tree.hides(path) or tree.size(path) > 0)
        of_ledgers = check_ledgers(facts, ceilings, whole.ledgers, whole.latest, cluster.runs)
        findings += (each for each in of_ledgers if not tree.hides(each.subject))
        findings += seen.findings
        if narrowing.whole:  # of a session lease some leases alone say too little
            findings += check_sessions(sessions, seen.notes, cluster)
        return findings, seen.witnesses + sum(len(session.told) for session in sessions.values())


_WORTH_IT: Final = 2_000_000
"""With fewer bytes of columns than this, other processes are not asked."""


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
    heads = suspects.Heads(cluster)
    session_columns = suspects.SessionColumns(sessions, heads)

    def judged(number: int) -> bytes:
        entries, uses = (index.bucket(kind, number) for kind in (ENTRIES, USES))
        suspect, witnesses = suspects.judge_domains(entries, uses, heads, session_columns, cluster)
        del entries, uses
        seen = BucketSeen(witnesses=witnesses)
        seen.findings += check_sequences(index.bucket(FRAMES, number), cluster.coverage)
        asked = set(suspect) - {""}
        for rows in index.rows_of(number, asked) if asked else ():
            history = domain_history(rows, cluster, sessions)
            seen.witnesses += sum(len(lease.told) for lease in history.leases)
            if narrowing.judges(rows.domain):
                seen.notes += notes_of(history)
                seen.findings += check_domain(history, cluster)
        return msgspec.msgpack.encode(seen)

    filled, whole = index.buckets(), BucketSeen()
    jobs = 1 if index.column_bytes() < _WORTH_IT else jobs or default_jobs(len(filled))
    for answer in map(judged, filled) if jobs == 1 else in_order(judged, filled, jobs):
        seen = msgspec.msgpack.decode(answer, type=BucketSeen)
        whole.findings += seen.findings
        whole.notes += seen.notes
        whole.witnesses += seen.witnesses
    return whole
