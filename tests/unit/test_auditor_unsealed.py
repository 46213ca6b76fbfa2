"""A rack whose seal is missing: nobody knows whether it lists a bag that was closed late, and nobody is accused."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from auditor.audit import audit
from auditor.evidence.finding import Verdict
from auditor.evidence.tree import Tree
from auditor.walk import bags
from tests.fault_injection.fixtures import Story
from tests.fault_injection.tree import ClusterTree
from tests.support.mutants import plant
from timeagent.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from auditor.evidence.finding import Finding


def ghost_closed_late(root: Path) -> ClusterTree:
    """A frame came too late for its rack, so that it was void, as its writer knew; and somebody closed its bag."""
    story = Story(root)
    tree, grid = story.tree, story.grid
    lost = story.shard.grant("bob", story.other)
    lease, _ = story.written()
    known = lease.written_ns, lease.written_time
    tree.advance(2 * SECOND)
    path = story.writer.publish(grid, lease, commits=False)
    file, bag = tree.get(path), grid.bag(tree.now_ns)
    shutil.rmtree(tree.root / bag.path)
    lease.written_ns, lease.written_time = known
    story.shard.end(lease)
    story.shard.extend()
    story.shard.expire(lost)
    tree.until(bag.rack.end_ns + tree.policy.seal_delay_ns + SECOND)
    tree.close_due(grid)
    tree.seal(bag.rack)
    tree.put(path, file)
    story.shard.extend()
    heir = story.shard.grant("bob", story.other)
    tree.settle_to(grid, heir.witness.settle_to_ns)
    story.other.publish(grid, heir)
    tree.advance(4 * SECOND)
    tree.close(bag)
    return story.done()


def said(tree: ClusterTree) -> list[Finding]:
    return list(audit(Tree(tree.root)).findings)


@pytest.mark.parametrize("part", [False, True])
def test_ghost_bag_that_was_closed_late_accuses_nobody_when_the_seal_is_missing(tmp_path: Path, *, part: bool) -> None:
    tree = ghost_closed_late(tmp_path)
    assert {finding.code for finding in said(tree)} == {"ghost-bag"}
    tree.remove(f"{tree.grids['orders'].rack(tree.grids['orders'].first_ns).path}/seal")
    if part:
        for name in ("TENURE", "policy/00000001", "trust/00000001", "map/00000001"):
            tree.remove(name)
    assert not [finding for finding in said(tree) if finding.verdict is Verdict.VIOLATION]


MUTANTS = {
    "its frames count": (
        "BagWalk._bag",
        "BagRules(bag, lock, where, token, keyring, policy, policy_of, counts)",
        "BagRules(bag, lock, where, token, keyring, policy, policy_of, True)",
    ),
    "its closing counts": (
        "BagWalk._bag",
        "token.interval.earliest if token and counts else 0",
        "token.interval.earliest if token else 0",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_judge_who_believes_its_list_accuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    plant(monkeypatch, bags, *MUTANTS[mutant])
    with pytest.raises(AssertionError):
        test_ghost_bag_that_was_closed_late_accuses_nobody_when_the_seal_is_missing(tmp_path, part=False)
