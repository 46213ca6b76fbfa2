"""Scenarios of threads: those of one process share one session, and are interrupted before any line of it."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.actors.shard import ShardHost
from tests.simulation.actors.threads import Rival, Threads
from tests.simulation.casting import DOMAINS, is_brief, some_logs
from tests.simulation.client import MountMishaps
from tests.simulation.cluster import NODES
from tests.simulation.network import NetworkMishaps
from tests.simulation.scheduler import PAUSES, Mishaps, Process
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND


def threads(seed: int, *, traced: bool = False) -> World:
    """One or two processes whose threads share a session, beside others; lost answers, pauses, failures, deaths."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 0, 600)),
            pause=chance.choice((0, 0, 100, 300)),
            pauses=PAUSES[: chance.choice((5, 8, 11))],
        ),
        mount=MountMishaps(failure=chance.choice((0, 0, 20, 6)), lost_reply=chance.choice((0, 8))),
        network=NetworkMishaps(
            lost=chance.choice((0, 0, 20)), repeated=chance.choice((0, 6)), late=chance.choice((0, 10))
        ),
        lies=chance.choice(("none", "none", "none", "slight", "seconds", "steps")),
        objects=chance.random() < 0.1,
        interrupted_once_in=chance.choice((30, 100, 300, 1_000)),
        lasts_ns=chance.choice((2, 4) if brief else (8, 12)) * SECOND,
        steps_max=2_000 if brief else 6_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((2, 5, 20)) * MS
    world.linger_ns = chance.choice((0, 0, 100)) * MS
    orderly = chance.random() < 0.3
    logs, domains = some_logs(chance), DOMAINS[: chance.choice((1, 2, 3))]

    def host(process: Process) -> Callable[[], object]:
        world.scheduler.interrupted.add(process)
        return ShardHost(world, process, 0, orderly=orderly).run

    world.spawn(NODES[0], "shard 0a", host, restarts=3)
    rounds = 15 if brief else 30

    def threaded(many: int) -> Callable[[Process], Callable[[], object]]:
        return lambda process: Threads(world, process, domains, logs, rounds, many).run

    for n in range(chance.choice((1, 1, 2))):
        world.spawn(NODES[1 + n], f"threads {n}", threaded(chance.choice((2, 3, 4))), restarts=1)
    for n in range(chance.choice((0, 1, 1, 2))):
        world.spawn(
            NODES[3 + n], f"rival {n}", lambda process: Rival(world, process, domains, logs, rounds).run, restarts=1
        )
    return world
