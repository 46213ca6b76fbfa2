"""Run every mutant until its checker has killed it, and say with how many seeds: the table of docs/verification.md."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING

import pytest

from auditor.evidence.finding import Verdict
from tests.simulation.audited import audited
from tests.simulation.checkers.catalogue import violations
from tests.simulation.mutants import MUTANTS
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.store import forget_idle

if TYPE_CHECKING:
    from tests.simulation.mutant import Mutant

SEEDS_MAX = 12_000


@dataclass(frozen=True, slots=True)
class Death:
    """What became of a mutant."""

    mutant: Mutant
    seeds: int | None
    """How many seeds it took, from seed 0 on; None: it survived."""
    others: tuple[str, ...]
    """Which other checkers objected to the same run."""
    codes: tuple[str, ...]
    """What the auditor found in the tree of that run, and in no tree of an unchanged run."""


def kill(mutant: Mutant, seeds_max: int = SEEDS_MAX, *, audits: bool = False) -> Death:
    """Plant a mutant and run seed after seed until the checker that is named objects."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as after:
        mutant.plant(patch)
        after.callback(forget_idle)
        for seed in range(mutant.first, mutant.first + seeds_max):
            world = SCENARIOS[mutant.scenario](seed)
            world.run()
            objections = Counter(checker for checker, _ in violations(world))
            if mutant.killed_by in objections:
                others = tuple(sorted(set(objections) - {mutant.killed_by}))
                codes = _codes(mutant, seed) if audits and not world.rotting else ()
                return Death(mutant, seed + 1, others, codes)
    return Death(mutant, None, (), ())


def _codes(mutant: Mutant, seed: int) -> tuple[str, ...]:
    world = SCENARIOS[mutant.scenario](seed)
    world.run()
    found = audited(world).findings
    return tuple(sorted({each.code for each in found if each.verdict is Verdict.VIOLATION}))


HEADS = (
    "| wrong step | scenario | killed by | seeds to kill | also objected | the auditor found |",
    "|---|---|---|---|---|---|",
)


def table(deaths: list[Death], before: list[str]) -> list[str]:
    """Return the table in Markdown. ``before``: the one that was there; who was not killed anew keeps its row."""
    rows = {row.split(" | ")[0].removeprefix("| "): row for row in before}
    for death in deaths:
        mutant = death.mutant
        seeds = "**survives**" if death.seeds is None else f"{death.seeds}"
        rows[mutant.name] = (
            f"| {mutant.name} | {mutant.scenario} | {mutant.killed_by} | {seeds} | {', '.join(death.others)} | "
            f"{', '.join(death.codes)} |"
        )
    return [*HEADS, *(rows[mutant.name] for mutant in MUTANTS if mutant.name in rows)]


def deaths(scenario: str | None = None) -> list[Death]:
    """Kill all mutants, or those of one scenario, on all cores."""
    numbers = [n for n, mutant in enumerate(MUTANTS) if scenario in (None, mutant.scenario)]
    with get_context("fork").Pool() as pool:
        found = pool.map(_audited_death, numbers, chunksize=1)
    return [Death(MUTANTS[n], *rest) for n, rest in zip(numbers, found, strict=True)]


def _audited_death(number: int) -> tuple[int | None, tuple[str, ...], tuple[str, ...]]:
    death = kill(MUTANTS[number], audits=True)  # without the mutant itself: a module does not go to another process
    return death.seeds, death.others, death.codes
