"""The list of findings, with headings between groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message

from auditor.finding import Finding

from ..arranging import Heading
from ..columns import cut
from ..findinglist import FINDING_COLUMNS, Group, Wanted, arranged, finding_row
from ..subjects import FindingSubject
from ..words import Cell, Tone
from .pick_table import PickTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from timeagent.units import Instant

    from ..columns import Field
    from ..findinglist import Row


class FindingTable(PickTable):
    """One row a finding. The cursor stays on a finding when the list is arranged anew."""

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(FINDING_COLUMNS, "Findings", id="finding-list")
        self._rows: list[Row] = []
        self._times: Mapping[str, Instant] = {}

    def show(self, findings: Sequence[Finding], times: Mapping[str, Instant], wanted: Wanted, nothing: str) -> None:
        """Show findings, worst first, as they are wanted. ``nothing``: why there are none."""
        self._rows, self._times = arranged(findings, times, wanted), times
        shown = len(self.findings)
        part = f" of {len(findings)}" if shown != len(findings) else ""
        words = f"   filter: {wanted.words}" if wanted.words else ""
        order = f"   {wanted.order}" + (" turned" if wanted.backwards else "")
        order += "" if wanted.group is Group.NONE else f", by {wanted.group}"
        self.show_title(f"Findings {shown}{part}{order}{words}" if findings else "Findings")
        places = {_key(row): number for number, row in enumerate(self._rows)}
        self.show_picks(len(self._rows), self._row, nothing, lambda place: _key(self._rows[place]), places.get)

    def _row(self, place: int) -> tuple[Cell, ...]:
        row = self._rows[place]
        assert isinstance(row, Finding)
        return finding_row(row, self._times.get(row.id))

    def in_sight(self, index: int) -> Sequence[Field]:
        """Return a row's fields; a heading has none."""
        return () if isinstance(self._rows[index], Heading) else super().in_sight(index)

    def line_of(self, index: int, room: int) -> list[Cell]:
        """Return a row's text: a heading goes over all columns."""
        row = self._rows[index]
        if isinstance(row, Heading):
            return cut((Cell(f"{row.name} ({row.count})", Tone.STRONG),), room)
        return super().line_of(index, room)

    @property
    def findings(self) -> list[Finding]:
        """What is seen, in the order in which it is."""
        return [row for row in self._rows if isinstance(row, Finding)]

    @property
    def finding(self) -> Finding | None:
        """The one under the cursor; on a heading the first of its group."""
        after = self._rows[self.cursor :]
        return next((row for row in after if isinstance(row, Finding)), None)

    class Entered(Message):
        """Enter was pressed on a finding."""

    def action_choose(self) -> None:
        """Go on to its chain."""
        self.post_message(self.Entered())

    def next_finding(self, rows: int) -> None:
        """Go to the next finding (-1: the one before), over headings."""
        place = self.cursor + rows
        while 0 <= place < len(self._rows):
            if isinstance(self._rows[place], Finding):
                self.cursor = place
                return
            place += rows

    def choose(self, name: str) -> None:
        """Put the cursor on the finding with an id."""
        for place, row in enumerate(self._rows):
            if isinstance(row, Finding) and row.id == name:
                self.cursor = place


def _key(row: Row) -> object:
    return FindingSubject(row.id) if isinstance(row, Finding) else ("heading", row.name)
