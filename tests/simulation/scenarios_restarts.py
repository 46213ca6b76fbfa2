"""Scenarios of daemons that are restarted: their shards go on with all leases, once, or begin with none."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.actors.session import Application, SessionKit, keep
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

    from tests.simulation.scheduler import Process
    from timeagent.units import Span

AMID_NS: Span = 400 * MS
"""So soon after a daemon was told to stop, or has begun again, it is killed: most of it is over then."""

CLOCK_IS_SET = 0.92
"""From here on a kind of restart at which the clock is set back."""


def restarts(seed: int, *, traced: bool = False) -> World:
    """Daemons stop for a restart and go on: in order, or killed amid it, on another boot, cloned, at another time."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    only = chance.random() < 0.35
    conditions = Conditions(
        mishaps=Mishaps()
        if only
        else Mishaps(crash=chance.choice((0, 0, 600)), pause=chance.choice((0, 0, 120)), pauses=PAUSES[:8]),
        mount=MountMishaps()
        if only
        else MountMishaps(failure=chance.choice((0, 0, 40)), lost_reply=chance.choice((0, 8))),
        network=NetworkMishaps()
        if only
        else NetworkMishaps(lost=chance.choice((0, 0, 20)), late=chance.choice((0, 10))),
        lies="none" if only else chance.choice(("none", "none", "slight", "seconds")),
        lasts_ns=(6 if brief else 12) * SECOND,
        steps_max=4_000 if brief else 9_000,
        interrupted_once_in=interruptions(seed, daemons=True),
        interrupted_daemons=True,
    )
    world = World(seed, conditions, traced=traced)
    world.history.only_restarts = only
    world.scheduler.tempi = (0, 0) if only else (0, 0, 1, 1)
    world.pace_ns = chance.choice((100, 400)) * MS
    world.linger_ns = chance.choice((0, 300, 800)) * MS
    street = Street(world, NODES[: 1 if only else chance.choice((1, 2))])
    world.history.reliable = False  # nodes crash, pause and are cloned: who answers is not told
    street.populate(lambda process: Daemon(street, process).run)
    world.routes_of = lambda kit: Routes(street, kit, Maps(kit), NodeHost(street, kit))
    at = SECOND // 2
    while at < conditions.lasts_ns - SECOND:
        at += int((0.5 + 2 * chance.random()) * SECOND)
        begin = any_restart(street, street.nodes[0], chance.random(), chance.random(), only=only)
        world.scheduler.call_at(world.scheduler.start_ns + at, begin)
    world.spawn(
        NODES[2],
        "keeper",
        lambda process: lambda: keep(SessionKit(world, process), DOMAINS[0], LOGS[0], 500 * MS),
        restarts=1,
    )
    kinds: tuple[type[Application], ...] = (Application,) if only else (Application, Together)
    for n in range(1 if brief else 2):
        kind = chance.choice(kinds)
        world.spawn(NODES[3 + n], f"{kind.__name__.lower()} {n}", _client(world, kind, only=only), restarts=1)
    return world


def _client(world: World, kind: type[Application], *, only: bool) -> Callable[[Process], Callable[[], object]]:
    domains = (
        DOMAINS[1:3] if only else DOMAINS[:3]
    )  # who waits for the keeper's has it recalled, and that is no restart
    return lambda process: kind(world, process, domains, LOGS[:1], 12).run


def any_restart(street: Street, node: str, kind: float, share: float, *, only: bool = False) -> Callable[[], None]:
    """Return what lets a daemon stop for a restart; ``only``: in order, and soon begun again."""
    world = street.world
    scheduler, machine = world.scheduler, world.machines[node]
    span = int((0.05 + (0.3 if only else 2 * share**3)) * SECOND)

    def kill() -> None:
        street.kill(node, span)

    def soon(begins: Span) -> None:
        scheduler.call_at(scheduler.now + begins + int(share * AMID_NS), kill)

    def boot_anew() -> None:
        street.boots[machine] = f"boot {world.number()}"

    def set_back() -> None:
        world.lying = True
        world.times[node].set_forward(-int(3 * share * SECOND))

    def begin() -> None:
        scheduler.note("  a restart:", f"{node}, {kind:.2f}")
        if only or kind < 0.35:
            street.restart(node, span)
        elif kind < 0.5:
            street.restart(node, span)
            soon(0)
        elif kind < 0.68:
            street.restart(node, span, lambda: soon(span))
        elif kind < 0.84:
            street.restart(node, span, lambda: street.clone(node))
        elif kind < CLOCK_IS_SET:
            street.restart(node, span, boot_anew)
        else:
            street.restart(node, span, set_back)

    return begin
