"""Two copies held against each other: what a file tells of others hides no contradiction, what is damaged is none."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from appliance.formats.paths import chain_path, record_name
from auditor.audit import audit
from auditor.evidence.finding import Verdict
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.report.comparing import compared, contradictions
from auditor.rules.history import RECORDS_KEPT
from tests.fault_injection.faults_copies import bag_that_was_sealed_otherwise
from tests.fault_injection.faults_packs import pack_tree
from tests.fault_injection.fixtures import Story, flip, only_file, small_tree, two_sealed_racks
from tests.fault_injection.shard import Shard
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fault_injection.tree import ClusterTree

SIGNATURES = Signatures()


def codes(one: ClusterTree, other: Path) -> list[str]:
    mine, theirs = Tree(one.root), Tree(other)
    result = compared(audit(mine, signatures=SIGNATURES), audit(theirs, signatures=SIGNATURES), mine, theirs)
    return sorted(each.code for each in result.findings)


def forks(one: Path, other: Path) -> list[str]:
    """Return what one copy is said to tell otherwise than another, whichever is held against which."""
    trees = Tree(one), Tree(other)
    first, second = (audit(each, signatures=SIGNATURES) for each in trees)
    both = compared(first, second, *trees).findings + compared(second, first, *reversed(trees)).findings
    return [each.subject for each in both if each.code == "forked-history"]


def forked_ledger(root: Path, other: Path) -> tuple[ClusterTree, str]:
    """A run that went on twice, and that had granted one domain to two holders before."""
    story = Story(root)
    story.shard.grant("dave", story.writer)
    story.tree.advance(MS)
    story.shard.grant("dave", story.other)
    story.done()
    story.shard.extend()
    shutil.copytree(root, other)
    sequence, previous = story.shard.sequence, story.shard.previous
    story.tree.advance(MS)
    story.shard.end(story.shard.grant("bob", story.writer))
    mine, story.tree.root = story.tree.root, other
    story.shard.sequence, story.shard.previous = sequence, previous
    story.shard.end(story.shard.grant("carol", story.writer))
    story.tree.root = mine
    return story.tree, story.shard.ledger


def test_finding_that_rests_on_a_file_hides_no_fork_of_it(tmp_path: Path) -> None:
    tree, _ = forked_ledger(tmp_path / "tree", tmp_path / "other")
    assert codes(tree, tmp_path / "other") == ["early-grant", "forked-history"]


def test_lock_file_that_is_also_too_early_is_a_fork_all_the_same(tmp_path: Path) -> None:
    story = Story(tmp_path / "tree")
    _, path = story.written()
    bag = story.grid.bag(story.tree.now_ns)
    shutil.copytree(story.tree.root, tmp_path / "other")
    story.tree.close(bag)  # before its end
    mine, story.tree.root = story.tree.root, tmp_path / "other"
    story.tree.advance(4 * SECOND)
    story.tree.close(bag, omit=[path.rpartition("/")[2]])
    story.tree.root = mine
    assert codes(story.tree, tmp_path / "other") == ["forked-history", "premature-lock"]


@pytest.mark.parametrize("which", ["tree", "other"])
def test_file_that_is_damaged_in_one_copy_is_no_fork(which: str, tmp_path: Path) -> None:
    tree, ledger = forked_ledger(tmp_path / "tree", tmp_path / "other")
    tree.root = tmp_path / which
    flip(tree, ledger, 60)
    tree.root = tmp_path / "tree"
    assert "forked-history" not in codes(tree, tmp_path / "other")


def test_copy_without_the_marker_is_no_fork(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree")
    shutil.copytree(tree.root, tmp_path / "other")
    tree.remove("TENURE")
    assert forks(tree.root, tmp_path / "other") == []


# Of a log without its birth record no audit says what is damaged in it.
@pytest.mark.parametrize("pattern", ["logs/*/*/*/*/lock", "logs/*/*/*/*/*.msg"])
@pytest.mark.parametrize("damage", ["cut", "garbled"])
def test_damage_where_no_audit_read_is_no_fork(tmp_path: Path, pattern: str, damage: str) -> None:
    tree = small_tree(tmp_path / "tree")
    shutil.copytree(tree.root, tmp_path / "other")
    tree.remove("logs/orders/log")
    path = only_file(tree, pattern)
    if damage == "cut":
        tree.put(path, tree.get(path)[:-20])
    else:
        flip(tree, path, 40)
    assert forks(tree.root, tmp_path / "other") == []


class Shrinking(Tree):
    """A copy that is made once more while it is read: data files are shorter than they were a moment ago."""

    def read_range(self, path: str, offset: int, length: int) -> bytes | None:
        data = super().read_range(path, offset, length)
        return data[: len(data) // 2] if data and path.endswith(".msg") else data


def test_file_that_is_cut_short_while_it_is_compared_is_no_fork(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree")
    shutil.copytree(tree.root, tmp_path / "other")
    assert list(contradictions(Tree(tree.root), Shrinking(tmp_path / "other"))) == []
    assert list(contradictions(Shrinking(tree.root), Tree(tmp_path / "other"))) == []


# A run on another node signed a record, stood still, and linked it into the slot when the record there was pruned.
def test_record_in_a_slot_that_was_pruned_between_two_copies_is_only_doubted(tmp_path: Path) -> None:
    story = Story(tmp_path / "one")
    tree = story.tree
    slot = story.shard.ceiling_number + 1
    path = f"{chain_path(1, 0)}/{record_name(slot)}"
    other = Shard(tree, "n2")
    assert other.ceiling_number == slot
    slept = tree.get(path)
    tree.remove(path)
    tree.remove(other.ledger)
    story.shard.extend()
    lease, _ = story.written()
    story.shard.end(lease)
    story.done()
    shutil.copytree(tree.root, tmp_path / "first")
    for _ in range(RECORDS_KEPT):
        tree.advance(SECOND)
        story.shard.extend()
    for pruned in range(1, slot + 1):
        tree.remove(f"{chain_path(1, 0)}/{record_name(pruned)}")
    tree.put(path, slept)
    one, two = Tree(tmp_path / "first"), Tree(tree.root)
    audits = audit(one), audit(two)
    assert [each.findings for each in audits] == [(), ()]
    (finding,) = compared(*audits, one, two).findings
    assert (finding.code, finding.subject, finding.verdict) == ("forked-history", path, Verdict.INDETERMINATE)


# The same directory in two copies: before it was swept, and as a closer that had stood still since made it again.
@pytest.mark.parametrize("second", [1, 2])
def test_directory_that_was_swept_and_made_again_between_two_copies_is_no_fork(second: int, tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree")
    grid = tree.grids["orders"]
    shutil.copytree(tree.root, tmp_path / "other")
    assert pack_tree(tree) == 1
    tree.close(grid.bag(grid.first_ns + second * SECOND))
    assert codes(tree, tmp_path / "other") == []
    assert forks(tree.root, tmp_path / "other") == []


def test_directory_of_a_rack_without_files_is_swept_without_a_pack_and_is_no_fork(tmp_path: Path) -> None:
    tree = two_sealed_racks(tmp_path / "tree")
    grid = tree.grids["orders"]
    bag = grid.bag(grid.first_ns + 11 * SECOND)
    tree.remove(f"{bag.rack.path}/seal")
    tree.close(bag)
    tree.seal(bag.rack)
    shutil.copytree(tree.root, tmp_path / "other")
    tree.advance(SECOND)
    tree.close(bag)
    assert codes(tree, tmp_path / "other") == []
    assert forks(tree.root, tmp_path / "other") == []


def test_bag_that_was_sealed_otherwise_is_a_fork_also_where_its_rack_is_packed(tmp_path: Path) -> None:
    tree = bag_that_was_sealed_otherwise(tmp_path / "tree", tmp_path / "other")
    mine, tree.root = tree.root, tmp_path / "other"
    assert pack_tree(tree, sweep=False) == 1
    tree.root = mine
    assert codes(tree, tmp_path / "other") == ["forked-history"]


@pytest.mark.parametrize("path", ["shards/notes", "shards/00000001/notes", "policy/notes", "notes"])
def test_file_of_nobody_is_no_fork_whatever_is_in_it(path: str, tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "one")
    shutil.copytree(tree.root, tmp_path / "other")
    for record, root in (("trust", tree.root), ("policy", tmp_path / "other")):
        (root / path).write_bytes((tree.root / record / record_name(1)).read_bytes())
    assert forks(tree.root, tmp_path / "other") == []
