"""Every wrong version of a step is killed by the checker that is named beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation.checkers.catalogue import CHECKERS, violations
from tests.simulation.mutants import MUTANTS
from tests.simulation.mutation import Death, kill, table
from tests.simulation.scenarios import SCENARIOS

if TYPE_CHECKING:
    from tests.simulation.mutant import Mutant


@pytest.mark.verify
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_mutant_is_killed_by_the_checker_that_is_named(mutant: Mutant) -> None:
    assert kill(mutant).seeds is not None


def test_every_checker_kills_a_mutant() -> None:
    assert {*CHECKERS, "bug", "damage"} <= {mutant.killed_by for mutant in MUTANTS}


def test_table_keeps_the_rows_of_those_that_are_not_killed_anew() -> None:
    first, second = MUTANTS[:2]
    before = table([Death(first, 7, (), ()), Death(second, 8, (), ())], [])
    after = table([Death(second, None, ("past",), ())], before)
    assert after[:3] == before[:3]
    assert after[3] == f"| {second.name} | {second.scenario} | {second.killed_by} | **survives** | past |  |"
    assert len(after) == 4


def test_planted_faults_are_taken_out_again() -> None:
    kill(MUTANTS[1])
    world = SCENARIOS[MUTANTS[1].scenario](3)
    world.run()
    assert violations(world) == []


# What two stores had for their own by a wrong step was closed beneath one of a later run.
def test_mutant_leaves_nothing_to_the_runs_after_it() -> None:
    (mutant,) = (each for each in MUTANTS if each.name == "what was left is found as often as it is looked for")
    kill(mutant)
    world = SCENARIOS["recalls"](11)
    world.run()
    assert world.scheduler.bugs == []
