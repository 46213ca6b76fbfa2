"""P7: in the trees of planted faults the auditor finds them, and in all others nothing."""

from __future__ import annotations

import pytest

from auditor.evidence.finding import Verdict
from tests.simulation.audited import audited, false_alarms
from tests.simulation.clocks import SimulatedTime
from tests.simulation.mutants import MUTANTS
from tests.simulation.scenarios import SCENARIOS

SEEDS_MAX = 2_000
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


@pytest.mark.verify
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


@pytest.mark.verify
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_is_found_where_nobody_broke_a_rule(scenario: str) -> None:
    for seed in range(500, 512):
        world = SCENARIOS[scenario](seed)
        world.run()
        if not world.rotting:
            assert list(false_alarms(world)) == [], seed


# Two that lie alike would outvote one who does not: nothing can be known of those.
def test_node_whose_clock_alone_lied_is_named_and_no_other() -> None:
    told = set()
    for scenario, seeds in (("contenders", range(320, 430)), ("moves", range(200, 390))):
        for seed in seeds:
            world = SCENARIOS[scenario](seed)
            clocks = {name: clock for name, clock in world.times.items() if isinstance(clock, SimulatedTime)}
            wrong = {name for name, clock in clocks.items() if not clock.honest()}
            if world.conditions.lies in ("seconds", "hours") and len(wrong) == 1:
                world.run()
                breaches = [each for each in audited(world).findings if each.code == "r2-breach"]
                assert all(wrong.intersection(each.clocks) for each in breaches), seed
                told |= {scenario for each in breaches if set(each.clocks) == wrong}
    assert told == {"contenders", "moves"}
