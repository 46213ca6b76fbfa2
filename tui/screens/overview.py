"""The overview: is anything wrong, where, since when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..widgets.bag_strip import BagStrip
from ..widgets.leases import LeaseTable
from ..widgets.lines import ClockLine, HealthLine
from ..widgets.node_table import NodeTable
from .base import TopScreen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget

    from ..state import ClusterState, LeaseRow


class OverviewScreen(TopScreen):
    """One glance at a cluster."""

    NAME = "overview"
    FILTERS = True
    REVOKES = True
    AUTO_FOCUS = "#leases"

    def parts(self) -> Iterable[Widget]:
        """Return the parts, worst news first."""
        return HealthLine(), NodeTable(), LeaseTable(), BagStrip(), ClockLine()

    def draw(self, state: ClusterState) -> None:
        """Show a state."""
        self.query_one(HealthLine).show(state)
        self.query_one(NodeTable).show(state)
        self.query_one(LeaseTable).show(state)
        self.query_one(BagStrip).show(state)
        self.query_one(ClockLine).show(state)

    def lease(self) -> LeaseRow | None:
        """Return the one under the cursor, where that is among the leases."""
        table = self.query_one(LeaseTable)
        return table.row if table.has_focus else None

    def filter_words(self, words: str) -> None:
        """Narrow the leases."""
        self.query_one(LeaseTable).words = words
