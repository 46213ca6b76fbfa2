"""The mix: which actors meet under which faults. A scenario is chosen, and filled in, by the seed alone."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.scenarios_bags import bags, crowd, doubt, eclipse, packs
from tests.simulation.scenarios_bounds import bounds, evictions, outside
from tests.simulation.scenarios_leases import (
    contenders,
    deaths,
    handover,
    leases,
    machines,
    recalls,
    shares,
    sleepers,
    stalls,
    takers,
)
from tests.simulation.scenarios_lending import lending
from tests.simulation.scenarios_maintenance import maintenance
from tests.simulation.scenarios_moves import moves
from tests.simulation.scenarios_objects import elsewhere, objects
from tests.simulation.scenarios_policies import policies
from tests.simulation.scenarios_recipes import elections, locks
from tests.simulation.scenarios_restarts import restarts
from tests.simulation.scenarios_sessions import together
from tests.simulation.scenarios_sets import paths, queues, sets
from tests.simulation.scenarios_sharing import batching, caches, hinted
from tests.simulation.scenarios_tenancy import heirs
from tests.simulation.scenarios_threads import threads
from tests.simulation.scenarios_trust import rotations
from tests.simulation.world import World

SCENARIOS: dict[str, Callable[..., World]] = {
    each.__name__: each
    for each in (
        bags,
        crowd,
        packs,
        eclipse,
        doubt,
        batching,
        hinted,
        caches,
        objects,
        elsewhere,
        leases,
        machines,
        shares,
        recalls,
        together,
        threads,
        contenders,
        moves,
        heirs,
        maintenance,
        restarts,
        policies,
        rotations,
        handover,
        stalls,
        sleepers,
        deaths,
        takers,
        sets,
        queues,
        paths,
        evictions,
        bounds,
        outside,
        locks,
        elections,
        lending,
    )
}
WEIGHTS: dict[str, int] = {
    "bags": 10,
    "crowd": 8,
    "packs": 6,
    "eclipse": 12,
    "doubt": 4,
    "batching": 4,
    "hinted": 3,
    "caches": 2,
    "objects": 4,
    "elsewhere": 3,
    "leases": 4,
    "machines": 2,
    "shares": 3,
    "recalls": 3,
    "together": 4,
    "threads": 4,
    "contenders": 4,
    "moves": 3,
    "heirs": 2,
    "restarts": 3,
    "policies": 7,
    "rotations": 3,
    "stalls": 3,
    "handover": 2,
    "sleepers": 2,
    "deaths": 1,
    "takers": 1,
    "sets": 2,
    "queues": 1,
    "paths": 1,
    "evictions": 2,
    "bounds": 1,
    "outside": 2,
    "locks": 1,
    "elections": 2,
    "lending": 2,
}
"""How often each scenario is in the mix. Closing needs the exactest moments, and takes the fewest operations."""


def _mixed(weights: dict[str, int]) -> tuple[str, ...]:
    """Spread the scenarios evenly."""
    places = [((n + 0.5) / weight, name) for name, weight in weights.items() for n in range(weight)]
    return tuple(name for _, name in sorted(places))


MIX: tuple[str, ...] = _mixed(WEIGHTS)
"""Which scenario a seed is, by its remainder."""
