"""The bags of each log: its newest as a strip, and how far it is closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..columns import LOG_COLUMNS
from ..overview import log_row, not_known
from ..words import BAG_LEGEND
from .row_table import RowTable

if TYPE_CHECKING:
    from ..state import ClusterState


class BagStrip(RowTable):
    """One row per log; the legend is the title."""

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(LOG_COLUMNS, "Bags", id="bags")

    def show(self, state: ClusterState) -> None:
        """Show a state's logs."""
        logs, now = state.logs, state.clock.now
        self.show_title(f"Bags   {BAG_LEGEND}")
        nothing = "there are no logs yet" if state.cluster_id else not_known(state)
        self.show_rows(len(logs), lambda index: log_row(logs[index], now), nothing)
