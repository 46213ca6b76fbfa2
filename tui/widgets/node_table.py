"""The nodes and their shards: who answers, and what they have out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..columns import NODE_COLUMNS
from ..overview import not_known
from ..subjects import NodeSubject
from ..words import node_rows
from .pick_table import PickTable

if TYPE_CHECKING:
    from ..state import ClusterState


class NodeTable(PickTable):
    """One row per shard, and one for each node without shards."""

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(NODE_COLUMNS, "Nodes", id="nodes")

    def show(self, state: ClusterState) -> None:
        """Show a state's nodes."""
        rows = [(node.name, row) for node in state.nodes for row in node_rows(node, state.clock.now)]
        self.show_title(f"Nodes {len(state.nodes)}" if state.cluster_id else "Nodes ?")
        self.show_picks(
            len(rows), lambda index: rows[index][1], not_known(state), lambda index: NodeSubject(rows[index][0])
        )
