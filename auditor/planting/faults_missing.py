"""Planted faults in sequences, and what is missing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from timeagent.units import MS, SECOND

from .plants import plants
from .stories import Story, only_file, small_tree
from .tree import ClusterTree

if TYPE_CHECKING:
    from pathlib import Path


@plants("lost-frame")
def committed_frame_that_is_nowhere(root: Path) -> ClusterTree:
    story = Story(root)
    _, path = story.written()
    story.tree.advance(MS)
    story.writer.publish(story.grid)
    story.tree.remove(path)
    return story.done()


@plants("sequence-reused")
def sequence_reused(root: Path) -> ClusterTree:
    story = Story(root)
    story.written()
    story.tree.advance(SECOND)
    story.writer.sequence = 0
    story.writer.committed = None
    story.writer.publish(story.grid)
    return story.done()


@plants("sequence-disorder")
def later_frame_with_an_earlier_timestamp(root: Path) -> ClusterTree:
    story = Story(root)
    lease = story.lease()
    story.tree.advance(50 * MS)
    story.writer.publish(story.grid, lease, at=story.tree.now_ns + 100)
    story.writer.publish(story.grid, lease, at=story.tree.now_ns)
    story.shard.end(lease)
    return story.done()


# Keys and records that are not there.


@plants("unverifiable-trust")
def no_trust(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.remove("trust/00000001")
    return tree


@plants("unverifiable-trust")
def trust_record_that_a_lock_names_is_missing(root: Path) -> ClusterTree:
    story = Story(root)
    story.written()
    story.tree.advance(4 * SECOND)
    story.tree.close(story.grid.bag(story.grid.first_ns + SECOND), change={"trust_number": 7})
    return story.tree


@plants("unverifiable-policy")
def no_policy(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.remove("policy/00000001")
    return tree


@plants("unverifiable-map")
def no_map(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.remove("map/00000001")
    return tree


@plants("unverifiable-log")
def no_birth(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.remove("logs/orders/log")
    return tree


@plants("unverifiable-log")
def no_birth_of_the_log_that_a_committed_frame_is_in(root: Path) -> ClusterTree:
    story = Story(root)
    other = story.tree.log("other")
    lease = story.lease()
    story.tree.advance(MS)
    story.writer.publish(other, lease)
    story.tree.advance(MS)
    story.writer.publish(story.grid, lease)
    story.shard.end(lease)
    story.done()
    story.tree.settle(other)
    story.tree.remove("logs/other/log")
    return story.tree


@plants("unreadable")
def pipe_instead_of_a_file(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = tree.root / only_file(tree, "logs/*/*/*/*/*.msg")
    path.unlink()
    os.mkfifo(path)
    return tree
