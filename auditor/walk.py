"""The walk over a tree: which parts there are, who reads them, and how they are put together.

Racks first, then ceiling chains, then ledgers: a lock file may name a trust record that is not there, and then no
unknown key is a forger's. From such a lock file on, every part means something else than by itself; a tree with one is
therefore read again, by one process, in order, and nothing of it is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.formats.paths import LOGS

from .bags import BagWalk
from .evidence.unknown_keys import Stranger, Strangers, take_latest
from .frames import FrameReader
from .index import PART_RANKS
from .parts import LedgerUnit, Part, PartRows, RackUnit, decode_part, encode_part
from .pool import default_jobs, in_order
from .rules.finding import Finding
from .seals import BagCounts, SealOrder
from .shards import ShardWalk
from .timeline.facts import RackFacts, ShardFacts
from .timeline.gathering import EventRows
from .timeline.timeline_writer import FIRST_RANK, LEDGER_RANK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from appliance.formats.paths import Grid, Rack
    from timeagent.signedtime import SignedTime

    from .columns.layout import Spool
    from .evidence.records import ClusterRecords
    from .evidence.signatures import Signatures
    from .evidence.tree import Tree
    from .index import Index
    from .parts import Narrowing, Unit
    from .rules.chains import LedgersSeen
    from .store import PartStore
    from .timeline.timeline_writer import TimelineWriter


class Doubted(Exception):
    """A lock file names a trust record that is not there."""


class PartReader:
    """Reads one unit after another. Each process has its own; they share nothing but what they were born with."""

    def __init__(
        self,
        tree: Tree,
        records: ClusterRecords,
        signatures: Signatures,
        *,
        spool: Spool | None = None,
        hashed: bool = True,
        timeline: bool = False,
    ) -> None:
        """Take where evidence comes from, and where columns wait. ``hashed``: hash all of data files and packs.

        ``timeline``: make events of what is read, too.
        """
        self._timeline = timeline
        self._spool = spool
        self._keep = spool.keep if spool else list
        self._hashed = hashed
        self.grids: dict[str, Grid] = {}
        """Of the logs that are read: known before the first rack is."""
        self._tree = tree
        self._records = records
        self._signatures = signatures
        self._frames = FrameReader(signatures, records.cluster_id)

    def read(self, unit: Unit) -> Part:
        """Read one part. Blocks; never raises for what is in it."""
        before = dict(self._tree.unreadable)
        part = self._rack(unit) if isinstance(unit, RackUnit) else self._ledger(unit)
        part.unreadable = {path: why for path, why in self._tree.unreadable.items() if path not in before}
        if self._spool:
            part.columns = self._spool.keep(part.columns)
        return part

    def read_encoded(self, unit: Unit) -> bytes:
        """Read one part, and return its bytes."""
        return encode_part(self.read(unit))

    def _rack(self, unit: RackUnit) -> Part:
        rows, findings = PartRows(), list[Finding]()
        told = EventRows()
        facts = RackFacts(self._tree, self._records, self._signatures, self._frames, told)
        bags = BagWalk(
            self._tree,
            self._records,
            self._signatures,
            self._frames,
            rows,
            findings.append,
            self._keep,
            hashed=self._hashed,
        )
        bags.tell(facts if self._timeline else None)
        grid = self.grids[unit.log]
        listing = self._tree.listing(grid, unit.rack)
        seal = bags.rack(grid, listing)
        return Part(
            findings=findings,
            rows=rows.rows(),
            columns=bags.columns.chunks(),
            timeline=told.chunks(),
            closed_to=rows.closed,
            newest=bags.newest.encode() if bags.newest else None,
            counts=bags.counts,
            trust_named=sorted(bags.trust_named),
            trust_closed=bags.trust_closed,
            policy_closed=bags.policy_closed,
            unknown_keys=bags.unknown_keys,
            beyond_policy=bags.beyond_policy,
            doubted=bags.doubted,
            has_seal=listing.sealed,
            seal=seal,
        )

    def _ledger(self, unit: LedgerUnit) -> Part:
        rows, findings = PartRows(), list[Finding]()
        told = EventRows()
        facts = ShardFacts(told) if self._timeline else None
        shards = ShardWalk(self._tree, self._records, self._signatures, rows, findings.append, self._keep, facts)
        shards.ledger(unit.file)
        ledgers = shards.ledgers
        return Part(
            findings=findings,
            rows=rows.rows(),
            columns=shards.columns.chunks(),
            timeline=told.chunks(),
            unknown_keys=shards.unknown_keys,
            torn=bool(shards.torn),
            stopped=bool(ledgers.stopped),
            damaged=bool(ledgers.damaged),
        )


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the walk came to, beside findings and index."""

    counts: BagCounts
    newest: SignedTime | None
    ledgers: LedgersSeen
    torn: set[bytes]
    """Runs whose last ledger file ends in a torn block."""
    policy_closed: dict[int, int]
    """By policy, when the last bag was closed, at the earliest, whose lock file names it."""
    beyond_policy: list[Stranger]
    """What no policy of the copy allows."""
    doubted: bool
    """Whether a lock file names a trust record that is not there."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a tree is read."""

    narrowing: Narrowing
    jobs: int = 1
    """How many processes read it; 0: as many as are worth it."""
    store: PartStore | None = None
    progress: Callable[[int, int, int, str], None] | None = None
    """Told how many parts are done, of how many, how many messages they held, and which was the last."""
    hashed: bool = True
    """Whether every byte of data files and packs is hashed."""
    events: bool = False
    """Whether parts hold events too."""
    timeline: TimelineWriter | None = None
    """Where these go to."""


class Walk:
    """One walk over a tree."""

    def __init__(
        self,
        tree: Tree,
        records: ClusterRecords,
        signatures: Signatures,
        index: Index,
        report: Callable[[Finding], None],
        way: Way,
    ) -> None:
        """Take where evidence comes from and findings go to."""
        self._tree = tree
        self._index = index
        self._report = report
        self._narrowing = way.narrowing
        self._jobs = way.jobs
        self._store = way.store
        self._progress = way.progress
        spool = None if way.store else index.spool  # what is kept for the next audit holds its columns itself
        self._timeline = way.timeline
        self._reader = PartReader(tree, records, signatures, spool=spool, hashed=way.hashed, timeline=way.events)
        frames = FrameReader(signatures, records.cluster_id)
        self._told = EventRows()
        """Events of births and chains."""
        facts = RackFacts(tree, records, signatures, frames, self._told), ShardFacts(self._told)
        births, chains = facts if way.timeline else (None, None)
        self._bags = BagWalk(tree, records, signatures, frames, index, report)
        self._bags.tell(births)
        self._shards = ShardWalk(tree, records, signatures, index, report, timeline=chains)
        self._strangers = Strangers(records, report)
        self._policy_closed: dict[int, int] = {}
        self._taken = 0
        self._doubted = False
        self._done = 0
        self._total = 0

    def run(self) -> Loaded:
        """Read everything. Raises Doubted where several processes, or an earlier run, may have read it differently."""
        logs = [(log, list(self._places(log))) for log in self._tree.logs()]
        for path in self._tree.barred(LOGS):
            self._bags.barred(path, path.removeprefix(f"{LOGS}/"))
        ledgers = [LedgerUnit(file) for file in self._tree.ledgers()]
        racks = [RackUnit(log, place) for log, places in logs for place in places if not isinstance(place, str)]
        self._total = len(racks) + len(ledgers)
        # One after the other from the same processes: who read the frames under a batch knows its signature already.
        parts = self._parts([*racks, *ledgers])
        for log, places in logs:
            self._log(log, places, parts)
        self._strangers.take(self._bags.unknown_keys, {}, ())  # births
        self._strangers.finish()
        self._shards.walk_chains()
        self._strangers.judge(self._shards.unknown_keys)
        for unit, part in zip(ledgers, parts, strict=True):
            self._take_ledger(unit, part)
        if self._timeline:
            self._timeline.take(self._told.chunks(), FIRST_RANK)
        if self._store:
            self._store.keep_only([*(unit.name for unit in racks), *(unit.name for unit in ledgers)])
        return Loaded(
            self._bags.counts,
            self._bags.newest,
            self._shards.ledgers,
            self._shards.torn,
            self._policy_closed,
            self._bags.beyond_policy,
            self._doubted,
        )

    def _places(self, log: str) -> Iterator[Rack | str]:
        """Yield a log's racks that are read; the path of each directory that is no rack."""
        if not self._narrowing.reads_log(log):
            self._bags.blind(log)
            return
        grid = self._bags.begin(log)
        if grid is None:
            return
        self._reader.grids[log] = grid
        for place in self._tree.rack_places(grid):
            if isinstance(place, str) or self._narrowing.reads_rack(place):
                yield place
            else:
                self._bags.pass_over(place)
        days = {path.rpartition("/")[0] for path in self._tree.unreadable if path.startswith(f"{grid.log_path}/")}
        for path in sorted({each for day in (grid.log_path, *days) for each in self._tree.barred(day)}):
            self._bags.barred(path, log)

    def _parts(self, units: Sequence[Unit]) -> Iterator[Part]:
        """Yield each unit's part, in order: from the store where nothing changed, else read."""
        states = {unit.name: self._store.state(self._tree, unit) for unit in units} if self._store else {}
        changed = [u for u in units if not self._store or not self._store.has(u.name, states[u.name])]
        fresh = self._read(changed)
        missing = {unit.name for unit in changed}
        for unit in units:
            if unit.name in missing:
                part = next(fresh)
                if self._store and not part.doubted:
                    self._store.keep(unit.name, states[unit.name], encode_part(part))
            else:
                assert self._store is not None
                part = self._store.get(unit.name)
            if part.doubted and (self._store or self._jobs != 1):
                raise Doubted
            self._doubted |= part.doubted
            self._done += 1
            if self._progress:
                self._progress(self._done, self._total, self._bags.counts.messages, unit.name)
            yield part

    def _read(self, units: Sequence[Unit]) -> Iterator[Part]:
        jobs = self._jobs or default_jobs(len(units))
        if jobs == 1:
            return map(self._reader.read, units)
        return map(decode_part, in_order(self._reader.read_encoded, units, jobs))

    def _log(self, log: str, places: list[Rack | str], parts: Iterator[Part]) -> None:
        grid = self._reader.grids.get(log)
        if grid is None:
            return
        order = SealOrder(self._tree, grid)
        for place in places:
            if isinstance(place, str):
                self._bags.off_grid(place)
                continue
            part = next(parts)
            self._take(RackUnit(log, place), part)
            self._bags.take(part)
            self._strangers.take(part.unknown_keys, part.trust_closed, part.trust_named)
            take_latest(self._policy_closed, part.policy_closed)
            self._bags.beyond_policy += part.beyond_policy
            for finding in order.take(place, part.seal, has_seal=part.has_seal):
                self._report(finding)

    def _take(self, unit: Unit, part: Part) -> None:
        for finding in part.findings:
            self._report(finding)
        self._tree.unreadable |= part.unreadable
        base = self._taken * PART_RANKS
        if isinstance(unit, LedgerUnit):
            base = -base
        self._index.take(part.rows, part.closed_to, base)
        self._index.take_chunks(part.columns, self._taken, base)
        if self._timeline:
            self._timeline.take(part.timeline, abs(base) + LEDGER_RANK * isinstance(unit, LedgerUnit))
        self._taken += 1

    def _take_ledger(self, unit: LedgerUnit, part: Part) -> None:
        self._take(unit, part)
        self._strangers.judge(part.unknown_keys)
        run = unit.file.incarnation
        self._shards.torn.discard(run)  # a torn block was written again, to the next file
        if part.torn:
            self._shards.torn.add(run)
        self._shards.ledgers.there.add(run)
        if part.stopped:
            self._shards.ledgers.stopped.add(run)
        if part.damaged:
            self._shards.ledgers.damaged.add(run)
