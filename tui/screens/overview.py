"""The overview: is anything wrong, where, since when."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import Screen
from textual.widgets import Footer

from ..widgets.bag_strip import BagStrip
from ..widgets.filter_field import FilterField
from ..widgets.lease_table import LeaseTable
from ..widgets.lines import ClockLine, HealthLine, TitleBar
from ..widgets.node_table import NodeTable

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ..state import ClusterState


class OverviewScreen(Screen[None], inherit_bindings=False):
    """One glance at a cluster."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # With priority it is done before the next key is looked at: what is typed, or pasted, after it is the filter.
        Binding("slash", "filter", "Filter", key_display="/", priority=True),
        Binding("tab", "app.focus_next", "Next table", key_display="tab"),
        Binding("shift+tab", "app.focus_previous", "Table before", show=False),
        Binding("escape", "unfilter", "No filter", show=False),
    ]
    AUTO_FOCUS = "#leases"

    def compose(self) -> ComposeResult:
        """Put the parts under each other."""
        yield TitleBar()
        with Vertical():
            yield HealthLine()
            yield NodeTable()
            yield LeaseTable()
            yield FilterField()
            yield BagStrip()
            yield ClockLine()
        yield Footer(compact=True, show_command_palette=False)

    def show(self, state: ClusterState, *, paused: bool) -> None:
        """Show a state."""
        self.query_one(TitleBar).show(state, paused=paused)
        self.query_one(HealthLine).show(state)
        self.query_one(NodeTable).show(state)
        self.query_one(LeaseTable).show(state)
        self.query_one(BagStrip).show(state)
        self.query_one(ClockLine).show(state)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In the filter a slash is a slash."""
        del parameters
        return not (action == "filter" and isinstance(self.focused, FilterField))

    def action_filter(self) -> None:
        """Open the filter."""
        field = self.query_one(FilterField)
        field.display = True
        self.set_focus(field)

    def action_unfilter(self) -> None:
        """Show all leases again."""
        self.query_one(FilterField).value = ""
        self._leave_filter()

    def on_input_changed(self, event: FilterField.Changed) -> None:
        """Filter while it is typed."""
        self.query_one(LeaseTable).words = event.value

    def on_input_submitted(self) -> None:
        """Keep the filter, and go back to the leases."""
        self._leave_filter()

    def _leave_filter(self) -> None:
        self.set_focus(self.query_one(LeaseTable))
        self.query_one(FilterField).display = False
