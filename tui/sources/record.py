"""A copied tree, read as a whole: its audit and its timeline, the state at any instant, and what it tells of a subject.

Reading is one question that is answered once; until then a state says how far it is. What is shown of an instant is
what the auditor's replay says of it, in the screens' own values.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msgspec.structs import replace

from appliance.bag.logs import ClosingState
from appliance.formats.chains import CeilingKind
from appliance.formats.policy import Policy
from appliance.formats.shardmap import shard_number, shard_text
from auditor.columns.events import FrameWritten, event_words
from auditor.evidence.finding import Verdict
from auditor.evidence.opening import TarTree, open_tree
from auditor.evidence.tree import Tree
from auditor.explain.archive import Archive, make_index
from auditor.explain.context import LeaseTrace, leases_until
from auditor.timeline.state import BagPhase, BagState, DomainState, LeaseState, LogState, StateAt
from auditor.timeline.timeline_reader import open_audited
from timeagent.clock import MachineClock
from timeagent.console import counted
from timeagent.errors import Environment, TenureError
from timeagent.units import DAY, MS, Instant, Span, TimeInterval, span_text

from ..feed import AskedQuestion
from ..model import state as model
from ..model.state import COPY, ClusterState, DetailLine, DomainSubject, LeaseSubject, NodeSubject, Tone
from ..model.words import fence_text, moment
from .details import BLANK, LEASES_SHOWN, SubjectTeller, domain_rows, fact, heading, words

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
        self._words, self._kind = "reading the copy", COPY
        self._policy: Policy | None = None
        self._lock = threading.Lock()
        self._last: tuple[Instant, ClusterState] | None = None

    def questions(self) -> Sequence[AskedQuestion[Archive]]:
        return [self.reading]

    def _ask(self) -> Archive:
        """Read tree, audit and timeline, once. Blocks as long as it takes."""
        if self.reading.answer is not None:
            return self.reading.answer
        tree = None if self._copy is None else open_tree(self._copy)
        if isinstance(tree, TarTree):
            from auditor.explain.bundle import manifest_of  # noqa: PLC0415 - and the audit, which others need not load

            manifest = manifest_of(tree)
            self._kind = COPY if manifest is None else f"a bundle, of finding {manifest['finding']}"
        if self._index_file is not None:
            return self._indexed(tree, self._index_file)
        try:
            # Gone as soon as it is open: nothing is left behind, however this program ends.
            with TemporaryDirectory(prefix="tenure-top-") as directory:
                return self._indexed(tree, Path(directory) / "index")
        except OSError as problem:
            raise Environment(
                "no-room", f"no index can be made: {problem}", hint="name a file for it with --db, or set TMPDIR"
            ) from None

    def _indexed(self, tree: Tree | None, index_file: Path) -> Archive:
        if self._copy is not None:
            make_index(self._copy, index_file, self._step)
        kept = open_audited(index_file)
        self._policy = kept.policy
        return Archive(tree, kept.audit, kept.timeline)

    def _step(self, done: int, total: int, messages: int, part: str) -> None:
        del part
        filled = BAR_CELLS * done // max(1, total)
        bar = "#" * filled + "." * (BAR_CELLS - filled)
        self._words = f"reading the copy [{bar}] {done:,} of {total:,} parts, {messages:,} messages"

    @property
    def record(self) -> Archive | None:
        return self.reading.answer

    def state_at(self, instant: Instant | None = None) -> ClusterState:
        """Return what the copy tells of an instant; None: of its end. The same value where nothing is new."""
        record = self.record
        if record is None:
            clock = model.ClockView.of_nothing(self._machine.realtime_ns(), COPY)
            error = self.reading.error
            reading = model.Freshness(model.Reach.WAITING, problem=self._words)  # however long it takes
            mount = reading if error is None else model.Freshness(model.Reach.SILENT, None, 0, error.message)
            return ClusterState(self._path, clock, mount, view=model.ViewKind.RECORD)
        timeline = record.timeline
        at = timeline.end_ns if instant is None else max(timeline.start_ns, min(instant, timeline.end_ns))
        with self._lock:
            if self._last is None or self._last[0] != at:
                assert self._policy is not None
                self._last = at, _state(record, self._policy, self._path, self._kind, at)
            return self._last[1]

    def details(self, subject: model.Subject, instant: Instant | None = None) -> Sequence[DetailLine]:
        record = self.record
        if record is None:
            raise self.reading.error or TenureError("not-read", "the copy is still being read")
        return RecordTeller(record, self.state_at(instant)).told(subject)


def _state(record: Archive, policy: Policy, path: str, kind: str, at: Instant) -> ClusterState:
    state, after = record.timeline.state_at(at), policy.after_expiry_ns()
    clocks = tuple(_clocks(state))
    domains = [state.domains[name] for name in state.domains.standing()]
    shards = tuple(_shards(state, domains))
    nodes = sorted({*(each.node for each in clocks), *(each.node for each in shards)})
    return ClusterState(
        path,
        model.ClockView(TimeInterval.around(at, 0), bounded=True, source="the copy", status="recorded", assumed=False),
        model.Freshness(model.Reach.ANSWERS, 0),
        record.audit.cluster_id.hex(),
        kind,
        policy.radius_ns_max,
        tuple(model.NodeView(name, own=False, shards=tuple(s for s in shards if s.node == name)) for name in nodes),
        model.LeaseRows(_row(state, domain, lease, after) for domain in domains for lease in domain.leases),
        tuple(_log(state, each) for _, each in sorted(state.logs.items())),
        clocks,
        view=model.ViewKind.RECORD,
        findings=state.findings if at < record.timeline.end_ns else record.audit.findings,
        first_ns=record.timeline.start_ns,
        last_ns=record.timeline.end_ns,
    )


def _row(state: StateAt, domain: DomainState, lease: LeaseState, after: Span) -> model.LeaseRow:
    witness, expiry = lease.witness, state.expiry(lease)
    previous = domain.previous.ending if domain.previous is not None else None
    return model.LeaseRow(
        witness.domain,
        witness.mode,
        witness.phase,
        witness.holder.node,
        witness.holder.process,
        witness.holder.purpose,
        witness.correlation_id.hex(),
        witness.fence,
        expiry,
        shard_number(*lease.told.shard),
        model.LeaseOrigin.EARLIER_RUN if lease.run_over else model.LeaseOrigin.RECORD,
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
    )


def _shards(state: StateAt, domains: Sequence[DomainState]) -> Iterator[model.ShardView]:
    """Return the shards whose chains go on. ``domains``: those with leases."""
    counts = Counter(lease.told.shard for domain in domains for lease in domain.leases)
    for name, each in sorted(state.shards.items()):
        record = each.record
        if record.kind is not CeilingKind.TERMINAL:
            yield model.ShardView(
                shard_number(*name),
                record.node,
                model.NOT_ASKED,
                record.incarnation.hex(),
                leases=counts[name],
                ceiling_ns=record.ceiling_ns,
                ceiling_kind=record.kind,
                half=each.half,
                half_ns=each.half_ns,
            )


def _clocks(state: StateAt) -> Iterator[model.NodeClock]:
    remarks = {  # what violations say about the time of the node that their subject names
        each.subject.split()[-1]: each.title
        for each in state.findings
        if each.verdict is Verdict.VIOLATION and each.code.startswith("TIME")
    }
    for name, each in sorted(state.clocks.items()):
        reading = each.reading
        yield model.NodeClock(
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


def _log(state: StateAt, log: LogState) -> model.LogView:
    found = {
        bag.start_ns: model.BagCell(
            bag.start_ns,
            bag.due_ns,
            _BAG_STATES[state.bag_phase(bag)],
            bag.written,
            bag.closed.path if bag.closed else "",
            damage_words(bag),
        )
        for bag in state.bags.bags_of(log.born.log, newest=CELLS_MAX)
    }
    cells = model.newest_bags(found, log.born.span_ns, log.born.grace_ns, CELLS_MAX)
    return model.LogView(log.born.log, cells, log.horizon_ns, span_ns=log.born.span_ns)


def damage_words(bag: BagState) -> str:
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


READINGS_SHOWN: Final = 500


def _end_words(life: LeaseTrace) -> str:
    if life.end is None:
        return "not ended"
    watermark, ended_ns = life.end.watermark_ns, life.end.ended_ns
    said = "" if watermark is None else f", watermark {moment(watermark, ended_ns)}"
    return f"{life.end.outcome} {moment(ended_ns)}{said}"


def _life_line(life: LeaseTrace, at: Instant) -> str:
    """Say what became of a lease, how it ended before what is less: on 80 columns the rest is cut."""
    messages = counted(sum(each.messages for each in life.frames), "message")
    first, last = life.told[0].witness, life.told[-1].witness
    holder = f"{first.holder.node}/{first.holder.process}"
    return (
        f"{moment(life.told[0].instant_ns, at)}  {first.mode:3} {holder:16} "
        f"until {moment(last.expiry_ns, first.expiry_ns)}  {_end_words(life)}  "
        f"{counted(len(life.told) - 1, 'renewal')}  {messages}"
    )


def _life_tone(life: LeaseTrace) -> Tone:
    return Tone.WARN if life.end is not None and life.end.outcome in ("expired", "revoked", "unknown") else Tone.PLAIN


def _by_then(event: FrameWritten, state: StateAt) -> FrameWritten:
    """Return a frame as it stood: before its bag was closed nobody knew whether the list would name it."""
    bag = state.bags.get((event.log, event.bag_ns))
    if event.listed is None or (bag is not None and bag.closed is not None):
        return event
    return replace(event, listed=None, void_because=event.void_because if event.listed else "")


def _steps(bag: BagState) -> Iterator[DetailLine]:
    closed = bag.closed
    if closed is None:
        yield fact("prelock", "there: somebody has begun to close it" if bag.prelock else "not there")
        yield fact("closed", "not yet")
    else:
        late = span_text((closed.instant_ns - bag.end_ns) // MS * MS)
        when = f"{moment(closed.instant_ns, bag.start_ns)} by {closed.closer}, {late} after its end"
        yield fact("closed", when, closed.where)
        yield fact("closer", closed.closer, NodeSubject(closed.closer) if closed.closer else None)
        tone = Tone.BAD if closed.rejected else Tone.PLAIN
        yield fact("accepted", f"{counted(closed.accepted, 'message')}; {closed.rejected} rejected", None, tone)
    if bag.sealed_ns is not None:
        packed = ", packed" if bag.packed else ""
        yield fact("sealed", f"{moment(bag.sealed_ns, bag.start_ns)} by {bag.sealer}{packed}")
    if closed and closed.void_files:
        yield fact("void", f"{counted(closed.void_files, 'file')} came too late for the list", None, Tone.WARN)


def _file(file: str, wrote: list[FrameWritten]) -> Iterator[DetailLine]:
    listed = {None: "bag open", True: "listed", False: "NOT LISTED"}[wrote[0].listed]
    name = file.rpartition("/")[2]
    messages = sum(each.messages for each in wrote)
    tone = Tone.BAD if wrote[0].listed is False else Tone.PLAIN
    yield words(f"{wrote[0].writer:12} {listed:10} {messages:>6} msgs  {name}", wrote[0].where, tone)
    for each in wrote:
        under = ", ".join(name for name, _ in each.leases)
        void = f"   {each.void_because}" if each.void_because else ""
        text = f"  {moment(each.first_ns, each.bag_ns)}  {each.messages:>5} msgs under {under}{void}"
        yield words(text, each.where, Tone.BAD if void else Tone.DIM)


class RecordTeller(SubjectTeller):
    """Tells what was known at an instant, which the state is of.

    Reads the tree where bytes are asked for; goes over all events of what it is about.
    """

    def __init__(self, record: Archive, state: ClusterState) -> None:
        super().__init__(state)
        self._record, self._at = record, state.clock.now.midpoint
        self._then = record.timeline.state_at(self._at)

    def tree(self) -> Tree:
        return self._record.tree

    def domain(self, name: str) -> Iterator[DetailLine]:
        known = self._then.domains.get(name)
        if known is None:
            yield words("the copy tells of no lease on it by then", tone=Tone.WARN)
            return
        runs = self._then.shards.get(known.shard)
        node = "a node that is not known" if runs is None else runs.record.node
        yield fact("shard", f"{shard_text(shard_number(*known.shard))}, on {node}")
        yield fact("floor", f"{moment(known.floor_ns)}   who comes next writes above this")
        yield fact("settle_to", f"{moment(known.settle_to_ns)}   and settles a log up to here before its first use")
        yield fact("fence", f"{known.fence}   ({fence_text(known.fence)})")
        yield from domain_rows(self.state, name)
        lives = leases_until(self._record.timeline, name, self._at)
        yield BLANK
        yield heading(f"Its {counted(len(lives), 'lease')}, newest first: the chain of witnesses")
        for lease_id, life in list(reversed(lives.items()))[:LEASES_SHOWN]:
            yield words(_life_line(life, self._at), LeaseSubject(name, lease_id.hex()), _life_tone(life))

    def lease(self, subject: LeaseSubject) -> Iterator[DetailLine]:
        lives = leases_until(self._record.timeline, subject.domain, self._at)
        life = lives.get(bytes.fromhex(subject.identifier))
        if life is None:
            yield words("the copy tells nothing of it by then", tone=Tone.WARN)
            return
        yield fact("domain", subject.domain, DomainSubject(subject.domain))
        yield fact("lease", subject.identifier)
        first = life.told[0].witness
        holder = first.holder
        text = f"{holder.node}/{holder.process} {holder.purpose}"
        yield fact("holder", text, model.HolderSubject(holder.node, holder.process))
        yield fact("node", holder.node, NodeSubject(holder.node))
        yield fact("mode", first.mode.value)
        yield fact("fence", str(first.fence))
        yield fact("floor", moment(first.floor_ns))
        yield fact("settle_to", moment(first.settle_to_ns))
        yield fact("expiry", moment(life.told[-1].witness.expiry_ns))
        yield fact("ended", _end_words(life), life.ended.where if life.ended else None, _life_tone(life))
        order = [None, *lives, None]
        place = order.index(bytes.fromhex(subject.identifier))
        for label, other in (("before it", order[place - 1]), ("after it", order[place + 1])):
            if other is not None:
                yield fact(label, _life_line(lives[other], self._at), LeaseSubject(subject.domain, other.hex()))
        yield BLANK
        yield heading(f"{len(life.told)} witness{'' if len(life.told) == 1 else 'es'}")
        for told in life.told:
            witness = told.witness
            said = f"{witness.kind:8} {witness.phase:9} expiry {moment(witness.expiry_ns, told.instant_ns)}"
            when = f"{moment(told.instant_ns)} ±{span_text(told.clock.radius_ns)}"
            yield words(f"{when}  {said}  by {told.clock.node}", told.where)
        yield BLANK
        messages = counted(sum(each.messages for each in life.frames), "message")
        yield heading(f"{messages} in {counted(len(life.frames), 'frame')}")
        for each in (_by_then(event, self._then) for event in life.frames):
            void = each.void_because or ("not listed" if each.listed is False else "")
            fate = void or ("open bag" if each.listed is None else f"{each.accepted_count} accepted")
            text = f"{moment(each.first_ns)}  {each.log}  {each.messages:>5} msgs of {each.writer}, {fate}"
            yield words(text, each.where, Tone.BAD if void else Tone.PLAIN)

    def node(self, node: str) -> Iterator[DetailLine]:
        for name, shard in sorted(self._then.shards.items()):
            linked = shard.record
            if linked.node == node:
                since = f", run {linked.incarnation.hex()} since {moment(shard.started_ns)}"
                yield fact("shard", shard_text(shard_number(*name)) + since, shard.linked.where)
                if shard.half_ns is not None:
                    yield fact("move", f"{shard.half} since {moment(shard.half_ns)}, by map {shard.going_by}")
                yield fact("ceiling", f"{moment(linked.ceiling_ns)}, record {linked.number} ({linked.kind})")
        known = self._then.clocks.get(node)
        if known is None:
            yield fact("clock", "nothing in the copy is signed by it by then", tone=Tone.WARN)
        else:
            text = f"±{span_text(known.reading.radius_ns)}, said at {moment(known.as_of_ns)}"
            yield fact("clock", text, model.ClockSubject(node))

    def clock(self, node: str) -> Iterator[DetailLine]:
        known = self._then.clocks.get(node)
        if known is None:
            yield words("nothing in the copy is signed by this node by then", tone=Tone.WARN)
            return
        reading = known.reading
        yield fact("node", node, NodeSubject(node))
        yield fact("status", reading.status.word + (", assumed: stated by the policy" if reading.assumed else ""))
        yield fact("radius", f"±{span_text(reading.radius_ns)}; at most ±{span_text(known.widest_ns)} until then")
        yield fact("epochs", f"{len(known.epochs)}   each after the first is a step, a suspend, a boot or a long stall")
        yield BLANK
        yield heading(f"What it signed, newest first, the last {READINGS_SHOWN}")
        before = None
        signed = self._record.timeline.signed_by(node, self._record.timeline.position(self._at))
        for event, clock in islice(((each, each.clock) for each in signed if each.clock is not None), READINGS_SHOWN):
            step = before not in (None, clock.clock_epoch)
            before = clock.clock_epoch
            text = f"{moment(event.instant_ns)} ±{span_text(clock.radius_ns)}  {event_words(event)}"
            text += "   then a new clock epoch" if step else ""
            yield words(text, event.where, Tone.WARN if step else Tone.PLAIN)

    def bag(self, subject: model.BagSubject) -> Iterator[DetailLine]:
        bag = self._then.bags.get((subject.log, subject.start_ns))
        if bag is None:
            yield words("nobody had written to it by then, and nobody had closed it", tone=Tone.DIM)
            return
        closed, path = bag.closed, bag.closed.path if bag.closed else ""
        yield fact("bag", f"[{moment(bag.start_ns)}, {moment(bag.end_ns, bag.start_ns)})   {path}")
        yield fact("state", f"{self._then.bag_phase(bag)}; could be closed from {moment(bag.due_ns, bag.start_ns)}")
        yield from _steps(bag)
        written = self._record.timeline.frames_in(subject.log, subject.start_ns)
        frames = [_by_then(each, self._then) for each in written if each.instant_ns <= self._at]
        files: dict[str, list[FrameWritten]] = {}
        for each in frames:
            files.setdefault(each.file, []).append(each)
        yield BLANK
        listed = f", {closed.files} listed, {closed.missing} of those missing or altered" if closed else ""
        tone = Tone.BAD if closed and closed.missing else Tone.STRONG
        yield DetailLine((model.Cell(f"{counted(len(files), 'file')}{listed}", tone),))
        for file, wrote in sorted(files.items()):
            yield from _file(file, wrote)

    def finding(self, name: str) -> Iterator[DetailLine]:
        finding = next((each for each in self._record.audit.findings if each.id == name), None)
        if finding is None:
            yield words("the audit of this copy has no such finding", tone=Tone.WARN)
            return
        yield fact("code", finding.code)
        tone = Tone.BAD if finding.verdict is Verdict.VIOLATION else Tone.WARN
        yield fact("verdict", f"{finding.verdict}, {finding.severity}", tone=tone)
        yield fact("subject", finding.subject)
        yield words(finding.explanation)
        yield BLANK
        yield heading("Rests on")
        for each in finding.evidence:
            yield words(f"{each.path} at {each.offset}, {each.length} bytes", each)
