"""The promises hold while an operator does everything at once, under holders of every kind."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.run import complaints, run_all
from tests.simulation.scenarios_maintenance import KINDS, maintenance
from tests.simulation.world import silence
from tests.support.shares import shares

SEEDS, SHARE = 600, 30
"""All of them are `make verify`, the first of them `make test`."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("share", shares(SEEDS // SHARE))
def test_no_promise_breaks_during_maintenance(share: int) -> None:
    tally = run_all(share * SHARE, SHARE, 1, only="maintenance", one_in=1)
    assert not tally.broken, "\n".join(complaints(tally))


LEAST = {
    "committed": 50, "grants": 60, "leases that a restart left": 12, "lent": 4, "maps": 28, "policies": 10,
    "revoked": 2, "trust records": 4,
}  # fmt: skip
"""A third or less of what happens in these seeds, which are fixed."""


def test_everything_is_done_to_a_cluster_that_works() -> None:
    counts: Counter[str] = Counter()
    holders = set()
    with silence():
        for seed in range(SHARE):
            world = maintenance(seed)
            founded = world.server.directories
            records = {name: len(founded[name]) for name in ("policy", "trust")}
            world.run()
            history = world.history
            counts["maps"] += world.map.number - 1
            counts["policies"] += len(world.server.directories["policy"]) - records["policy"]
            counts["trust records"] += len(world.server.directories["trust"]) - records["trust"]
            counts["leases that a restart left"] += sum(each.leases for each in history.starts if each.resumed)
            counts["revoked"] += len(history.revoked)
            counts["lent"] += len(history.lent)
            counts["committed"] += sum(each.outcomes[-1][1] == "committed" for each in history.wrote if each.outcomes)
            counts["grants"] += len(history.holds)
            holders |= {each.who.split()[0] for each in history.holds}
            world.forget()
    print(counts)
    assert {name: counts[name] for name, least in LEAST.items() if counts[name] < least} == {}
    assert {kind.__name__.lower() for kind in KINDS} <= holders
