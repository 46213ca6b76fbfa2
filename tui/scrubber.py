"""The line that shows a whole record at once: how much happens when, where the findings are, where one looks. Pure.

Two lines of one width: the axis with the findings and the cursor, and beneath it how many events lie in each cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from auditor.finding import Verdict
from timeagent.units import DAY, SECOND, rfc3339

from .cellwidth import merged
from .words import Cell, Tone

if TYPE_CHECKING:
    from auditor.replay.timeline import Timeline
    from timeagent.units import Instant

AXIS: Final = "━"
CURSOR: Final = "◆"
ON_FINDING: Final = "◈"
"""The cursor is where a finding is."""
MARKS: Final = {
    Verdict.VIOLATION: "▲",
    Verdict.INDETERMINATE: "△",
    Verdict.UNVERIFIABLE: "△",
    Verdict.PROVISIONAL: "▵",
    Verdict.OK: "▵",
}
MARK_TONES: Final = {"▲": Tone.BAD, "△": Tone.WARN, "▵": Tone.DIM}
HEIGHTS: Final = " ▁▂▃▄▅▆▇█"
LEGEND: Final = "▲ violation  △ indeterminate, unverifiable  ▵ to know  ◆ here  ◈ here, on a finding"
_WORST: Final = tuple(Verdict)


@dataclass(frozen=True, slots=True)
class Scrubber:
    """Two lines, and what the cell under the cursor has."""

    axis: list[Cell]
    density: list[Cell]
    events_here: int
    findings_here: int


def scrubber(timeline: Timeline, first: Instant, last: Instant, cursor: Instant, width: int) -> Scrubber:
    """Draw [first, last] in so many cells, labels included."""
    left, right = _label(first, last - first), _label(last, last - first)
    room = max(1, width - len(left) - len(right) - 2)
    here = cell_of(cursor, first, last, room)
    counts = timeline.density(first, last, room) if last > first else [len(timeline.events)]
    worst, in_cell = _findings(timeline, first, last, room, here)
    axis = []
    for cell in range(room):
        mark = worst.get(cell)
        if cell == here:
            axis.append((ON_FINDING if mark else CURSOR, Tone.STRONG))
        elif mark:
            axis.append((mark, MARK_TONES[mark]))
        else:
            axis.append((AXIS, Tone.DIM))
    highest = max(counts, default=0)
    heights = [(HEIGHTS[_height(count, highest)], Tone.PLAIN) for count in counts]
    heights += [(" ", Tone.PLAIN)] * (room - len(counts))
    title = f"{'events':>{len(left)}}"[: len(left)]
    return Scrubber(
        [Cell(f"{left} ", Tone.DIM), *merged(axis), Cell(f" {right}", Tone.DIM)],
        [Cell(f"{title} ", Tone.DIM), *merged(heights), Cell(" " * (len(right) + 1))],
        counts[here] if here < len(counts) else 0,
        in_cell,
    )


def cell_of(instant: Instant, first: Instant, last: Instant, cells: int) -> int:
    """Return in which of so many equal parts of [first, last] an instant lies; what is outside in the nearest."""
    if last <= first:
        return 0
    return max(0, min(cells - 1, (instant - first) * cells // (last - first)))


def instant_of(cell: int, first: Instant, last: Instant, cells: int) -> Instant:
    """Return where a part begins."""
    return first + (last - first) * cell // cells


def _height(count: int, highest: int) -> int:
    """Nothing is nothing, and one event among thousands is still to be seen."""
    return 0 if not count else 1 + (count - 1) * (len(HEIGHTS) - 2) // max(1, highest - 1)


def _findings(timeline: Timeline, first: Instant, last: Instant, cells: int, here: int) -> tuple[dict[int, str], int]:
    """Return the mark of the worst finding of each cell, and how many there are under the cursor."""
    worst: dict[int, Verdict] = {}
    in_cell = 0
    for instant, finding in timeline.findings:
        if not first <= instant <= last:
            continue
        cell = cell_of(instant, first, last, cells)
        in_cell += cell == here
        known = worst.get(cell, finding.verdict)
        worst[cell] = min(known, finding.verdict, key=_WORST.index)
    return {cell: MARKS[verdict] for cell, verdict in worst.items()}, in_cell


def _label(instant: Instant, span: int) -> str:
    text = rfc3339(instant)
    if span >= 2 * DAY:
        return text[5:16].replace("T", " ")
    return text[11:19] if span >= 20 * SECOND else text[11:23]
