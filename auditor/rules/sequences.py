"""Rules about writers' sequences of frames, as the index tells of them: numbers used twice, order, frames named.

Asked of rows only: of a run that is clean by columns there are none.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from auditor.finding import Evidence, NamedInterval
from timeagent.units import rfc3339

from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from auditor.finding import Finding
    from auditor.index import Coverage, Index
    from timeagent.units import Instant


@dataclass(frozen=True, slots=True)
class WriterRun:
    """One run of a writer."""

    writer: str
    incarnation: bytes

    def frame(self, sequence: int) -> str:
        """Return what a frame of it is called."""
        return f"frame {sequence} of {self.writer} ({self.incarnation.hex()})"


@dataclass(frozen=True, slots=True)
class SignedFrame:
    """A frame, and the interval that its signed time states."""

    sequence: int
    earliest_ns: Instant
    latest_ns: Instant
    where: Evidence


def reused_sequences(index: Index) -> Iterator[tuple[WriterRun, int, list[Evidence]]]:
    """Yield (run, sequence, places) of numbers that stand for several frames."""
    sql = (
        "SELECT writer, incarnation, sequence FROM frame GROUP BY 1, 2, 3 HAVING count(DISTINCT digest) > 1"
        " ORDER BY 1, 2, 3"
    )
    places = (
        "SELECT path, offset, length FROM frame WHERE writer = ? AND incarnation = ? AND sequence = ? ORDER BY 1, 2"
    )
    for writer, incarnation, sequence in list(_rows(index, sql)):
        named = index.db.execute(places, (writer, incarnation, sequence))
        yield WriterRun(writer, incarnation), sequence, [Evidence(*row) for row in named]


def disordered_frames(index: Index) -> Iterator[tuple[WriterRun, int, int, Evidence, int, int, Evidence]]:
    """Yield (run, sequence, last timestamp, where, next sequence, its first timestamp, where).

    Of each two frames that follow each other where the later one does not lie above the earlier.
    """
    sql = (
        "SELECT * FROM (SELECT writer, incarnation, lag(sequence) OVER run AS before, lag(last) OVER run AS top,"
        " lag(path) OVER run AS there, lag(offset) OVER run, lag(length) OVER run, sequence, first, path, offset,"
        " length FROM frame WINDOW run AS"
        " (PARTITION BY writer, incarnation ORDER BY sequence, first, path, offset))"
        " WHERE before < sequence AND first <= top ORDER BY writer, incarnation, sequence, path, offset"
    )
    for writer, incarnation, *rest in _rows(index, sql):
        before, top, path, offset, length, sequence, first, *where = rest
        yield (
            WriterRun(writer, incarnation),
            before,
            top,
            Evidence(path, offset, length),
            sequence,
            first,
            Evidence(*where),
        )


def lost_frames(index: Index) -> Iterator[tuple[WriterRun, int, Instant, Instant, Evidence]]:
    """Yield (run, sequence, first, last, who names it first) of committed frames that are nowhere.

    Its timestamps lie between first and last: between those of the frames beside it, since they increase with the
    sequence. Not of one that may be in a file of such a time that cannot be read: its writer's, or one in a directory
    of which nobody knows whose files it holds.
    """
    sql = (
        "SELECT c.writer, c.incarnation, c.sequence, c.named, c.path, c.offset, c.length FROM committed c"
        " LEFT JOIN frame f ON f.writer = c.writer AND f.incarnation = c.incarnation AND f.sequence = c.sequence"
        " AND (f.digest = c.digest OR c.digest = zeroblob(32)) WHERE f.writer IS NULL ORDER BY 1, 2, 3, 5, 6"
    )
    for _, naming in itertools.groupby(list(_rows(index, sql)), key=lambda row: row[:3]):
        writer, incarnation, sequence, named, *where = next(naming)
        run = WriterRun(writer, incarnation)
        above, below = _between(index, run, sequence, named)
        if not _may_be_unread(index, run, above, below):
            yield run, sequence, above, max(above, below), Evidence(*where)


def _between(index: Index, run: WriterRun, sequence: int, named: Instant) -> tuple[Instant, Instant]:
    """Return the last timestamp of a writer below a sequence, and its first one above."""
    beside = "FROM frame WHERE writer = ? AND incarnation = ? AND sequence"
    who = (run.writer, run.incarnation, sequence)
    above = index.number(f"SELECT coalesce(max(last), 0) {beside} < ?", *who)
    return above, index.number(f"SELECT coalesce(min(first), ?) {beside} > ?", named, *who)


def _may_be_unread(index: Index, run: WriterRun, above: Instant, below: Instant) -> bool:
    """Whether a file that cannot be read may hold a frame between two timestamps."""
    unread = "SELECT count(*) FROM unread WHERE writer IN (?, '') AND start <= ? AND end > ?"
    return bool(index.number(unread, run.writer, below, above))


def frames_before_named(index: Index) -> Iterator[tuple[WriterRun, SignedFrame, SignedFrame]]:
    """Yield (run, frame, the committed frame that it names) where R2 does not hold between the two.

    Of frames whose signed times verify only. The digest by which a frame is named covers its signed time.
    """
    sql = (
        "SELECT c.writer, c.incarnation, c.naming, c.earliest, c.latest, c.path, c.offset, c.length,"
        " f.sequence, f.earliest, f.latest, f.path, f.offset, f.length FROM committed c"
        " JOIN frame f ON f.writer = c.writer AND f.incarnation = c.incarnation AND f.sequence = c.sequence"
        " AND (f.digest = c.digest OR c.digest = zeroblob(32))"
        " WHERE f.earliest - c.staleness > c.latest ORDER BY 1, 2, 3, 6, 7, 12, 13"
    )
    for writer, incarnation, *rest in _rows(index, sql):
        of_frame, of_named = rest[:6], rest[6:]
        yield WriterRun(writer, incarnation), _signed(of_frame), _signed(of_named)


def _signed(row: list[Any]) -> SignedFrame:
    sequence, earliest, latest, *where = row
    return SignedFrame(sequence, earliest, latest, Evidence(*where))


def _rows(index: Index, sql: str) -> Iterator[tuple[Any, ...]]:
    yield from index.db.execute(sql)


def check_sequences(index: Index, coverage: Coverage) -> Iterator[Finding]:
    """sequence-reused, sequence-disorder, lost-frame and r2-breach. A sequence that no frame names proves nothing."""
    for run, sequence, places in reused_sequences(index):
        subject = run.frame(sequence)
        yield found("sequence-reused", subject, f"{len(places)} frames claim to be {subject}", places)
    for run, before, top, earlier, sequence, first, later in disordered_frames(index):
        subject = run.frame(sequence)
        reason = (
            f"{subject} begins at {rfc3339(first)}, not above {rfc3339(top)}, "
            f"with which frame {before} of that writer ends"
        )
        times = [NamedInterval.at(f"frame {before}", top), NamedInterval.at(f"frame {sequence}", first)]
        yield found("sequence-disorder", subject, reason, [earlier, later], times)
    for run, sequence, first_ns, last_ns, where in lost_frames(index):
        verdict = coverage.missing_frame(first_ns, last_ns)
        if verdict is None:
            continue
        subject = run.frame(sequence)
        reason = f"a later frame of its writer says that {subject} was committed; it is in no bag of this copy"
        yield found("lost-frame", subject, reason, [where], verdict=verdict)
    yield from _signed_before_named(index)


def _signed_before_named(index: Index) -> Iterator[Finding]:
    """r2-breach: who names a frame by its digest has seen it, and with it the signed time that the digest covers.

    A session takes the signed time of a frame and the reference under one lock, and takes note of an outcome under the
    same: the frame that is named was stamped before (``appliance.session.stamping``), by the same node's clock.
    """
    for run, frame, named in frames_before_named(index):
        subject = run.frame(frame.sequence)
        reason = (
            f"{subject} names frame {named.sequence} as committed, and that one was signed after the frame's time "
            "was surely over"
        )
        times = [
            NamedInterval(f"frame {each.sequence}", each.earliest_ns, each.latest_ns, node=run.writer)
            for each in (named, frame)
        ]
        title = "a frame was signed before one that it names as committed"
        yield found("r2-breach", subject, reason, [named.where, frame.where], times, title=title)
