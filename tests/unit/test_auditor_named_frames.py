"""R2 between a frame and the committed frame that it names: to the nanosecond."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from auditor.audit import Options, audit
from auditor.evidence.finding import Verdict
from auditor.evidence.tree import Tree
from auditor.report.formats import json_bytes
from auditor.rules import sequences
from tests.fault_injection.faults_time import frame_signed_before_the_one_that_it_names
from tests.fault_injection.fixtures import Story
from tests.support.mutants import plant
from timeagent.units import MS

if TYPE_CHECKING:
    from pathlib import Path

    from auditor.rules.result import Audit
    from tests.fault_injection.tree import ClusterTree

UNHASHED = Options(hashed=False)


def stepped(root: Path, back: int, *, commits: bool = True) -> ClusterTree:
    """Two frames of one writer, whose clock goes back between them; the first is known committed, or not."""
    story = Story(root)
    lease, clock = story.lease(), story.tree.nodes["n2"].time
    story.tree.advance(700 * MS)
    story.writer.publish(story.grid, lease, commits=commits)
    with clock.set_back(back):
        story.writer.publish(story.grid, lease, at=story.tree.now_ns + 2 * MS)
    return story.done()


def allowed(tree: ClusterTree) -> int:
    """How far a clock may go back between two frames: both intervals still meet, or the token may be so old."""
    clock = tree.nodes["n2"].time
    return 2 * clock.radius_ns + clock.staleness_ns


def codes(tree: ClusterTree, options: Options) -> list[str]:
    return [finding.code for finding in audit(Tree(tree.root), options=options).findings]


@pytest.mark.parametrize("options", [Options(), UNHASHED], ids=["hashed", "unhashed"])
def test_signed_times_may_go_back_as_far_as_bounds_and_staleness_allow(tmp_path: Path, options: Options) -> None:
    limit = allowed(stepped(tmp_path / "none", 0))
    assert codes(stepped(tmp_path / "fair", limit), options) == []
    assert codes(stepped(tmp_path / "far", limit + 1), options) == ["r2-breach"]


# Whose outcome is not known yet is not named: nothing that a signature covers says which of the two came first.
def test_frame_that_nobody_names_is_compared_with_none(tmp_path: Path) -> None:
    assert "r2-breach" not in codes(stepped(tmp_path, 400 * MS, commits=False), Options())


def test_finding_shows_both_frames_and_both_intervals(tmp_path: Path) -> None:
    tree = stepped(tmp_path, 400 * MS)
    result: Audit = audit(Tree(tree.root))
    (finding,) = result.findings
    assert finding.verdict is Verdict.VIOLATION
    assert [each.path for each in finding.evidence] == sorted(_frames(tree))
    first, second = finding.times
    assert (first.what, second.what) == ("frame 1", "frame 2")
    radius = tree.nodes["n2"].time.radius_ns
    assert first.latest_ns - first.earliest_ns == 2 * radius
    assert first.earliest_ns - second.earliest_ns == 400 * MS
    assert "names frame 1 as committed" in finding.explanation


def _frames(tree: ClusterTree) -> list[str]:
    return [path for path in tree.files() if path.endswith(".msg")]


# A signed time that does not verify proves nothing about another one.
def test_forged_time_accuses_no_other_frame(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, clock = story.lease(), story.tree.nodes["n2"].time
    story.tree.advance(700 * MS)
    story.writer.publish(story.grid, lease)
    with clock.set_back(400 * MS):
        forged = bytearray(clock.token().encode())
    forged[-1] ^= 1
    story.writer.publish(story.grid, lease, at=story.tree.now_ns + 2 * MS, change={"time": bytes(forged)})
    assert set(codes(story.done(), Options())) == {"forged-time"}


# A rotation, a restart of the agent, a failover to another source: each epoch states bounds of its own.
def test_another_clock_epoch_within_its_bounds_is_no_finding(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, clock = story.lease(), story.tree.nodes["n2"].time
    story.tree.advance(700 * MS)
    story.writer.publish(story.grid, lease)
    clock.clock_epoch += 1
    clock.radius_ns = 200 * MS
    with clock.set_back(190 * MS):
        story.writer.publish(story.grid, lease, at=story.tree.now_ns + 2 * MS)
    assert codes(story.done(), Options()) == []


BEFORE = "rows['earliest'][named].astype(np.uint64) > latest"
MUTANTS = {
    "no allowance for the age of a token": ("rows['staleness'][naming]", "0 * rows['staleness'][naming]"),
    "the wrong end of the later frame": ("rows['latest'][naming]", "rows['earliest'][naming]"),
    "the wrong end of the named frame": (BEFORE, BEFORE.replace("earliest", "latest")),
    "nothing is too early": (BEFORE, f"({BEFORE}) & False"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_end_of_each_interval_counts(tmp_path: Path, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = allowed(stepped(tmp_path / "none", 0))
    trees = [stepped(tmp_path / "fair", limit), stepped(tmp_path / "far", limit + 1)]
    trees.append(frame_signed_before_the_one_that_it_names(tmp_path / "planted"))
    told = [json_bytes(audit(Tree(tree.root))) for tree in trees]
    plant(monkeypatch, sequences, "_signed_before_named", *MUTANTS[mutant])
    assert [json_bytes(audit(Tree(tree.root))) for tree in trees] != told


# Whatever is in an open bag is read as evidence, also what no signature vouches for.
@pytest.mark.parametrize("seal", [False, True], ids=["open", "closed"])
def test_signed_time_at_the_end_of_all_time_is_told_and_breaks_nothing(tmp_path: Path, *, seal: bool) -> None:
    story = Story(tmp_path)
    lease, clock = story.lease(), story.tree.nodes["n2"].time
    story.tree.advance(700 * MS)
    now = clock.midpoint_ns
    clock.midpoint_ns = 2**63 - 1
    token = clock.token().encode()
    clock.midpoint_ns = now
    story.writer.publish(story.grid, lease, change={"time": token})
    story.writer.publish(story.grid, lease, at=now + 2 * MS)
    tree = story.done() if seal else story.tree
    assert ("ended-key" in codes(tree, Options())) is seal
