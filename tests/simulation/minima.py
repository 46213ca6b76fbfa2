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

SEEDS: Final = 4_000
"""The seeds of the mix that are counted: those that test_schedules.py judges, and some more."""

MINIMA: Final[Mapping[str, Mapping[str, int]]] = {
    "bags": {
        "committed": 500, "decided later": 20, "closed bags": 600, "sealed racks": 100, "bags said": 280,
        "latest readings": 24, "settled readings": 114, "crashes": 60, "pauses": 200, "mount faults": 260,
        "lying clocks": 60, "advances at the pace": 18,
    },
    "crowd": {
        "committed": 340, "not-committed": 40, "decided later": 30, "closed bags": 360, "sealed racks": 100,
        "bags said": 320, "latest readings": 18, "settled readings": 86, "crashes": 40, "pauses": 700,
        "mount faults": 280, "lying clocks": 80,
    },
    "packs": {
        "committed": 160, "not-committed": 40, "closed bags": 90, "sealed racks": 70, "packed racks": 10,
        "given-up packs": 1, "latest readings": 14, "settled readings": 60, "crashes": 200, "mount faults": 120,
    },
    "eclipse": {
        "committed": 300, "not-committed": 120, "closed bags": 400, "sealed racks": 220, "bags said": 800,
        "latest readings": 60, "settled readings": 136, "pauses": 3_000,
    },
    "doubt": {
        "committed": 60, "not-committed": 40, "unknown": 30, "in doubt": 90, "decided later": 60, "closed bags": 240,
        "latest readings": 6, "mount faults": 320, "settled readings": 36,
    },
    "batching": {
        "committed": 130, "by the node's writer": 110, "in doubt": 90, "decided later": 60, "closed bags": 100,
        "crashes": 74, "mount faults": 130, "settled readings": 38,
    },
    "hinted": {
        "committed": 46, "grants": 130, "hand-overs": 60, "narrow readings": 12, "readings under leases": 14,
        "expired": 30, "runs that granted": 46, "by the node's writer": 4, "crashes": 48, "mount faults": 70,
        "settled readings": 22,
    },
    "caches": {
        "committed": 70, "values read": 120, "values written": 50, "values flushed": 24, "expired": 20,
        "crashes": 22, "pauses": 160, "closed bags": 130, "settled readings": 16,
    },
    "objects": {
        "committed": 120, "not-committed": 6, "in doubt": 14, "decided later": 12, "closed bags": 120,
        "sealed racks": 33, "packed racks": 2, "grants": 50, "hand-overs": 26, "latest readings": 2, "crashes": 20,
        "pauses": 330, "mount faults": 340, "lying clocks": 25, "settled readings": 34,
    },
    "elsewhere": {
        "committed": 70, "not-committed": 6, "in doubt": 16, "decided later": 12, "closed bags": 66,
        "sealed racks": 22, "packed racks": 1, "grants": 26, "hand-overs": 12, "latest readings": 4, "crashes": 14,
        "advances at the pace": 4, "pauses": 280, "mount faults": 210, "lying clocks": 16, "settled readings": 20,
    },
    "leases": {
        "committed": 80, "grants": 130, "hand-overs": 40, "sets": 40, "renewals": 120, "relinquished": 70, "expired": 6,
        "withdrawn": 30, "runs that granted": 70, "orderly stops": 12, "readings under leases": 28, "changed modes": 2,
        "crashes": 36, "messages lost": 44, "lying clocks": 14, "settled readings": 28,
        "batches under several leases": 8,
    },
    "machines": {
        "committed": 120, "grants": 56, "statements of the time": 2_600, "closed bags": 60, "readings under leases": 24,
        "renewals": 40, "lying clocks": 4, "pauses": 70, "settled readings": 20,
    },
    "shares": {
        "committed": 96, "grants": 120, "hand-overs": 44, "changed modes": 8, "expired": 10, "renewals": 110,
        "readings under leases": 40, "crashes": 18, "messages lost": 60, "settled readings": 22,
    },
    "recalls": {
        "committed": 220, "grants": 190, "hand-overs": 90, "recalled": 32, "run out": 11, "relinquished": 160,
        "readings under leases": 80, "messages lost": 40, "settled readings": 24,
    },
    "together": {
        "committed": 160, "grants": 240, "hand-overs": 100, "session leases": 200, "sets": 40, "revoked": 40,
        "dropped": 28, "expired": 14, "renewals": 130, "crashes": 20, "settled readings": 32,
        "batches under several leases": 12,
    },
    "threads": {
        "committed": 240, "grants": 250, "hand-overs": 75, "interruptions": 1_500, "changed modes": 18, "sets": 30,
        "session leases": 80, "recalled": 9, "renewals": 110, "in doubt": 4, "mount faults": 200, "crashes": 6,
        "settled readings": 32, "batches under several leases": 14,
    },
    "contenders": {
        "committed": 64, "grants": 140, "hand-overs": 44, "incarnations": 280, "runs that granted": 96,
        "orderly stops": 8, "relinquished": 70, "expired": 2, "mount faults": 140, "lying clocks": 36,
        "settled readings": 18,
    },
    "moves": {
        "committed": 60, "grants": 130, "hand-overs": 36, "maps": 42, "under a later map": 160, "incarnations": 240,
        "runs that granted": 70, "orderly stops": 24, "expired": 4, "crashes": 12, "settled readings": 16,
        "suspended": 23, "gone on with": 22,
    },
    "heirs": {
        "committed": 300, "grants": 230, "hand-overs": 54, "taken over": 12, "at home": 44, "left in good order": 14,
        "maps": 4, "runs that granted": 44, "renewals": 460, "crashes": 20, "settled readings": 18,
    },
    "policies": {
        "committed": 140, "grants": 120, "hand-overs": 26, "policies": 60, "renewals": 160, "closed bags": 220,
        "sealed racks": 38, "expired": 16, "settled readings": 158, "latest readings": 44, "readings under leases": 46,
    },
    "rotations": {
        "committed": 310, "grants": 110, "hand-overs": 18, "trust records": 120, "renewals": 96, "closed bags": 358,
        "latest readings": 54, "readings under leases": 54, "crashes": 38, "settled readings": 82,
    },
    "restarts": {
        "committed": 300, "grants": 180, "suspended": 66, "gone on with": 54, "renewals": 300, "session leases": 50,
        "incarnations": 160, "orderly stops": 10, "crashes": 110, "mount faults": 80, "settled readings": 26,
    },
    "handover": {
        "committed": 52, "grants": 56, "hand-overs": 24, "expired": 30, "run out": 2, "readings under leases": 6,
        "closed bags": 150, "pauses": 80, "settled readings": 18,
    },
    "stalls": {
        "committed": 26, "unknown": 4, "in doubt": 6, "grants": 160, "hand-overs": 68, "expired": 30, "run out": 2,
        "readings under leases": 6, "pauses": 128, "mount faults": 96, "settled readings": 14,
    },
    "sleepers": {
        "committed": 76, "grants": 70, "hand-overs": 32, "expired": 40, "run out": 10, "readings under leases": 6,
        "closed bags": 160, "pauses": 64, "settled readings": 26,
    },
    "deaths": {
        "committed": 148, "turns": 130, "turns through a death": 6, "holder died": 6, "shard died": 2, "expired": 4,
        "hand-overs": 14, "crashes": 10, "settled readings": 10,
    },
    "takers": {
        "committed": 480, "turns": 460, "turns through a death": 10, "taker died": 10, "withdrawn": 10, "hand-overs": 6,
        "crashes": 10, "settled readings": 10,
    },
    "sets": {
        "committed": 74, "grants": 2_400, "sets": 800, "hand-overs": 2_000, "withdrawn": 700, "relinquished": 2_800,
        "settled readings": 18,
    },
    "queues": {
        "committed": 44, "in the queue": 32, "hand-overs": 32, "crashes": 10, "renewals": 44, "settled readings": 10,
    },
    "paths": {
        "committed": 44, "paths": 90, "withdrawn": 44, "expired": 6, "crashes": 12, "pauses": 90, "settled readings": 8,
    },
    "evictions": {
        "committed": 200, "grants": 194, "evicted": 24, "hand-overs": 52, "expired": 70, "relinquished": 86,
        "orderly stops": 12, "crashes": 16, "settled readings": 20,
    },
    "bounds": {
        "committed": 34, "grants": 78, "kept to the end": 30, "run out": 34, "expired": 40, "renewals": 360,
        "hand-overs": 38, "settled readings": 8,
    },
    "outside": {
        "committed": 40, "grants": 68, "hand-overs": 32, "runs that granted": 128, "incarnations": 210, "expired": 24,
        "orderly stops": 6, "crashes": 142, "settled readings": 16,
    },
    "locks": {
        "committed": 20, "grants": 106, "hand-overs": 54, "slots": 48, "expired": 17, "renewals": 160, "crashes": 6,
        "pauses": 170, "messages lost": 44, "settled readings": 7,
    },
    "elections": {
        "committed": 12, "epochs": 78, "other leaders": 46, "expired": 1, "renewals": 60, "crashes": 16,
        "pauses": 150, "mount faults": 46, "settled readings": 4,
    },
    "lending": {
        "committed": 18, "grants": 90, "hand-overs": 45, "lent": 80, "lent on": 15, "lent to several": 16,
        "orphaned": 3, "expired": 11, "renewals": 87, "crashes": 50, "pauses": 175, "messages lost": 100,
        "settled readings": 6,
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
