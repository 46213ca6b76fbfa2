"""Planted faults in two copies of one tree: each holds by itself, and they contradict each other."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from timeagent.units import MS, SECOND

from .fixtures import Story
from .plants import twins
from .shard import Shard

if TYPE_CHECKING:
    from pathlib import Path

    from .tree import ClusterTree


@twins("forked-history")
def bag_that_was_closed_twice(root: Path, other: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    story.tree.advance(4 * SECOND)
    shutil.copytree(root, other)
    bag = story.grid.bag(story.tree.now_ns - 4 * SECOND)
    story.tree.close(bag)
    mine, story.tree.root = story.tree.root, other
    story.tree.advance(SECOND)
    story.tree.close(bag)
    story.tree.root = mine
    return story.tree


@twins("forked-history")
def bag_that_was_sealed_otherwise(root: Path, other: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    story.tree.advance(4 * SECOND)
    shutil.copytree(root, other)
    story.tree.close(story.grid.bag(story.tree.now_ns - 4 * SECOND))
    mine, story.tree.root = story.tree.root, other
    story.done()
    story.tree.root = mine
    return story.tree


@twins("forked-history")
def shard_that_two_nodes_took_over(root: Path, other: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    story.done()
    shutil.copytree(root, other)
    Shard(story.tree, "n2").stop_orderly()
    mine, story.tree.root = story.tree.root, other
    story.tree.advance(SECOND)
    Shard(story.tree, "n1").stop_orderly()
    story.tree.root = mine
    return story.tree


@twins("forked-history")
def run_that_went_on_twice(root: Path, other: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    story.done()
    story.shard.extend()
    shutil.copytree(root, other)
    story.tree.advance(MS)
    sequence, previous = story.shard.sequence, story.shard.previous
    story.shard.end(story.shard.grant("bob", story.writer))
    mine, story.tree.root = story.tree.root, other
    story.shard.sequence, story.shard.previous = sequence, previous
    story.shard.end(story.shard.grant("carol", story.writer))
    story.tree.root = mine
    return story.tree
