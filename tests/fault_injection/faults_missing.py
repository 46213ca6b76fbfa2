"""Planted faults in sequences, and what is missing."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from appliance.formats.framing import Kind
from timeagent.units import MS, SECOND

from .fixtures import Story, only_file, rack_not_sealed, small_tree
from .plants import plants
from .tree import ClusterTree, changed

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.formats.policy import Policy
    from appliance.formats.shardmap import ShardMap
    from timeagent.trust import TrustRecord


@plants("lost-frame")
def committed_frame_that_is_nowhere(root: Path) -> ClusterTree:
    story = Story(root)
    _, path = story.written()
    story.tree.advance(MS)
    story.writer.publish(story.grid, story.elsewhere())
    story.tree.remove(path)
    return story.done()


@plants("sequence-reused")
def sequence_reused(root: Path) -> ClusterTree:
    story = Story(root)
    story.written()
    story.tree.advance(SECOND)
    story.writer.sequence = 0
    story.writer.committed = None
    story.writer.publish(story.grid, story.elsewhere())
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
def no_copy_of_the_store_that_a_log_is_in(root: Path) -> ClusterTree:
    tree = small_tree(root, "s3://bucket/elsewhere")
    for path in tree.files():
        if path.startswith("logs/orders/") and path != "logs/orders/log":
            tree.remove(path)
    return tree


@plants("unverifiable-log")
def no_copy_of_the_store_that_a_committed_frame_is_in(root: Path) -> ClusterTree:
    story = Story(root)
    other = story.tree.log("other", store="s3://bucket/elsewhere")
    lease = story.lease()
    story.tree.advance(MS)
    story.writer.publish(other, lease)
    story.tree.advance(MS)
    story.writer.publish(story.grid, lease)
    story.shard.end(lease)
    story.done()
    story.tree.settle(other)
    for path in story.tree.files():
        if path.startswith("logs/other/") and path != "logs/other/log":
            story.tree.remove(path)
    return story.tree


@plants("damaged-record")
def bags_of_another_log_in_the_store_that_a_log_is_in(root: Path) -> ClusterTree:
    tree = small_tree(root, "s3://bucket/elsewhere")
    tree.put("logs/orders/store", tree.get("logs/orders/store") + b"?")
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


@plants("unreadable")
def directory_instead_of_a_lock(root: Path) -> ClusterTree:
    tree, lock = rack_not_sealed(root)
    tree.remove(lock)
    (tree.root / lock).mkdir()
    return tree


# What was in it was counted, and is named as committed: nobody lost it.
@plants("unreadable")
def pipe_instead_of_a_rack(root: Path) -> ClusterTree:
    story = Story(root)
    lease, path = story.written()
    story.tree.advance(8 * SECOND + 500 * MS)
    story.shard.prolong(lease)
    story.tree.advance(500 * MS)
    story.writer.publish(story.grid, lease)
    story.shard.end(lease)
    tree = story.done()
    rack = (tree.root / path).parents[1]
    shutil.rmtree(rack)
    os.mkfifo(rack)
    return tree


def one_removed_of(root: Path, kind: Kind) -> ClusterTree:
    """Three records say the same, and nothing names the second, which is removed."""
    tree = small_tree(root)
    records: dict[Kind, Policy | TrustRecord | ShardMap] = {
        Kind.POLICY: tree.policy,
        Kind.TRUST: tree.trust,
        Kind.MAP: tree.map,
    }
    for number in (2, 3):
        tree.put_register(kind, changed(records[kind], {"number": number}))
    tree.remove(f"{kind.name.lower()}/00000002")
    return tree


@plants("unverifiable-trust")
def trust_record_that_nothing_names_is_missing(root: Path) -> ClusterTree:
    return one_removed_of(root, Kind.TRUST)


@plants("unverifiable-policy")
def policy_that_nothing_names_is_missing(root: Path) -> ClusterTree:
    return one_removed_of(root, Kind.POLICY)


@plants("unverifiable-map")
def map_that_nothing_names_is_missing(root: Path) -> ClusterTree:
    return one_removed_of(root, Kind.MAP)
