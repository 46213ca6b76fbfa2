"""The promises hold in schedules that a seed decides; the same seed gives the same schedule."""

from __future__ import annotations

import random

import pytest

from tests.simulation import scenarios
from tests.simulation.checkers.catalogue import violations
from tests.simulation.run import batch, simulate

FIXED = 200
FRESH = 50


@pytest.mark.parametrize("scenario", scenarios.SCENARIOS)
def test_same_seed_gives_the_same_trace_and_the_same_next_random_number(scenario: str) -> None:
    prints = []
    for _ in range(2):
        world = scenarios.SCENARIOS[scenario](11, traced=True)
        world.run()
        prints.append(world.scheduler.fingerprint())
    assert prints[0] == prints[1]


def test_a_trace_changes_nothing_in_its_run() -> None:
    worlds = [scenarios.bags(12, traced=traced) for traced in (False, True)]
    for world in worlds:
        world.run()
    assert worlds[0].scheduler.mark == worlds[1].scheduler.mark
    assert [violations(world) for world in worlds] == [[], []]


def test_no_promise_breaks_in_fixed_seeds() -> None:
    assert batch((0, FIXED)).broken == []


# Fresh seeds every time: what they find is replayed with the command in run.py.
def test_no_promise_breaks_in_fresh_seeds() -> None:
    first = random.SystemRandom().randrange(10**6, 10**12)
    assert batch((first, first + FRESH)).broken == []


def test_every_scenario_does_what_it_is_for() -> None:
    for name in scenarios.SCENARIOS:
        assert sum(simulate(name, seed).counts["writes"] for seed in range(5)) > 5
