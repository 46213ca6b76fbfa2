"""Findings on the screen: the table of all, and the chain of evidence of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from auditor.rules.finding import Finding

from ..arranging import Heading
from ..columns import cut
from ..evidence import chain_lines, wrapped
from ..findinglist import FINDING_COLUMNS, Group, Wanted, arranged, finding_row
from ..subjects import Cell, FindingSubject, Tone
from .detail_table import DetailTable
from .pick_table import PickTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from auditor.explain.lineage import Link
    from timeagent.units import Instant

    from ..columns import Field
    from ..evidence import Path
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


FRAME = 4
LEAD = 8
"""So many lines above what fails are seen at first."""


class ChainTable(DetailTable):
    """Links can be closed, so that only what fails is seen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "close_link", "Close", show=False),
        Binding("right,l", "open_link", "Open", show=False),
        Binding("f", "next_failing", "Next that fails"),
    ]

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(id="chain")
        self.show_title("Evidence")
        self._finding: Finding | None = None
        self._root: Link | None = None
        self._shut: set[Path] = set()
        self._ways: list[tuple[Path, Link]] = []
        self._explanation: tuple[Finding, Sequence[str]] | None = None

    def show_nothing(self, why: str) -> None:
        """Show that there is nothing."""
        self._finding, self._root, self._ways, self._explanation = None, None, [], None
        self.show_lines((), why)

    def show_chain(self, finding: Finding, root: Link) -> None:
        """Show a finding's chain, from its beginning where it is another's."""
        self._explanation = None
        fresh = self._root is None or finding != self._finding
        self._finding, self._root = finding, root
        if fresh:
            self._shut = set()
        self.show_title(f"Evidence of {finding.id}: every check with its value and its limit")
        self._fill_chain()
        if fresh:
            self.cursor = next(iter(self._failing()), 0)
            lead = max(0, min(LEAD, self.size.height - 1))
            self.scroll_to(y=max(0, self.cursor - lead), animate=False, immediate=True, force=True)

    def show_text(self, finding: Finding, lines: Sequence[str]) -> None:
        """Show a finding's explanation, in the width there is."""
        fresh = self._explanation is None or self._explanation[0] != finding
        self._explanation, self._finding, self._root, self._ways = (finding, lines), finding, None, []
        self.show_title(f"Explanation of {finding.id}; x: the evidence again")
        self.show_lines(wrapped(lines, self.size.width - FRAME), "")
        if fresh:
            self.cursor = 0

    def on_resize(self) -> None:
        """Put an explanation into the new width."""
        if self._explanation is not None:
            self.show_text(*self._explanation)

    def _fill_chain(self) -> None:
        if self._root is None:
            return
        rows = chain_lines(self._root, self._shut)
        self._ways = [(path, link) for path, _, link in rows]
        self.show_lines([line for _, line, _ in rows], "")

    @property
    def link(self) -> Link | None:
        """The link that the line under the cursor belongs to."""
        return self._ways[self.cursor][1] if self._ways else None

    @property
    def whole(self) -> str:
        """The whole of the line under the cursor."""
        line = self.line
        return "" if line is None else "".join(cell.text for cell in line.cells).strip()

    def action_close_link(self) -> None:
        """Hide what is inside the link; of one that is closed, go to the one that it is in."""
        if not self._ways:
            return
        path = self._ways[self.cursor][0]
        if path in self._shut and path:
            path = path[:-1]
        self._shut.add(path)
        self._fill_chain()
        self.cursor = next(place for place, (way, _) in enumerate(self._ways) if way == path)

    def action_open_link(self) -> None:
        """Show what is inside the link."""
        if self._ways:
            self._shut.discard(self._ways[self.cursor][0])
            self._fill_chain()

    def action_next_failing(self) -> None:
        """Go to the next check that fails."""
        failing = self._failing()
        if failing:
            self.cursor = next((place for place in failing if place > self.cursor), failing[0])

    def _failing(self) -> list[int]:
        """Return the lines of checks that fail."""
        return [place for place in range(len(self._ways)) if self._lines[place].cells[1].text.startswith("✗ ")]
