"""The policy changes while leases are taken and messages written: every process takes it up at a time of its own."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from tests.simulation.actors.governor import Governor, watched
from tests.simulation.actors.session import Application
from tests.simulation.actors.shard import ShardHost
from tests.simulation.casting import DOMAINS, is_brief, on_log
from tests.simulation.client import MountMishaps
from tests.simulation.cluster import LOGS, NODES
from tests.simulation.network import NetworkMishaps
from tests.simulation.scheduler import PAUSES, Mishaps
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SHORTER: Final[Mapping[str, int]] = {"lease_term_max_ns": 1_600 * MS, "renew_period_ns": 500 * MS}
LONGER: Final[Mapping[str, int]] = {"lease_term_max_ns": 3 * SECOND, "renew_period_ns": 900 * MS}
STRICTER: Final[Mapping[str, int]] = {"r1_tolerance_ns": 420 * MS}
HASTIER: Final[Mapping[str, int]] = {"grace_ns": 1_200 * MS, "seal_delay_ns": 2 * SECOND}
"""Racks are sealed sooner than bags of logs that were born under the first policy are due."""
KINDER: Final[Mapping[str, int]] = {"r1_tolerance_ns": SECOND}


def policies(seed: int, *, traced: bool = False) -> World:
    """Terms and tolerance go up and down, racks are sealed sooner; who works by them knows it sooner or later."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    patient = random.Random(f"{seed}/patient").random() < 1 / 4
    conditions = Conditions(
        patient=patient,
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 500)),
            pause=chance.choice((0, 40, 120)),
            pauses=PAUSES[: chance.choice((6, 8, 10))],
        ),
        mount=MountMishaps(failure=chance.choice((0, 0, 40)), lost_reply=chance.choice((0, 8))),
        network=NetworkMishaps(lost=chance.choice((0, 20)), late=chance.choice((0, 10))),
        lasts_ns=chance.choice((6, 8) if brief else (10, 14)) * SECOND,
        steps_max=2_000 if brief else 6_000,
    )
    world = World(seed, conditions, traced=traced)
    world.records_change = True
    world.policy_of = watched
    world.pace_ns = chance.choice((20, 60, 200)) * MS
    world.linger_ns = chance.choice((0, 200, 800)) * MS
    changes = [
        chance.choice((SHORTER, SHORTER, LONGER, LONGER, STRICTER, KINDER)) for _ in range(chance.choice((1, 2, 3)))
    ]
    if patient:
        changes.insert(0, HASTIER)
    world.spawn(NODES[0], "shard", lambda process: ShardHost(world, process, 0, orderly=False).run, restarts=9)
    world.spawn(NODES[5], "governor", lambda process: Governor(world, process, changes).run)
    logs = LOGS[: chance.choice((1, 2))]
    for n in range(chance.choice((1, 2) if brief else (2, 3))):
        world.spawn(chance.choice(NODES), f"application {n}", _client(world, logs, 4 if brief else 8))
    world.spawn(chance.choice(NODES), "reader", on_log(world, "reader", logs[0], 10))
    world.spawn(chance.choice(NODES), "settler", on_log(world, "settler", logs[0], 6))
    if patient:
        world.spawn(NODES[2], "sealer", on_log(world, "sealer", logs[0], 12))
    return world


def _client(world: World, logs: tuple[str, ...], rounds: int) -> Callable[..., Callable[[], object]]:
    return lambda process: Application(world, process, DOMAINS[:2], logs, rounds).run
