"""Shards that keep their turns in a store keep the promises, whatever becomes of machines and answers."""

from __future__ import annotations

from collections import Counter

import pytest

from appliance.lease import turn_log
from tests.simulation.audited import false_alarms
from tests.simulation.checkers.catalogue import violations
from tests.simulation.mutant import Mutant, one
from tests.simulation.scenarios_kept import kept
from tests.simulation.world import silence
from tests.support.shares import shares

SEEDS, SHARE = 60, 20
MORE, PART = 2_000, 100
AUDITED_ONE_IN = 4


def judged(seed: int, counts: Counter[str], *, audit: bool) -> list[tuple[str, str]]:
    with silence():
        world = kept(seed)
        world.run()
        # "handover" tells by a record of another incarnation that another took over; here a twin is of the same one.
        found = [each for each in violations(world) if each[0] != "handover"]
        if audit and not found and not world.rotting:
            found = [("auditor", text) for text in false_alarms(world)]
    starts = world.history.starts
    counts["grants"] += len(world.history.holds)
    counts["gone on with"] += sum(each.resumed for each in starts)
    counts["with leases"] += sum(each.resumed and each.leases > 0 for each in starts)
    counts["begun empty"] += sum(not each.resumed for each in starts)
    world.forget()
    return found


@pytest.mark.parametrize("share", shares(SEEDS // SHARE))
def test_no_promise_breaks_where_turns_are_kept(share: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(share * SHARE, (share + 1) * SHARE):
        assert judged(seed, counts, audit=seed % AUDITED_ONE_IN == 0) == [], f"seed {seed}"
    print(counts)
    assert counts["with leases"] > SHARE, counts
    assert counts["begun empty"] > SHARE, counts


@pytest.mark.verify
@pytest.mark.parametrize("first", range(0, MORE, PART))
def test_no_promise_breaks_in_many_schedules_where_turns_are_kept(first: int) -> None:
    for seed in range(max(first, SEEDS), first + PART):
        assert judged(seed, Counter(), audit=seed % AUDITED_ONE_IN == 0) == [], f"seed {seed}"


KEEP, STATE = "TurnLog.keep", "TurnLog._state"
MUTANTS = {
    "who has no answer from the store answers all the same": one(
        turn_log,
        KEEP,
        "raise LogLost('log-in-doubt', self.lost, hint=problem.hint) from None",
        "self.lost = None",
    ),
    "who is told that another has taken over goes on": one(
        turn_log, "TurnLog._commit", "if not done and (not (moves and value == puts[-1][1])):", "if False:"
    ),
    "leases that are out are forgotten": one(
        turn_log,
        STATE,
        "isinstance(state, Taken) or max(memory.floor_ns, memory.settle_to_ns) > signed_ns",
        "False",
    ),
    "what is forgotten raises nothing": one(
        turn_log, STATE, "self._floor_ns = max(self._floor_ns, memory.floor_ns, memory.fence)", "pass"
    ),
    "what was said longest ago is deleted, and not said again": one(
        turn_log,
        KEEP,
        "(name, self._state(store, name, said.signed_ns)) for name in older",
        "(name, b'') for name in older",
    ),
}


@pytest.mark.verify
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_killed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Mutant(mutant, MUTANTS[mutant], "").plant(monkeypatch)
    for seed in range(MORE):
        if judged(seed, Counter(), audit=False):
            print(f"killed by seed {seed}")
            return
    pytest.fail("it survives")
