"""Bytes of a tree in words, with what they lead to: witnesses, frames and their messages, lock files, ledgers.

Reads through whatever is given; verifies nothing: what the signatures are worth is the audit's to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, overload

from appliance.formats.frame import Frame, open_frame
from appliance.formats.framing import Kind, Piece, piece_at
from auditor.evidence.tree import Tree
from auditor.explain.words import Said, piece_says
from timeagent.console import printable
from timeagent.errors import Damaged

from ..model.subjects import (
    ClockSubject,
    DetailLine,
    DomainSubject,
    LeaseSubject,
    NodeSubject,
    PlaceSubject,
    Subject,
    Tone,
)
from ..model.words import moment
from .standing import BLANK, fact, heading, words

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
