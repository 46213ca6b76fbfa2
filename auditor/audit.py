"""The run: a tree in, a verdict out. Reads each file once, in a fixed order; the same bytes give the same verdict.

Racks first, then ceiling chains, then ledgers: a lock file may name a trust record that is not there, and then no
unknown key is a forger's. From such a lock file on, every part means something else than by itself; a tree with one is
therefore read again, by one process, in order, and nothing of it is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from appliance.formats.paths import LOCK, LOGS, MARKER, SEAL, Grid, Rack
from timeagent.errors import BadRequest, Environment

from .bags import BagWalk, check_foreign
from .columns.layout import Spool
from .evidence.records import ClusterRecords, judge_strangers, load_records, missing_trust
from .evidence.signatures import Signatures
from .evidence.tree import LedgerFile, Tree
from .index import INDEX_ERRORS, PART_RANKS, Database, Index, close_index, temporary_database, write_index
from .judging import judge
from .parts import (
    WHOLE,
    EvidenceSource,
    Narrowing,
    Part,
    PartMaker,
    Unit,
    decode_part,
    encode_part,
)
from .pool import default_jobs, in_order
from .report.result import Audit, Summary, with_findings
from .rules.clocks import name_clocks
from .rules.finding import Evidence, Finding, found
from .rules.finding import in_order as once_each
from .rules.history import ShardRun, head_facts, runs
from .seals import SealOrder
from .shards import ShardWalk
from .timeline.facts import RackFacts, ShardFacts
from .timeline.timeline_reader import Timeline
from .timeline.timeline_writer import (
    FIRST_RANK,
    LEDGER_RANK,
    EventRows,
    TimelineWriter,
    keep_timeline,
    written_timeline,
)
from .timeline.what_if import read_one_by_one

COMMIT_BYTES: Final = 32 * 1024 * 1024
"""So much may be lost when the audit is killed; an interrupt loses nothing."""
_SMALL_BYTES: Final = 64 * 1024 * 1024
_PACKAGES: Final = ("auditor", "appliance/formats", "timeagent")
CHECKSUM_BYTES: Final = 16


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
    db, index = None if options.index_file is None else write_index(options.index_file), Index(spooling=True)
    try:
        store = None
        if db is not None:
            state = environment(tree, root_key, hashed=options.hashed, timeline=options.timeline)
            store = PartStore(db, state, reread=options.reread)
        staged = None
        into = own[0] if own else db if options.timeline and options.narrowing.whole else None
        if into is not None:
            staged = TimelineWriter(into, index)
        run = _AuditRun(tree, index, root_key, signatures or Signatures(), options, progress, store, staged)
        result = run.audit()
        if staged is None:
            return result, None
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
    doubted: bool = False
    """Whether a lock file names a trust record that is not there."""
    records: ClusterRecords = field(init=False)
    _jobs: int = field(init=False)
    """How many processes read it; 0: as many as are worth it."""
    _spool: Spool | None = field(init=False)
    _reading: EvidenceSource = field(init=False)
    _grids: dict[str, Grid] = field(init=False)
    """Of the logs that are read: known before the first rack is."""
    _whole: Part = field(init=False)
    _taken: int = field(init=False)

    def audit(self) -> Audit:
        """Read the tree, and judge it."""
        try:
            whole = self._load(self.options.jobs)
        except Doubted:
            self.index.clear()
            if self.staged:
                self.staged.clear()
            self.tree.unreadable.clear()
            self.store = None
            whole = self._load(1)
        self.doubted = whole.doubted
        return self._concluded(whole)

    def _load(self, jobs: int) -> Part:
        """Read everything. Raises Doubted where several processes, or an earlier run, may have read it differently."""
        self.records, findings = load_records(self.tree, self.signatures, self.root_key)
        self._jobs, self._grids, self._whole, self._taken = jobs, {}, Part(), 0
        # What is kept for the next audit holds its columns itself.
        self._spool = None if self.store else self.index.spool
        keep = self._spool.keep if self._spool else list
        hashed = self.options.hashed
        self._reading = EvidenceSource(self.tree, self.records, self.signatures, hashed=hashed, keep=keep)
        self._walk()
        self._whole.findings += findings
        return self._whole

    def _walk(self) -> None:
        whole, tree = self._whole, self.tree
        births, told = PartMaker(), EventRows()
        bags = BagWalk(self._reading, births, self._rack_facts(told))
        logs = [(log, list(self._places(log, bags))) for log in tree.logs()]
        for path in tree.barred(LOGS):
            bags.barred(path.removeprefix(f"{LOGS}/"))
        units: list[Unit] = [place for _, places in logs for place in places if not isinstance(place, str)]
        units += tree.ledgers()
        # One after the other from the same processes: who read the frames under a batch knows its signature already.
        parts = self._parts(units)
        for log, places in logs:
            self._log(log, places, parts, bags)
        self._take(births.done(), FIRST_RANK)
        if whole.unknown_keys and missing_trust(self.records, whole.trust_named):
            self.records.doubt_keys()
        chains = PartMaker()
        ShardWalk(self._reading, chains, self._shard_facts(told)).walk_chains()
        self._take(chains.done(), FIRST_RANK)
        for part in parts:
            self._take(part, self._taken * PART_RANKS + LEDGER_RANK, -1)
        if self.staged:
            self.staged.take(told.chunks(), FIRST_RANK)
        whole.findings += judge_strangers(self.records, whole.unknown_keys, whole.trust_closed, whole.trust_named)
        if self.store:
            self.store.keep_only(unit.path for unit in units)

    def _rack_facts(self, told: EventRows) -> RackFacts | None:
        return RackFacts(self._reading, told) if self.options.timeline else None

    def _shard_facts(self, told: EventRows) -> ShardFacts | None:
        return ShardFacts(told) if self.options.timeline else None

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
        fresh = self._fresh(changed)
        missing = {unit.path for unit in changed}
        for done, unit in enumerate(units, 1):
            if unit.path in missing:
                part = next(fresh)
                if store and not part.doubted:
                    store.keep(unit.path, states[unit.path], encode_part(part))
            else:
                assert store is not None
                part = store.get(unit.path)
            if part.doubted and (store or self._jobs != 1):
                raise Doubted
            if progress:
                progress(done, len(units), self._whole.counts.messages, unit.path)
            yield part

    def _fresh(self, units: Sequence[Unit]) -> Iterator[Part]:
        jobs = self._jobs or default_jobs(len(units))
        if jobs == 1:
            return map(self._part, units)
        return map(decode_part, in_order(self._encoded, units, jobs))

    def _encoded(self, unit: Unit) -> bytes:
        return encode_part(self._part(unit))

    def _part(self, unit: Unit) -> Part:
        """Read one part, in any process. Blocks; never raises for what is in it."""
        before, told, events = dict(self.tree.unreadable), PartMaker(), EventRows()
        if isinstance(unit, Rack):
            grid = self._grids[unit.log]
            listing = self.tree.listing(grid, unit)
            bags = BagWalk(self._reading, told, self._rack_facts(events))
            told.part.has_seal, told.part.seal = listing.sealed, bags.rack(grid, listing)
            columns = bags.frames.chunks()
        else:
            shards = ShardWalk(self._reading, told, self._shard_facts(events))
            shards.ledger(unit)
            columns = shards.chunks()
        part = told.done(self._spool.keep(columns) if self._spool else columns, events.chunks())
        part.unreadable = {path: why for path, why in self.tree.unreadable.items() if path not in before}
        return part

    def _log(self, log: str, places: list[Rack | str], parts: Iterator[Part], bags: BagWalk) -> None:
        if log not in self._grids:
            return
        order = SealOrder(self.tree, self._grids[log])
        for place in places:
            if isinstance(place, str):
                bags.off_grid(place)
                continue
            part = next(parts)
            self._take(part, self._taken * PART_RANKS)
            self._whole.findings += order.take(place, part.seal, has_seal=part.has_seal)

    def _take(self, part: Part, event_rank: int, sign: int = 1) -> None:
        """Add the next part. ``event_rank``: added to the ranks of its events; ``sign``: of those of its rows."""
        self._whole.take(part)
        self.tree.unreadable |= part.unreadable
        self.index.take(part, sign * self._taken * PART_RANKS)
        if self.staged:
            self.staged.take(part.timeline, event_rank)
        self._taken += 1

    def _concluded(self, whole: Part) -> Audit:
        """Judge what was read."""
        tree, records, counts, torn = self.tree, self.records, whole.counts, whole.ledgers.torn
        heads = head_facts(self.index)
        known = runs(heads.values())
        judged, witnesses = judge(
            self.index, records, heads, known, whole, tree, self.options.narrowing, self.options.jobs
        )
        findings = [*whole.findings, *judged, *check_foreign(tree)]
        findings += [
            found("unreadable", path, f"{path}: {why}", [Evidence(path)]) for path, why in tree.unreadable.items()
        ]
        ordered = tuple(once_each(list(name_clocks(findings, tree, records, self.signatures))))
        summary = Summary(
            messages=counts.messages,
            rejected=counts.rejected,
            bags=counts.bags,
            witnesses=witnesses,
            provisional=counts.provisional,
            ledger_gaps=sum(_gaps(run, torn=run.incarnation in torn) for run in known.values())
            + len(torn - known.keys()),
        )
        root = records.root.public if records.root else None
        return with_findings(Audit(summary, (), records.cluster_id, root, records.pinned, self.options.hashed), ordered)


def _gaps(run: ShardRun, *, torn: bool) -> int:
    """A torn last block is a gap, unless a later batch shows that gap already."""
    return run.gaps + (1 if torn and run.highest == run.ledger_end else 0)


# Parts that an earlier run has read, kept beside the index: a second run reads again only what changed.


class PartStore:
    """The parts in an index file.

    What a part was read from is named by what is below its directory: name, size, identity, times of change of each
    file, the names of directories, and the contents of lock files and seals. Copying a file, or writing to it, changes
    that; whoever can change a file's contents and hide it from the file system deceives a second run, so that
    ``--reread`` reads everything. All parts are forgotten when the cluster's records are others, or the judge itself.
    """

    def __init__(self, db: Database, environment: bytes, *, reread: bool = False) -> None:
        """Take the file of an audit. ``environment``: what every part depends on; ``reread``: believe no part."""
        self._db = db
        self._db.execute("CREATE TABLE IF NOT EXISTS part (unit TEXT PRIMARY KEY, state BLOB, part BLOB)")
        self._db.execute("CREATE TABLE IF NOT EXISTS environment (digest BLOB)")
        known = [row[0] for row in self._db.execute("SELECT digest FROM environment")]
        if reread or known != [environment]:
            self._db.execute("DELETE FROM part")
            self._db.execute("DELETE FROM environment")
            self._db.execute("INSERT INTO environment VALUES (?)", (environment,))
        self._states = dict(self._db.execute("SELECT unit, state FROM part"))
        self._waiting = 0
        self._environment = environment
        self._asked: dict[str, bytes] = {}
        self.taken = 0
        """How many parts were not read again."""

    @staticmethod
    def state(tree: Tree, unit: Unit) -> bytes:
        """Return a digest of what the unit is read from."""
        paths = [unit.path] if isinstance(unit, LedgerFile) else sorted(tree.below(unit.path))
        state = hashlib.sha256()
        for path in paths:
            known = "" if path.endswith("/") else tree.identity(path)  # a directory is what is in it
            state.update(f"{path}\0{known}\0".encode())
            if path.endswith((f"/{LOCK}", f"/{SEAL}")):
                state.update(hashlib.sha256(tree.read(path, _SMALL_BYTES) or b"").digest())
        return state.digest()

    def has(self, name: str, state: bytes) -> bool:
        """Whether a unit was read in this state."""
        self._asked[name] = state
        return self._states.get(name) == state

    def digest(self, tree: Tree) -> bytes:
        """Return a digest of all that was asked for, of what it depends on, and of the ceiling chains."""
        whole = hashlib.sha256(self._environment)
        for name, state in sorted(self._asked.items()):
            whole.update(f"{name}\0".encode() + state)
        for file in tree.chains():
            whole.update(f"{file.path}\0{tree.identity(file.path)}\0".encode())
        return whole.digest()

    def get(self, name: str) -> Part:
        """Return a part that it has. Raises BadRequest where the file was damaged."""
        self.taken += 1
        try:
            ((raw,),) = self._db.execute("SELECT part FROM part WHERE unit = ?", (name,))
            assert isinstance(raw, bytes)
            if _checksum(raw[CHECKSUM_BYTES:]) != raw[:CHECKSUM_BYTES]:
                raise ValueError("its checksum does not match")  # noqa: TRY301 - caught with all that is wrong with a part
            return decode_part(raw[CHECKSUM_BYTES:])
        except ValueError as problem:
            raise BadRequest(
                "not-an-index", f"the index holds no part {name}: {problem}", hint="remove it, and audit again"
            ) from None

    def keep(self, name: str, state: bytes, part: bytes) -> None:
        """Keep a part. Whatever is kept survives an interrupt."""
        self._db.execute("INSERT OR REPLACE INTO part VALUES (?, ?, ?)", (name, state, _checksum(part) + part))
        self._waiting += len(part)
        if self._waiting >= COMMIT_BYTES:
            self.commit()

    def commit(self) -> None:
        """Make sure that what is kept is in the file."""
        self._db.execute("COMMIT")
        self._db.execute("BEGIN IMMEDIATE")
        self._waiting = 0

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget parts of what is not in the tree any more."""
        for name in self._states.keys() - set(names):
            self._db.execute("DELETE FROM part WHERE unit = ?", (name,))


def _checksum(part: bytes) -> bytes:
    """Return what a part begins with in the file: bits of a database change, and it does not say so."""
    return hashlib.sha256(part).digest()[:CHECKSUM_BYTES]


def environment(tree: Tree, root_key: bytes | None, *, hashed: bool = True, timeline: bool = False) -> bytes:
    """Return a digest of what every part depends on: the cluster's records, the pinned root key, and the judge.

    ``hashed``: whether every byte was hashed; ``timeline``: whether parts hold events.
    """
    state = hashlib.sha256((root_key or b"none") + (b"" if hashed else b" unhashed"))
    state.update(b" timeline" if timeline else b"")
    place = Path(__file__).parents[1]
    for package in _PACKAGES:
        for file in sorted((place / package).rglob("*.py")):
            state.update(hashlib.sha256(file.read_bytes()).digest())
    for path in (MARKER, *sorted(path for each in ("policy", "trust", "map") for path in tree.files_below(each))):
        state.update(path.encode() + b"\0")
        state.update(hashlib.sha256(tree.read(path, _SMALL_BYTES) or b"").digest())
    for log in tree.logs():
        state.update(hashlib.sha256(tree.read(f"logs/{log}/log", _SMALL_BYTES) or b"").digest())
    return state.digest()
