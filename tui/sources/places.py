"""Bytes of a tree in words, with what they lead to: witnesses, frames and their messages, lock files, ledgers.

Reads through whatever is given; verifies nothing: what the signatures are worth is the audit's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, overload

from appliance.formats.frame import open_frame
from appliance.formats.framing import Kind, Piece, piece_at
from appliance.formats.ledger import open_block
from appliance.formats.lockfile import open_lock
from appliance.formats.sessionlease import SessionWitness
from appliance.formats.witness import Ended, SignedWitness, Witness
from auditor.explain.words import evidence_lines
from auditor.rules.finding import Evidence
from timeagent.canonical import decode
from timeagent.console import counted, printable
from timeagent.errors import Damaged
from timeagent.units import span_text

from ..model.subjects import (
    Cell,
    ClockSubject,
    DetailLine,
    DomainSubject,
    LeaseSubject,
    NodeSubject,
    PlaceSubject,
    Tone,
)
from ..model.words import moment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.formats.frame import Frame
    from auditor.evidence.tree import Tree
    from timeagent.signedtime import SignedTime

    from ..model.subjects import Subject


FILE_BYTES_MAX: Final = 64 * 1024 * 1024
PAYLOAD_SHOWN: Final = 60


def place_details(tree: Tree, subject: PlaceSubject) -> Sequence[DetailLine]:
    """Return what the bytes at a place say. Reads them; never raises for what they are."""
    data = tree.read_range(subject.path, subject.offset, subject.length or FILE_BYTES_MAX)
    if data is None:
        return [words("it is not there, or cannot be read", tone=Tone.WARN)]
    piece = piece_at(data, 0)
    if not isinstance(piece, Piece):
        return [words(f"{len(data)} bytes; there is no whole record of ours: {piece}")]
    if not subject.length and piece.end < len(data):
        return list(_pieces(data, subject.path))
    try:
        return _of(tree, subject, piece, data)
    except Damaged as problem:
        return [words(printable(problem.message), tone=Tone.BAD)]


def _of(tree: Tree, subject: PlaceSubject, piece: Piece, data: bytes) -> Sequence[DetailLine]:
    match piece.kind:
        case Kind.FRAME:
            return FrameLines(open_frame(piece, subject.path), subject.path)
        case Kind.LOCK:
            return list(_lock(data[piece.offset : piece.end], subject.path))
        case Kind.LEDGER:
            return list(_ledger(piece, subject.path))
        case _:
            place = Evidence(subject.path, subject.offset, subject.length)
            return [words(line.strip()) for line in evidence_lines(place, tree)]


def _pieces(data: bytes, path: str) -> Iterator[DetailLine]:
    offset = 0
    while isinstance(piece := piece_at(data, offset), Piece):
        place = PlaceSubject(path, piece.offset, piece.end - piece.offset)
        yield words(f"{piece.kind.name.lower():7} at {piece.offset:>10,}  {place.length:>9,} bytes", place)
        offset = piece.end
    if offset < len(data):
        yield words(f"{len(data) - offset} bytes that are no whole record: {piece}", tone=Tone.WARN)


class FrameLines(Sequence[DetailLine]):
    """The lines of a frame: its head, then one for each message, made when it is looked at."""

    def __init__(self, frame: Frame, path: str) -> None:
        """Take the frame; decodes its head only."""
        self._frame = frame
        self._head = list(_frame_head(frame, path))
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


def _frame_head(frame: Frame, path: str) -> Iterator[DetailLine]:
    head = frame.head
    first, last = int(frame.timestamps[0]), int(frame.timestamps[-1])
    yield fact("frame", f"{head.sequence} of {head.writer}, run {head.incarnation.hex()}", NodeSubject(head.writer))
    yield fact("log", head.log)
    yield fact("file", printable(path), PlaceSubject(path))
    yield fact("lock file", *_lock_beside(path))
    yield _signed(head.signed_time(path), head.writer)
    yield fact("messages", f"{len(frame.timestamps)}, {moment(first)} to {moment(last, first)}")
    yield BLANK
    yield heading("Under")
    for raw in head.witnesses:
        yield from _witness(raw)
    yield BLANK
    yield heading("Messages")


def _lock_beside(path: str) -> tuple[str, PlaceSubject | None]:
    bag = path.rpartition("/")[0]
    return (f"{printable(bag)}/lock", PlaceSubject(f"{bag}/lock")) if bag.count("/") >= 4 else ("in a pack", None)  # noqa: PLR2004


def _witness(raw: bytes) -> Iterator[DetailLine]:
    try:
        signed = decode(SignedWitness, raw, "a witness")
        entry, head = signed.statement(), signed.batch_head()
    except Damaged as problem:
        yield words(f"what should be a witness is none: {problem.message}", tone=Tone.BAD)
        return
    if isinstance(entry, SessionWitness):
        yield words(f"session {entry.session_id.hex()}, expiry {moment(entry.expiry_ns)}", NodeSubject(head.node))
        return
    yield words(
        f"{entry.domain}  {entry.mode}  {entry.kind}, floor {moment(entry.floor_ns)}, expiry {moment(entry.expiry_ns)}",
        LeaseSubject(printable(entry.domain), entry.correlation_id.hex()),
    )
    yield words(f"  signed by shard {head.shard} on {head.node}, batch {head.sequence}", NodeSubject(head.node))


def _lock(data: bytes, path: str) -> Iterator[DetailLine]:
    lock, stamped = open_lock(data, path)
    bag = path.rpartition("/")[0]
    yield fact("lock file of", printable(lock.bag))
    yield fact("closed by", lock.closer, NodeSubject(lock.closer))
    yield _signed(stamped.signed_time(path), lock.closer)
    yield fact("judged by", f"trust record {lock.trust_number}, policy {lock.policy_number}")
    yield BLANK
    yield heading(f"Lists {counted(len(lock.entries), 'file')}: for ever, and no others")
    for each in lock.entries:
        text = f"{printable(each.name):40} {each.size:>10,} bytes  SHA-256 {each.digest.hex()[:16]}…"
        yield words(text, PlaceSubject(f"{bag}/{each.name}"))


def _ledger(piece: Piece, path: str) -> Iterator[DetailLine]:
    block = open_block(piece, path)
    head = block.batch_head(path)
    yield fact("batch", f"{head.sequence} of shard {head.shard}, run {head.incarnation.hex()}")
    yield fact("node", head.node, NodeSubject(head.node))
    yield _signed(head.signed_time(path), head.node)
    yield fact("ceiling", f"record {head.ceiling_number}, until {moment(head.ceiling_ns)}")
    yield BLANK
    yield heading("Says")
    for entry in block.decoded(path):
        match entry:
            case Witness():
                text = (
                    f"{entry.kind} of {entry.domain} to {entry.holder.node}/{entry.holder.process}: {entry.mode} "
                    f"{entry.phase}, floor {moment(entry.floor_ns)}, expiry {moment(entry.expiry_ns)}"
                )
                yield words(printable(text), LeaseSubject(printable(entry.domain), entry.correlation_id.hex()))
            case Ended():
                text = f"end of the lease on {entry.domain}: {entry.ending.outcome}"
                yield words(printable(text), DomainSubject(printable(entry.domain)))
            case SessionWitness():
                holder = f"{entry.holder.node}/{entry.holder.process}"
                yield words(f"{entry.kind} of session {entry.session_id.hex()} for {holder}")
            case _:
                yield words(type(entry).__name__)


def _signed(token: SignedTime, node: str) -> DetailLine:
    text = f"{moment(token.midpoint_ns)} ±{span_text(token.radius_ns)}, {token.status.word}"
    return fact("signed at", f"{text} by {node}", ClockSubject(node))


LABEL: Final = 12


def fact(label: str, text: str, subject: Subject | None = None, tone: Tone = Tone.PLAIN) -> DetailLine:
    """Return a line: what, and how it is."""
    return DetailLine((Cell(f"{label:{LABEL}} ", Tone.DIM), Cell(text, tone)), subject)


def heading(text: str) -> DetailLine:
    return DetailLine((Cell(text, Tone.STRONG),))


def words(text: str, subject: Subject | None = None, tone: Tone = Tone.PLAIN) -> DetailLine:
    return DetailLine((Cell(f"  {text}", tone),), subject)


BLANK: Final = DetailLine((Cell(""),))
