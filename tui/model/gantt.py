"""Draws a record over time: the scrubber over all of it, and who had which lease when as bars. Pure.

The scrubber has two lines of one width: the axis with findings and cursor, and how many events lie in each cell. What a
bar is made of says the mode, what is inside it says who; nothing is said by colour alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from appliance.formats.lease import Mode, Phase
from auditor.evidence.finding import Verdict
from auditor.explain.context import LeaseTrace
from auditor.timeline.timeline_reader import Timeline
from timeagent.console import printable
from timeagent.units import DAY, SECOND, Instant, rfc3339

from .state import Cell, Tone
from .tables import fitted, merged

type LeasesWithin = Callable[[str, Instant, Instant], Sequence[LeaseTrace]]

AXIS: Final = "━"
CURSOR: Final = "◆"
ON_FINDING: Final = "◈"
"""The cursor is where a finding is."""
SCRUBBER_MARKS: Final = {
    Verdict.VIOLATION: "▲",
    Verdict.INDETERMINATE: "△",
    Verdict.UNVERIFIABLE: "△",
    Verdict.PROVISIONAL: "▵",
    Verdict.OK: "▵",
}
MARK_TONES: Final = {"▲": Tone.BAD, "△": Tone.WARN, "▵": Tone.DIM}
HEIGHTS: Final = " ▁▂▃▄▅▆▇█"
SCRUBBER_LEGEND: Final = "▲ violation  △ indeterminate, unverifiable  ▵ to know  ◆ here  ◈ here, on a finding"
_WORST: Final = tuple(Verdict)


class Scrubber:
    """[first, last] of a record, in two lines of a width; what stays wherever one looks is counted once."""

    def __init__(self, timeline: Timeline, first: Instant, last: Instant, width: int) -> None:
        self._first_ns, self._last_ns = first, last
        self._left, self._right = (_label(instant, last - first) for instant in (first, last))
        self._room = room = max(1, width - len(self._left) - len(self._right) - 2)
        self._counts = timeline.density(first, last, room) if last > first else [len(timeline.events)]
        worst: dict[int, Verdict] = {}
        self._findings: Counter[int] = Counter()
        for instant, finding in timeline.findings:
            if first <= instant <= last:
                cell = cell_of(instant, first, last, room)
                self._findings[cell] += 1
                worst[cell] = min(worst.get(cell, finding.verdict), finding.verdict, key=_WORST.index)
        self._marks = {cell: SCRUBBER_MARKS[verdict] for cell, verdict in worst.items()}

    def drawn(self, cursor: Instant) -> tuple[list[Cell], list[Cell], int]:
        """Return the axis, how many events lie in each cell, and how many findings are where one looks."""
        here = cell_of(cursor, self._first_ns, self._last_ns, self._room)
        axis = []
        for cell in range(self._room):
            mark = self._marks.get(cell)
            if cell == here:
                axis.append((ON_FINDING if mark else CURSOR, Tone.STRONG))
            else:
                axis.append((mark, MARK_TONES[mark]) if mark else (AXIS, Tone.DIM))
        highest = max(self._counts, default=0)
        heights = "".join(HEIGHTS[_height(count, highest)] for count in self._counts).ljust(self._room)
        title = f"{'events':>{len(self._left)}}"[: len(self._left)]
        return (
            [Cell(f"{self._left} ", Tone.DIM), *merged(axis), Cell(f" {self._right}", Tone.DIM)],
            [Cell(f"{title} ", Tone.DIM), Cell(heights), Cell(" " * (len(self._right) + 1))],
            self._findings[here],
        )


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


BARS: Final = {Mode.X: "█", Mode.SIX: "▓", Mode.S: "▒", Mode.IX: "▒", Mode.IS: "░"}
TENTATIVE: Final = "·"
OVER: Final = "╌"
"""Past its end as far as the holder knows, and its expiry not yet reached: nobody else may have it."""
CLASH: Final = "╬"
"""Two leases that conflict, both standing."""
FLOOR: Final = "▏"
SETTLE: Final = "┊"
HERE: Final = "│"
EMPTY: Final = " "
GANTT_LEGEND: Final = (
    "█ X  ▓ SIX  ▒ S, IX  ░ IS  · tentative  ╌ broken, until its expiry  ╬ two at once  ▏ floor  ┊ settle_to  │ here"
)
LABEL_MOST: Final = 24


@dataclass(frozen=True, slots=True)
class BarWindow:
    first_ns: Instant
    last_ns: Instant
    cursor_ns: Instant


def gantt(
    rows: Sequence[str],
    leases: LeasesWithin,
    window: BarWindow,
    width: int,
    accused: AbstractSet[bytes] = frozenset(),
) -> list[list[Cell]]:
    """Draw a row for each domain, each exactly so many cells wide.

    ``leases``: of a domain, those that touch a stretch of time. ``accused``: those that the audit found standing
    while another did. Nothing else is drawn as a clash: bars that overlap by a few milliseconds do so because instants
    of two clocks, or of two tokens, are no more exact than that.
    """
    label = min(LABEL_MOST, max(8, width // 4))
    room = max(1, width - label - 1)
    lines = []
    for domain in rows:
        bars = leases(domain, window.first_ns, window.last_ns)
        lines.append([Cell(f"{fitted(printable(domain), label)} ", Tone.PLAIN), *_row(bars, window, room, accused)])
    return lines


def axis(window: BarWindow, width: int, start: str, end: str) -> list[Cell]:
    """Draw the line above the rows: the ends of the stretch, and where one looks."""
    label = min(LABEL_MOST, max(8, width // 4))
    room = max(1, width - label - 1)
    here = cell_of(window.cursor_ns, window.first_ns, window.last_ns, room)
    line = list(f"{start}{' ' * room}"[:room])
    if len(start) + len(end) < room and here < room - len(end):
        line[room - len(end) :] = list(end)
    if here < len(start):
        line[: len(start)] = " " * len(start)
    line[here] = "▼"
    return [Cell(" " * (label + 1)), Cell("".join(line), Tone.DIM)]


def _row(bars: Sequence[LeaseTrace], window: BarWindow, room: int, accused: AbstractSet[bytes]) -> list[Cell]:
    cells: list[tuple[str, Tone]] = [(EMPTY, Tone.PLAIN)] * room
    owners: list[LeaseTrace | None] = [None] * room

    first, span, last_cell = window.first_ns, max(1, window.last_ns - window.first_ns), room - 1

    def place(instant: Instant) -> int:
        """As ``cell_of``, of what is the same for all bars reckoned once."""
        cell = (instant - first) * room // span
        return 0 if cell < 0 else min(cell, last_cell)

    for bar in bars:
        start, end = place(bar.granted_ns), place(min(bar.end_ns, window.last_ns))
        if bar.end_ns >= window.first_ns:
            for cell in range(start, end + 1):
                cells[cell] = _filled(bar, owners[cell], accused)
                owners[cell] = owners[cell] if cells[cell][0] == CLASH else bar
            _name(cells, bar, start, end)
        if not bar.given_back and bar.expiry_ns > bar.end_ns:
            for cell in range(max(place(bar.end_ns), 0), place(min(bar.expiry_ns, window.last_ns)) + 1):
                if cells[cell][0] == EMPTY:
                    cells[cell] = (OVER, Tone.WARN)
    for bar in bars:
        for instant, mark in ((bar.witness.settle_to_ns, SETTLE), (bar.witness.floor_ns, FLOOR)):
            if window.first_ns <= instant <= window.last_ns and cells[place(instant)][0] in (EMPTY, OVER):
                cells[place(instant)] = (mark, Tone.DIM)
    here = place(window.cursor_ns)
    if cells[here][0] == EMPTY:
        cells[here] = (HERE, Tone.DIM)
    return merged(cells)


def _filled(bar: LeaseTrace, other: LeaseTrace | None, accused: AbstractSet[bytes]) -> tuple[str, Tone]:
    """Return what a cell of a bar looks like. ``other``: the lease that has the cell already."""
    if other is not None and {other.witness.correlation_id, bar.witness.correlation_id} <= accused:
        return CLASH, Tone.BAD
    if bar.told[-1].witness.phase is Phase.TENTATIVE:
        return TENTATIVE, Tone.DIM
    return BARS[bar.mode], Tone.PLAIN if bar.given_back or bar.end is None else Tone.WARN


def _name(cells: list[tuple[str, Tone]], bar: LeaseTrace, start: int, end: int) -> None:
    """Write who has it into the bar, where there is room for at least the node's name."""
    name = f" {bar.witness.holder.node} "
    if end - start - 1 >= len(name) and all(cells[cell][0] != CLASH for cell in range(start, end + 1)):
        for offset, character in enumerate(name):
            cells[start + 1 + offset] = (character, Tone.STRONG)
