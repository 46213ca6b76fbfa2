"""Scenarios of leases, shards and sessions. Each is filled in by its seed alone."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.actors.bank import Teller
from tests.simulation.actors.recalled import Dozing, Obliging
from tests.simulation.actors.session import Application, Forgetful, Regular, Sharing, Taker
from tests.simulation.actors.shard import ShardHost
from tests.simulation.actors.writer import Writer
from tests.simulation.casting import DOMAINS, interruptions, is_brief, on_log, some_logs
from tests.simulation.client import MountMishaps
from tests.simulation.cluster import LOGS, NODES
from tests.simulation.history import Death
from tests.simulation.mount import SimulatedMount
from tests.simulation.network import NetworkMishaps
from tests.simulation.scheduler import PAUSES, Mishaps, Process
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND


def leases(seed: int, *, traced: bool = False) -> World:
    """Shards, sessions and tellers over several domains and logs; crashes, pauses, partitions, clocks that lie."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    harsh = chance.random() < 0.7
    conditions = Conditions(
        short=chance.random() < 0.95,
        shards=chance.choice((1, 1, 1, 1, 2) if brief else (1, 1, 2)),
        real_keys=chance.random() < 0.01,
        encoded=chance.random() < 0.1,
        mishaps=Mishaps(
            crash=chance.choice((0, 300, 700)) if harsh else 0,
            pause=chance.choice((0, 100, 300)) if harsh else 0,
            pauses=PAUSES[: chance.choice((8, 10, 12, len(PAUSES)))],
        ),
        mount=MountMishaps(
            failure=chance.choice((0, 0, 40)) if harsh else 0,
            lost_reply=chance.choice((0, 8)),
            slow=chance.choice((0, 60)),
        ),
        network=NetworkMishaps(
            lost=chance.choice((0, 8, 30)) if harsh else 0,
            repeated=chance.choice((0, 6)),
            late=chance.choice((0, 8)),
        ),
        lies=chance.choice(("none", "none", "none", "none", "seconds", "steps", "hours")),
        partitions=chance.random() < 0.4,
        outages=chance.random() < 0.15,
        delegations=chance.random() < 0.3,
        permissions=chance.random() < 0.1,
        lasts_ns=chance.choice((3, 4, 6) if brief else (6, 10, 16)) * SECOND,
        steps_max=700 if brief else 6_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((100, 300)) * MS
    for shard in range(conditions.shards):
        for copy, node in enumerate(chance.sample(NODES[:4], chance.choice((1, 1, 2)))):
            orderly = chance.random() < 0.5
            world.spawn(
                node,
                f"shard {shard}{'ab'[copy]}",
                hosting(world, shard, orderly=orderly),
                restarts=9,
            )
    logs = some_logs(chance)
    shares = chance.random() < 0.5
    domains = DOMAINS[: chance.choice((2, 2, 3))]
    for n in range(chance.choice((2, 2, 3) if brief else (2, 3, 4))):
        kind = chance.choice((Application, Teller, Sharing, Sharing) if shares else (Application, Teller))
        rounds = chance.choice((1, 2, 3) if brief else (3, 5))
        world.spawn(
            chance.choice(NODES),
            f"{kind.__name__.lower()} {n}",
            applying(world, kind, domains, logs, rounds),
            restarts=2,
        )
    for n in range(chance.choice((0, 0, 1) if brief else (0, 1, 2))):
        kind_of = chance.choice(("metronome", "settler", "reader"))
        world.spawn(
            chance.choice(NODES),
            f"{kind_of} {n}",
            on_log(world, kind_of, chance.choice(logs), 6),
            restarts=1,
        )
    return world


def machines(seed: int, *, traced: bool = False) -> World:
    """Nodes that make their time themselves, from machine clocks that are set, sources that lie, clocks that stop."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        embedded=True,
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 600)), pause=chance.choice((0, 60, 200)), pauses=PAUSES[: chance.choice((5, 9))]
        ),
        network=NetworkMishaps(lost=chance.choice((0, 30)), late=chance.choice((0, 20))),
        lies=chance.choice(("none", "set", "set", "set", "lie")),
        lasts_ns=chance.choice((3, 4) if brief else (5, 8)) * SECOND,
        steps_max=1_200 if brief else 6_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((50, 200)) * MS
    world.spawn(NODES[0], "shard 0a", hosting(world, 0, orderly=chance.random() < 0.3), restarts=2)
    for n in range(1 if brief else 2):
        kind = chance.choice((Application, Teller, Forgetful))
        world.spawn(NODES[1 + n], f"{kind.__name__.lower()} {n}", applying(world, kind, DOMAINS[:2], LOGS[:1], 3))
    world.spawn(NODES[3], "writer", lambda process: Writer(world, process, LOGS[:1], 3).run, restarts=1)
    kind_of = chance.choice(("metronome", "settler", "closer", "sealer"))
    world.spawn(NODES[4], kind_of, on_log(world, kind_of, LOGS[0], 3), restarts=1)
    return world


def shares(seed: int, *, traced: bool = False) -> World:
    """Holders of all modes on one domain, who read and write one log; they stall, and let leases run out."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        interrupted_once_in=interruptions(seed),
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 400)), pause=chance.choice((0, 60, 150)), pauses=PAUSES[: chance.choice((6, 9))]
        ),
        mount=MountMishaps(failure=chance.choice((0, 0, 20))),
        network=NetworkMishaps(lost=chance.choice((0, 20)), late=chance.choice((0, 10))),
        lies=chance.choice(("none", "none", "slight", "seconds")),
        lasts_ns=chance.choice((3, 5) if brief else (6, 9)) * SECOND,
        steps_max=900 if brief else 4_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((20, 80)) * MS
    world.linger_ns = chance.choice((0, 200)) * MS
    world.spawn(NODES[0], "shard 0a", hosting(world, 0, orderly=chance.random() < 0.3), restarts=3)
    log = (chance.choice(LOGS),)
    for n in range(3 if brief else 4):
        world.spawn(NODES[1 + n], f"sharing {n}", applying(world, Sharing, DOMAINS[:1], log, 4), restarts=1)
    return world


def recalls(seed: int, *, traced: bool = False) -> World:
    """Sessions that answer recalls and keep leases between uses, beside some that do not; one domain or two."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        interrupted_once_in=interruptions(seed),
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 500)), pause=chance.choice((0, 0, 120)), pauses=PAUSES[: chance.choice((7, 11))]
        ),
        mount=MountMishaps(failure=chance.choice((0, 0, 25)), lost_reply=chance.choice((0, 8))),
        network=NetworkMishaps(
            lost=chance.choice((0, 0, 20)), repeated=chance.choice((0, 6)), late=chance.choice((0, 10))
        ),
        lies=chance.choice(("none", "none", "none", "slight", "seconds")),
        lasts_ns=chance.choice((4, 5) if brief else (6, 9)) * SECOND,
        steps_max=1_200 if brief else 5_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((20, 100)) * MS
    world.linger_ns = chance.choice((0, 200)) * MS
    world.spawn(NODES[0], "shard 0a", hosting(world, 0, orderly=chance.random() < 0.4), restarts=3)
    domains = DOMAINS[: chance.choice((1, 1, 2))]
    for n in range(2 if brief else 3):
        kind = chance.choice((Obliging, Dozing))
        client = applying(world, kind, domains, LOGS[:1], 5 if brief else 9)
        world.spawn(NODES[1 + n], f"{kind.__name__.lower()} {n}", client, restarts=1)
    if chance.random() < 0.4:
        world.spawn(NODES[4], "application 0", applying(world, Application, domains, LOGS[:1], 3))
    return world


def contenders(seed: int, *, traced: bool = False) -> World:
    """One shard that several nodes want to run, one incarnation after the other; a few sessions on two domains."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 400)),
            pause=chance.choice((0, 40, 120)),
            pauses=PAUSES[: chance.choice((6, 8, 10))],
        ),
        mount=MountMishaps(failure=chance.choice((0, 0, 25)), lost_reply=chance.choice((0, 5))),
        network=NetworkMishaps(lost=chance.choice((0, 20)), late=chance.choice((0, 10))),
        lies=chance.choice(("none", "slight", "slight", "seconds", "steps")),
        lasts_ns=chance.choice((3, 4) if brief else (5, 8)) * SECOND,
        steps_max=700 if brief else 5_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((20, 60)) * MS
    world.linger_ns = chance.choice((0, 200, 800)) * MS
    for copy, node in enumerate(chance.sample(NODES[:4], chance.choice((2, 2, 3)))):
        orderly = chance.random() < 0.6
        world.spawn(node, f"shard 0{'abc'[copy]}", hosting(world, 0, orderly=orderly), restarts=9)
    rounds = 3 if brief else 6
    for n in range(chance.choice((1, 2, 2) if brief else (2, 3))):
        kind = chance.choice((Application, Application, Teller))
        world.spawn(
            chance.choice(NODES), f"{kind.__name__.lower()} {n}", applying(world, kind, DOMAINS[:2], LOGS[:1], rounds)
        )
    return world


def stalls(seed: int, *, traced: bool = False) -> World:
    """Holders that stand still for longer than their terms, and a mount that leaves them in doubt."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        mishaps=Mishaps(
            crash=chance.choice((0, 0, 400)),
            pause=chance.choice((0, 60, 120)),
            pauses=PAUSES[4 : chance.choice((9, 11))],
        ),
        mount=MountMishaps(lost_reply=chance.choice((0, 8))),
        network=NetworkMishaps(lost=chance.choice((0, 30))),
        lies=chance.choice(("none", "slight", "slight")),
        lasts_ns=chance.choice((4, 6) if brief else (6, 9, 12)) * SECOND,
        steps_max=700 if brief else 4_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((20, 60)) * MS
    world.linger_ns = chance.choice((0, 200, 800)) * MS
    mishaps = MountMishaps(failure=chance.choice((0, 3, 12)))
    for node in NODES[1:4]:
        world.mounts[node] = SimulatedMount(world.server, f"{node} in doubt", mishaps)
    if chance.random() < 0.3:
        world.lying = True
        world.times[NODES[4]].set_forward(int((1 + 3 * chance.random()) * SECOND))
        world.spawn(NODES[4], "closer 0", on_log(world, chance.choice(("metronome", "closer")), LOGS[0], 12))
    world.spawn(NODES[0], "shard 0a", hosting(world, 0, orderly=False), restarts=9)
    logs = some_logs(chance)
    rounds = 3 if brief else 8
    for n in range(2 if brief else 3):
        kind = chance.choice((Application, Teller, Forgetful))
        world.spawn(
            NODES[1 + n], f"{kind.__name__.lower()} {n}", applying(world, kind, DOMAINS[:2], logs, rounds), restarts=2
        )
    return world


def sleepers(seed: int, *, traced: bool = False) -> World:
    """Holders that fall asleep for seconds between any two steps, and never renew; two logs; nobody closes ahead."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    lasts_ns = (9 if brief else 18) * SECOND
    conditions = Conditions(lies=chance.choice(("none", "none", "slight")), lasts_ns=lasts_ns, steps_max=5_000)
    world = World(seed, conditions, traced=traced)
    world.pace_ns = chance.choice((20, 200)) * MS
    world.spawn(NODES[0], "shard 0a", hosting(world, 0, orderly=False))
    world.scheduler.mishaps = Mishaps(pause=chance.choice((80, 150, 300)), pauses=PAUSES[9:11])
    for n in range(2 if brief else 3):
        client = applying(world, Forgetful, DOMAINS[:1], LOGS, 4 if brief else 9)
        world.spawn(NODES[1 + n], f"forgetful {n}", client, restarts=2)
    return world


def deaths(seed: int, *, traced: bool = False) -> World:
    """Honest clocks and nothing amiss, but that a holder dies, or the shard: who waits, and how long."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    world = World(seed, Conditions(lasts_ns=(9 if brief else 14) * SECOND, steps_max=6_000), traced=traced)
    world.pace_ns = (900 if brief else 500) * MS
    world.scheduler.tempi = (0,)
    hosts: list[Process] = []
    victims: list[Process] = []

    def host(process: Process) -> Callable[[], object]:
        hosts.append(process)
        return ShardHost(world, process, 0, orderly=False).run

    def victim(process: Process) -> Callable[[], object]:
        victims.append(process)
        return Regular(world, process, DOMAINS[0], LOGS[0], victim=True).run

    world.spawn(NODES[0], "shard 0a", host, restarts=1)
    world.spawn(NODES[1], "victim", victim)
    for n in range(2 if brief else 3):
        world.spawn(NODES[2 + n], f"regular {n}", _regular(world, DOMAINS[n]))
    what = chance.choice(("holder died", "holder died", "shard died"))

    def kill() -> None:
        dies = (victims if what == "holder died" else hosts)[0]
        world.history.deaths.append(Death(dies, world.scheduler.now, what))
        world.scheduler.crash(dies)

    world.scheduler.call_at(world.scheduler.now + int((1 + 2 * chance.random()) * SECOND), kill)
    return world


def takers(seed: int, *, traced: bool = False) -> World:
    """Honest clocks; somebody dies who has one of two domains tentatively and waits for the other: for how long?"""
    chance = random.Random(f"{seed}/scenario")
    world = World(seed, Conditions(short=False, lasts_ns=14 * SECOND, steps_max=6_000), traced=traced)
    world.pace_ns = 400 * MS
    world.scheduler.tempi = (0,)
    dying: list[Process] = []

    def taker(process: Process) -> Callable[[], object]:
        dying.append(process)
        return Taker(world, process, DOMAINS[:2]).run

    world.spawn(NODES[0], "shard 0a", hosting(world, 0, orderly=False))
    world.spawn(NODES[1], "sitter", lambda process: Regular(world, process, DOMAINS[1], LOGS[0], victim=True).run)
    world.spawn(NODES[2], "taker", taker)
    world.spawn(NODES[3], "regular 0", _regular(world, DOMAINS[0]))
    world.spawn(NODES[4], "regular 2", _regular(world, DOMAINS[2]))

    def kill() -> None:
        world.history.deaths.append(Death(dying[0], world.scheduler.now, "taker died", DOMAINS[0]))
        world.scheduler.crash(dying[0])

    world.scheduler.call_at(world.scheduler.now + int((1.5 + 2 * chance.random()) * SECOND), kill)
    return world


def _regular(world: World, domain: str) -> Callable[..., Callable[[], object]]:
    return lambda process: Regular(world, process, domain, LOGS[0], victim=False).run


def handover(seed: int, *, traced: bool = False) -> World:
    """Honest clocks, one shard, holders that let their leases run out: every hand-over is at the expiry."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    conditions = Conditions(
        mishaps=Mishaps(pause=chance.choice((0, 100)), pauses=PAUSES[:9]),
        network=NetworkMishaps(lost=chance.choice((0, 20)), late=chance.choice((0, 10))),
        lasts_ns=(5 if brief else 10) * SECOND,
        steps_max=4_000,
    )
    world = World(seed, conditions, traced=traced)
    world.pace_ns = (200 if brief else 50) * MS
    world.spawn(NODES[0], "shard 0a", hosting(world, 0, orderly=False))
    for n in range(2 if brief else 3):
        world.spawn(NODES[1 + n], f"application {n}", applying(world, Forgetful, DOMAINS[:1], LOGS[:1], 6))
    return world


def hosting(world: World, shard: int, *, orderly: bool) -> Callable[..., Callable[[], object]]:
    return lambda process: ShardHost(world, process, shard, orderly=orderly).run


def applying(
    world: World, kind: type[Application | Teller], domains: tuple[str, ...], logs: tuple[str, ...], rounds: int
) -> Callable[..., Callable[[], object]]:
    return lambda process: kind(world, process, domains, logs, rounds).run
