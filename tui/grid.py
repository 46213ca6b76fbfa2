"""A log's bags as rows of cells, the newest row first: where each bag stands, and what a cell says. Pure.

A cell is one bag, or at a coarser zoom several: then it shows what most wants to be looked at among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from appliance.bag.survey import ClosingState

from .subjects import Cell, Tone
from .words import BAG_SYMBOLS, BAG_TONES

if TYPE_CHECKING:
    from timeagent.units import Instant

    from .state import BagCell, LogView

CELLS: Final = 60
"""In a row: with bags of a second it is a minute."""
ZOOMS: Final = (1, 10, 60, 600)
DAMAGED: Final = "✗"
LEGEND: Final = "▯ open  ◧ closing  ■ closed  ▣ sealed  · nobody wrote  ✗ damaged or rejected"

_URGENCY: Final = (None, ClosingState.SEALED, ClosingState.CLOSED, ClosingState.CLOSING, ClosingState.OPEN)


class Grid:
    """The cells of one log at one zoom."""

    def __init__(self, log: LogView, zoom: int = 1) -> None:
        """Lay out a log. Costs nothing per bag."""
        self.log = log
        self.zoom = zoom
        self._first = log.bags[0].start_ns if log.bags else 0
        self._span = log.span_ns * zoom
        self._row = self._span * CELLS
        last = log.bags[-1].start_ns if log.bags else 0
        self._oldest = self._first // self._row
        self._newest = last // self._row
        self.rows = self._newest - self._oldest + 1 if log.bags else 0

    def row_start(self, row: int) -> Instant:
        """Return where a row begins; row 0 is the newest."""
        return (self._newest - row) * self._row

    def place(self, start: Instant) -> tuple[int, int]:
        """Return row and column of the cell that holds the bag that begins at an instant."""
        return self._newest - start // self._row, start % self._row // self._span

    def bags(self, row: int, column: int) -> tuple[BagCell, ...]:
        """Return the bags of a cell; none where there is none yet, or none any more."""
        begin = (self.row_start(row) + column * self._span - self._first) // self.log.span_ns
        return self.log.bags[max(0, begin) : max(0, begin + self.zoom)]

    def cell(self, row: int, column: int) -> Cell:
        """Return what a cell shows."""
        bags = self.bags(row, column)
        if not bags:
            return Cell(" ")
        if any(bag.damage for bag in bags):
            return Cell(DAMAGED, Tone.BAD)
        state = max((bag.state for bag in bags), key=_URGENCY.index)
        return Cell(BAG_SYMBOLS[state], BAG_TONES[state])

    def chosen(self, start: Instant) -> BagCell | None:
        """Return a bag by its beginning."""
        index = (start - self._first) // self.log.span_ns
        return self.log.bags[index] if 0 <= index < len(self.log.bags) else None


def oldest_open(log: LogView) -> BagCell | None:
    """Return the oldest bag that is not closed, of those that somebody wrote to."""
    return next((bag for bag in log.bags if bag.state in (ClosingState.OPEN, ClosingState.CLOSING)), None)


def next_damaged(log: LogView, after: Instant) -> BagCell | None:
    """Return the next damaged bag after an instant; behind the last it begins at the first again."""
    damaged = [bag for bag in log.bags if bag.damage]
    return next((bag for bag in damaged if bag.start_ns > after), damaged[0] if damaged else None)
