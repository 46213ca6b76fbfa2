"""P7: in the trees of planted faults the auditor finds them, and in all others nothing."""

from __future__ import annotations

import pytest

from auditor.finding import Verdict
from tests.simulation.audited import audited, false_alarms
from tests.simulation.mutants import MUTANTS
from tests.simulation.scenarios import SCENARIOS

SEEDS_MAX = 1_000
FOUND = {
    "the floor is not cumulative": "floor-fell",
    "settle_to is forgotten by the next ending": "floor-fell",
    "a broken lease moves no floor": "grant-overlap",
    "a broken lease moves no settle_to": "floor-fell",
    "an expiry is compared with the wrong end of the interval": "broken-early",
    "a held lease is taken from its holder by an older request": "broken-early",
    "a lease that has run out is written under": "timestamp-after-expiry",
    "a lease is granted beyond the ceiling": "grant-above-ceiling",
    "EEXIST on a ceiling record is ignored": "grant-without-right",
    "a ceiling falls": "ceiling-fell",
    "an orderly record does not say the fences": "fence-not-growing",
    "a fence is the clock's": "fence-not-growing",
}


@pytest.mark.parametrize("name", FOUND)
def test_what_a_mutant_breaks_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (mutant,) = (each for each in MUTANTS if each.name == name)
    mutant.plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        world = SCENARIOS[mutant.scenario](seed)
        world.run()
        findings = audited(world).findings
        if any(each.code == FOUND[name] and each.verdict is Verdict.VIOLATION for each in findings):
            return
    pytest.fail(f"{FOUND[name]} was not found in {SEEDS_MAX} seeds")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_is_found_where_nobody_broke_a_rule(scenario: str) -> None:
    for seed in range(500, 512):
        world = SCENARIOS[scenario](seed)
        world.run()
        if not world.rotting:
            assert list(false_alarms(world)) == [], seed
