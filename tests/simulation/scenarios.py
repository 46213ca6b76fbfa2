"""The mix: which actors meet under which faults. A scenario is chosen, and filled in, by the seed alone."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.actors.closer import Closing
from tests.simulation.actors.packer import Packer
from tests.simulation.actors.reader import Reading
from tests.simulation.actors.writer import Writer
from tests.simulation.cluster import LOGS, NODES
from tests.simulation.mount import MountMishaps
from tests.simulation.scheduler import PAUSES, Mishaps
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND


def bags(seed: int, *, traced: bool = False) -> World:
    """Writers, closers, settlers, sealers, metronomes and readers of one or two logs; no leases."""
    chance = random.Random(f"{seed}/scenario")
    harsh = chance.random()
    conditions = Conditions(
        short=chance.random() < 0.9,
        real_keys=chance.random() < 0.01,
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 150, 400)),
            pause=chance.choice((0, 60, 120, 400)),
            pauses=PAUSES[: chance.choice((7, 10, 12, len(PAUSES)))],
        ),
        mount=MountMishaps(
            failure=chance.choice((0, 0, 20, 60)),
            lost_reply=chance.choice((0, 4, 20)),
            slow=chance.choice((0, 40, 15)),
        ),
        lies=chance.choice(("none", "none", "none", "seconds", "seconds", "steps", "hours")),
        outages=harsh < 0.25,
        lasts_ns=chance.choice((5, 9, 14)) * SECOND,
        steps_max=2_500,
    )
    world = World(seed, conditions, traced=traced)
    if not conditions.short:
        world.scheduler.end_ns += 12 * SECOND
    logs = LOGS[: chance.choice((1, 1, 1, 2))]
    for n in range(chance.choice((2, 3, 3))):
        world.spawn(
            chance.choice(NODES[:3]),
            f"writer {n}",
            lambda process: Writer(world, process, logs, chance.choice((4, 6, 9))).run,
            restarts=2,
        )
    kinds = ("closer", "settler", "sealer", "metronome", "reader", "reader")
    for n in range(chance.choice((4, 5, 6))):
        kind = kinds[n] if n < 2 else chance.choice(kinds)
        log = chance.choice(logs)
        turns = chance.choice((3, 5, 8))
        world.spawn(chance.choice(NODES), f"{kind} {n}", _actor(world, kind, log, turns), restarts=1)
    return world


def crowd(seed: int, *, traced: bool = False) -> World:
    """Everything at once: the clocks of those who close are so far ahead that they close what is being written."""
    chance = random.Random(f"{seed}/scenario")
    conditions = Conditions(
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 200)),
            pause=chance.choice((0, 12, 30, 60)),
            pauses=PAUSES[: chance.choice((3, 5, 7))],
        ),
        mount=MountMishaps(
            failure=chance.choice((0, 0, 10, 25)),
            lost_reply=chance.choice((0, 4)),
            slow=chance.choice((0, 25)),
        ),
        lies="closers",
        outages=chance.random() < 0.1,
        lasts_ns=chance.choice((2, 3, 4)) * SECOND,
        starts_ns=int(chance.choice((2.0, 4.2, 4.6)) * SECOND),
        steps_max=1_500,
    )
    world = World(seed, conditions, traced=traced)
    policy = world.policy
    world.pace_ns = chance.choice((20, 60, 150)) * MS
    for name in NODES[3:]:
        ahead = chance.choice(
            (policy.grace_ns, policy.grace_ns + policy.span_ns, policy.seal_delay_ns + policy.rack_ns)
        )
        world.times[name].set_forward(ahead - int(chance.random() * policy.span_ns))
    if chance.random() < 0.7:
        world.server.clock_offset_ns = policy.rack_ns + policy.seal_delay_ns
    for n in range(chance.choice((2, 3))):
        world.spawn(
            chance.choice(NODES[:2]), f"writer {n}", lambda process: Writer(world, process, LOGS[:1], 4).run, restarts=1
        )
    kinds = ("closer", "sealer", "settler", "closer", "sealer", "metronome", "reader")
    for n in range(chance.choice((4, 5, 6))):
        kind = chance.choice(kinds)
        turns = chance.choice((3, 6, 10))
        world.spawn(chance.choice(NODES[2:]), f"{kind} {n}", _actor(world, kind, LOGS[0], turns), restarts=1)
    if chance.random() < 0.3:
        world.packing = True
        world.spawn(NODES[5], "packer", lambda process: Packer(world, process, LOGS[0], 12).run)
    return world


def _actor(world: World, kind: str, log: str, turns: int) -> Callable[..., Callable[[], object]]:
    if kind == "reader":
        return lambda process: Reading(world, process, log, turns).run
    return lambda process: getattr(Closing(world, process, log, turns), kind)


SCENARIOS: dict[str, Callable[..., World]] = {"bags": bags, "crowd": crowd}
MIX: tuple[str, ...] = ("bags", "crowd")
