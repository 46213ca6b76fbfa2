"""What a reader of settled messages had been given by an instant, in the order in which it gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.formats.frame import open_frame
from appliance.formats.framing import Piece, piece_at
from timeagent.errors import Damaged

from .timeline import newest_accepted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from auditor.finding import Evidence
    from auditor.load import Tree
    from timeagent.units import Instant

    from .events import FrameWritten
    from .state import LogsAt
    from .timeline import Timeline


@dataclass(frozen=True, slots=True, order=True)
class Delivered:
    """One message. Ordered as readers order: timestamp, writer, the writer's sequence."""

    timestamp_ns: Instant
    writer: str
    incarnation: bytes
    sequence: int
    index: int
    """Which message of its frame."""
    length: int
    where: Evidence
    """Of its frame."""
    domains: tuple[str, ...]


def newest_delivered(
    timeline: Timeline, state: LogsAt, tree: Tree, log: str, *, newest: int, domain: str | None = None
) -> list[Delivered]:
    """Return the last messages that a reader of a log had been given, in order. Reads their frames from the tree.

    ``domain``: only those that were written under a lease of it.
    """
    known = state.logs.get(log)
    if known is None or newest <= 0:
        return []
    found: list[Delivered] = []
    for event in timeline.delivered_backwards(log, known.horizon_ns):
        if len(found) >= newest and newest_accepted(event) < found[-newest].timestamp_ns:
            break
        if domain is None or any(name == domain for name, _ in event.leases):
            found = sorted([*found, *_messages(event, tree)])[-newest:]
    return found


def _messages(event: FrameWritten, tree: Tree) -> Iterator[Delivered]:
    data = tree.read_range(event.where.path, event.where.offset, event.where.length)
    piece = piece_at(data or b"", 0)
    if not isinstance(piece, Piece):
        return
    try:
        frame = open_frame(piece, event.where.path)
    except Damaged:
        return
    domains = tuple(name for name, _ in event.leases)
    first, end = event.accepted
    stamps, lengths = frame.timestamps[first:end].tolist(), frame.lengths[first:end].tolist()
    for index, (stamp, length) in enumerate(zip(stamps, lengths, strict=True), first):
        yield Delivered(stamp, event.writer, event.incarnation, event.sequence, index, length, event.where, domains)
