"""Planted faults in bags and racks."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import msgspec

from appliance.formats.closed import open_lock
from appliance.formats.framing import Kind
from appliance.formats.stamped import stamp
from timeagent.units import MS, SECOND

from .fixtures import Story, flip, only_file, small_tree, two_sealed_racks
from .plants import plants
from .tree import ClusterTree
from .writer import Writer

if TYPE_CHECKING:
    from pathlib import Path


@plants("altered-file")
def altered_file(root: Path) -> ClusterTree:
    tree = small_tree(root)
    flip(tree, only_file(tree, "logs/*/*/*/*/*.msg"), 300)
    return tree


@plants("altered-file")
def shortened_file(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = only_file(tree, "logs/*/*/*/*/*.msg")
    tree.put(path, tree.get(path)[:-1])
    return tree


@plants("lost-file")
def lost_file(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.remove(only_file(tree, "logs/*/*/*/*/*.msg"))
    return tree


@plants("lost-file")
def lost_lock(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.remove(only_file(tree, "logs/orders/*/*/*/lock"))
    return tree


@plants("lost-file")
def lost_bag(root: Path) -> ClusterTree:
    tree = small_tree(root)
    bag = (tree.root / only_file(tree, "logs/orders/*/*/*/lock")).parent
    for path in bag.iterdir():
        path.unlink()
    bag.rmdir()
    return tree


@plants("lost-file")
def lost_seal(root: Path) -> ClusterTree:
    tree = two_sealed_racks(root)
    tree.remove(only_file(tree, "logs/orders/*/*/seal"))
    return tree


@plants("lost-file")
def lost_empty_rack(root: Path) -> ClusterTree:
    tree = two_sealed_racks(root)
    tree.settle(tree.grids["orders"])
    shutil.rmtree(sorted(tree.root.glob("logs/orders/*/*/seal"))[1].parent)
    return tree


@plants("late-writer")
def late_writer(root: Path) -> ClusterTree:
    tree = small_tree(root)
    grid = tree.grids["orders"]
    Writer(tree).publish(grid, at=grid.first_ns + SECOND + 5)
    return tree


@plants("late-writer")
def bytes_beyond_the_listed_size(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.append(only_file(tree, "logs/*/*/*/*/*.msg"), b"more")
    return tree


@plants("overwritten-lock")
def overwritten_lock(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = only_file(tree, "logs/orders/*/*/*/lock")  # one that lists something
    lock, _ = open_lock(tree.get(path), path)
    shorter = msgspec.structs.replace(lock, entries=lock.entries[1:])
    tree.put(path, stamp(Kind.LOCK, shorter, tree.nodes["n2"].time))
    return tree


@plants("stale-lock")
def stale_lock(root: Path) -> ClusterTree:
    story = Story(root)
    story.tree.put_register(Kind.POLICY, msgspec.structs.replace(story.tree.policy, number=2))
    story.written(policy_number=2)
    return story.done()


@plants("unknown-record")
def frame_under_a_policy_that_there_is_not(root: Path) -> ClusterTree:
    story = Story(root)
    story.written(policy_number=7)
    return story.done()


@plants("unknown-record")
def frame_under_a_trust_record_that_there_is_not(root: Path) -> ClusterTree:
    story = Story(root)
    story.written(trust_number=2)
    return story.done()


@plants("unknown-record")
def frame_under_trust_record_zero(root: Path) -> ClusterTree:
    story = Story(root)
    story.written(trust_number=0)
    return story.done()


@plants("ghost-bag")
def ghost_bag(root: Path) -> ClusterTree:
    tree = small_tree(root)
    grid = tree.grids["orders"]
    Writer(tree).publish(grid, at=grid.first_ns + 7 * SECOND)
    return tree


@plants("off-grid")
def off_grid_bag(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = only_file(tree, "logs/*/*/*/*/lock")
    tree.put(path.replace("-1000-2000/", "-500-2000/"), b"")
    return tree


@plants("off-grid")
def off_grid_day(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.put("logs/orders/9999-12-31/99-99/x/lock", b"")
    return tree


@plants("premature-lock")
def premature_lock(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.end(lease)
    bag = story.grid.bag(story.tree.now_ns)
    story.tree.nodes["n2"].time.advance(MS)
    story.tree.close(bag)
    return story.tree


@plants("missing-prelock")
def prelock_of_a_bag_removed(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.remove(only_file(tree, "logs/orders/*/*/*/prelock"))
    return tree


@plants("missing-prelock")
def prelock_of_a_sealed_rack_removed(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.remove(only_file(tree, "logs/*/*/*/prelock"))
    return tree


@plants("damaged-record")
def bytes_in_a_prelock(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.append(only_file(tree, "logs/*/*/*/prelock"), b"x")
    return tree


@plants("foreign-file")
def copy_of_a_lock_file_beside_it(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = only_file(tree, "logs/*/*/*/*/lock")
    tree.put(f"{path}.old", tree.get(path))
    return tree


@plants("foreign-file")
def file_in_a_rack(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.put(only_file(tree, "logs/*/*/*/seal").replace("seal", "notes.txt"), b"do not delete")
    return tree


@plants("unsettled-write")
def heir_that_writes_at_once(root: Path) -> ClusterTree:
    story = Story(root)
    lease, _ = story.written()
    story.shard.extend()
    story.shard.expire(lease)
    heir = story.shard.grant("alice", story.other)
    story.tree.until(heir.witness.floor_ns + MS)
    story.other.publish(story.grid, heir)
    story.shard.end(heir)
    return story.done()


@plants("foreign-file")
def copies_of_records_beside_them(root: Path) -> ClusterTree:
    tree = small_tree(root)
    for pattern in ("TENURE", "policy/*", "shards/*/*/*", "ledger/*/*/*", "logs/*/log"):
        path = only_file(tree, pattern)
        tree.put(f"{path}.bak", tree.get(path))
    return tree


@plants("lost-file")
def newest_ceiling_record_removed(root: Path) -> ClusterTree:
    tree = small_tree(root)
    tree.remove(max(path for path in tree.files() if path.startswith("shards/")))
    return tree


@plants("hidden-bag")
def bag_left_out_of_its_racks_seal(root: Path) -> ClusterTree:
    story = Story(root)
    path = story.writer.publish(story.grid, story.elsewhere())
    story.done(seal=False)
    rack = story.grid.rack(story.grid.first_ns)
    story.tree.until(rack.end_ns + story.tree.policy.seal_delay_ns + SECOND)
    story.tree.seal(rack, omit=[path.split("/")[-2]])
    return story.tree
