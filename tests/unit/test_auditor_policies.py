"""A policy that changes: what was good when it was written is not accused, and what is named is what counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from auditor.audit import audit
from auditor.evidence import records
from auditor.evidence.tree import Tree
from tests.fault_injection.fixtures import Story
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from auditor.rules.result import Audit


def codes(story: Story) -> list[str]:
    return sorted(finding.code for finding in audited(story).findings)


def audited(story: Story) -> Audit:
    return audit(Tree(story.tree.root))


def changed(root: Path, **numbers: int) -> Story:
    """A frame under policy 1, in a bag that is closed when there is a second one, and one under that."""
    story = Story(root)
    lease, _ = story.written()
    number = story.tree.change_policy(**numbers)
    story.shard.end(lease)
    story.tree.advance(MS)
    other = story.shard.grant("bob", story.writer, change={"expiry_ns": story.tree.now_ns + 2 * SECOND})
    story.writer.publish(story.grid, other, change={"policy_number": number})
    story.shard.end(other)
    story.done()
    return story


@pytest.mark.parametrize(
    "numbers", [{"lease_term_max_ns": 5 * SECOND}, {"lease_term_max_ns": 20 * SECOND}, {"r1_tolerance_ns": 760 * MS}]
)
def test_change_of_policy_accuses_nobody(tmp_path: Path, numbers: dict[str, int]) -> None:
    story = changed(tmp_path, **numbers)
    assert codes(story) == []
    assert audited(story).summary.messages == 4


# Judged by the list's policy alone, the first frame would have been written under too long a lease.
def test_judging_by_the_newest_policy_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = changed(tmp_path, lease_term_max_ns=5 * SECOND)
    by_list = records.ClusterRecords.judging
    monkeypatch.setattr(records.ClusterRecords, "judging", lambda self, _, limit: by_list(self, limit, limit))
    assert "policy-misnamed" in codes(story)


def test_watermark_is_judged_by_the_widest_tolerance(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    time = story.tree.nodes["n2"].time.token()
    story.tree.advance(900 * MS)
    story.writer.publish(story.grid, lease, change={"time": time.encode()})
    story.tree.change_policy(r1_tolerance_ns=760 * MS)
    story.shard.end(lease)
    story.done()
    assert codes(story) == []


def test_policy_that_a_frame_names_and_that_is_missing_is_said(tmp_path: Path) -> None:
    story = changed(tmp_path, lease_term_max_ns=20 * SECOND)
    story.tree.remove("policy/00000001")
    assert set(codes(story)) == {"unverifiable-policy"}


@pytest.mark.parametrize("narrower", [{"r1_tolerance_ns": 760 * MS}, {"lease_term_max_ns": 5 * SECOND}])
def test_policy_that_is_missing_may_have_allowed_what_no_other_does(tmp_path: Path, narrower: dict[str, int]) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    time = story.tree.nodes["n2"].time.token()
    story.tree.advance(900 * MS)
    story.writer.publish(story.grid, lease, change={"time": time.encode()})
    story.tree.change_policy(**narrower)
    story.shard.end(lease)
    story.done()
    assert codes(story) == []
    story.tree.remove("policy/00000001")
    assert set(codes(story)) == {"unverifiable-policy"}


# By the first policy the rack could be sealed before the bag was closed; the second asks for a longer wait.
def test_policy_that_is_missing_may_have_let_racks_be_sealed_sooner(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    story.shard.end(lease)
    rack = story.grid.rack(story.tree.now_ns)
    story.tree.until(rack.end_ns + 6 * SECOND)
    story.tree.close_due(story.grid)
    bag = story.grid.bag(rack.end_ns - SECOND)
    story.writer.publish(story.grid, payloads=[b"late"], at=bag.start_ns, bag=bag, commits=False)
    story.tree.close(bag)
    story.tree.change_policy(seal_delay_ns=10 * SECOND)
    story.tree.advance(10 * SECOND)
    story.tree.seal(rack, omit=[bag.path.rpartition("/")[2]])
    assert set(codes(story)) == {"ghost-bag"}
    story.tree.remove("policy/00000001")
    assert set(codes(story)) == {"ghost-bag", "unverifiable-policy"}
