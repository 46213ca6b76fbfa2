"""Rules about writers' sequences of frames, as the index tells of them: numbers used twice, order, frames named.

Asked of rows only: of a run that is clean by columns there are none. A sequence that no frame names proves nothing.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from timeagent.units import rfc3339

from .finding import Evidence, NamedInterval, found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from auditor.index import Coverage, Index
    from timeagent.units import Instant

    from .finding import Finding


def check_sequences(index: Index, coverage: Coverage) -> Iterator[Finding]:
    """Apply every rule about sequences."""
    yield from _reused(index)
    yield from _disordered(index)
    yield from _lost(index, coverage)
    yield from _signed_before_named(index)


def _rows(index: Index, sql: str, *values: Any) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - columns have no types
    yield from index.db.execute(sql, values)


def _frame(writer: str, incarnation: bytes, sequence: int) -> str:
    return f"frame {sequence} of {writer} ({incarnation.hex()})"


def _reused(index: Index) -> Iterator[Finding]:
    """sequence-reused: numbers that stand for several frames."""
    sql = (
        "SELECT writer, incarnation, sequence FROM frame GROUP BY 1, 2, 3 HAVING count(DISTINCT digest) > 1"
        " ORDER BY 1, 2, 3"
    )
    places = (
        "SELECT path, offset, length FROM frame WHERE writer = ? AND incarnation = ? AND sequence = ? ORDER BY 1, 2"
    )
    for name in list(_rows(index, sql)):
        subject, where = _frame(*name), [Evidence(*row) for row in _rows(index, places, *name)]
        yield found("sequence-reused", subject, f"{len(where)} frames claim to be {subject}", where)


def _disordered(index: Index) -> Iterator[Finding]:
    """sequence-disorder: of each two frames that follow each other the later one lies above the earlier."""
    sql = (
        "SELECT * FROM (SELECT writer, incarnation, lag(sequence) OVER run AS before, lag(last) OVER run AS top,"
        " lag(path) OVER run AS there, lag(offset) OVER run, lag(length) OVER run, sequence, first, path, offset,"
        " length FROM frame WINDOW run AS"
        " (PARTITION BY writer, incarnation ORDER BY sequence, first, path, offset))"
        " WHERE before < sequence AND first <= top ORDER BY writer, incarnation, sequence, path, offset"
    )
    for writer, incarnation, before, top, *rest in _rows(index, sql):
        earlier, (sequence, first), later = Evidence(*rest[:3]), rest[3:5], Evidence(*rest[5:])
        subject = _frame(writer, incarnation, sequence)
        reason = (
            f"{subject} begins at {rfc3339(first)}, not above {rfc3339(top)}, "
            f"with which frame {before} of that writer ends"
        )
        times = [NamedInterval.at(f"frame {before}", top), NamedInterval.at(f"frame {sequence}", first)]
        yield found("sequence-disorder", subject, reason, [earlier, later], times)


def _lost(index: Index, coverage: Coverage) -> Iterator[Finding]:
    """lost-frame: committed frames that are nowhere, each at the place that names it first.

    Its timestamps lie between those of the frames beside it, since they increase with the sequence. Not of one that may
    be in a file of such a time that cannot be read: its writer's, or one in a directory of which nobody knows whose
    files it holds.
    """
    sql = (
        "SELECT c.writer, c.incarnation, c.sequence, c.named, c.path, c.offset, c.length FROM committed c"
        " LEFT JOIN frame f ON f.writer = c.writer AND f.incarnation = c.incarnation AND f.sequence = c.sequence"
        " AND (f.digest = c.digest OR c.digest = zeroblob(32)) WHERE f.writer IS NULL ORDER BY 1, 2, 3, 5, 6"
    )
    unread = "SELECT count(*) FROM unread WHERE writer IN (?, '') AND start <= ? AND end > ?"
    for name, naming in itertools.groupby(list(_rows(index, sql)), key=lambda row: row[:3]):
        _, _, _, named, *where = next(naming)
        above, below = _between(index, name, named)
        verdict = coverage.missing_frame(above, max(above, below))
        if verdict is not None and not index.number(unread, name[0], below, above):
            subject = _frame(*name)
            reason = f"a later frame of its writer says that {subject} was committed; it is in no bag of this copy"
            yield found("lost-frame", subject, reason, [Evidence(*where)], verdict=verdict)


def _between(index: Index, name: tuple[str, bytes, int], named: Instant) -> tuple[Instant, Instant]:
    """Return the last timestamp of a writer below a sequence, and its first one above."""
    beside = "FROM frame WHERE writer = ? AND incarnation = ? AND sequence"
    above = index.number(f"SELECT coalesce(max(last), 0) {beside} < ?", *name)
    return above, index.number(f"SELECT coalesce(min(first), ?) {beside} > ?", named, *name)


def _signed_before_named(index: Index) -> Iterator[Finding]:
    """r2-breach: who names a frame by its digest has seen it, and with it the signed time that the digest covers.

    A session takes the signed time of a frame and the reference under one lock, and takes note of an outcome under the
    same: the frame that is named was stamped before (``appliance.session.stamping``), by the same node's clock. Of
    frames whose signed times verify only.
    """
    sql = (
        "SELECT c.writer, c.incarnation, c.naming, c.earliest, c.latest, c.path, c.offset, c.length,"
        " f.sequence, f.earliest, f.latest, f.path, f.offset, f.length FROM committed c"
        " JOIN frame f ON f.writer = c.writer AND f.incarnation = c.incarnation AND f.sequence = c.sequence"
        " AND (f.digest = c.digest OR c.digest = zeroblob(32))"
        " WHERE f.earliest - c.staleness > c.latest ORDER BY 1, 2, 3, 6, 7, 12, 13"
    )
    for writer, incarnation, *rest in _rows(index, sql):
        (naming, *signed), (named, *before) = rest[:6], rest[6:]
        subject = _frame(writer, incarnation, naming)
        reason = (
            f"{subject} names frame {named} as committed, and that one was signed after the frame's time "
            "was surely over"
        )
        times = [
            NamedInterval(f"frame {sequence}", earliest, latest, node=writer)
            for sequence, earliest, latest, *_ in ((named, *before), (naming, *signed))
        ]
        title, where = "a frame was signed before one that it names as committed", (before[2:], signed[2:])
        yield found("r2-breach", subject, reason, [Evidence(*each) for each in where], times, title=title)
