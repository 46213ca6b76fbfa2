"""The bags of logs: a strip a log, and one log as a grid, a minute a row, with a cursor on one bag (Line API)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from timeagent.console import printable
from timeagent.units import Instant, rfc3339

from ..model.overview import log_row, not_known
from ..model.state import BagCell, BagSubject, Cell, ClusterState, LogView, Tone
from ..model.tables import LOG_COLUMNS
from ..model.words import BAG_CELLS, BAG_LEGEND, DAMAGED, UNFINISHED, clock_text
from .row_table import ROWS_WRITTEN_MAX, RowTable


class BagStrip(RowTable):
    def __init__(self) -> None:
        super().__init__(LOG_COLUMNS, "Bags", id="bags")

    def show(self, state: ClusterState) -> None:
        logs, now = state.logs, state.clock.now
        self.show_title(f"Bags   {BAG_LEGEND}")
        nothing = "there are no logs yet" if state.cluster_id else not_known(state)
        self.show_rows(len(logs), lambda index: log_row(logs[index], now), nothing)


CELLS: Final = 60
"""In a row: with bags of a second it is a minute."""
ZOOMS: Final = (1, 10, 60, 600)
BAG_GRID_LEGEND: Final = f"{BAG_LEGEND}  {DAMAGED} damaged or rejected"
_URGENCY: Final = tuple(BAG_CELLS)


class BagLayout:
    def __init__(self, log: LogView, zoom: int) -> None:
        """Lay out a log that has bags. Costs nothing per bag."""
        self.log = log
        self.zoom = zoom
        self._first = log.bags[0].start_ns
        self._span = log.span_ns * zoom
        self._row = self._span * CELLS
        self._newest = log.bags[-1].start_ns // self._row
        self.rows = self._newest - self._first // self._row + 1

    def row_start(self, row: int) -> Instant:
        return (self._newest - row) * self._row

    def place(self, start: Instant) -> tuple[int, int]:
        """Return row and column of the cell that holds the bag that begins at an instant."""
        return self._newest - start // self._row, start % self._row // self._span

    def bags(self, row: int, column: int) -> tuple[BagCell, ...]:
        """Return the bags of a cell; none where there is none yet, or none any more."""
        begin = (self.row_start(row) + column * self._span - self._first) // self.log.span_ns
        return self.log.bags[max(0, begin) : max(0, begin + self.zoom)]

    def cell(self, row: int, column: int) -> Cell:
        bags = self.bags(row, column)
        if not bags:
            return Cell(" ")
        if any(bag.damage for bag in bags):
            return Cell(DAMAGED, Tone.BAD)
        return BAG_CELLS[max((bag.state for bag in bags), key=_URGENCY.index)]

    def chosen(self, start: Instant) -> BagCell | None:
        index = (start - self._first) // self.log.span_ns
        return self.log.bags[index] if 0 <= index < len(self.log.bags) else None


LABEL: Final = 10
_CURSOR: Final = Style(reverse=True, bold=True)


class BagGrid(RowTable, inherit_bindings=False):
    headed = False

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "Bag before", show=False),
        Binding("right,l", "move(1)", "Bag after", show=False),
        Binding("up,k", f"move({CELLS})", "Row of newer bags", show=False),
        Binding("down,j", f"move(-{CELLS})", "Row of older bags", show=False),
        Binding("home,g", "newest", "Newest bag", show=False),
        Binding("end,G", "oldest", "Oldest bag", show=False),
        Binding("o", "oldest_open", "Oldest open"),
        Binding("f", "next_damaged", "Next damaged"),
        Binding("plus", "zoom(-1)", "Finer", show=False),
        Binding("minus", "zoom(1)", "Coarser", show=False),
    ]

    class BagChanged(Message):
        """Another bag is under the cursor."""

    class Zoomed(Message):
        """A cell has more bags, or fewer."""

    def __init__(self) -> None:
        super().__init__((), "Bags", id="bag-grid")
        self._grid: BagLayout | None = None
        self._start: Instant = 0
        self._zoom = 0
        self._follows = True

    @property
    def zoom(self) -> int:
        return ZOOMS[self._zoom]

    def show_log(self, log: LogView | None, nothing: str) -> None:
        """Show a log's bags. Until the cursor is moved it stays on the newest bag that somebody wrote to."""
        before = self.bag
        if log is None or not log.bags:
            self._grid = None
            self.show_rows(
                0, lambda _index: (), nothing if log is None else f"no bag of {log.name} is among its newest"
            )
        else:
            if self._grid is not None and self._grid.log.name != log.name:
                self._follows = True
                self.scroll_to(y=0, animate=False, immediate=True, force=True)
            self._grid = BagLayout(log, self.zoom)
            if self._follows:
                written = [bag for bag in log.bags[-CELLS:] if bag.state is not None]
                self._start = (written[-1] if written else log.bags[-1]).start_ns
            else:  # a bag that is shown no more: the nearest
                self._start = max(log.bags[0].start_ns, min(self._start, log.bags[-1].start_ns))
            self.show_rows(self._grid.rows, lambda _index: (), "")
        if self.bag != before:
            self.post_message(self.BagChanged())

    @property
    def bag(self) -> BagCell | None:
        return None if self._grid is None else self._grid.chosen(self._start)

    @property
    def subject(self) -> BagSubject | None:
        bag = self.bag
        return None if bag is None or self._grid is None else BagSubject(self._grid.log.name, bag.start_ns)

    def go_to(self, start: Instant) -> None:
        """Put the cursor on the bag that begins at an instant, or on the nearest that there is."""
        assert self._grid is not None
        bags = self._grid.log.bags
        self._start = max(bags[0].start_ns, min(start, bags[-1].start_ns))
        self._follows = False
        row, _ = self._grid.place(self._start)
        height = max(1, self.size.height)
        if not self.scroll_offset.y <= row < self.scroll_offset.y + height:
            self.scroll_to(y=max(0, row - height // 2), animate=False, immediate=True, force=True)
        self.refresh()
        self.post_message(self.BagChanged())

    def action_move(self, cells: int) -> None:
        if self._grid is not None:
            span = self._grid.log.span_ns * self.zoom
            self.go_to(self._start - self._start % span + cells * span)

    def action_newest(self) -> None:
        if self._bags:
            self.go_to(self._bags[-1].start_ns)
            self._follows = True

    def action_oldest(self) -> None:
        if self._bags:
            self.go_to(self._bags[0].start_ns)

    def action_oldest_open(self) -> None:
        self._go_to_first([bag for bag in self._bags if bag.state in UNFINISHED], "every bag is closed")

    def action_next_damaged(self) -> None:
        """Go to the next damaged bag; behind the last, to the first again."""
        damaged = [bag for bag in self._bags if bag.damage]
        after = [bag for bag in damaged if bag.start_ns > self._start]
        self._go_to_first(after or damaged, "no bag is known to be damaged")

    @property
    def _bags(self) -> Sequence[BagCell]:
        return () if self._grid is None else self._grid.log.bags

    def _go_to_first(self, found: Sequence[BagCell], nothing: str) -> None:
        if found:
            self.go_to(found[0].start_ns)
        else:
            self.app.notify(nothing, timeout=2)

    def action_zoom(self, by: int) -> None:
        self._zoom = max(0, min(self._zoom + by, len(ZOOMS) - 1))
        if self._grid is not None:
            self._grid = BagLayout(self._grid.log, self.zoom)
            self.show_rows(self._grid.rows, lambda _index: (), "")
            follows = self._follows
            self.go_to(self._start)
            self._follows = follows  # the cursor stays on its bag
            self.post_message(self.Zoomed())

    def rows_shown(self) -> list[dict[str, str]]:
        return [
            {
                "start": rfc3339(bag.start_ns),
                "state": bag.state or "nobody wrote",
                "files": str(bag.files),
                "path": printable(bag.path),
                "damage": printable(bag.damage),
            }
            for bag in self._bags[-ROWS_WRITTEN_MAX:]
        ]

    def row_in(self, index: int, width: int, room: int) -> Strip:
        del room
        grid = self._grid
        assert grid is not None
        place = grid.place(self._start)
        here = place[1] if place[0] == index else None

        def row() -> Strip:
            label = f"{clock_text(grid.row_start(index), 0):{LABEL}}"
            segments = [Segment(label, self.style_of(Tone.DIM))]
            for column in range(CELLS):
                cell = grid.cell(index, column)
                style = self.style_of(cell.tone)
                segments.append(Segment(cell.text, style + _CURSOR if column == here else style))
            return Strip(segments).adjust_cell_length(width, self.rich_style)

        return self.kept((index, here), width, row)
