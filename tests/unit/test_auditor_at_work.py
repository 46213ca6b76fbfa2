"""Copies that were made while everybody was at work: what they have of bags that somebody came too late for."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from appliance.formats.closed import PACK
from appliance.formats.paths import RETAINED, Grid, Rack, record_name
from auditor.audit import audit
from auditor.evidence.finding import Verdict
from auditor.evidence.tree import RackListing, Tree
from tests.fault_injection.faults_packs import pack_tree
from tests.fault_injection.fixtures import Story, small_tree
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.fault_injection.tree import ClusterTree


def codes(tree: ClusterTree) -> list[str]:
    return sorted(finding.code for finding in audit(Tree(tree.root)).findings)


# A closer has listed the bag; then a file came; the copy looked before the lock file was linked.
def test_late_file_of_a_bag_that_the_copy_has_open_is_no_miscount(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease = story.lease()
    story.tree.advance(50 * MS)
    late = story.writer.publish(story.grid, lease, commits=False)
    bag = late.rpartition("/")[0]
    story.tree.advance(2 * SECOND)
    story.writer.publish(story.grid, lease)
    story.shard.end(lease)
    tree = story.done(seal=False)
    tree.remove(f"{bag}/lock")
    assert codes(tree) == []


# Its seal delay was shortened by a policy that the copy, which took the policies first, lacks.
def test_bag_made_after_its_rack_was_listed_by_a_policy_that_the_copy_lacks_is_not_hidden(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    story.shard.end(lease)
    tree = story.tree
    number = tree.change_policy(seal_delay_ns=3 * SECOND)
    rack = story.grid.rack(story.grid.first_ns)
    tree.until(rack.end_ns - SECOND + 50 * MS)
    story.shard.extend()
    held = story.elsewhere()
    tree.advance(50 * MS)
    late = story.writer.publish(story.grid, held, commits=False)
    story.shard.end(held)
    data, bag = tree.get(late), story.grid.bag(rack.end_ns - SECOND + 5)
    shutil.rmtree(tree.root / bag.path)  # the writer stood still before it made that
    tree.until(rack.end_ns + 3 * SECOND + 50 * MS)
    tree.close_due(story.grid)
    # The rack is listed now; then the writer wakes up, makes the bag's directory and links its file, and closes it.
    tree.put(late, data)
    tree.advance(100 * MS)
    tree.close(bag)
    tree.until(rack.end_ns + 6 * SECOND)
    tree.seal(rack, omit=[bag.name])
    assert codes(tree) == ["ghost-bag"]
    tree.remove(f"policy/{record_name(number)}")
    assert codes(tree) == ["ghost-bag", "unverifiable-policy"]


# A live tree: retention deletes a pack between the audit's look at the rack and its look at the pack.
def test_pack_that_retention_deletes_while_it_is_audited_is_not_altered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = small_tree(tmp_path)
    assert pack_tree(tree) == 1
    assert codes(tree) == []
    look = Tree.listing

    def looked(self: Tree, grid: Grid, rack: Rack) -> RackListing:
        listing = look(self, grid, rack)
        if listing.packed:
            tree.put(f"{rack.path}/{RETAINED}", b"")
            tree.remove(f"{rack.path}/{PACK}")
        return listing

    monkeypatch.setattr(Tree, "listing", looked)
    found = audit(Tree(tree.root)).findings
    assert {(each.code, each.verdict) for each in found} == {("lost-file", Verdict.INDETERMINATE)}


# The copy listed the rack before it was packed; then its directories were swept, and a closer that had stood still made
# one again, and closed it.
def test_lock_file_of_a_directory_that_was_swept_and_made_again_is_only_doubted(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, path = story.written()
    story.tree.advance(SECOND)
    story.writer.publish(story.grid, lease)
    story.shard.end(lease)
    tree = story.done()
    tree.remove(path)
    place = story.grid.bag(story.grid.first_ns + SECOND)
    assert path.startswith(f"{place.path}/")
    tree.close(place)
    found = audit(Tree(tree.root)).findings
    assert {(each.code, each.verdict) for each in found} == {
        ("lost-file", Verdict.INDETERMINATE),
        ("overwritten-lock", Verdict.INDETERMINATE),
    }
