"""The chain of evidence of one finding, link by link with its checks; or its explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from ..evidence import chain_lines, wrapped
from .detail_table import DetailTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from auditor.finding import Finding
    from auditor.lineage import Link

    from ..evidence import Path

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
