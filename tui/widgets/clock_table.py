"""The clocks of nodes, one line each, on one axis that is as wide as there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..clocks import AXIS, COMMON, LIVE_COLUMNS, SIGNED_COLUMNS
from ..columns import heading
from ..subjects import Cell, ClockSubject, Tone
from .pick_table import PickTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..clocks import ClockRows
    from ..columns import Field


class ClockTable(PickTable):
    """One row for each node; the last one, of clocks that are compared, is what they have in common."""

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(SIGNED_COLUMNS, "Clocks", id="clocks")
        self._rows: ClockRows | None = None

    def show(self, rows: ClockRows, nothing: str) -> None:
        """Show rows. ``nothing``: why there are none."""
        columns = LIVE_COLUMNS if rows.asked else SIGNED_COLUMNS
        if columns is not self._columns:
            self._columns, self._laid = columns, None
        self._rows = rows

        def about(index: int) -> object:
            name = rows.name(index)
            return name if name == COMMON else ClockSubject(name)

        self.show_picks(len(rows), lambda index: rows.row(index, self._axis_width), nothing, about)

    @property
    def _axis_width(self) -> int:
        return self.columns_in(max(1, self.scrollable_content_region.width - 1)).widths[AXIS]

    def in_sight(self, index: int) -> Sequence[Field]:
        """Return up to the node's name: the axis is as wide as the columns leave it."""
        return () if self._rows is None else (Cell(""), Cell(self._rows.name(index)))

    @property
    def _heading(self) -> Sequence[Field]:
        fields = heading(self._columns)
        if self._rows is not None:
            fields[AXIS] = Cell(self._rows.heading(self._axis_width), Tone.DIM)
        return fields
