"""Each planted fault inside a large clean tree: exactly it is found there too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from auditor.audit import audit
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from tests.fault_injection.faults_chains import domain_of_another_shard
from tests.fault_injection.history import Remembered, at_random, beginning_with
from tests.fault_injection.plants import all_plants
from tests.fault_injection.tree import ClusterTree
from tests.simulation import injected
from tests.support.shares import shares

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fault_injection.plants import Plant

SIGNATURES = Signatures()
LARGE = 250
MIDDLING = 25


def past(place: Path, events: int) -> Remembered:
    with beginning_with(at_random(7, events)):
        tree = ClusterTree(place)
    result = audit(Tree(tree.root), signatures=SIGNATURES)
    assert result.findings == ()
    assert result.summary.messages > events
    assert result.summary.provisional == 0
    return Remembered.of(tree)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Remembered:
    return past(tmp_path_factory.mktemp("large") / "past", LARGE)


@pytest.fixture(scope="module")
def middling(tmp_path_factory: pytest.TempPathFactory) -> Remembered:
    return past(tmp_path_factory.mktemp("middling") / "past", MIDDLING)


def found(plant: Plant, before: Remembered, place: Path) -> set[str]:
    # Under a map of its own a story's past is another one.
    with beginning_with(at_random(7, MIDDLING) if plant is domain_of_another_shard else before):
        tree = plant(place / "tree")
    return {finding.code for finding in audit(Tree(tree.root), signatures=SIGNATURES).findings}


ALL = [(code, plant) for code, plants in all_plants().items() for plant in plants]
FIRST = [(code, plants[0]) for code, plants in all_plants().items()]


@pytest.mark.verify
@pytest.mark.parametrize(("code", "plant"), FIRST, ids=[code for code, _ in FIRST])
def test_fault_inside_a_middling_tree_is_named_and_nothing_else(
    code: str, plant: Plant, middling: Remembered, tmp_path: Path
) -> None:
    assert found(plant, middling, tmp_path) == {code}


@pytest.mark.slow
@pytest.mark.parametrize(("code", "plant"), ALL, ids=[f"{code}-{plant.__name__}" for code, plant in ALL])
def test_fault_inside_a_large_tree_is_named_and_nothing_else(
    code: str, plant: Plant, large: Remembered, tmp_path: Path
) -> None:
    assert found(plant, large, tmp_path) == {code}


@pytest.mark.parametrize("share", shares(2))
def test_histories_at_random_are_clean_and_no_two_alike(tmp_path: Path, share: int) -> None:
    seen = set()
    for seed in range(share, 12, 2):
        with beginning_with(at_random(seed, 10)):
            tree = ClusterTree(tmp_path / str(seed))
        result = audit(Tree(tree.root), signatures=SIGNATURES)
        assert result.findings == (), seed
        seen.add((result.summary.messages, result.summary.bags, result.summary.witnesses))
    assert len(seen) > 3


# The measurement itself has to be able to fail: a judge that is blind to one rule scores less on it, and only on it.
def test_measurement_tells_a_rule_that_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [each for each in injected.stories() if each[0] in ("sequence-reused", "r1-breach")]
    monkeypatch.setattr(injected, "stories", lambda: wanted)
    assert injected.MEASUREMENT.measure(2 * len(wanted)).wrong == []
    monkeypatch.setattr("auditor.rules.sequences._reused", lambda _: iter(()))
    blind = injected.MEASUREMENT.measure(2 * len(wanted))
    assert {wrong.split()[0] for wrong in blind.wrong} == {"sequence-reused"}
    assert [blind.told[injected.FOUND, code] for code in ("sequence-reused", "r1-breach")] == [
        0,
        blind.cases["r1-breach"],
    ]
