"""Planned moves of shards, while leases are held for long and short: owners live, restart, die, sleep, miss a map."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from appliance.admin.moving import moved, resharded
from tests.simulation.actors.mover import Mover
from tests.simulation.actors.session import Application, SessionKit, Sharing, keep
from tests.simulation.actors.street import Maps, Routes, Street
from tests.simulation.actors.tenant import Daemon, NodeHost
from tests.simulation.actors.together import Together
from tests.simulation.casting import DOMAINS, interruptions, is_brief
from tests.simulation.client import MountMishaps
from tests.simulation.cluster import LOGS, NODES
from tests.simulation.network import NetworkMishaps
from tests.simulation.scheduler import PAUSES, Mishaps
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.actors.mover import Plan
    from tests.simulation.scheduler import Process
    from timeagent.units import Span

LOOK_NS: Span = 100 * MS
"""How often daemons look for a map: as much more often than real ones as terms are shorter here."""


def moves(seed: int, *, traced: bool = False) -> World:
    """Shards are given to other nodes, and become more or fewer, and daemons are restarted.

    With nothing else, or with everything going wrong.
    """
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    only = chance.random() < 0.35
    shards = chance.choice((1, 2))
    restarts = chance.random() < 0.6
    conditions = Conditions(
        shards=shards,
        mishaps=Mishaps()
        if only
        else Mishaps(crash=chance.choice((0, 0, 500)), pause=chance.choice((0, 40, 120)), pauses=PAUSES[:8]),
        mount=MountMishaps()
        if only
        else MountMishaps(failure=chance.choice((0, 0, 25)), lost_reply=chance.choice((0, 5))),
        network=NetworkMishaps()
        if only
        else NetworkMishaps(lost=chance.choice((0, 0, 20)), late=chance.choice((0, 10))),
        lies="none"
        if only
        else chance.choice(("none", "slight", "slight", "seconds", *(() if restarts else ("steps",)))),
        lasts_ns=(7 if brief else 12) * SECOND,
        steps_max=5_000 if brief else 12_000,
        interrupted_once_in=interruptions(seed, daemons=True),
        interrupted_daemons=True,
    )
    world = World(seed, conditions, traced=traced)
    world.history.only_moves = only
    world.scheduler.tempi = (0, 0) if only else (0, 0, 1, 1)
    world.pace_ns = chance.choice((60, 300)) * MS
    world.linger_ns = chance.choice((0, 800, 3_000)) * MS
    street = Street(world, NODES[: chance.choice((2, 3))])
    world.history.reliable = False
    street.populate(lambda process: Daemon(street, process, LOOK_NS).run)
    world.routes_of = lambda kit: Routes(street, kit, Maps(kit), NodeHost(street, kit))
    plans: list[Plan] = [plan(street, chance.random(), chance.choice((1, 2, 3))) for _ in range(2 if brief else 3)]
    pace: Span = chance.choice((100, 800)) * MS
    world.spawn(NODES[5], "mover", lambda process: Mover(street, process, plans, pace).run, restarts=9)
    if restarts:  # with no clock that steps back between the look at it and the first signature
        at = SECOND // 4
        while at < conditions.lasts_ns - SECOND:
            at += int((1 + 1.5 * chance.random()) * SECOND)
            begin = restart(street, chance.choice(street.nodes), int((0.05 + 0.3 * chance.random()) * SECOND))
            world.scheduler.call_at(world.scheduler.start_ns + at, begin)
    if not only:
        for _ in range(chance.choice((0, 1, 2, 3))):
            at, span = int(chance.random() * conditions.lasts_ns), int((0.2 + 3 * chance.random()) * SECOND)
            begin = fault(street, chance.choice(street.nodes), span, chance.random())
            world.scheduler.call_at(world.scheduler.start_ns + at, begin)
    world.spawn(
        NODES[3],
        "keeper",
        lambda process: lambda: keep(SessionKit(world, process), DOMAINS[0], LOGS[0], 400 * MS),
        restarts=2,
    )
    for n in range(chance.choice((1, 2))):
        kind = chance.choice((Application, Application, Together, Sharing))
        world.spawn(NODES[3 + n % 2], f"{kind.__name__.lower()} {n}", _client(world, kind), restarts=1)
    return world


def plan(street: Street, kind: float, count: int) -> Plan:
    nodes = street.nodes
    if kind < 0.5:
        return lambda before: moved(before, {0: nodes[(before.number + count) % len(nodes)]})
    return lambda before: resharded(before, count, nodes)


def _client(world: World, kind: type[Application]) -> Callable[[Process], Callable[[], object]]:
    return lambda process: kind(world, process, DOMAINS[1:], LOGS[:1], 10**6).run


def restart(street: Street, node: str, span: Span) -> Callable[[], None]:
    def begin() -> None:
        street.world.scheduler.note("  a restart:", node)
        street.restart(node, span)

    return begin


def fault(street: Street, node: str, span: Span, kind: float) -> Callable[[], None]:
    def begin() -> None:
        if kind < 0.4:
            street.kill(node, span)
        elif kind < 0.6:
            street.pause(node, span)
        elif kind < 0.7:
            street.unmount(node, span)
        else:
            street.cut(node, span, "both" if kind < 0.85 else "says")

    return begin
