"""The nodes and their shards: who answers, and what they have out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..columns import NODE_COLUMNS
from ..words import node_rows
from .row_table import RowTable

if TYPE_CHECKING:
    from ..state import ClusterState


class NodeTable(RowTable):
    """One row per shard, and one for each node without shards."""

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(NODE_COLUMNS, "Nodes", id="nodes")

    def show(self, state: ClusterState) -> None:
        """Show a state's nodes."""
        rows = [row for node in state.nodes for row in node_rows(node, state.clock.now)]
        self.border_title = f"Nodes {len(state.nodes)}" if state.cluster_id else "Nodes ?"
        self.show_rows(len(rows), rows.__getitem__, "not known: the mount has not answered yet")
