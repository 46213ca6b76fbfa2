"""Who runs a shard: nodes that die and return, sleep, or are cut off, and heirs that take over and go home again."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from appliance.admin.moving import resharded
from tests.simulation.actors.mover import Mover
from tests.simulation.actors.session import Application
from tests.simulation.actors.street import Maps, Routes, Street
from tests.simulation.actors.tenant import Daemon, NodeHost
from tests.simulation.casting import interruptions, is_brief
from tests.simulation.client import MountMishaps
from tests.simulation.cluster import LOGS, NODES
from tests.simulation.network import NetworkMishaps
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.actors.mover import Plan
    from timeagent.units import Span

DOMAINS = ("a", "b", "c", "d")
"""Of two shards each has some."""

SETTLES_NS: Span = 11 * SECOND
"""How long after the last fault everything has to be in its place: a ceiling runs out, two seconds until the chain and
the owner are looked for, and an orderly stop, which waits for holders, or gives up and leaves a ceiling again.
"""

QUIET_NS: Span = 3 * SECOND
"""How long it is looked after that whether anything moves."""


def heirs(seed: int, *, traced: bool = False) -> World:
    """Shards of nodes that die, sleep, or are cut off: heirs take them over, and they go home."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    moving = chance.random() < 0.15
    gentle = chance.random() < 0.6
    twice = chance.random() < 0.08
    faults_ns = chance.choice((22,) if twice else (4, 6) if brief else (6, 12)) * SECOND
    conditions = Conditions(
        shards=chance.choice((1, 1, 2)),
        mount=MountMishaps(failure=0 if gentle else 40, lost_reply=chance.choice((0, 8))),
        network=NetworkMishaps()
        if gentle
        else NetworkMishaps(lost=chance.choice((0, 20)), late=chance.choice((0, 10))),
        lies=chance.choice(("none", "none", "none", "slight", "seconds", "steps")),
        lasts_ns=faults_ns + SETTLES_NS + QUIET_NS + SECOND,
        steps_max=6_000 if brief else 12_000,
        interrupted_once_in=interruptions(seed, daemons=True),
        interrupted_daemons=True,
    )
    world = World(seed, conditions, traced=traced)
    world.scheduler.tempi = (0, 0, 1, 1)  # who is alive answers a probe in time
    world.pace_ns = chance.choice((500, 1_500)) * MS
    world.linger_ns = chance.choice((0, 400)) * MS
    street = Street(world, NODES[: 2 if twice else chance.choice((2, 3, 3))])
    if twice:
        _plan_twice(world, street, chance)
    else:
        _plan(world, street, chance, faults_ns)
    street.finish(faults_ns, SETTLES_NS)
    street.populate(lambda process: Daemon(street, process).run)
    world.routes_of = lambda kit: Routes(street, kit, Maps(kit), NodeHost(street, kit))
    if moving:
        count = 3 - conditions.shards
        plans: list[Plan] = [lambda before: resharded(before, count, NODES[:count])]
        world.spawn(NODES[5], "mover", lambda process: Mover(street, process, plans, SECOND).run)
    for n in range(chance.choice((1, 2) if brief else (1, 2, 3))):
        rounds = 4 if twice else chance.choice((10**6, 10**6, 10**6, 3))  # some ask for a while only
        world.spawn(chance.choice(NODES), f"application {n}", _client(world, rounds))
    return world


def _client(world: World, rounds: int) -> Callable[..., Callable[[], object]]:
    return lambda process: Application(world, process, DOMAINS, LOGS[:1], rounds).run


def _plan(world: World, street: Street, chance: random.Random, faults_ns: Span) -> None:
    """Draw what goes wrong, and until when."""
    scheduler = world.scheduler
    gone = chance.choice((*street.nodes, None, None, None))
    for _ in range(chance.choice((1, 2, 2, 3))):
        begins = int(chance.random() * (faults_ns - SECOND))
        lasts = min(int(chance.choice((0.3, 1, 3, 5, 8)) * SECOND * (0.5 + chance.random())), faults_ns - begins)
        node = chance.choice((*street.nodes, *world.map.owners))
        scheduler.call_at(scheduler.start_ns + begins, _fault(street, node, lasts, chance.random()))
    if gone is not None and chance.random() < 0.6:
        at = int(chance.random() * faults_ns)
        scheduler.call_at(scheduler.start_ns + at, lambda: street.kill(gone, None))


def _plan_twice(world: World, street: Street, chance: random.Random) -> None:
    """An owner dies while it is missed, and much later again, when it is missed by nobody any more."""
    scheduler, owner = world.scheduler, world.map.owners[0]
    for begins in (1, 19):
        at, lasts = (int(span * SECOND) for span in (begins + chance.random(), 2.5 + 2 * chance.random()))
        scheduler.call_at(scheduler.start_ns + at, lambda lasts=lasts: street.kill(owner, lasts))  # type: ignore[misc]


def _fault(street: Street, node: str, lasts: Span, kind: float) -> Callable[[], None]:
    def begin() -> None:
        street.world.scheduler.note("  a fault:", f"{node} for {lasts / SECOND:.3f} s, {kind:.2f}")
        if kind < 0.4:
            street.kill(node, lasts)
        elif kind < 0.6:
            street.pause(node, lasts)
        elif kind < 0.7:
            street.unmount(node, lasts)
        else:
            street.cut(node, lasts, "both" if kind < 0.85 else "says" if kind < 0.92 else "hears")

    return begin
