"""Lines of details: those that a state tells by itself, live or in a copy, and what bytes of a tree say.

Nothing is verified: what the signatures are worth is the audit's to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, overload

from appliance.formats.framing import Frame, Kind, Piece, open_frame, piece_at
from auditor.evidence.tree import Tree
from auditor.explain.words import Said, piece_says
from timeagent.console import counted, printable
from timeagent.errors import Damaged

from ..model.state import (
    Cell,
    ClockSubject,
    ClusterState,
    DetailLine,
    DomainSubject,
    HolderSubject,
    LeaseRow,
    LeaseSubject,
    NodeSubject,
    PlaceSubject,
    Reach,
    Subject,
    Tone,
    ViewKind,
)
from ..model.words import condition, lease_words, moment

LABEL: Final = 12


def fact(label: str, text: str, subject: Subject | None = None, tone: Tone = Tone.PLAIN) -> DetailLine:
    """Return a line: what, and how it is."""
    return DetailLine((Cell(f"{label:{LABEL}} ", Tone.DIM), Cell(text, tone)), subject)


def heading(text: str) -> DetailLine:
    return DetailLine((Cell(text, Tone.STRONG),))


def words(text: str, subject: Subject | None = None, tone: Tone = Tone.PLAIN) -> DetailLine:
    return DetailLine((Cell(f"  {text}", tone),), subject)


BLANK: Final = DetailLine((Cell(""),))


LEASES_SHOWN: Final = 1_000


def domain_rows(state: ClusterState, domain: DomainSubject) -> Iterator[DetailLine]:
    """Yield who holds a domain."""
    rows = [row for row in state.leases if row.domain == domain.name]
    yield BLANK
    yield heading("Holds it now" if rows else "Nobody is known to hold it")
    for row in rows:
        yield _row(state, row)
        yield words(f"  holder {row.node}/{row.process} {row.purpose}", HolderSubject(row.node, row.process))


def holder_details(state: ClusterState, subject: HolderSubject) -> Iterator[DetailLine]:
    """Yield where a holder runs, and its leases."""
    rows = [row for row in state.leases if (row.node, row.process) == (subject.node, subject.process)]
    yield fact("node", subject.node, NodeSubject(subject.node))
    yield fact("process", str(subject.process))
    if state.view is not ViewKind.RECORD:
        present = {row.holder_present for row in rows}
        there = "it runs" if True in present else "it is gone" if False in present else "cannot be told from here"
        yield fact("runs?", there)
    yield from _rows(state, rows, counted(len(rows), "lease"))


def held_on(state: ClusterState, node: str) -> Iterator[DetailLine]:
    """Yield the leases of a node's processes."""
    rows = [row for row in state.leases if row.node == node]
    known = state.view is ViewKind.RECORD or all(s.freshness.reach is Reach.ANSWERS for s in state.shards)
    yield from _rows(state, rows, f"Holds {counted(len(rows), 'lease')}" + ("" if known else ", as far as is known"))


def _rows(state: ClusterState, rows: Sequence[LeaseRow], title: str) -> Iterator[DetailLine]:
    yield BLANK
    yield heading(title)
    yield from (_row(state, row) for row in rows[:LEASES_SHOWN])


def _row(state: ClusterState, row: LeaseRow) -> DetailLine:
    now, holder = state.clock.now, f"{row.node}/{row.process}"
    text = f"{row.domain:32} {row.mode:3} {holder:16} {condition(row, now)}  {lease_words(row, now)}".rstrip()
    return words(text, LeaseSubject(row.domain, row.correlation_id))


FILE_BYTES_MAX: Final = 64 * 1024 * 1024
PAYLOAD_SHOWN: Final = 60


def place_details(tree: Tree, subject: PlaceSubject) -> Sequence[DetailLine]:
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
    said = [words(printable(line.text), _leads_to(line)) for line in piece_says(piece, data, path)]
    try:
        frame = open_frame(piece, path) if piece.kind is Kind.FRAME else None
    except Damaged:
        return said
    if frame is None:
        return said
    return FrameLines(frame, [fact("file", printable(path), PlaceSubject(path)), *_lock_beside(path), *said, BLANK])


def _leads_to(line: Said) -> Subject | None:
    match line.what:
        case "node":
            return NodeSubject(line.name)
        case "clock":
            return ClockSubject(line.name)
        case "domain":
            return DomainSubject(printable(line.name))
        case "lease":
            return LeaseSubject(printable(line.name), line.lease)
        case "file":
            return PlaceSubject(line.name)
        case _:
            return None


def _pieces(data: bytes, path: str) -> Iterator[DetailLine]:
    offset = 0
    while isinstance(piece := piece_at(data, offset), Piece):
        place = PlaceSubject(path, piece.offset, piece.end - piece.offset)
        yield words(f"{piece.kind.name.lower():7} at {piece.offset:>10,}  {place.length:>9,} bytes", place)
        offset = piece.end
    if offset < len(data):
        yield words(f"{len(data) - offset} bytes that are no whole record: {piece}", tone=Tone.WARN)


def _lock_beside(path: str) -> Iterator[DetailLine]:
    bag = path.rpartition("/")[0]
    if bag.count("/") >= 4:  # noqa: PLR2004 - else the file is a pack
        yield fact("lock file", f"{printable(bag)}/lock", PlaceSubject(f"{bag}/lock"))


class FrameLines(Sequence[DetailLine]):
    """The lines of a frame: its head, then one for each message, made when it is looked at."""

    def __init__(self, frame: Frame, head: Sequence[DetailLine]) -> None:
        """Take the frame and what stands above its messages."""
        self._frame = frame
        self._head = [*head, heading("Messages")]
        self._offsets = [0, *frame.lengths.astype("int64").cumsum().tolist()]

    def __len__(self) -> int:
        return len(self._head) + len(self._frame.timestamps)

    @overload
    def __getitem__(self, index: int) -> DetailLine: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[DetailLine]: ...
    def __getitem__(self, index: int | slice) -> DetailLine | Sequence[DetailLine]:
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
