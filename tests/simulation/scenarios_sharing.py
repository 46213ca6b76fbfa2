"""Scenarios of the node's writer, and of reading where hints say. Each is filled in by its seed alone."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.actors.cached import Caching
from tests.simulation.actors.nodewriter import SimulatedDoor, Socket, WriterHost
from tests.simulation.actors.session import Application, Forgetful, Narrow
from tests.simulation.actors.shard import ShardHost
from tests.simulation.actors.writer import Writer
from tests.simulation.casting import DOMAINS, interruptions, is_brief, on_log, some_logs
from tests.simulation.client import MountMishaps
from tests.simulation.cluster import LOGS, NODES
from tests.simulation.mount import SimulatedMount
from tests.simulation.network import NetworkMishaps
from tests.simulation.scheduler import PAUSES, Mishaps
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.scheduler import Process
    from timeagent.units import Span


def with_writer(world: World, node: str, patience_ns: Span, writers: int, restarts: int) -> None:
    """Give all processes a way to the writer of their node, and one node a writer."""
    sockets: dict[str, Socket] = {}
    world.door_of = lambda kit: SimulatedDoor(kit, sockets, patience_ns)
    world.spawn(
        node, "node writer", lambda process: WriterHost(world, process, sockets, writers).run, restarts=restarts
    )


def batching(seed: int, *, traced: bool = False) -> World:
    """Several processes of one node hand their frames to its writer, which dies, is slow, and is left in doubt."""
    chance = random.Random(f"{seed}/scenario")
    conditions = Conditions(
        mishaps=Mishaps(
            crash=chance.choice((0, 25, 60)),
            pause=chance.choice((5, 10, 25)),
            pauses=PAUSES[: chance.choice((2, 3, 5))],
        ),
        lies="closers",
        lasts_ns=2 * SECOND,
        starts_ns=int(chance.choice((2.0, 2.8, 4.8)) * SECOND),
        steps_max=700,
    )
    world = World(seed, conditions, traced=traced)
    log = chance.choice(LOGS)
    world.pace_ns = chance.choice((5, 20, 40)) * MS
    mishaps = MountMishaps(failure=chance.choice((0, 3, 12)), late=0.8, later_ns=chance.choice((50, 400)) * MS)
    world.mounts[NODES[0]] = SimulatedMount(world.server, f"{NODES[0]} in doubt", mishaps)
    ahead = world.policy.grace_ns + world.policy.span_ns
    for node in NODES[1:]:
        world.times[node].set_forward(ahead if chance.random() < 0.8 else ahead + world.policy.rack_ns)
    with_writer(world, NODES[0], chance.choice((5, 30, 300)) * MS, chance.choice((1, 2)), restarts=2)
    for n in range(chance.choice((2, 3))):
        world.spawn(NODES[0], f"writer {n}", lambda process: Writer(world, process, (log,), 3).run, restarts=1)
    for n in range(chance.choice((1, 2))):
        kind = chance.choice(("closer", "closer", "settler", "sealer"))
        world.spawn(NODES[1 + n], f"{kind} {n}", on_log(world, kind, log, 4))
    if chance.random() < 0.3:
        world.spawn(NODES[4], "reader", on_log(world, "reader", log, 4))
    return world


def hinted(seed: int, *, traced: bool = False) -> World:
    """Holders read what names their domains where hints say that it is; holders die, shards forget, hints are many."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        mishaps=Mishaps(
            crash=chance.choice((0, 300, 500)),
            pause=chance.choice((0, 60, 150)),
            pauses=PAUSES[: chance.choice((6, 9))],
        ),
        network=NetworkMishaps(lost=chance.choice((0, 20)), late=chance.choice((0, 10))),
        lies=chance.choice(("none", "none", "slight")),
        lasts_ns=chance.choice((4, 6) if brief else (8, 12)) * SECOND,
        steps_max=1_000 if brief else 5_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((20, 80)) * MS
    world.hint_bytes_max = chance.choice((world.hint_bytes_max, 150, 150))
    mishaps = MountMishaps(failure=chance.choice((0, 5, 12)), late=0.8, later_ns=chance.choice((50, 400)) * MS)
    for node in NODES[1:3]:
        world.mounts[node] = SimulatedMount(world.server, f"{node} in doubt", mishaps)
    orderly = chance.random() < 0.5
    world.spawn(NODES[0], "shard 0a", lambda process: ShardHost(world, process, 0, orderly=orderly).run, restarts=3)
    logs = some_logs(chance)
    domains = DOMAINS[: chance.choice((1, 2, 2))]
    if chance.random() < 0.3:
        with_writer(world, NODES[1], 300 * MS, 1, restarts=2)
    for n in range(3 if brief else 4):
        kind = chance.choice((Narrow, Narrow, Narrow, Forgetful))
        world.spawn(NODES[1 + n % 2], f"{kind.__name__.lower()} {n}", _client(world, kind, domains, logs), restarts=2)
    if chance.random() < 0.4:
        kind_of = chance.choice(("metronome", "settler", "sealer"))
        world.spawn(NODES[4], kind_of, on_log(world, kind_of, chance.choice(logs), 6))
    return world


def caches(seed: int, *, traced: bool = False) -> World:
    """A value that processes keep in memory under leases: all read and write it, stand still, die, lose their shard."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        interrupted_once_in=interruptions(seed),
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 300)), pause=chance.choice((0, 60, 150)), pauses=PAUSES[: chance.choice((8, 12))]
        ),
        network=NetworkMishaps(lost=chance.choice((0, 0, 12)), late=chance.choice((0, 12))),
        partitions=chance.random() < 0.3,
        lasts_ns=(8 if brief else 20) * SECOND,
        steps_max=1_600 if brief else 6_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((20, 80, 300)) * MS
    world.spawn(NODES[0], "shard 0a", lambda process: ShardHost(world, process, 0, orderly=False).run, restarts=2)
    log, domain = chance.choice(LOGS), DOMAINS[0]
    for n in range(chance.choice((2, 3))):
        world.spawn(
            NODES[1 + n],
            f"caching {n}",
            lambda process: Caching(world, process, domain, log, 12 if brief else 40).run,
            restarts=1,
        )
    return world


def _client(
    world: World, kind: type[Application], domains: tuple[str, ...], logs: tuple[str, ...]
) -> Callable[[Process], Callable[[], object]]:
    return lambda process: kind(world, process, domains, logs, 4).run
