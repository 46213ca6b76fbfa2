"""The line that shows a whole record at once: how much happens when, where the findings are, where one looks. Pure.

Two lines of one width: the axis with the findings and the cursor, and beneath it how many events lie in each cell.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from auditor.rules.finding import Verdict
from timeagent.units import DAY, SECOND, rfc3339

from .cellwidth import merged
from .subjects import Cell, Tone

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


@dataclass(frozen=True, slots=True)
class Ground:
    """What stays as it is wherever one looks: made once for a stretch and a width, drawn with each cursor."""

    first_ns: Instant
    last_ns: Instant
    counts: list[int]
    """How many events lie in each cell."""
    worst: dict[int, str]
    """The mark of the worst finding of each cell that has any."""
    findings: Counter[int]
    """How many there are in each cell."""
    room: int

    def with_cursor(self, cursor: Instant) -> Scrubber:
        """Draw both lines, one looking at this instant."""
        left, right = (_label(instant, self.last_ns - self.first_ns) for instant in (self.first_ns, self.last_ns))
        here = cell_of(cursor, self.first_ns, self.last_ns, self.room)
        axis = []
        for cell in range(self.room):
            mark = self.worst.get(cell)
            if cell == here:
                axis.append((ON_FINDING if mark else CURSOR, Tone.STRONG))
            elif mark:
                axis.append((mark, MARK_TONES[mark]))
            else:
                axis.append((AXIS, Tone.DIM))
        highest = max(self.counts, default=0)
        heights = [(HEIGHTS[_height(count, highest)], Tone.PLAIN) for count in self.counts]
        heights += [(" ", Tone.PLAIN)] * (self.room - len(self.counts))
        title = f"{'events':>{len(left)}}"[: len(left)]
        return Scrubber(
            [Cell(f"{left} ", Tone.DIM), *merged(axis), Cell(f" {right}", Tone.DIM)],
            [Cell(f"{title} ", Tone.DIM), *merged(heights), Cell(" " * (len(right) + 1))],
            self.counts[here] if here < len(self.counts) else 0,
            self.findings[here],
        )


def ground_of(timeline: Timeline, first: Instant, last: Instant, width: int) -> Ground:
    """Count what lies in [first, last], in so many cells, labels included."""
    room = max(1, width - len(_label(first, last - first)) - len(_label(last, last - first)) - 2)
    counts = timeline.density(first, last, room) if last > first else [len(timeline.events)]
    worst: dict[int, Verdict] = {}
    in_cells: Counter[int] = Counter()
    for instant, finding in timeline.findings:
        if first <= instant <= last:
            cell = cell_of(instant, first, last, room)
            in_cells[cell] += 1
            worst[cell] = min(worst.get(cell, finding.verdict), finding.verdict, key=_WORST.index)
    return Ground(first, last, counts, {cell: MARKS[verdict] for cell, verdict in worst.items()}, in_cells, room)


def scrubber(timeline: Timeline, first: Instant, last: Instant, cursor: Instant, width: int) -> Scrubber:
    """Draw [first, last] in so many cells, labels included."""
    return ground_of(timeline, first, last, width).with_cursor(cursor)


def cell_of(instant: Instant, first: Instant, last: Instant, cells: int) -> int:
    """Return in which of so many equal parts of [first, last] an instant lies; what is outside in the nearest."""
    if last <= first:
        return 0
    return max(0, min(cells - 1, (instant - first) * cells // (last - first)))


def _height(count: int, highest: int) -> int:
    """Nothing is nothing, and one event among thousands is still to be seen."""
    return 0 if not count else 1 + (count - 1) * (len(HEIGHTS) - 2) // max(1, highest - 1)


def _label(instant: Instant, span: int) -> str:
    text = rfc3339(instant)
    if span >= 2 * DAY:
        return text[5:16].replace("T", " ")
    return text[11:19] if span >= 20 * SECOND else text[11:23]
