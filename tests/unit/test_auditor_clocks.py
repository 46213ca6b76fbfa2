"""Whose clock it was: a node that is 30 s ahead or behind is named by its findings, by what two others say."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from auditor.audit import audit
from auditor.columns.events import ClockReading
from auditor.evidence.finding import Evidence, Times, found
from auditor.evidence.tree import Tree
from auditor.timeline.clocks import Ties, _judged
from tests.fault_injection.plants import all_plants
from tests.fault_injection.shard import Shard
from tests.fault_injection.tree import ClusterTree
from tests.fault_injection.writer import Writer
from tests.support.steps import steps
from timeagent.signedtime import ClockStatus
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from auditor.evidence.finding import Finding
    from tests.fault_injection.plants import Plant

NODES = ("n1", "n2", "n3")


class Cluster:
    """Leases come and go on one shard; whoever writes, and whoever closes bags, is told."""

    def __init__(self, root: Path, owner: str, off_ns: dict[str, int], nodes: Sequence[str] = NODES) -> None:
        self.tree = ClusterTree(root, nodes=(owner, *(node for node in nodes if node != owner)))
        self.grid = self.tree.log(node=owner)
        for node, span in off_ns.items():
            self.tree.nodes[node].time.midpoint_ns += span
        self.tree.advance(SECOND)
        self.true_ns = self.tree.nodes[min(set(nodes) - set(off_ns))].time
        self.shard = Shard(self.tree, owner)
        self.writers = {node: Writer(self.tree, node) for node in nodes}

    def turn(self, writer: str, closer: str) -> None:
        """Somebody holds, writes and gives back; somebody closes the bag."""
        self.shard.extend()
        lease = self.shard.grant("alice", self.writers[writer])
        self.tree.advance(50 * MS)
        at = self.true_ns.midpoint_ns
        self.writers[writer].publish(self.grid, lease, at=at, payloads=[b"one"])
        self.tree.advance(50 * MS)
        self.shard.end(lease)
        bag = self.grid.bag(at)
        self.tree.advance(bag.due_ns - at + SECOND)
        self.tree.close(bag, node=closer)

    def breaches(self) -> list[Finding]:
        found = audit(Tree(self.tree.root)).findings
        return [each for each in found if each.code == "r2-breach"]


EVERYBODY = [("n1", "n2"), ("n2", "n3"), ("n3", "n1"), ("n2", "n1"), ("n3", "n2"), ("n1", "n3")]


@pytest.mark.parametrize("owner", NODES)
@pytest.mark.parametrize("wrong", NODES)
@pytest.mark.parametrize("off_ns", [30 * SECOND, -30 * SECOND])
def test_one_of_three_is_named(owner: str, wrong: str, off_ns: int, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, owner, {wrong: off_ns})
    for writer, closer in EVERYBODY:
        cluster.turn(writer, closer)
    breaches = cluster.breaches()
    assert breaches
    where = "ahead" if off_ns > 0 else "behind"
    others = " and ".join(node for node in NODES if node != wrong)
    for each in breaches:
        assert each.clocks == (wrong,)
        assert each.explanation.endswith(f"it was the clock of {wrong}, {where}: those of {others} agree")
        assert each.fields()["clocks"] == [wrong]
        assert {time["node"] for time in each.fields()["times"]} == {each.times[0].node, each.times[1].node}


# With whom it contradicts itself is one node alone; a third vouches for that one.
@pytest.mark.parametrize("off_ns", [30 * SECOND, -30 * SECOND])
def test_third_node_that_never_met_it_vouches_for_the_other(off_ns: int, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "n1", {"n3": off_ns})
    cluster.turn("n2", "n1")
    cluster.turn("n3", "n1")
    breaches = cluster.breaches()
    assert {each.clocks for each in breaches} == {("n3",)}
    assert {frozenset((each.times[0].node, each.times[1].node)) for each in breaches} == {frozenset(("n1", "n3"))}
    assert all("those of n1 and n2 agree" in each.explanation for each in breaches)


@pytest.mark.parametrize("off_ns", [30 * SECOND, -30 * SECOND])
def test_of_two_both_are_named_and_nothing_tells_which(off_ns: int, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "n1", {"n2": off_ns}, nodes=("n1", "n2"))
    for writer, closer in (("n2", "n1"), ("n1", "n2"), ("n2", "n1")):
        cluster.turn(writer, closer)
    breaches = cluster.breaches()
    assert breaches
    for each in breaches:
        assert each.clocks == ("n1", "n2")
        assert "nothing else tells which" in each.explanation


# Two that are wrong in the same way outvote nobody who has a witness of his own.
def test_two_against_two_is_nobody(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "n1", {"n3": 30 * SECOND, "n4": 30 * SECOND}, nodes=("n1", "n2", "n3", "n4"))
    for writer, closer in (("n2", "n1"), ("n1", "n2"), ("n3", "n4"), ("n4", "n3"), ("n3", "n1"), ("n4", "n2")):
        cluster.turn(writer, closer)
    breaches = cluster.breaches()
    assert breaches
    for each in breaches:
        assert len(each.clocks) == 2
        assert "nothing else tells which" in each.explanation


# What a clock said when it was right acquits nobody: it was set since, and that is another epoch of it.
def test_clock_that_was_right_before_is_named_all_the_same(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "n1", {})
    for writer, closer in EVERYBODY:
        cluster.turn(writer, closer)
    wrong = cluster.tree.nodes["n1"].time
    wrong.midpoint_ns += 30 * SECOND
    wrong.clock_epoch += 1
    cluster.true_ns = cluster.tree.nodes["n2"].time
    cluster.turn("n2", "n2")  # n3 met it only when it was right
    breaches = cluster.breaches()
    assert breaches
    assert {each.clocks for each in breaches} == {("n1",)}


def test_same_clock_that_went_back_is_named(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "n1", {"n2": 0})
    cluster.turn("n2", "n1")
    with cluster.tree.nodes["n1"].time.set_back(5 * SECOND):
        cluster.shard.grant("bob", cluster.writers["n2"])
    breaches = cluster.breaches()
    assert breaches
    for each in breaches:
        assert each.clocks == ("n1",)
        assert "both are by the clock of n1, which went back" in each.explanation


@pytest.mark.parametrize("seed", range(12))
def test_whoever_meets_whom_the_right_ones_are_never_named_alone(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    wrong = chance.choice(NODES)
    cluster = Cluster(tmp_path, chance.choice(NODES), {wrong: chance.choice([30, -30]) * SECOND})
    for _ in range(5):
        cluster.turn(chance.choice(NODES), chance.choice(NODES))
    for each in cluster.breaches():
        assert wrong in each.clocks
        assert len(each.clocks) <= 2


# What is no proof of its own is explained by a clock that other evidence proves to be wrong.
@pytest.mark.parametrize("code", ["hidden-bag", "unsettled-write", "early-grant"])
@pytest.mark.parametrize("known", [True, False])
def test_clock_that_is_known_to_be_wrong_explains_what_proves_nothing_by_itself(code: str, *, known: bool) -> None:
    ties = Ties(lambda _: None)
    if known:
        for cause, effect, gap_ns in (("n1", "n2", 1), ("n2", "n1", 1), ("n3", "n1", -30), ("n1", "n3", 31)):
            ties.tie(reading(cause, 0), reading(effect, gap_ns * SECOND))
    times: Times = {"the lock file": (1, 2, "n3"), "the seal": (3, 4, "n1")}
    judged = _judged(found(code, "a subject", "what was found", [Evidence("a/path")], times), ties)
    assert judged.clocks == (("n3",) if known else ("n1", "n3"))
    words = (
        "the clock of n3 was wrong" if known else "the lock file is by the clock of n3, the seal is by the clock of n1"
    )
    assert words in judged.explanation


def reading(node: str, instant: int, epoch: int = 1) -> ClockReading:
    return ClockReading(node, instant, 5 * MS, ClockStatus.SYNCHRONIZED, epoch, 1, assumed=False)


# Each epoch is another clock, and a node may write any into what it signs.
def test_epochs_of_a_clock_are_not_compared_each_with_each() -> None:
    def judged(count: int) -> int:
        ties = Ties(lambda _: None)
        for epoch in range(count):
            ties.tie(reading("n3", 30 * SECOND, epoch), reading("n1", 0))
            ties.tie(reading("n2", 0), reading("n3", 30 * SECOND, epoch))
        ties.tie(reading("n1", 0), reading("n2", SECOND))
        ties.tie(reading("n2", 0), reading("n1", SECOND))
        return steps(lambda: wrong.append(ties.wrong))

    wrong: list[frozenset[str]] = []
    assert judged(160) < 12 * judged(20)
    assert wrong == [frozenset({"n3"})] * 2


@pytest.mark.parametrize("story", all_plants()["radius-above-policy"], ids=lambda story: story.__name__)
def test_clock_that_is_too_vague_is_named(story: Plant, tmp_path: Path) -> None:
    (finding,) = audit(Tree(story(tmp_path / "tree").root)).findings
    (node,) = finding.clocks
    assert finding.explanation.endswith(f"the signed time is by the clock of {node}")
