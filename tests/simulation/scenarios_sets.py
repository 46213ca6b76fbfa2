"""Sets and queues, where everybody is honest and quick: who waits for whom, and for how long."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.actors.crossing import Crossing, Queuer, Sitter
from tests.simulation.actors.paths import PathTask
from tests.simulation.actors.shard import ShardHost
from tests.simulation.casting import is_brief
from tests.simulation.cluster import LOGS, NODES
from tests.simulation.network import NetworkMishaps
from tests.simulation.scheduler import PAUSES, Mishaps
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.scheduler import Process

DOMAINS = ("acct/0", "acct/1", "acct/2", "acct/3")

SETS_NS = SECOND
"""What anybody may wait for a set: those before it have theirs for some milliseconds each."""

QUEUES_NS = 4 * SECOND
"""What a queuer may wait: as long as the sitter sits, and a little."""


def sets(seed: int, *, traced: bool = False) -> World:
    """Sets of one to three of few domains on one or two shards, each in its own modes; nobody dies, nothing is lost."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    shards = chance.choice((1, 2))
    world = World(seed, Conditions(shards=shards, lasts_ns=40 * SECOND, steps_max=20_000), traced=traced)
    world.scheduler.tempi = (0, 1)
    world.history.served_within_ns = SETS_NS
    for shard in range(shards):
        world.spawn(NODES[shard], f"shard {shard}a", _host(world, shard))
    for n in range(chance.choice((4, 5, 6))):
        world.spawn(NODES[n % 6], f"crossing {n}", _crossing(world, 8 if brief else 20))
    return world


def queues(seed: int, *, traced: bool = False) -> World:
    """One domain that somebody has for a while; others come for it one by one, and one of them dies while it waits."""
    chance = random.Random(f"{seed}/scenario")
    world = World(seed, Conditions(lasts_ns=25 * SECOND, steps_max=6_000), traced=traced)
    world.scheduler.tempi = (0,)
    world.history.served_within_ns = QUEUES_NS
    world.history.queuing = "queuer"
    dying: list[Process] = []

    def dies(process: Process) -> Callable[[], object]:
        dying.append(process)
        return Queuer(world, process, DOMAINS[0], LOGS[0], 350 * MS).run

    world.spawn(NODES[0], "shard 0a", _host(world, 0))
    world.spawn(NODES[1], "sitter", lambda process: Sitter(world, process, DOMAINS[0], LOGS[0], 3 * SECOND).run)
    world.spawn(NODES[2], "mortal", dies)
    for n, comes in enumerate(sorted(chance.sample(range(400, 2_400, 100), chance.choice((2, 3, 4))))):
        world.spawn(NODES[3 + n % 3], f"queuer {n}", _queuer(world, comes * MS))
    # Shortly before its turn: it is the first of the queue, and the shard has not forgotten it yet.
    at = world.scheduler.now + chance.randint(2_600, 2_950) * MS
    world.scheduler.call_at(at, lambda: world.scheduler.crash(dying[0]))
    return world


def paths(seed: int, *, traced: bool = False) -> World:
    """Tasks that read and write paths of one tree; they stand still, their shard dies, messages are lost."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        mishaps=Mishaps(
            crash=chance.choice((0, 300)), pause=chance.choice((0, 60, 150)), pauses=PAUSES[: chance.choice((8, 12))]
        ),
        network=NetworkMishaps(lost=chance.choice((0, 12)), late=chance.choice((0, 12))),
        lasts_ns=(8 if brief else 20) * SECOND,
        steps_max=1_600 if brief else 6_000,
    )
    world = World(seed, conditions, traced=traced)
    world.spawn(NODES[0], "shard 0a", _host(world, 0), restarts=2)
    rounds = 6 if brief else 16
    for n in range(chance.choice((2, 3, 4))):
        world.spawn(NODES[1 + n], f"task {n}", lambda process: PathTask(world, process, rounds).run, restarts=1)
    return world


def _host(world: World, shard: int) -> Callable[..., Callable[[], object]]:
    return lambda process: ShardHost(world, process, shard, orderly=False).run


def _crossing(world: World, rounds: int) -> Callable[..., Callable[[], object]]:
    return lambda process: Crossing(world, process, DOMAINS, LOGS[0], rounds).run


def _queuer(world: World, comes_ns: int) -> Callable[..., Callable[[], object]]:
    return lambda process: Queuer(world, process, DOMAINS[0], LOGS[0], comes_ns).run
