"""Lines of details: what a state tells by itself, what bytes of a tree say, what a live cluster tells of a subject now.

Nothing is verified: what the signatures are worth is the audit's to say. A mount is read, never written; whoever asks
waits for as long as it does, so it is asked off the screen's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from appliance.formats.closed import open_lock
from appliance.formats.framing import Frame, Kind, Piece, open_frame, piece_at
from appliance.formats.paths import LOCK, PRELOCK, ledger_path, parse_ledger_name
from appliance.formats.shardmap import chain_of, shard_text
from appliance.formats.witness import Ended, Witness, open_block
from auditor.evidence.finding import Evidence
from auditor.evidence.tree import Tree
from auditor.explain.words import Said, piece_says
from timeagent.console import counted, printable
from timeagent.errors import Damaged, TryAgain
from timeagent.units import MS, span_text

from ..model import state as model
from ..model.clocks import agreement, agreement_words
from ..model.state import Cell, ClusterState, DetailLine, HolderSubject, LeaseSubject, NodeSubject, Tone
from ..model.words import condition, lease_words, moment, shard_cells, short_span

if TYPE_CHECKING:
    from .mount import MountAnswer  # who looks at a copy does not load what a mount is read with

LABEL: Final = 12


def fact(label: str, text: str, subject: model.Subject | None = None, tone: Tone = Tone.PLAIN) -> DetailLine:
    return DetailLine((Cell(f"{label:{LABEL}} ", Tone.DIM), Cell(text, tone)), subject)


def heading(text: str) -> DetailLine:
    return DetailLine((Cell(text, Tone.STRONG),))


def words(text: str, subject: model.Subject | None = None, tone: Tone = Tone.PLAIN) -> DetailLine:
    return DetailLine((Cell(f"  {text}", tone),), subject)


BLANK: Final = DetailLine((Cell(""),))


LEASES_SHOWN: Final = 1_000


def domain_rows(state: ClusterState, domain: str) -> Iterator[DetailLine]:
    rows = [row for row in state.leases if row.domain == domain]
    yield BLANK
    yield heading("Holds it now" if rows else "Nobody is known to hold it")
    for row in rows:
        yield _row(state, row)
        yield words(f"  holder {row.node}/{row.process} {row.purpose}", HolderSubject(row.node, row.process))


def held(state: ClusterState, node: str, process: int | None = None) -> Iterator[DetailLine]:
    rows = [row for row in state.leases if row.node == node and process in (None, row.process)]
    known = state.view is model.ViewKind.RECORD or all(s.freshness.reach is model.Reach.ANSWERS for s in state.shards)
    title = f"Holds {counted(len(rows), 'lease')}" + ("" if known else ", as far as is known")
    if process is not None:
        title = counted(len(rows), "lease")
        yield fact("node", node, NodeSubject(node))
        yield fact("process", str(process))
        if state.view is not model.ViewKind.RECORD:
            present = {row.holder_present for row in rows}
            there = "it runs" if True in present else "it is gone" if False in present else "cannot be told from here"
            yield fact("runs?", there)
    yield BLANK
    yield heading(title)
    yield from (_row(state, row) for row in rows[:LEASES_SHOWN])


def _row(state: ClusterState, row: model.LeaseRow) -> DetailLine:
    now, holder = state.clock.now, f"{row.node}/{row.process}"
    text = f"{row.domain:32} {row.mode:3} {holder:16} {condition(row, now)}  {lease_words(row, now)}".rstrip()
    return words(text, LeaseSubject(row.domain, row.correlation_id))


FILE_BYTES_MAX: Final = 64 * 1024 * 1024
PAYLOAD_SHOWN: Final = 60


def place_details(tree: Tree, subject: Evidence) -> Sequence[DetailLine]:
    """Return what the bytes at a place say. Reads them; never raises for what they are."""
    path = subject.path
    data = tree.read_range(path, subject.offset, subject.length or FILE_BYTES_MAX)
    if data is None:
        return [words("it is not there, or cannot be read", tone=Tone.WARN)]
    piece = piece_at(data, 0)
    if not isinstance(piece, Piece):
        return [words(f"{len(data)} bytes; there is no whole record of ours: {piece}")]
    if not subject.length and piece.end < len(data):
        return list(_pieces(data, path))
    said = [words(line.text, _leads_to(line)) for line in piece_says(piece, data, path)]
    try:
        frame = open_frame(piece, path) if piece.kind is Kind.FRAME else None
    except Damaged:
        return said
    if frame is None:
        return said
    file, bag = [fact("file", path, Evidence(path))], path.rpartition("/")[0]
    if bag.count("/") >= 4:  # noqa: PLR2004 - else the file is a pack
        file.append(fact("lock file", f"{bag}/lock", Evidence(f"{bag}/lock")))
    return FrameLines(frame, [*file, *said, BLANK])


def _leads_to(line: Said) -> model.Subject | None:
    if line.what == "lease":
        return LeaseSubject(line.name, line.lease)
    if line.what == "file":
        return Evidence(line.name)
    named = {"node": NodeSubject, "clock": model.ClockSubject, "domain": model.DomainSubject}.get(line.what)
    return None if named is None else named(line.name)


def _pieces(data: bytes, path: str) -> Iterator[DetailLine]:
    offset = 0
    while isinstance(piece := piece_at(data, offset), Piece):
        place = Evidence(path, piece.offset, piece.end - piece.offset)
        yield words(f"{piece.kind.name.lower():7} at {piece.offset:>10,}  {place.length:>9,} bytes", place)
        offset = piece.end
    if offset < len(data):
        yield words(f"{len(data) - offset} bytes that are no whole record: {piece}", tone=Tone.WARN)


class FrameLines(Sequence[DetailLine]):
    """The lines of a frame: its head, then one for each message, made when it is looked at."""

    def __init__(self, frame: Frame, head: Sequence[DetailLine]) -> None:
        """Take the frame and what stands above its messages."""
        self._frame = frame
        self._head = [*head, heading("Messages")]
        self._offsets = [0, *frame.lengths.astype("int64").cumsum().tolist()]

    def __len__(self) -> int:
        return len(self._head) + len(self._frame.timestamps)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - a line, or lines
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if index < len(self._head):
            return self._head[index]
        number = index - len(self._head)
        begin, end = self._offsets[number], self._offsets[number + 1]
        raw = self._frame.raw[self._frame.body_at + begin : self._frame.body_at + min(end, begin + PAYLOAD_SHOWN)]
        text = printable(raw.decode("utf-8", "backslashreplace")) + ("…" if end - begin > PAYLOAD_SHOWN else "")
        instant = int(self._frame.timestamps[number])
        return words(f"{number:>5}  {moment(instant)}  {end - begin:>6} B  {text}")


class SubjectTeller:
    """What a source tells of a subject, of each kind in lines of its own. For one question."""

    domain: Callable[[str], Iterator[DetailLine]]
    node: Callable[[str], Iterator[DetailLine]]
    clock: Callable[[str], Iterator[DetailLine]]
    finding: Callable[[str], Iterator[DetailLine]]
    lease: Callable[[LeaseSubject], Iterator[DetailLine]]
    bag: Callable[[model.BagSubject], Iterator[DetailLine]]
    tree: Callable[[], Tree]

    def __init__(self, state: ClusterState) -> None:
        self.state = state

    def told(self, subject: model.Subject) -> Sequence[DetailLine]:
        """Return what is told. Blocks for as long as it takes to read it; raises what the tree cannot be had for."""
        match subject:
            case Evidence():
                return place_details(self.tree(), subject)
            case HolderSubject(node, process):
                return list(held(self.state, node, process))
            case LeaseSubject():
                return list(self.lease(subject))
            case model.BagSubject():
                return list(self.bag(subject))
            case model.DomainSubject(name):
                return list(self.domain(name))
            case NodeSubject(name):
                return [*self.node(name), *held(self.state, name)]
            case model.ClockSubject(name):
                return list(self.clock(name))
            case model.NamedSubject(name):
                return list(self.finding(name))


# -- live -------------------------------------------------------------------------------------------------------------


LEDGERS_READ: Final = 2
"""So many ledger files of a run are gone through for the witnesses of a lease: the newest."""

CHAIN_SHOWN: Final = 500


class LiveTeller(SubjectTeller):
    """Touches the mount for bags, witnesses and bytes."""

    def __init__(self, state: ClusterState, answer: MountAnswer | None) -> None:
        """Take what the mount answered. Raises TryAgain: it has not answered yet."""
        super().__init__(state)
        if answer is None:
            raise TryAgain("no-answer", "the mount has not answered yet", hint="see whether its file server answers")
        self._answer = answer
        self._tree = Tree(answer.root)

    def tree(self) -> Tree:
        return self._tree

    def told(self, subject: model.Subject) -> Sequence[DetailLine]:
        lines, unreadable = super().told(subject), self._tree.unreadable
        if not unreadable:
            return lines
        return [
            *lines,
            BLANK,
            *(words(f"cannot be read: {each}: {why}", None, Tone.WARN) for each, why in unreadable.items()),
        ]

    def finding(self, _name: str) -> Iterator[DetailLine]:
        yield words("a live cluster is not audited: tenure audit judges a copy")

    def domain(self, domain: str) -> Iterator[DetailLine]:
        answer = self._answer
        for shard in answer.shard_map.shards_of(domain):
            node = answer.shard_map.owner_of(shard) or ""
            yield fact("shard", f"{shard_text(shard)} on {node}", NodeSubject(node))
        yield from domain_rows(self.state, domain)
        yield from self._witnesses(domain)

    def lease(self, subject: LeaseSubject) -> Iterator[DetailLine]:
        state = self.state
        row = next((row for row in state.leases if row.correlation_id == subject.identifier), None)
        yield fact("domain", subject.domain, model.DomainSubject(subject.domain))
        yield fact("lease", subject.identifier)
        if row is None:
            yield words("it is not out any more, as far as is known", tone=Tone.WARN)
        else:
            yield fact("holder", f"{row.node}/{row.process} {row.purpose}", HolderSubject(row.node, row.process))
            yield fact("node", row.node, NodeSubject(row.node))
            yield fact("stands", f"{condition(row, state.clock.now)}  {lease_words(row, state.clock.now)}")
            yield fact("fence", str(row.fence))
            yield fact("floor", moment(row.floor_ns))
            yield fact("settle_to", moment(row.settle_to_ns))
            yield fact("granted", moment(row.granted_ns))
            yield fact("expiry", moment(row.expiry_ns))
            yield fact("waiting", "not known" if row.waiting is None else str(row.waiting))
        yield from self._witnesses(subject.domain, subject.identifier)

    def _witnesses(self, domain: str, lease: str | None = None) -> Iterator[DetailLine]:
        """Yield what the newest ledger files of its shards' runs say about a domain, or one lease of it."""
        yield BLANK
        yield heading("Witnesses in the newest ledger files, newest first")
        for shard in self._answer.shard_map.shards_of(domain):
            end = self._answer.chains.get(shard)
            if end is None:
                yield words("the shard has no ceiling chain: it never ran", tone=Tone.DIM)
                continue
            directory = ledger_path(*chain_of(shard), end.record.incarnation, 0).rpartition("/")[0]
            every = [(parse_ledger_name(name), f"{directory}/{name}") for name, _ in self._tree.names(directory)]
            paths = [path for _, path in sorted((key, path) for key, path in every if key is not None)]
            newest = (
                line
                for path in reversed(paths[-LEDGERS_READ:])
                for piece in reversed([each for each in self._tree.pieces(path) if isinstance(each, Piece)])
                for line in reversed([*_said(piece, path, domain, lease)])
            )
            found = [*islice(newest, CHAIN_SHOWN)]
            yield from found or [words("none", tone=Tone.DIM)]

    def node(self, node: str) -> Iterator[DetailLine]:
        state = self.state
        for shard in [shard for view in state.nodes if view.name == node for shard in view.shards]:
            (reach, said), age_ns = shard_cells(shard, state.clock.now), shard.freshness.age_ns
            age = "" if age_ns is None else f", heard {span_text(age_ns // MS * MS)} ago"
            leases = "? leases" if shard.leases is None else counted(shard.leases, "lease")
            text = f"{shard_text(shard.shard)}: {reach.text}{age}, {leases}  {said.text}".rstrip()
            yield fact("shard", text, tone=reach.tone)
            yield fact("run", shard.incarnation or "not known")
            yield fact("ceiling", moment(shard.ceiling_ns))
        clock = next((each for each in state.clocks if each.node == node), None)
        if clock is None:
            yield fact("clock", "nothing that it signed was seen", tone=Tone.DIM)
        else:
            radius = "no bound" if clock.radius_ns is None else f"±{span_text(clock.radius_ns)}"
            yield fact("clock", f"{radius}, {clock.status}", model.ClockSubject(node))

    def clock(self, node: str) -> Iterator[DetailLine]:
        state = self.state
        clock = next((each for each in state.clocks if each.node == node), None)
        yield fact("node", node, NodeSubject(node))
        if clock is None:
            yield words("nothing that it signed was seen", tone=Tone.DIM)
            return
        if clock.radius_ns is not None and clock.midpoint_ns is not None:
            yield fact("status", clock.status + (", assumed: stated by the policy" if clock.assumed else ""))
            yield fact("radius", f"±{span_text(clock.radius_ns)}")
        if clock.ahead is None:
            if clock.midpoint_ns is not None:
                yield fact("signed at", f"{moment(clock.midpoint_ns)}, in its newest ceiling record")
            said = {model.Reach.SILENT: "no answer", model.Reach.ANSWERS: "no bound"}.get(clock.reach, "not asked")
            tone = Tone.DIM if clock.reach is model.Reach.NOT_ASKED else Tone.BAD
            yield fact("now", f"{said}: {clock.problem or 'it says no more'}", tone=tone)
            return
        trip = "" if clock.trip_ns is None else f", {span_text(clock.trip_ns)} of them the round trip"
        yield fact("now", f"{moment(clock.midpoint_ns)}, by its own word {short_span(clock.age_ns or 0)} ago")
        yield fact("on the axis", f"{span_text(clock.ahead.latest - clock.ahead.earliest)} wide{trip}")
        agreed = agreement(state.clocks)
        outside = any(each.node == node for each in agreed.outside)
        if agreed.common is not None:
            offset = clock.ahead.midpoint - agreed.common.midpoint
            yield fact("offset", f"{offset / 1e6:+,.3f} ms from the middle of what the clocks have in common")
        yield fact(
            "together", agreement_words(agreed), tone=Tone.BAD if outside or agreed.common is None else Tone.PLAIN
        )

    def bag(self, subject: model.BagSubject) -> Iterator[DetailLine]:
        bags = ((log, bag) for log in self.state.logs if log.name == subject.log for bag in log.bags)
        log, cell = next((pair for pair in bags if pair[1].start_ns == subject.start_ns), (None, None))
        if log is None or cell is None:
            yield words("it is not among the newest bags: tenure bag ls shows older ones", tone=Tone.WARN)
            return
        path = cell.path
        yield fact("bag", f"[{moment(cell.start_ns)}, {moment(cell.start_ns + log.span_ns, cell.start_ns)})   {path}")
        yield fact(
            "state", f"{cell.state or 'nobody wrote'}; could be closed from {moment(cell.due_ns, cell.start_ns)}"
        )
        names = [name for name, _ in self._tree.names(path)] if path else []
        raw = self._tree.read(f"{path}/{LOCK}") if path else None
        listed = {}
        if raw is not None:
            try:
                lock, stamped = open_lock(raw, f"{path}/{LOCK}")
                token = stamped.signed_time(path)
            except Damaged as problem:
                yield words(problem.message, Evidence(f"{path}/{LOCK}"), Tone.BAD)
            else:
                listed = dict(lock.by_name())
                text = f"{moment(token.midpoint_ns, cell.start_ns)} by {lock.closer}"
                yield fact("closed", text, Evidence(f"{path}/{LOCK}"))
                yield fact("closer", lock.closer, NodeSubject(lock.closer))
        elif names:
            yield fact("prelock", "there: somebody has begun to close it" if PRELOCK in names else "not there")
        yield BLANK
        files = sorted({*names, *listed} - {LOCK, PRELOCK})
        yield heading(counted(len(files), "file") + (f", {len(listed)} listed" if raw is not None else ""))
        for name in files:
            entry, size = listed.get(name), self._tree.size(f"{path}/{name}") if name in names else None
            text = "missing" if size is None else f"{size:,} bytes"
            if raw is None:
                state_words, tone = "open", Tone.PLAIN
            elif entry is None:
                state_words, tone = "NOT LISTED: void", Tone.BAD
            elif size is None or size < entry.size:
                state_words, tone = f"listed with {entry.size:,} bytes", Tone.BAD
            else:
                extra = size - entry.size
                state_words = "listed" + (f"; {extra} bytes past the list are void" if extra else "")
                tone = Tone.WARN if extra else Tone.PLAIN
            yield words(f"{printable(name):48} {text:>14}  {state_words}", Evidence(f"{path}/{name}"), tone)


def _said(piece: Piece, path: str, domain: str, lease: str | None) -> Iterator[DetailLine]:
    if piece.kind is not Kind.LEDGER:
        return
    try:
        block = open_block(piece, path)
        said = moment(block.batch_head(path).signed_time(path).midpoint_ns)
        entries = list(block.decoded(path))
    except Damaged:
        return  # the audit's to say
    place = Evidence(path, piece.offset, piece.end - piece.offset)
    for entry in entries:
        match entry:
            case Witness() if entry.domain == domain and lease in (None, entry.correlation_id.hex()):
                holder = f"{entry.holder.node}/{entry.holder.process}"
                text = f"{entry.kind:8} {entry.phase:9} {holder:16} expiry {moment(entry.expiry_ns)}"
                yield words(f"{said}  {text}  {entry.correlation_id.hex()[-8:]}", place)
            case Ended() if entry.domain == domain and lease in (None, entry.ending.correlation_id.hex()):
                yield words(f"{said}  {entry.ending.outcome}  {entry.ending.correlation_id.hex()[-8:]}", place)
            case _:
                pass
