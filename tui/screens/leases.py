"""The leases: who holds what, until when, who waits; sorted, narrowed, in groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from ..arranging import Wanted
from ..widgets.leases import LeaseFacts, LeaseList
from .base import LEASES, TopScreen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget

    from ..state import ClusterState, LeaseRow


class LeasesScreen(TopScreen):
    """Many leases, and all that is known of the one under the cursor."""

    NAME = "leases"
    FILTERS = True
    REVOKES = True
    LEGENDS = (LEASES,)
    AUTO_FOCUS = "#lease-list"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "Sort"),
        Binding("S", "turn", "Other way round", show=False),
        Binding("b", "group", "Group"),
    ]

    def parts(self) -> Iterable[Widget]:
        """Return the table, and what is known of one row."""
        return LeaseList(), LeaseFacts()

    def draw(self, state: ClusterState) -> None:
        """Show a state."""
        table = self.query_one(LeaseList)
        table.show(state)
        self.query_one(LeaseFacts).show(table.row, state)

    def on_pick_table_moved(self) -> None:
        """Say what is known of the lease under the cursor."""
        if self.state is not None:
            self.query_one(LeaseFacts).show(self.query_one(LeaseList).row, self.state)

    def lease(self) -> LeaseRow | None:
        """Return the one under the cursor."""
        return self.query_one(LeaseList).row

    def filter_words(self, words: str) -> None:
        """Narrow the leases."""
        table = self.query_one(LeaseList)
        wanted = table.wanted
        table.want(Wanted(words.strip(), wanted.order, wanted.backwards, wanted.group))

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.query_one(LeaseList).next_order()

    def action_turn(self) -> None:
        """Sort the other way round."""
        self.query_one(LeaseList).turn()
        self.on_pick_table_moved()  # drawn with it, where the table's word would come after the next drawing

    def action_group(self) -> None:
        """Group by the next thing."""
        self.query_one(LeaseList).next_group()
