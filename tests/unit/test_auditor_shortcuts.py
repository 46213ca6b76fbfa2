"""What is asked of one frame is needed, all of it; and several processes say of every fault what one says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from auditor.audit import Options, audit
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.report.formats import json_bytes
from auditor.rules import timestamps
from tests.fault_injection.plants import all_plants
from tests.fault_injection.shard import Shard
from tests.fault_injection.tree import ClusterTree
from tests.fault_injection.writer import Writer
from tests.support.mutants import plant
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fault_injection.plants import Plant

OF_A_FRAME = (
    "timestamp-outside-bag",
    "r1-breach",
    "r2-breach",
    "timestamp-after-expiry",
    "timestamp-below-floor",
    "tentative-write",
    "read-mode-write",
    "foreign-lease",
    "forged-time",
    "forged-witness",
    "damaged-frame",
    "session-witness-missing",
    "leaseless-write",
    "radius-above-policy",
    "policy-misnamed",
    "stale-time",
)
"""Codes about one frame."""


def written(root: Path, *, span: int = 0, bags: int = 0, late: int = 0, **holder: object) -> ClusterTree:
    """One lease, one frame: in a bag that is so many later, by a time so much later, for a holder with these fields."""
    tree = ClusterTree(root)
    grid, shard, writer = tree.log(), Shard(tree), Writer(tree)
    tree.advance(3 * SECOND + 100 * MS)
    named = msgspec.structs.replace(writer.holder, **holder)
    lease = shard.grant("alice", writer, change={"holder": named})
    tree.advance(50 * MS)
    at = tree.now_ns + span
    token = tree.nodes[writer.node].time
    token.midpoint_ns += late
    time = token.token().encode()
    token.midpoint_ns -= late
    writer.publish(grid, lease, at=at, bag=grid.bag(at + bags * SECOND), change={"time": time})
    shard.end(lease)
    tree.settle(grid)
    return tree


def before_its_bag(root: Path) -> ClusterTree:
    return written(root, bags=1)


def after_its_bag(root: Path) -> ClusterTree:
    return written(root, bags=-1)


def by_a_later_time(root: Path) -> ClusterTree:
    return written(root, late=3 * SECOND)


def by_an_earlier_time(root: Path) -> ClusterTree:
    return written(root, late=-2 * SECOND)


def for_another_node(root: Path) -> ClusterTree:
    return written(root, node="n1")


def for_another_run(root: Path) -> ClusterTree:
    return written(root, incarnation=b"another!")


OWN: list[Plant] = [
    before_its_bag,
    after_its_bag,
    by_a_later_time,
    by_an_earlier_time,
    for_another_node,
    for_another_run,
]
STORIES: list[Plant] = OWN + [
    each for code, found in sorted(all_plants().items()) if code in OF_A_FRAME for each in found
]


@pytest.mark.slow
@pytest.mark.parametrize("code", sorted(all_plants()))
def test_two_processes_say_the_same_of_every_fault(tmp_path: Path, code: str) -> None:
    for number, story in enumerate(all_plants()[code]):
        root = story(tmp_path / str(number)).root
        assert json_bytes(audit(Tree(root), options=Options(jobs=2))) == json_bytes(audit(Tree(root)))


MUTANTS = {
    "what is asked of the frame": ("_asked", "frame_checks(evidence, span, policy)", "()"),
    "what is asked of its leases": ("_asked", "lease_checks(evidence, held)", "()"),
    "how old its time may be": ("judge_frame", "stale_time(frame, token, where)", "()"),
    "the policy that it names": (
        "judge_frame",
        "not any((_foreign(evidence, held) or _beyond(held, policy) for held in evidence.carried))",
        "True",
    ),
    "the shard's clock": ("_beyond", "held.token.radius_ns > policy.radius_ns_max", "False"),
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, bytes]]:
    """Every story, and what is said of it."""
    made = []
    for number, story in enumerate(STORIES):
        root = story(tmp_path_factory.mktemp(f"story{number}")).root
        made.append((root, json_bytes(audit(Tree(root)))))
    return made


@pytest.mark.verify
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_question_that_nobody_asks_is_missed(
    planted: list[tuple[Path, bytes]], monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    plant(monkeypatch, timestamps, *MUTANTS[mutant])
    monkeypatch.setattr("auditor.walk.listed.judge_frame", timestamps.judge_frame)
    signatures = Signatures()
    assert any(json_bytes(audit(Tree(root), signatures=signatures)) != said for root, said in planted)
