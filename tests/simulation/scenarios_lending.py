"""A machine's daemon as cooperative leader: one lease serves one process of the machine after another."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from appliance.formats.lease import Mode
from tests.simulation.actors.lending import Borrower, Desks
from tests.simulation.actors.session import Application
from tests.simulation.actors.shard import ShardHost
from tests.simulation.casting import DOMAINS, is_brief
from tests.simulation.cluster import LOGS, NODES
from tests.simulation.network import NetworkMishaps
from tests.simulation.scheduler import PAUSES, Mishaps
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.actors.session import SessionKit


def lending(seed: int, *, traced: bool = False) -> World:
    """Daemons that lend, are stopped, killed, paused and cut off; borrowers that die and stand still; and rivals."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        mishaps=Mishaps(
            crash=chance.choice((0, 300, 800)), pause=chance.choice((60, 150)), pauses=PAUSES[: chance.choice((6, 9))]
        ),
        network=NetworkMishaps(lost=chance.choice((0, 30)), late=chance.choice((0, 10))),
        lasts_ns=(10 if brief else 20) * SECOND,
        steps_max=3_000 if brief else 8_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((20, 100)) * MS
    world.linger_ns = chance.choice((400, 1_500, 5_000)) * MS
    desks = Desks(world)
    modes = chance.choice(((Mode.X,), (Mode.X, Mode.X, Mode.S)))
    rounds = 5 if brief else 12
    domains = DOMAINS[: chance.choice((1, 1, 2))]
    world.spawn(NODES[0], "shard 0a", lambda process: ShardHost(world, process, 0, orderly=False).run, restarts=3)
    world.times[NODES[0]].radius_ns = world.policy.radius_ns_max
    for _ in range(chance.choice((0, 30, 300))):
        world.scheduler.call_at(world._some_time(chance.random()), lambda: _waver(world))
    for node in NODES[1 : chance.choice((2, 3))]:
        lives = [int((0.5 + chance.random() * 5) * SECOND) for _ in range(chance.choice((0, 1, 3)))]
        alone = chance.random() < 0.7
        desks.begin(node, f"daemon {node}", lives, alone=alone)
        for _ in range(chance.choice((0, 1, 2)) if alone else 0):
            _stops(world, f"daemon {node}", chance)
        for _ in range(chance.choice((0, 0, 1, 2))):
            ends = chance.choice(((NODES[0], node), (node, NODES[0])))
            world.scheduler.call_at(world._some_time(chance.random()), world._cut(*ends, chance.random()))
        for n in range(chance.choice((2, 3))):
            world.spawn(node, f"borrower {node} {n}", _borrower(desks, domains, modes, rounds), restarts=1)
    for n in range(chance.choice((0, 1, 2))):
        world.spawn(
            chance.choice(NODES[:3]), f"rival {n}", lambda process: Rival(world, process, domains, LOGS[:1], 3).run
        )
    return world


class Rival(Application):
    """Has it from the shard, as everybody, to act outside the record, and writes."""

    modes = (Mode.X, Mode.X, Mode.S)

    def options(self, kit: SessionKit) -> dict[str, Any]:
        del kit
        return {}


def _stops(world: World, name: str, chance: random.Random) -> None:
    """Let a daemon stand still as a whole, at some time, while the others of its machine go on."""
    machine, span = world.machines[name], int(chance.choice((1, 3)) * chance.random() * SECOND)

    def begin() -> None:
        world.scheduler.note("  stands still:", f"{name} for {span / SECOND:.3f} s")
        machine.paused_until = max(machine.paused_until, world.scheduler.now + span)

    world.scheduler.call_at(world._some_time(chance.random()), begin)


def _waver(world: World) -> None:
    """Set the clock of the shard's machine to the other end of its bound: back, every second time."""
    clock = world.times[NODES[0]]
    wrong = clock.believed_ns() - world.scheduler.now
    clock.set_forward((-1 if wrong > 0 else 1) * clock.radius_ns * 9 // 10 - wrong)


def _borrower(
    desks: Desks, domains: tuple[str, ...], modes: tuple[Mode, ...], rounds: int
) -> Callable[..., Callable[[], object]]:
    return lambda process: Borrower(desks, process, domains, modes, rounds).run
