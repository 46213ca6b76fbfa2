"""Scenarios of what is bounded: what a shard remembers, how long a lease is kept, who may act at all."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.actors.bounded import Bounded, Outside
from tests.simulation.actors.session import Application, Forgetful
from tests.simulation.actors.shard import ShardHost
from tests.simulation.casting import DOMAINS, is_brief
from tests.simulation.cluster import LOGS, NODES
from tests.simulation.network import NetworkMishaps
from tests.simulation.scheduler import PAUSES, Mishaps
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MANY = tuple(f"acct/{n}" for n in range(7))


def evictions(seed: int, *, traced: bool = False) -> World:
    """More domains than a shard remembers: what is long past is evicted, and comes back above everything it was."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 400)), pause=chance.choice((0, 0, 120)), pauses=PAUSES[: chance.choice((6, 9))]
        ),
        network=NetworkMishaps(lost=chance.choice((0, 20)), late=chance.choice((0, 10))),
        lies=chance.choice(("none", "none", "slight")),
        lasts_ns=chance.choice((8, 12) if brief else (12, 16)) * SECOND,
        steps_max=2_000 if brief else 6_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((100, 400)) * MS
    world.linger_ns = chance.choice((0, 200)) * MS
    world.domains_max = chance.choice((3, 4))
    orderly = chance.random() < 0.4
    world.spawn(NODES[0], "shard 0a", lambda process: ShardHost(world, process, 0, orderly=orderly).run, restarts=3)
    for n in range(chance.choice((2, 3))):
        kind = chance.choice((Application, Forgetful))
        world.spawn(NODES[1 + n], f"{kind.__name__.lower()} {n}", _client(world, kind, MANY, 9), restarts=1)
    return world


def bounds(seed: int, *, traced: bool = False) -> World:
    """Holders that fall asleep over leases which they may keep for so long in all, or while they get on."""
    chance = random.Random(f"{seed}/scenario")
    conditions = Conditions(
        network=NetworkMishaps(lost=chance.choice((0, 30)), late=chance.choice((0, 10))),
        lasts_ns=25 * SECOND,
        steps_max=4_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = 200 * MS
    world.spawn(NODES[0], "shard 0a", lambda process: ShardHost(world, process, 0, orderly=False).run)
    for n in range(2):
        world.spawn(NODES[1 + n], f"bounded {n}", _client(world, Bounded, DOMAINS[:2], 6))
    return world


def outside(seed: int, *, traced: bool = False) -> World:
    """Honest clocks; who acts outside the record dies, and so does the shard, and another node begins to run it."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        mishaps=Mishaps(
            crash=chance.choice((200, 400)), pause=chance.choice((0, 100)), pauses=PAUSES[: chance.choice((6, 9))]
        ),
        network=NetworkMishaps(lost=chance.choice((0, 30)), late=chance.choice((0, 10))),
        lasts_ns=chance.choice((9, 12) if brief else (14, 20)) * SECOND,
        steps_max=2_500 if brief else 6_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((50, 200)) * MS
    world.linger_ns = chance.choice((200, 800)) * MS
    world.history.alone = "outside"
    for copy, node in enumerate(NODES[: chance.choice((1, 2))]):
        orderly = chance.random() < 0.3
        world.spawn(node, f"shard 0{'ab'[copy]}", _host(world, orderly=orderly), restarts=9)
    for n in range(chance.choice((2, 3))):
        world.spawn(NODES[2 + n], f"outside {n}", _client(world, Outside, DOMAINS[:1], 6), restarts=2)
    return world


def _host(world: World, *, orderly: bool) -> Callable[..., Callable[[], object]]:
    return lambda process: ShardHost(world, process, 0, orderly=orderly).run


def _client(
    world: World, kind: type[Application], domains: Sequence[str], rounds: int
) -> Callable[..., Callable[[], object]]:
    return lambda process: kind(world, process, domains, LOGS[:1], rounds).run
