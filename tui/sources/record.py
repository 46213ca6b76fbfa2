"""A copied tree, read as a whole: its audit and its timeline, and the state at any instant that it tells of.

Reading is one question that is answered once; until then a state says how far it is. What is shown of an instant is
what the auditor's replay says of it, in the screens' own values.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from appliance.bag.survey import ClosingState
from appliance.formats.ceiling import CeilingKind
from appliance.formats.shardmap import shard_number
from auditor.evidence.opening import open_tree
from auditor.evidence.tree import Tree
from auditor.rules.finding import Finding, Verdict
from auditor.timeline.making import make_index
from auditor.timeline.state import BagPhase, DomainState, LeaseState, LogState, StateAt
from auditor.timeline.state import BagState as RecordedBag
from auditor.timeline.timeline_reader import open_audited
from timeagent.clock import MachineClock
from timeagent.console import counted, printable
from timeagent.errors import Environment, TenureError
from timeagent.interval import TimeInterval
from timeagent.units import DAY, Instant, Span

from ..feed import AskedQuestion
from ..model.state import (
    NOT_ASKED,
    AuditedCopy,
    BagCell,
    ClockView,
    ClusterState,
    Freshness,
    LeaseOrigin,
    LeaseRow,
    LeaseRows,
    LogView,
    NodeClock,
    NodeView,
    Reach,
    ShardView,
    ViewKind,
    newest_bags,
)
from ..model.subjects import DetailLine, PlaceSubject, Subject
from .record_details import record_details

BAR_CELLS: Final = 20
CELLS_MAX: Final = 100_000
"""So many bags of a log are shown, the newest, those that nobody wrote to among them."""

_BAG_STATES: Final = {
    BagPhase.OPEN: ClosingState.OPEN,
    BagPhase.DUE: ClosingState.OPEN,
    BagPhase.CLOSING: ClosingState.CLOSING,
    BagPhase.CLOSED: ClosingState.CLOSED,
    BagPhase.SEALED: ClosingState.SEALED,
    BagPhase.PACKED: ClosingState.SEALED,
}


class RecordSource:
    """A StateSource over a copied tree. Made without touching it."""

    def __init__(self, path: Path | None, machine: MachineClock, index_file: Path | None = None) -> None:
        """Read nothing yet. ``index_file``: where the audit keeps what it has read; without a path, all there is."""
        self._copy = path
        self._index_file = index_file
        self._path = str(path if path is not None else index_file)
        self._machine = machine
        self.reading = AskedQuestion("record", DAY, machine, self._ask)
        self._words = "reading the copy"
        self._lock = threading.Lock()
        self._last: tuple[Instant, ClusterState] | None = None

    def questions(self) -> Sequence[AskedQuestion[AuditedCopy]]:
        return [self.reading]

    def _ask(self) -> AuditedCopy:
        """Read tree, audit and timeline, once. Blocks as long as it takes."""
        if self.reading.answer is not None:
            return self.reading.answer
        if self._copy is None:
            assert self._index_file is not None
            return self._indexed(None, self._index_file)
        tree = open_tree(self._copy)
        if self._index_file is not None:
            make_index(self._copy, self._index_file, self._step)
            return self._indexed(tree, self._index_file)
        try:
            # Gone as soon as it is open: nothing is left behind, however this program ends.
            with TemporaryDirectory(prefix="tenure-top-") as directory:
                make_index(self._copy, Path(directory) / "index", self._step)
                return self._indexed(tree, Path(directory) / "index")
        except OSError as problem:
            raise Environment(
                "no-room", f"no index can be made: {problem}", hint="name a file for it with --db, or set TMPDIR"
            ) from None

    @staticmethod
    def _indexed(tree: Tree | None, index_file: Path) -> AuditedCopy:
        kept = open_audited(index_file)
        return AuditedCopy(tree, kept.audit, kept.timeline, kept.policy)

    def _step(self, done: int, total: int, messages: int, part: str) -> None:
        del part
        filled = BAR_CELLS * done // max(1, total)
        bar = "#" * filled + "." * (BAR_CELLS - filled)
        self._words = f"reading the copy [{bar}] {done:,} of {total:,} parts, {messages:,} messages"

    @property
    def record(self) -> AuditedCopy | None:
        """What was read; None: it is not read yet."""
        return self.reading.answer

    def state_at(self, instant: Instant | None = None) -> ClusterState:
        """Return what the copy tells of an instant; None: of its end. The same value where nothing is new."""
        record = self.record
        if record is None:
            now = TimeInterval.around(self._machine.realtime_ns(), 0)
            clock = ClockView(now, bounded=False, source="none", status="unknown", assumed=False, problem="a copy")
            error = self.reading.error
            reading = Freshness(Reach.WAITING, problem=self._words)  # however long it takes
            mount = reading if error is None else Freshness(Reach.SILENT, None, 0, error.message)
            return ClusterState(self._path, clock, mount, view=ViewKind.RECORD)
        timeline = record.timeline
        at = timeline.end_ns if instant is None else max(timeline.start_ns, min(instant, timeline.end_ns))
        with self._lock:
            if self._last is None or self._last[0] != at:
                self._last = at, _state(record, self._path, at)
            return self._last[1]

    def details(self, subject: Subject, instant: Instant | None = None) -> Sequence[DetailLine]:
        """Return what the copy tells of a subject, as of an instant. Reads the copy."""
        record = self.record
        if record is None:
            raise self.reading.error or TenureError("not-read", "the copy is still being read")
        at = record.timeline.end_ns if instant is None else instant
        return record_details(record, self.state_at(instant), subject, at)


def _state(record: AuditedCopy, path: str, at: Instant) -> ClusterState:
    state, policy = record.timeline.state_at(at), record.policy
    after = policy.takeover_ns() - policy.lease_term_max_ns
    clocks = tuple(_clocks(state))
    domains = [state.domains[name] for name in state.domains.standing()]
    shards = tuple(_shards(state, domains))
    nodes = sorted({*(each.node for each in clocks), *(each.node for each in shards)})
    return ClusterState(
        path,
        ClockView(TimeInterval.around(at, 0), bounded=True, source="the copy", status="recorded", assumed=False),
        Freshness(Reach.ANSWERS, 0),
        record.audit.cluster_id.hex(),
        "a copy",
        policy.radius_ns_max,
        tuple(NodeView(name, own=False, shards=tuple(s for s in shards if s.node == name)) for name in nodes),
        LeaseRows(_row(state, domain, lease, after) for domain in domains for lease in domain.leases),
        tuple(_log(state, each) for _, each in sorted(state.logs.items())),
        clocks,
        view=ViewKind.RECORD,
        findings=state.findings if at < record.timeline.end_ns else record.audit.findings,
        first_ns=record.timeline.start_ns,
        last_ns=record.timeline.end_ns,
    )


def _row(state: StateAt, domain: DomainState, lease: LeaseState, after: Span) -> LeaseRow:
    witness, expiry, where = lease.witness, state.expiry(lease), lease.told.where
    previous = domain.previous.ending if domain.previous is not None else None
    return LeaseRow(
        printable(witness.domain),
        witness.mode,
        witness.phase,
        witness.holder.node,
        witness.holder.process,
        printable(witness.holder.purpose),
        witness.correlation_id.hex(),
        witness.fence,
        expiry,
        shard_number(*lease.told.shard),
        LeaseOrigin.EARLIER_RUN if lease.run_over else LeaseOrigin.RECORD,
        max(expiry, domain.settle_to_ns) + after,
        as_of_ns=lease.told.instant_ns,
        previous=previous.outcome if previous is not None else None,
        granted_ns=lease.granted_ns,
        floor_ns=witness.floor_ns,
        settle_to_ns=witness.settle_to_ns,
        renewals=lease.renewals,
        messages=lease.messages,
        watermark_ns=lease.newest_ns,
        session=None if witness.session_id is None else witness.session_id.hex(),
        where=PlaceSubject(where.path, where.offset, where.length),
    )


def _shards(state: StateAt, domains: Sequence[DomainState]) -> Iterator[ShardView]:
    """Return the shards whose chains go on. ``domains``: those with leases."""
    counts = Counter(lease.told.shard for domain in domains for lease in domain.leases)
    for name, each in sorted(state.shards.items()):
        record = each.record
        if record.kind is not CeilingKind.TERMINAL:
            yield ShardView(
                shard_number(*name),
                record.node,
                NOT_ASKED,
                record.incarnation.hex(),
                leases=counts[name],
                ceiling_ns=record.ceiling_ns,
                ceiling_kind=record.kind,
                half=each.half,
                half_ns=each.half_ns,
            )


def _clocks(state: StateAt) -> Iterator[NodeClock]:
    remarks = _remarks(state.findings)
    for name, each in sorted(state.clocks.items()):
        reading = each.reading
        yield NodeClock(
            name,
            reading.midpoint_ns,
            reading.radius_ns,
            reading.status.word,
            reading.assumed,
            max(0, state.instant_ns - each.as_of_ns),
            len(each.epochs),
            each.widest_ns,
            remarks.get(name, ""),
        )


def _remarks(findings: Sequence[Finding]) -> dict[str, str]:
    """Return what violations say about the time of the node that their subject names."""
    return {
        each.subject.split()[-1]: each.title
        for each in findings
        if each.verdict is Verdict.VIOLATION and each.code.startswith("TIME")
    }


def _log(state: StateAt, log: LogState) -> LogView:
    found = {bag.start_ns: _cell(state, bag) for bag in state.bags_of(log.born.log, newest=CELLS_MAX)}
    cells = newest_bags(found, log.born.span_ns, log.born.grace_ns, CELLS_MAX)
    return LogView(printable(log.born.log), cells, log.horizon_ns, span_ns=log.born.span_ns)


def _cell(state: StateAt, bag: RecordedBag) -> BagCell:
    path = bag.closed.path if bag.closed else ""
    return BagCell(bag.start_ns, bag.due_ns, _BAG_STATES[state.bag_phase(bag)], bag.written, path, damage_words(bag))


def damage_words(bag: RecordedBag) -> str:
    """Say what is wrong with a bag; empty where nothing is."""
    closed, parts = bag.closed, []
    if closed is None:
        return ""
    if closed.missing:
        parts.append(f"{closed.missing} of {counted(closed.files, 'listed file')} missing or altered")
    if closed.rejected:
        parts.append(f"{counted(closed.rejected, 'message')} rejected")
    if closed.void_files:
        parts.append(f"{counted(closed.void_files, 'file')} too late for the list")
    return ", ".join(parts)
