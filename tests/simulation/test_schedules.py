"""The promises hold in schedules that a seed decides; the same seed gives the same schedule."""

from __future__ import annotations

import os

import pytest

from tests.simulation import scenarios
from tests.simulation.checkers.catalogue import violations
from tests.simulation.run import (
    AUDITED_ONE_IN,
    SHOWN_MAX,
    Tally,
    complaints,
    fresh_seed,
    is_audited,
    run_all,
    scenario_of,
)
from tests.support.shares import sampled, shares

FIXED, SHARE = 3_000, 100
"""All of them are `make verify`, the first of them `make test`."""
FRESH = 50


@pytest.mark.parametrize("scenario", sampled(scenarios.SCENARIOS, 3))
def test_same_seed_gives_the_same_trace_and_the_same_next_random_number(scenario: str) -> None:
    prints = []
    for _ in range(2):
        world = scenarios.SCENARIOS[scenario](11, traced=True)
        world.run()
        prints.append(world.scheduler.fingerprint())
    assert prints[0] == prints[1]


def test_a_trace_changes_nothing_in_its_run() -> None:
    worlds = [scenarios.SCENARIOS["bags"](12, traced=traced) for traced in (False, True)]
    for world in worlds:
        world.run()
    assert worlds[0].scheduler.mark == worlds[1].scheduler.mark
    assert [violations(world) for world in worlds] == [[], []]


def judged(first: int, count: int) -> Tally:
    print(f"seeds {first} to {first + count - 1}")
    return run_all(first, count, os.cpu_count() or 1)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("share", shares(FIXED // SHARE))
def test_no_promise_breaks_in_fixed_seeds(share: int) -> None:
    tally = judged(share * SHARE, SHARE)
    assert not tally.broken, "\n".join(complaints(tally))
    assert tally.counts["seeds"] == SHARE
    assert tally.counts["audits"] > SHARE / AUDITED_ONE_IN / 2  # trees that rot are not judged


@pytest.mark.parametrize("one_in", [1, 4, AUDITED_ONE_IN, len(scenarios.MIX)])
def test_auditor_judges_every_place_of_the_mix_once_in_so_many_rounds(one_in: int) -> None:
    length = len(scenarios.MIX)
    places = [seed % length for seed in range(7 * length, (7 + one_in) * length) if is_audited(seed, one_in)]
    assert sorted(places) == list(range(length))


def test_auditor_judges_every_scenario_in_the_fixed_seeds() -> None:
    assert {scenario_of(seed) for seed in range(FIXED) if is_audited(seed, AUDITED_ONE_IN)} == set(scenarios.MIX)


def test_auditor_runs_as_often_as_was_asked_for() -> None:
    rotting = sum(scenarios.SCENARIOS[scenario_of(seed)](seed).rotting for seed in range(10))
    assert run_all(0, 10, 1, one_in=1).counts["audits"] == 10 - rotting
    assert run_all(1, 10, 1).counts["audits"] == 0


# Other seeds every time, so that each run of the tests tries schedules that nobody tried before.
@pytest.mark.timeout(300)
def test_no_promise_breaks_in_fresh_seeds() -> None:
    tally = judged(fresh_seed(), FRESH)
    assert not tally.broken, "\n".join(complaints(tally))


def test_broken_promise_is_shown_with_the_command_that_replays_it() -> None:
    shown = complaints(Tally(broken=[("bags", 17, "committed", "it is gone")]))
    assert "committed: it is gone" in shown[0]
    assert shown[0].endswith("-m tests.simulation.run --replay bags 17")


def test_every_broken_seed_of_a_long_run_is_shown_with_its_command() -> None:
    broken = [("bags", seed, "committed", f"seed {seed} is\ngone") for seed in range(100)]
    shown = complaints(Tally(broken=broken))
    assert [line.rpartition(" ")[2] for line in shown] == [str(seed) for seed in range(100)]
    assert all("--replay bags" in line for line in shown)
    assert all("committed" in line and "\n" not in line for line in shown[SHOWN_MAX:])
