"""Scenarios of session leases: one renewal for several leases, some of which are ended alone."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.actors.session import Application
from tests.simulation.actors.shard import ShardHost
from tests.simulation.actors.together import Operator, Together, TogetherBesideOthers
from tests.simulation.casting import DOMAINS, interruptions, is_brief
from tests.simulation.client import MountMishaps
from tests.simulation.cluster import LOGS, NODES
from tests.simulation.network import NetworkMishaps
from tests.simulation.scheduler import PAUSES, Mishaps, Process
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND


def together(seed: int, *, traced: bool = False) -> World:
    """Holders with session leases beside one without, an operator, lost answers, pauses, shards that come and go."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        interrupted_once_in=interruptions(seed),
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 400)),
            pause=chance.choice((0, 60, 150)),
            pauses=PAUSES[: chance.choice((6, 9, 11))],
        ),
        mount=MountMishaps(failure=chance.choice((0, 0, 20)), lost_reply=chance.choice((0, 8))),
        network=NetworkMishaps(
            lost=chance.choice((0, 0, 30)), repeated=chance.choice((0, 6)), late=chance.choice((0, 10))
        ),
        lies=chance.choice(("none", "none", "slight", "seconds")),
        lasts_ns=chance.choice((5, 7) if brief else (9, 14)) * SECOND,
        steps_max=1_200 if brief else 5_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((20, 80)) * MS
    world.linger_ns = chance.choice((0, 300, 800)) * MS
    orderly = chance.random() < 0.3
    kind = chance.choice((Together, Together, TogetherBesideOthers))

    def host(process: Process) -> Callable[[], object]:
        return ShardHost(world, process, 0, orderly=orderly).run

    def client(kind: type[Application], rounds: int) -> Callable[[Process], Callable[[], object]]:
        return lambda process: kind(world, process, DOMAINS[: 2 if brief else 3], LOGS[:1], rounds).run

    world.spawn(NODES[0], "shard 0a", host, restarts=3)
    for n in range(2 if brief else 3):
        world.spawn(NODES[1 + n], f"together {n}", client(kind, 5 if brief else 9), restarts=1)
    if chance.random() < 0.4:
        world.spawn(NODES[4], "application 0", client(Application, 3))
    if chance.random() < 0.7:
        world.spawn(NODES[4], "operator", lambda process: Operator(world, process, 4 if brief else 12).run)
    return world
