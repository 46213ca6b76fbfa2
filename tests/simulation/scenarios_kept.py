"""Daemons whose shards keep their turns in a store that outlives machines: whoever goes on after a crash knows them.

It is in no mix: where a seed falls in the mix, and what its table of counts says, would be another for all others.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.actors.session import Application, SessionKit, keep
from tests.simulation.actors.street import Maps, Routes, Street
from tests.simulation.actors.tenant import Daemon, NodeHost
from tests.simulation.actors.together import Together
from tests.simulation.casting import DOMAINS, interruptions
from tests.simulation.client import MountMishaps
from tests.simulation.cluster import LOGS, NODES
from tests.simulation.keyvalues import KeptStore
from tests.simulation.network import NetworkMishaps
from tests.simulation.scheduler import PAUSES, Mishaps
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.scheduler import Process


def kept(seed: int, *, traced: bool = False) -> World:
    """Daemons die, are restarted, cloned, and stand still while the store loses answers, delays and is silent."""
    chance = random.Random(f"{seed}/scenario")
    conditions = Conditions(
        mishaps=Mishaps(crash=chance.choice((0, 0, 600)), pause=chance.choice((0, 120)), pauses=PAUSES[:8]),
        mount=MountMishaps(failure=chance.choice((0, 0, 40)), lost_reply=chance.choice((0, 8))),
        network=NetworkMishaps(lost=chance.choice((0, 0, 20)), late=chance.choice((0, 10))),
        lies=chance.choice(("none", "none", "slight", "seconds")),
        lasts_ns=10 * SECOND,
        steps_max=9_000,
        interrupted_once_in=interruptions(seed, daemons=True),
        interrupted_daemons=True,
    )
    world = World(seed, conditions, traced=traced)
    world.scheduler.tempi = (0, 0, 1, 1)
    world.pace_ns = chance.choice((100, 400)) * MS
    world.linger_ns = chance.choice((0, 300, 800)) * MS
    street = Street(world, NODES[: chance.choice((1, 1, 2))])
    street.kept = KeptStore(world, chance.choice((0, 10, 30)))
    world.history.reliable = False
    street.populate(lambda process: Daemon(street, process).run)
    world.routes_of = lambda kit: Routes(street, kit, Maps(kit), NodeHost(street, kit))
    at = SECOND // 2
    while at < conditions.lasts_ns - SECOND:
        at += int((0.3 + 1.5 * chance.random()) * SECOND)
        mishap = _mishap(street, chance.random(), chance.random())
        world.scheduler.call_at(world.scheduler.start_ns + at, mishap)
    world.spawn(
        NODES[2],
        "keeper",
        lambda process: lambda: keep(SessionKit(world, process), DOMAINS[0], LOGS[0], 500 * MS),
        restarts=1,
    )
    for n in range(2):
        kind = chance.choice((Application, Together))
        world.spawn(NODES[3 + n], f"{kind.__name__.lower()} {n}", _client(world, kind), restarts=1)
    return world


def _client(world: World, kind: type[Application]) -> Callable[[Process], Callable[[], object]]:
    return lambda process: kind(world, process, DOMAINS[:3], LOGS[:1], 12).run


def _mishap(street: Street, kind: float, share: float) -> Callable[[], None]:
    world, node = street.world, street.nodes[0]
    scheduler, machine, store = world.scheduler, world.machines[node], street.kept
    span = int((0.05 + 1.5 * share**3) * SECOND)
    assert store is not None

    def begin() -> None:
        scheduler.note("  a mishap:", f"{node}, {kind:.2f}")
        if kind < 0.35:
            street.kill(node, span)
        elif kind < 0.5:
            street.kill(node, span)
            street.boots[machine] = f"boot {world.number()}"
            for at in [each for each in street.files if each[0] is machine]:
                del street.files[at]
        elif kind < 0.6:
            street.restart(node, span)
        elif kind < 0.72:
            street.kill(node, span)
            street.clone(node)
        elif kind < 0.8:
            street.clone(node)
        elif kind < 0.9:
            street.pause(node, span)
        else:
            store.silent_until = scheduler.now + 3 * span

    return begin
