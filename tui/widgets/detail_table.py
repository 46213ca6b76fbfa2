"""The lines about a subject; those that lead somewhere are marked, and opened with enter."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from ..columns import Column, cut
from ..words import Cell, Tone
from .pick_table import PickTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..subjects import Line, Subject

LEADS: Final = " →"


class DetailTable(PickTable):
    """Lines, any number; the cursor may stand on each."""

    headed: ClassVar[bool] = False

    def __init__(self, **settings: str) -> None:
        """Show nothing yet."""
        super().__init__((Column("", 1),), "", **settings)
        self._lines: Sequence[Line] = ()

    def show_lines(self, lines: Sequence[Line], nothing: str) -> None:
        """Show lines. ``nothing``: why there are none."""
        self._lines = lines
        self.show_picks(len(lines), lambda _index: (), nothing, lambda index: index)

    @property
    def subject(self) -> Subject | None:
        """What the line under the cursor leads to."""
        return self._lines[self.cursor].subject if self._lines else None

    @property
    def line(self) -> Line | None:
        """The line under the cursor."""
        return self._lines[self.cursor] if self._lines else None

    def line_of(self, index: int, room: int) -> list[Cell]:
        """Return a line, cut where it does not fit."""
        line = self._lines[index]
        if line.subject is None:
            return cut(line.cells, room)
        return [*cut(line.cells, room - len(LEADS)), Cell(LEADS, Tone.DIM)]
