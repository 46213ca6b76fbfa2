"""What sessions are made into: locks and semaphores; leaders, over a lease and on the mount alone."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.actors.leading import OnMount, OverLease
from tests.simulation.actors.locking import Locking
from tests.simulation.actors.shard import ShardHost
from tests.simulation.casting import interruptions, is_brief
from tests.simulation.client import MountMishaps
from tests.simulation.cluster import NODES
from tests.simulation.network import NetworkMishaps
from tests.simulation.scheduler import PAUSES, Mishaps
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable


def locks(seed: int, *, traced: bool = False) -> World:
    """Mutexes, readers and writers, and semaphores that some believe to be larger; holders pause, and some die."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        interrupted_once_in=interruptions(seed),
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 800)), pause=chance.choice((60, 150)), pauses=PAUSES[: chance.choice((6, 9))]
        ),
        network=NetworkMishaps(lost=chance.choice((0, 30)), late=chance.choice((0, 10))),
        lasts_ns=(10 if brief else 20) * SECOND,
        steps_max=3_000 if brief else 8_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((20, 100)) * MS
    world.linger_ns = chance.choice((400, 1_500)) * MS
    world.history.alone = "locking"
    world.spawn(NODES[0], "shard 0a", _host(world), restarts=3)
    for n in range(chance.choice((4, 5))):
        sizes = chance.choice(((2,), (2,), (2, 3)))
        world.spawn(NODES[1 + n % 5], f"locking {n}", _locking(world, sizes, 6 if brief else 14), restarts=1)
    return world


def elections(seed: int, *, traced: bool = False) -> World:
    """Candidates of one election, over a lease or on the mount alone; they resign, hand over, lapse, pause and die."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 600)), pause=chance.choice((0, 100)), pauses=PAUSES[: chance.choice((6, 9))]
        ),
        mount=MountMishaps(failure=chance.choice((0, 40)), lost_reply=chance.choice((0, 40))),
        network=NetworkMishaps(lost=chance.choice((0, 30)), late=chance.choice((0, 10))),
        lasts_ns=(12 if brief else 30) * SECOND,
        steps_max=3_000 if brief else 8_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((10, 50, 300)) * MS
    kind = chance.choice((OnMount, OnMount, OverLease))
    if kind is OverLease:
        world.spawn(NODES[0], "shard 0a", _host(world), restarts=3)
    names = tuple(f"candidate {n}" for n in range(chance.choice((2, 3, 5))))
    for n, name in enumerate(names):
        world.spawn(NODES[1 + n], name, _candidate(world, kind, names, 20), restarts=2)
    return world


def _host(world: World) -> Callable[..., Callable[[], object]]:
    return lambda process: ShardHost(world, process, 0, orderly=False).run


def _locking(world: World, sizes: tuple[int, ...], rounds: int) -> Callable[..., Callable[[], object]]:
    return lambda process: Locking(world, process, rounds, sizes=sizes).run


def _candidate(
    world: World, kind: type[OnMount | OverLease], names: tuple[str, ...], rounds: int
) -> Callable[..., Callable[[], object]]:
    return lambda process: kind(world, process, names, rounds).run
