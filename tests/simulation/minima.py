"""How much has to happen in each scenario, over its fixed seeds: what it is for, and a third or less of what happens.

The seeds are fixed, and so are the counts: what comes below a minimum was changed, by a fault or on purpose.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from tests.simulation import scenarios
from tests.simulation.reached import reached
from tests.simulation.run import scenario_of
from tests.simulation.world import silence

if TYPE_CHECKING:
    from collections.abc import Mapping

SEEDS: Final = 1_500
"""The seeds of the mix that are counted: half of those that test_schedules.py judges."""

MINIMA: Final[Mapping[str, Mapping[str, int]]] = {
    "bags": {
        "committed": 250, "decided later": 10, "closed bags": 300, "sealed racks": 50, "bags said": 140,
        "latest readings": 12, "settled readings": 57, "crashes": 30, "pauses": 100, "mount faults": 130,
        "lying clocks": 30,
    },
    "crowd": {
        "committed": 170, "not-committed": 20, "decided later": 15, "closed bags": 180, "sealed racks": 50,
        "bags said": 160, "latest readings": 9, "settled readings": 43, "crashes": 20, "pauses": 350,
        "mount faults": 140, "lying clocks": 40,
    },
    "packs": {
        "committed": 80, "not-committed": 20, "closed bags": 45, "sealed racks": 35, "packed racks": 5,
        "given-up packs": 1, "latest readings": 7, "settled readings": 30, "crashes": 100, "mount faults": 60,
    },
    "eclipse": {
        "committed": 150, "not-committed": 60, "closed bags": 200, "sealed racks": 110, "bags said": 400,
        "latest readings": 30, "settled readings": 68, "pauses": 1_500,
    },
    "doubt": {
        "committed": 30, "not-committed": 20, "unknown": 15, "in doubt": 45, "decided later": 30, "closed bags": 120,
        "latest readings": 3, "mount faults": 160, "settled readings": 18,
    },
    "batching": {
        "committed": 65, "by the node's writer": 55, "in doubt": 45, "decided later": 30, "closed bags": 50,
        "crashes": 37, "mount faults": 65, "settled readings": 19,
    },
    "hinted": {
        "committed": 23, "grants": 65, "hand-overs": 30, "narrow readings": 6, "readings under leases": 7,
        "expired": 15, "runs that granted": 23, "by the node's writer": 2, "crashes": 24, "mount faults": 35,
        "settled readings": 11,
    },
    "leases": {
        "committed": 40, "grants": 65, "hand-overs": 20, "sets": 20, "renewals": 60, "relinquished": 35, "expired": 3,
        "withdrawn": 15, "runs that granted": 35, "orderly stops": 6, "readings under leases": 14, "changed modes": 1,
        "crashes": 18, "messages lost": 22, "lying clocks": 7, "settled readings": 14,
    },
    "machines": {
        "committed": 60, "grants": 28, "statements of the time": 1_300, "closed bags": 30, "readings under leases": 12,
        "renewals": 20, "lying clocks": 2, "pauses": 35, "settled readings": 10,
    },
    "shares": {
        "committed": 48, "grants": 60, "hand-overs": 22, "changed modes": 4, "expired": 5, "renewals": 55,
        "readings under leases": 20, "crashes": 9, "messages lost": 30, "settled readings": 11,
    },
    "recalls": {
        "committed": 110, "grants": 95, "hand-overs": 45, "recalled": 16, "run out": 4, "relinquished": 80,
        "readings under leases": 40, "messages lost": 20, "settled readings": 12,
    },
    "together": {
        "committed": 80, "grants": 120, "hand-overs": 50, "session leases": 100, "sets": 20, "revoked": 20,
        "dropped": 14, "expired": 7, "renewals": 65, "crashes": 10, "settled readings": 16,
    },
    "contenders": {
        "committed": 32, "grants": 70, "hand-overs": 22, "incarnations": 140, "runs that granted": 48,
        "orderly stops": 4, "relinquished": 35, "expired": 1, "mount faults": 70, "lying clocks": 18,
        "settled readings": 9,
    },
    "moves": {
        "committed": 30, "grants": 65, "hand-overs": 18, "maps": 21, "under a later map": 80, "incarnations": 120,
        "runs that granted": 43, "orderly stops": 12, "expired": 2, "crashes": 6, "settled readings": 8,
    },
    "heirs": {
        "committed": 150, "grants": 115, "hand-overs": 27, "taken over": 6, "at home": 22, "left in good order": 7,
        "maps": 2, "runs that granted": 22, "renewals": 230, "crashes": 10, "settled readings": 9,
    },
    "policies": {
        "committed": 70, "grants": 60, "hand-overs": 13, "policies": 30, "renewals": 80, "closed bags": 110,
        "sealed racks": 19, "expired": 8, "settled readings": 79, "latest readings": 22, "readings under leases": 23,
    },
    "rotations": {
        "committed": 155, "grants": 55, "hand-overs": 9, "trust records": 60, "renewals": 48, "closed bags": 179,
        "latest readings": 27, "readings under leases": 27, "crashes": 19, "settled readings": 41,
    },
    "handover": {
        "committed": 26, "grants": 28, "hand-overs": 12, "expired": 15, "run out": 1, "readings under leases": 3,
        "closed bags": 75, "pauses": 40, "settled readings": 9,
    },
    "stalls": {
        "committed": 13, "unknown": 9, "grants": 80, "hand-overs": 34, "expired": 15, "run out": 1,
        "readings under leases": 3, "pauses": 64, "mount faults": 48, "settled readings": 7,
    },
    "sleepers": {
        "committed": 38, "grants": 35, "hand-overs": 16, "expired": 20, "run out": 5, "readings under leases": 3,
        "closed bags": 80, "pauses": 32, "settled readings": 13,
    },
    "deaths": {
        "committed": 74, "turns": 65, "turns through a death": 3, "holder died": 3, "shard died": 1, "expired": 2,
        "hand-overs": 7, "crashes": 5, "settled readings": 5,
    },
    "takers": {
        "committed": 240, "turns": 230, "turns through a death": 5, "taker died": 5, "withdrawn": 5, "hand-overs": 3,
        "crashes": 5, "settled readings": 5,
    },
    "sets": {
        "committed": 37, "grants": 1_200, "sets": 400, "hand-overs": 1_000, "withdrawn": 350, "relinquished": 1_400,
        "settled readings": 9,
    },
    "queues": {
        "committed": 22, "in the queue": 16, "hand-overs": 16, "crashes": 5, "renewals": 22, "settled readings": 5,
    },
    "evictions": {
        "committed": 100, "grants": 97, "evicted": 12, "hand-overs": 26, "expired": 35, "relinquished": 43,
        "orderly stops": 6, "crashes": 8, "settled readings": 10,
    },
    "bounds": {
        "committed": 17, "grants": 39, "kept to the end": 15, "run out": 17, "expired": 20, "renewals": 180,
        "hand-overs": 19, "settled readings": 4,
    },
    "outside": {
        "committed": 20, "grants": 34, "hand-overs": 16, "runs that granted": 64, "incarnations": 105, "expired": 12,
        "orderly stops": 3, "crashes": 71, "settled readings": 8,
    },
}  # fmt: skip
"""By scenario: the words of reached.py, and the least that is counted of each."""


def counted(scenario: str, seeds: int = SEEDS) -> Counter[str]:
    """Return what the fixed seeds of a scenario come to together."""
    total: Counter[str] = Counter()
    with silence():
        for seed in range(seeds):
            if scenario_of(seed) == scenario:
                world = scenarios.SCENARIOS[scenario](seed)
                world.run()
                total.update(reached(world))
                world.forget()
    return total


def shortfalls(scenario: str, counts: Mapping[str, int]) -> dict[str, str]:
    """Return of what there is too little, and how much there is."""
    return {
        word: f"{counts.get(word, 0)}, at least {least} wanted"
        for word, least in MINIMA[scenario].items()
        if counts.get(word, 0) < least
    }
