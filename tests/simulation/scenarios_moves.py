"""Maps with other numbers of shards, while leases are taken and the old owners live, die, sleep, or do not notice."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.actors.mover import Mover
from tests.simulation.actors.session import Application
from tests.simulation.actors.shard import ShardHost
from tests.simulation.casting import DOMAINS, is_brief
from tests.simulation.client import MountMishaps
from tests.simulation.cluster import LOGS, NODES
from tests.simulation.network import NetworkMishaps
from tests.simulation.scheduler import PAUSES, Mishaps
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable


def moves(seed: int, *, traced: bool = False) -> World:
    """A map with other shards is carried out, by owners that stop, by some that die, and by some that do not notice."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    counts = chance.choice(((2,), (2,), (1,), (2, 1)))
    conditions = Conditions(
        shards=1 if counts[0] == 2 else 2,
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 400)),
            pause=chance.choice((0, 40, 120)),
            pauses=PAUSES[: chance.choice((6, 8, 10))],
        ),
        mount=MountMishaps(failure=chance.choice((0, 0, 25)), lost_reply=chance.choice((0, 5))),
        network=NetworkMishaps(lost=chance.choice((0, 20)), late=chance.choice((0, 10))),
        lies=chance.choice(("none", "slight", "slight", "seconds", "steps")),
        lasts_ns=chance.choice((4, 5) if brief else (6, 9)) * SECOND,
        steps_max=1_500 if brief else 6_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((20, 60)) * MS
    world.linger_ns = chance.choice((0, 200, 800)) * MS
    for shard in range(2):
        for copy, node in enumerate(chance.sample(NODES[:4], chance.choice((1, 2)))):
            host = _host(world, shard, orderly=chance.random() < 0.6)
            world.spawn(node, f"shard {shard}{'ab'[copy]}", host, restarts=9)
    world.spawn(NODES[5], "mover", lambda process: Mover(world, process, counts).run)
    rounds = 4 if brief else 8
    for n in range(chance.choice((1, 2, 2) if brief else (2, 3))):
        world.spawn(chance.choice(NODES), f"application {n}", _client(world, rounds))
    return world


def _host(world: World, shard: int, *, orderly: bool) -> Callable[..., Callable[[], object]]:
    return lambda process: ShardHost(world, process, shard, orderly=orderly, moves=True).run


def _client(world: World, rounds: int) -> Callable[..., Callable[[], object]]:
    return lambda process: Application(world, process, DOMAINS, LOGS[:1], rounds).run
