"""Keys are rotated and revoked while everything works; every process goes by the newest trust record that it reads."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.actors.registrar import Registrar
from tests.simulation.actors.session import Application
from tests.simulation.actors.shard import ShardHost
from tests.simulation.actors.writer import Writer
from tests.simulation.casting import DOMAINS, is_brief, on_log
from tests.simulation.client import MountMishaps
from tests.simulation.cluster import LOGS, NODES
from tests.simulation.scheduler import PAUSES, Mishaps
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable


def rotations(seed: int, *, traced: bool = False) -> World:
    """New keys beside old ones, old ones that end, revocations: of nodes that write, grant, close and read."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        real_keys=chance.random() < 0.01,
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 500)),
            pause=chance.choice((0, 40, 120)),
            pauses=PAUSES[: chance.choice((6, 8))],
        ),
        mount=MountMishaps(failure=chance.choice((0, 0, 40)), lost_reply=chance.choice((0, 8))),
        lasts_ns=chance.choice((5, 7) if brief else (9, 12)) * SECOND,
        steps_max=1_500 if brief else 5_000,
    )
    world = World(seed, conditions, traced=traced)
    world.records_change = True
    world.pace_ns = chance.choice((20, 60, 200)) * MS
    Registrar(world, NODES[:5], chance.choice((2, 3, 4) if brief else (4, 6)))
    logs = LOGS[: chance.choice((1, 2))]
    world.spawn(NODES[0], "shard", lambda process: ShardHost(world, process, 0, orderly=False).run, restarts=9)
    for n in range(chance.choice((1, 2) if brief else (2, 3))):
        world.spawn(chance.choice(NODES[:5]), f"application {n}", _client(world, logs, 4 if brief else 8))
    world.spawn(NODES[1], "writer", lambda process: Writer(world, process, logs, 6 if brief else 12).run, restarts=2)
    for n, kind in enumerate(("reader", "metronome", chance.choice(("settler", "closer", "reader")))):
        world.spawn(chance.choice(NODES), f"{kind} {n}", on_log(world, kind, logs[0], 6), restarts=1)
    if len(logs) > 1:
        world.spawn(chance.choice(NODES), "reader b", on_log(world, "reader", logs[1], 6), restarts=1)
    return world


def _client(world: World, logs: tuple[str, ...], rounds: int) -> Callable[..., Callable[[], object]]:
    return lambda process: Application(world, process, DOMAINS[:2], logs, rounds).run
