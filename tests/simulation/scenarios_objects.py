"""A root in an object store: closing, sealing and packing, or leases, over puts that are lost, late and refused.

And logs in an object store whose cluster is on a mount, or the other way round.
"""

from __future__ import annotations

import random

from tests.simulation.actors.bank import Teller
from tests.simulation.actors.packer import Packing
from tests.simulation.actors.session import Application
from tests.simulation.actors.writer import Writer
from tests.simulation.casting import DOMAINS, is_brief, on_log, some_logs
from tests.simulation.client import MountMishaps
from tests.simulation.cluster import LOGS, NODES
from tests.simulation.scenarios_leases import applying, hosting
from tests.simulation.scheduler import PAUSES, Mishaps
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND


def objects(seed: int, *, traced: bool = False) -> World:
    """Who closes has a clock that is ahead; or a shard and its holders; puts are repeated, refused, late."""
    return _world(seed, random.Random(f"{seed}/scenario"), traced=traced)


def elsewhere(seed: int, *, traced: bool = False) -> World:
    """The same with one log, or both, in another store than the root, which one node may not find."""
    chance = random.Random(f"{seed}/elsewhere")
    placed = chance.choice((LOGS[:1], LOGS[1:], LOGS))
    astray = chance.choice(("", "", NODES[chance.randrange(5)]))
    return _world(seed, chance, traced=traced, objects=chance.random() < 0.3, placed=placed, astray=astray)


def _world(
    seed: int,
    chance: random.Random,
    *,
    traced: bool,
    objects: bool = True,
    placed: tuple[str, ...] = (),
    astray: str = "",
) -> World:
    brief = is_brief(chance)
    leased = chance.random() < 0.3
    conditions = Conditions(
        objects=objects,
        placed=placed,
        astray=astray,
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 200)),
            pause=chance.choice((0, 12, 30, 60)),
            pauses=PAUSES[: chance.choice((3, 5, 7))],
        ),
        mount=MountMishaps(
            failure=chance.choice((0, 5, 10, 25)),
            late=chance.choice((0.2, 0.8)),
            lost_reply=chance.choice((0, 4, 4)),
            busy=chance.choice((0, 6, 20)),
            slow=chance.choice((0, 25)),
            later_ns=chance.choice((1, 20)) * SECOND,
        ),
        lies="none" if leased else "closers",
        outages=chance.random() < 0.2,
        lasts_ns=chance.choice((2, 3, 4)) * SECOND,
        starts_ns=int(chance.choice((2.0, 4.2, 4.6)) * SECOND),
        steps_max=1_500,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((20, 60, 150)) * MS
    logs = placed or some_logs(chance)
    if leased:
        _leases(world, chance, logs)
    else:
        _closing(world, chance, logs[0], brief=brief)
    return world


def _closing(world: World, chance: random.Random, log: str, *, brief: bool) -> None:
    policy = world.policy
    early = policy.rack_ns + policy.seal_delay_ns
    for name in NODES[3:]:
        world.times[name].set_forward(chance.choice((policy.grace_ns, policy.grace_ns + policy.span_ns, early)))
    if chance.random() < 0.7:
        world.server.clock_offset_ns = world.elsewhere.clock_offset_ns = early
    for n in range(chance.choice((2, 3))):
        world.spawn(
            chance.choice(NODES[:2]),
            f"writer {n}",
            lambda process: Writer(world, process, (log,), 2 if brief else 4).run,
            restarts=1,
        )
    kinds = ("closer", "sealer", "settler", "closer", "sealer", "metronome", "reader")
    for n in range(chance.choice((3, 4, 4) if brief else (4, 5, 6))):
        kind = chance.choice(kinds)
        turns = chance.choice((2, 3, 4) if brief else (3, 6, 10))
        world.spawn(chance.choice(NODES[2:]), f"{kind} {n}", on_log(world, kind, log, turns), restarts=1)
    for n in range(chance.choice((0, 1, 2))):
        world.spawn(
            NODES[4 + n],
            f"packer {n}",
            lambda process: Packing(world, process, log, 8, deletes=False).run,
            restarts=1,
        )


def _leases(world: World, chance: random.Random, logs: tuple[str, ...]) -> None:
    for copy, node in enumerate(chance.sample(NODES[:4], chance.choice((1, 2)))):
        orderly = chance.random() < 0.5
        world.spawn(node, f"shard 0{'ab'[copy]}", hosting(world, 0, orderly=orderly), restarts=9)
    for n in range(chance.choice((2, 3))):
        kind = chance.choice((Application, Teller))
        client = applying(world, kind, DOMAINS[:2], logs, chance.choice((1, 2, 3)))
        world.spawn(chance.choice(NODES), f"{kind.__name__.lower()} {n}", client, restarts=2)
    kind_of = chance.choice(("metronome", "settler", "reader"))
    world.spawn(chance.choice(NODES), f"{kind_of} 0", on_log(world, kind_of, chance.choice(LOGS), 6), restarts=1)
