"""Scenarios of closing, sealing, packing and reading: no leases. Each is filled in by its seed alone."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.actors.packer import Packing
from tests.simulation.actors.writer import Writer
from tests.simulation.casting import is_brief, on_log, some_logs
from tests.simulation.client import MountMishaps
from tests.simulation.cluster import LOGS, NODES
from tests.simulation.mount import SimulatedMount
from tests.simulation.scheduler import PAUSES, Mishaps
from tests.simulation.world import Conditions, World
from timeagent.units import DAY, MS, SECOND


def bags(seed: int, *, traced: bool = False) -> World:
    """Writers, closers, settlers, sealers, metronomes and readers of one or two logs; no leases."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
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
        delegations=0.1 < harsh < 0.4,
        permissions=0.3 < harsh < 0.5,
        lasts_ns=chance.choice((4, 6, 9) if brief else (5, 9, 14)) * SECOND,
        steps_max=2_500,
    )
    world = World(seed, conditions, traced=traced)
    if not conditions.short:
        world.scheduler.end_ns += 12 * SECOND
    logs = some_logs(chance)
    batches = (2, 3, 4) if brief else (4, 6, 9)
    for n in range(chance.choice((1, 2, 2) if brief else (2, 3, 3))):
        world.spawn(
            chance.choice(NODES[:3]),
            f"writer {n}",
            lambda process: Writer(world, process, logs, chance.choice(batches)).run,
            restarts=2,
        )
    kinds = ("closer", "settler", "sealer", "metronome", "reader", "reader")
    for n in range(chance.choice((3, 3, 4) if brief else (4, 5, 6))):
        kind = kinds[n] if n < 2 else chance.choice(kinds)
        log = chance.choice(logs)
        turns = chance.choice((2, 3, 4) if brief else (3, 5, 8))
        world.spawn(chance.choice(NODES), f"{kind} {n}", on_log(world, kind, log, turns), restarts=1)
    return world


def crowd(seed: int, *, traced: bool = False) -> World:
    """Everything at once: the clocks of those who close are so far ahead that they close what is being written."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
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
        delegations=chance.random() < 0.3,
        permissions=chance.random() < 0.1,
        lasts_ns=chance.choice((2, 3, 4)) * SECOND,
        starts_ns=int(chance.choice((2.0, 4.2, 4.6)) * SECOND),
        steps_max=1_500,
    )
    world = World(seed, conditions, traced=traced)
    policy = world.policy
    logs = (chance.choice(LOGS),)
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
            chance.choice(NODES[:2]),
            f"writer {n}",
            lambda process: Writer(world, process, logs, 2 if brief else 4).run,
            restarts=1,
        )
    kinds = ("closer", "sealer", "settler", "closer", "sealer", "metronome", "reader")
    for n in range(chance.choice((3, 4, 4) if brief else (4, 5, 6))):
        kind = chance.choice(kinds)
        turns = chance.choice((2, 3, 4) if brief else (3, 6, 10))
        world.spawn(chance.choice(NODES[2:]), f"{kind} {n}", on_log(world, kind, logs[0], turns), restarts=1)
    if chance.random() < 0.3:
        world.spawn(NODES[5], "packer", _packing(world, logs[0], 8, deletes=False), restarts=1)
    return world


def packs(seed: int, *, traced: bool = False) -> World:
    """Sealed racks are packed by several, and old packs deleted, while writers are late and readers read."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    deletes = chance.random() < 0.4
    conditions = Conditions(
        mishaps=Mishaps(
            crash=chance.choice((0, 30, 100)),
            pause=chance.choice((0, 10, 30)),
            pauses=PAUSES[: chance.choice((3, 6, 8))],
        ),
        mount=MountMishaps(
            failure=chance.choice((0, 0, 15)), lost_reply=chance.choice((0, 4)), slow=chance.choice((0, 30)),
            rot=chance.choice((0, 0, 2)),
        ),
        lies="closers",
        delegations=chance.random() < 0.3,
        lasts_ns=chance.choice((2, 3)) * SECOND,
        starts_ns=int(chance.choice((2.0, 4.6)) * SECOND),
        steps_max=900 if brief else 3_000,
    )  # fmt: skip
    world = World(seed, conditions, traced=traced)
    world.rotting = conditions.mount.rot > 0
    policy = world.policy
    world.pace_ns = chance.choice((20, 60)) * MS
    early = policy.rack_ns + policy.seal_delay_ns
    world.server.clock_offset_ns = chance.choice((early, 2 * DAY)) if deletes else early
    for name in NODES[2:4]:
        world.times[name].set_forward(early)
    for name in NODES[4:]:
        world.times[name].set_forward(chance.choice((early, 2 * DAY)) if deletes else early)
    log = chance.choice(LOGS)
    for n in range(chance.choice((1, 2, 2))):
        world.spawn(NODES[n], f"writer {n}", lambda process: Writer(world, process, (log,), 3).run, restarts=1)
    world.spawn(NODES[2], "sealer", on_log(world, "sealer", log, 4), restarts=1)
    for n in range(2):
        world.spawn(NODES[4 + n], f"packer {n}", _packing(world, log, 8, deletes=deletes), restarts=2)
    for n in range(chance.choice((1, 2))):
        kind = chance.choice(("reader", "reader", "closer", "settler"))
        world.spawn(chance.choice(NODES[:4]), f"{kind} {n}", on_log(world, kind, log, 5), restarts=1)
    return world


def _packing(world: World, log: str, turns: int, *, deletes: bool) -> Callable[..., Callable[[], object]]:
    return lambda process: Packing(world, process, log, turns, deletes=deletes).run


def eclipse(seed: int, *, traced: bool = False) -> World:
    """One moment: a rack is being sealed while the first bags of it are begun, closed and read."""
    chance = random.Random(f"{seed}/scenario")
    conditions = Conditions(
        mishaps=Mishaps(pause=chance.choice((5, 10, 25)), pauses=PAUSES[: chance.choice((2, 3, 5))]),
        mount=MountMishaps(slow=chance.choice((0, 0, 20))),
        lies="closers",
        lasts_ns=chance.choice((1, 2)) * SECOND,
        starts_ns=int(chance.choice((2.0, 2.8, 4.8)) * SECOND),
        steps_max=500,
    )
    world = World(seed, conditions, traced=traced)
    log = chance.choice(LOGS)
    policy = world.policy
    world.pace_ns = chance.choice((20, 40)) * MS
    world.server.clock_offset_ns = policy.rack_ns + policy.seal_delay_ns
    for node in NODES[2:4]:
        world.times[node].set_forward(policy.grace_ns + policy.span_ns)
    for node in NODES[4:]:
        world.times[node].set_forward(policy.seal_delay_ns + policy.rack_ns)
    for n in range(2):
        world.spawn(NODES[n], f"writer {n}", lambda process: Writer(world, process, (log,), 2).run)
        kind = chance.choice(("closer", "closer", "settler"))
        world.spawn(NODES[2 + n], f"{kind} {n}", on_log(world, kind, log, 3))
    world.spawn(NODES[4], "sealer", on_log(world, "sealer", log, 2))
    kind = chance.choice(("reader", "reader", "sealer"))
    world.spawn(chance.choice(NODES), f"{kind} b", on_log(world, kind, log, 5))
    return world


def doubt(seed: int, *, traced: bool = False) -> World:
    """Publications that fail, and happen later, while their bag is being closed."""
    chance = random.Random(f"{seed}/scenario")
    conditions = Conditions(
        mishaps=Mishaps(pause=chance.choice((5, 10, 25)), pauses=PAUSES[: chance.choice((2, 3, 5))]),
        lies="closers",
        lasts_ns=2 * SECOND,
        starts_ns=int(chance.choice((2.0, 2.8, 4.8)) * SECOND),
        steps_max=500,
    )
    world = World(seed, conditions, traced=traced)
    log = chance.choice(LOGS)
    world.pace_ns = chance.choice((20, 40)) * MS
    mishaps = MountMishaps(failure=3, late=0.8, later_ns=chance.choice((50, 400)) * MS)
    for node in NODES[:2]:
        world.mounts[node] = SimulatedMount(world.server, f"{node} in doubt", mishaps)
    for node in NODES[2:]:
        world.times[node].set_forward(world.policy.grace_ns + world.policy.span_ns)
    for n in range(2):
        world.spawn(NODES[n], f"writer {n}", lambda process: Writer(world, process, (log,), 3).run)
        kind = chance.choice(("closer", "closer", "settler"))
        world.spawn(NODES[2 + n], f"{kind} {n}", on_log(world, kind, log, 4))
    if chance.random() < 0.4:
        world.spawn(NODES[4], "reader", on_log(world, "reader", log, 4))
    return world
