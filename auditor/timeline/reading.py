"""One reading of a tree that makes events and no findings: by one process, frame by frame, as a lens shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from auditor.bags import BagWalk
from auditor.parts import PartMaker, Reading
from auditor.shards import ShardWalk

from .facts import RackFacts, ShardFacts
from .gathering import AS_IT_WAS

if TYPE_CHECKING:
    from collections.abc import Callable

    from auditor.evidence.records import ClusterRecords
    from auditor.evidence.signatures import Signatures
    from auditor.evidence.tree import Tree
    from auditor.parts import Value
    from auditor.rules.finding import Finding

    from .facts import JudgedFrame
    from .gathering import Gathering, WhatIf


class _Nobody(PartMaker):
    """Takes evidence for rules that nobody asks."""

    def report(self, *_: Finding) -> None:
        """Say nothing."""

    def _insert(self, table: str, row: tuple[Value, ...]) -> None:
        pass


def read_one_by_one(
    tree: Tree,
    records: ClusterRecords,
    signatures: Signatures,
    found: Gathering,
    *,
    lens: WhatIf = AS_IT_WAS,
    judged: Callable[[JudgedFrame], None] | None = None,
    progress: Callable[[int, str], None] | None = None,
) -> None:
    """Read everything, ledgers first. ``found``: where events go to; ``judged``: told of each frame.

    Never raises for what is in the tree. Costs five times an audit, which judges most of a tree by columns.
    """
    told, done = _Nobody(), 0
    reading = Reading(tree, records, signatures, one_by_one=True)
    shards = ShardWalk(reading, told, ShardFacts(found, lens))
    shards.walk_chains()
    for file in tree.ledgers():
        shards.ledger(file)
        done += 1
        if progress:
            progress(done, file.path)
    facts = RackFacts(tree, records, signatures, reading.frames, found, lens=lens, judged=judged)
    bags = BagWalk(reading, told, facts)
    for log in tree.logs():
        grid = bags.begin(log)
        if grid is None:
            continue
        for place in tree.rack_places(grid):
            if not isinstance(place, str):
                bags.rack(grid, tree.listing(grid, place))
                done += 1
                if progress:
                    progress(done, place.path)
