"""Rules about a writer's frames: each number stands for one frame, timestamps grow with it, what is named is there.

All writers of a bucket are judged at once, by columns: of a frame nothing is made but what a finding shows. A sequence
that no frame names proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from auditor.columns.layout import NOTHING, Column, RowBucket, Rows
from timeagent.units import Instant, rfc3339

from ..columns.index import Coverage
from ..evidence.finding import Evidence, Finding, found

_SIDES: Final[tuple[Literal["left"], Literal["right"]]] = ("left", "right")


def check_sequences(frames: RowBucket, coverage: Coverage) -> Iterator[Finding]:
    """Apply every rule about sequences to the writers of a bucket, each run by itself."""
    rows = _ordered(frames)
    ends = np.searchsorted(rows["name"], np.arange(len(frames.names.values) + 1)).tolist()
    paths = list(frames.paths.values)
    for number, (writer, incarnation) in enumerate(frames.names.values):
        run = _Run(writer, incarnation, rows[ends[number] : ends[number + 1]], paths)
        yield from _reused(run)
        yield from _disordered(run)
        naming, named = _named(run)
        lost = run.rows["committed"] != NOTHING
        lost[naming] = False
        yield from _lost(run, np.flatnonzero(lost), coverage)
        yield from _signed_before_named(run, naming, named)


def _ordered(frames: RowBucket) -> Rows:
    """Return the rows of each run in order of their sequence; of one sequence in order of time and place."""
    rows = frames.rows()
    rows = rows[np.lexsort((rows["sequence"], rows["name"]))]
    twice = (rows["name"][1:] == rows["name"][:-1]) & (rows["sequence"][1:] == rows["sequence"][:-1])
    if not twice.any():
        return rows
    place = np.argsort(np.argsort(np.array(list(frames.paths.values), np.object_), kind="stable"))
    keys = (rows["offset"], place[rows["path"]], rows["first"], rows["sequence"], rows["name"])
    return rows[np.lexsort(keys)]


@dataclass(frozen=True, slots=True)
class _Run:
    """The frames of one run of a writer, in order."""

    writer: str
    incarnation: bytes
    rows: Rows
    paths: list[str]

    def name(self, sequence: int) -> str:
        return f"frame {sequence} of {self.writer} ({self.incarnation.hex()})"

    def where(self, frame: int) -> Evidence:
        row = self.rows[frame]
        return Evidence(self.paths[row["path"]], int(row["offset"]), int(row["length"]))

    def signed(self, frame: int) -> tuple[Instant, Instant, str]:
        row = self.rows[frame]
        return int(row["earliest"]), int(row["latest"]), self.writer


def _reused(run: _Run) -> Iterator[Finding]:
    """sequence-reused: numbers that stand for several frames."""
    sequence, digest = run.rows["sequence"], run.rows["digest"]
    twice = (sequence[1:] == sequence[:-1]) & (digest[1:] != digest[:-1]).any(axis=1)
    for each in np.unique(sequence[1:][twice]).tolist() if twice.any() else ():
        where = sorted(map(run.where, range(*(int(np.searchsorted(sequence, each, side)) for side in _SIDES))))
        yield found("sequence-reused", run.name(each), f"{len(where)} frames claim to be {run.name(each)}", where)


def _disordered(run: _Run) -> Iterator[Finding]:
    """sequence-disorder: of each two frames that follow each other the later one lies above the earlier."""
    rows = run.rows
    follows = rows["sequence"][:-1] < rows["sequence"][1:]
    for later in (np.flatnonzero(follows & (rows["first"][1:] <= rows["last"][:-1])) + 1).tolist():
        before, first, top = int(rows["sequence"][later - 1]), int(rows["first"][later]), int(rows["last"][later - 1])
        sequence = int(rows["sequence"][later])
        reason = (
            f"{run.name(sequence)} begins at {rfc3339(first)}, not above {rfc3339(top)}, "
            f"with which frame {before} of that writer ends"
        )
        times = {f"frame {before}": top, f"frame {sequence}": first}
        yield found("sequence-disorder", run.name(sequence), reason, [run.where(later - 1), run.where(later)], times)


ALIKE_MAX: Final = 16
"""So many frames of one number and digest, or where no digest is known of one number, are held against who names it."""


def _named(run: _Run) -> tuple[Column, Column]:
    """Return each frame that names one as committed, with each that it names: without a digest, any of that number."""
    rows = run.rows
    names, exact = rows["committed"] != NOTHING, rows["committed_digest"].any(axis=1)
    first = _pairs(np.flatnonzero(names & ~exact), rows["committed"], rows["sequence"])
    in_full = _marks(rows, "committed", "committed_digest"), _marks(rows, "sequence", "digest")
    second = _pairs(np.flatnonzero(names & exact), *in_full)
    return np.append(first[0], second[0]), np.append(first[1], second[1])


def _marks(rows: Rows, sequence: str, digest: str) -> NDArray[np.void]:
    return np.column_stack((rows[sequence].astype(np.uint64), rows[digest])).view("V40").ravel()


def _pairs(naming: Column, names: NDArray[Any], there: NDArray[Any]) -> tuple[Column, Column]:
    """Return rows with those whose name is the one that they name."""
    order = np.argsort(there, kind="stable")
    low, high = (np.searchsorted(there[order], names[naming], side) for side in _SIDES)
    count = np.minimum(high - low, ALIKE_MAX)
    return np.repeat(naming, count), order[np.arange(count.sum()) + np.repeat(low - np.cumsum(count) + count, count)]


def _lost(run: _Run, naming: Column, coverage: Coverage) -> Iterator[Finding]:
    """lost-frame: committed frames that are nowhere, each at the place that names it first.

    Its timestamps lie between those of the frames beside it, since they increase with the sequence. Not of one that may
    be in a file of such a time that cannot be read: its writer's, or one in a directory of which nobody knows whose
    files it holds.
    """
    rows = run.rows
    first: dict[int, int] = {}
    for frame in sorted(naming.tolist(), key=run.where):
        first.setdefault(int(rows["committed"][frame]), frame)
    lasts = np.maximum.accumulate(np.append(0, rows["last"]))
    firsts = np.minimum.accumulate(rows["first"][::-1])[::-1]
    missing = lru_cache(1)(coverage.missing_frame)  # between two frames many may be
    for sequence, frame in sorted(first.items()):
        before, beyond = (int(np.searchsorted(rows["sequence"], sequence, side)) for side in _SIDES)
        above = int(lasts[before])
        below = int(firsts[beyond] if beyond < len(rows) else rows["last"][frame])
        verdict = missing(above, max(above, below))
        if verdict is not None and not coverage.index.is_unread(run.writer, above, below):
            name = run.name(sequence)
            reason = f"a later frame of its writer says that {name} was committed; it is in no bag of this copy"
            yield found("lost-frame", name, reason, [run.where(frame)], verdict=verdict)


def _signed_before_named(run: _Run, naming: Column, named: Column) -> Iterator[Finding]:
    """r2-breach: who names a frame by its digest has seen it, and with it the signed time that the digest covers.

    A session takes the signed time of a frame and the reference under one lock, and takes note of an outcome under the
    same: the frame that is named was stamped before (``appliance.session.stamping``), by the same node's clock. Of
    frames whose signed times verify only.
    """
    rows = run.rows
    proven = rows["proven"][naming] & rows["proven"][named] & (rows["earliest"][named] > 0)
    naming, named = naming[proven], named[proven]
    # As unsigned numbers: no sum of two instants is beyond these.
    latest = rows["latest"][naming].astype(np.uint64) + rows["staleness"][naming].astype(np.uint64)
    broken = rows["earliest"][named].astype(np.uint64) > latest
    for frame, before in zip(naming[broken].tolist(), named[broken].tolist(), strict=True):
        subject = run.name(int(rows["sequence"][frame]))
        reason = (
            f"{subject} names frame {rows['sequence'][before]} as committed, and that one was signed after the frame's "
            "time was surely over"
        )
        title, pair = "a frame was signed before one that it names as committed", (before, frame)
        where = [run.where(each) for each in pair]
        times = {f"frame {rows['sequence'][each]}": run.signed(each) for each in pair}
        yield found("r2-breach", subject, reason, where, times, title=title)
