"""Everything that an operator does to a cluster, at once and at random, under holders of every kind."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from appliance.formats.lease import Mode
from tests.simulation.actors.bounded import Bounded, Outside
from tests.simulation.actors.cached import Caching
from tests.simulation.actors.crossing import Crossing
from tests.simulation.actors.governor import Governor, watched
from tests.simulation.actors.leading import OverLease
from tests.simulation.actors.lending import Borrower, Desks
from tests.simulation.actors.locking import Locking
from tests.simulation.actors.mover import Mover
from tests.simulation.actors.packer import Packing
from tests.simulation.actors.paths import PathTask
from tests.simulation.actors.recalled import Dozing, Obliging
from tests.simulation.actors.registrar import Registrar
from tests.simulation.actors.session import Application, Forgetful, Narrow, SessionKit, Sharing, keep
from tests.simulation.actors.street import Maps, Routes, Street
from tests.simulation.actors.tenant import Daemon, NodeHost
from tests.simulation.actors.together import Operator, Together, TogetherBesideOthers
from tests.simulation.casting import DOMAINS, is_brief, on_log
from tests.simulation.client import MountMishaps
from tests.simulation.cluster import LOGS, NODES
from tests.simulation.keyvalues import KeptStore
from tests.simulation.network import NetworkMishaps
from tests.simulation.scenarios_moves import LOOK_NS, fault, plan
from tests.simulation.scenarios_policies import KINDER, LONGER, SHORTER, STRICTER
from tests.simulation.scenarios_restarts import CLOCK_IS_SET, any_restart
from tests.simulation.scenarios_sharing import with_writer
from tests.simulation.scheduler import PAUSES, Mishaps
from tests.simulation.world import Conditions, World
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.scheduler import Process

SOME, CACHED, LENT = (*DOMAINS, "acct/3", "acct/4"), "acct/8", "acct/9"
LIES, EMBEDDED_LIES = (*("none",) * 5, "slight", "seconds", "steps"), ("none", "set", "set", "lie")
KINDS = (
    Application,
    Bounded,
    Dozing,
    Forgetful,
    Narrow,
    Obliging,
    Outside,
    Sharing,
    Sharing,
    Together,
    Together,
    TogetherBesideOthers,
)


def maintenance(seed: int, *, traced: bool = False) -> World:
    """Shards move, daemons are restarted, policies change, keys rotate, leases are revoked; much goes wrong besides."""
    chance = random.Random(f"{seed}/scenario")
    brief = is_brief(chance)
    embedded = chance.random() < 0.15
    conditions = Conditions(
        embedded=embedded,
        objects=chance.random() < 0.1,
        encoded=chance.random() < 0.1,
        lies=chance.choice(EMBEDDED_LIES if embedded else LIES),
        partitions=chance.random() < 0.15,
        outages=chance.random() < 0.1,
        delegations=chance.random() < 0.2,
        permissions=chance.random() < 0.05,
        shards=chance.choice((1, 2)),
        mishaps=Mishaps(crash=chance.choice((0, 0, 500)), pause=chance.choice((0, 40, 120)), pauses=PAUSES[:8]),
        mount=MountMishaps(failure=chance.choice((0, 0, 25)), lost_reply=chance.choice((0, 5))),
        network=NetworkMishaps(lost=chance.choice((0, 0, 20)), late=chance.choice((0, 10))),
        lasts_ns=(6 if brief else 12) * SECOND,
        steps_max=5_000 if brief else 12_000,
    )
    world = World(seed, conditions, traced=traced)
    world.scheduler.tempi = (0, 0, 1, 1)
    world.pace_ns = chance.choice((20, 60, 200)) * MS
    world.linger_ns = chance.choice((0, 100, 500, 3_000)) * MS
    world.records_change = True
    street = Street(world, NODES[: chance.choice((2, 3))])
    world.history.reliable = False
    world.history.asked_before_ns += PAUSES[7]
    world.history.alone = () if world.lying else ("outside", "locking")
    if chance.random() < 0.15:
        street.kept = KeptStore(world, chance.choice((0, 10, 30)))
    if chance.random() < 0.2:
        with_writer(world, NODES[3], 300 * MS, 1, restarts=2)
    domains_max = chance.choice((world.domains_max, world.domains_max, 2))
    world.domains_max, world.hint_bytes_max = domains_max, chance.choice((world.hint_bytes_max, 150))
    if chance.random() < 0.6:
        world.policy_of = watched
        changes = [chance.choice((SHORTER, LONGER, STRICTER, KINDER)) for _ in range(chance.choice((1, 2, 3)))]
        world.spawn(NODES[5], "governor", lambda process: Governor(world, process, changes).run)
    street.populate(lambda process: Daemon(street, process, LOOK_NS).run)
    world.routes_of = lambda kit: Routes(street, kit, Maps(kit), NodeHost(street, kit))
    _maintain(street, chance, moves=2 if brief else 3)
    if chance.random() < 0.5:
        world.spawn(NODES[4], "keeper", _keeper(world), restarts=2)
    for n in range(chance.choice((2, 3))):
        kind = chance.choice(KINDS)
        world.spawn(NODES[3 + n % 2], f"{kind.__name__.lower()} {n}", _client(world, kind), restarts=1)
    _accompany(world, chance)
    return world


def _maintain(street: Street, chance: random.Random, moves: int) -> None:
    """Draw what is done to the nodes that run shards, and to keys, and when."""
    world = street.world
    if chance.random() < 0.7:
        plans = [plan(street, chance.random(), chance.choice((1, 2, 3))) for _ in range(moves)]
        pace = chance.choice((100, 800)) * MS
        world.spawn(NODES[5], "mover", lambda process: Mover(street, process, plans, pace).run, restarts=9)
    if chance.random() < 0.3 and not world.lying:  # keys end by clocks
        Registrar(world, NODES[:5], chance.choice((1, 3)), street.take_up)
    for _ in range(chance.choice((0, 1, 2, 4))):
        kind = chance.random() * (1 if world.lying else CLOCK_IS_SET)  # some here count on clocks
        begin = any_restart(street, chance.choice(street.nodes), kind, chance.random())
        world.scheduler.call_at(world._some_time(chance.random()), begin)
    for _ in range(chance.choice((0, 0, 1, 2))):
        span = int((0.2 + 3 * chance.random()) * SECOND)
        begin = fault(street, chance.choice(street.nodes), span, chance.random())
        world.scheduler.call_at(world._some_time(chance.random()), begin)


def _accompany(world: World, chance: random.Random) -> None:
    """Draw who works beside the holders of leases."""
    others: dict[str, Callable[[Process], Callable[[], object]]] = {
        "crossing": lambda process: Crossing(world, process, DOMAINS, LOGS[0], 9).run,
        "task": lambda process: PathTask(world, process, 9).run,
        "caching": lambda process: Caching(world, process, CACHED, LOGS[0], 12).run,
        "packer": lambda process: Packing(world, process, LOGS[0], 8).run,
        "settler": on_log(world, "settler", LOGS[0], 6),
        "reader": on_log(world, "reader", LOGS[0], 6),
    }
    if chance.random() < 0.6 and not world.lying:  # both count on clocks
        desks = Desks(world)
        desks.begin(NODES[4], "daemon of n5", [2 * SECOND], alone=chance.random() < 0.7)
        for n in range(2):
            modes = chance.choice(((Mode.X,), (Mode.X, Mode.S)))
            world.spawn(NODES[4], f"borrower {n}", _borrower(desks, modes), restarts=1)
        world.spawn(
            NODES[3], "outside rival", lambda process: Outside(world, process, (LENT,), LOGS[:1], 9).run, restarts=1
        )
    else:  # what has been lent is over when it was to be, revoked or not
        others["operator"] = lambda process: Operator(world, process, 6).run
    if not world.lying:  # who leads, or is alone, goes by the clock
        names = tuple(f"candidate {n}" for n in range(3))
        others |= {each: lambda process: OverLease(world, process, names, 9).run for each in names[:2]}
        others |= {f"locking {n}": lambda process: Locking(world, process, 9, sizes=(2,)).run for n in range(2)}
    for name in chance.sample(sorted(others), chance.choice((0, 2, 3, 5))):
        world.spawn(chance.choice(NODES[2:]), name, others[name])


def _keeper(world: World) -> Callable[[Process], Callable[[], object]]:
    return lambda process: lambda: keep(SessionKit(world, process), DOMAINS[0], LOGS[0], 400 * MS)


def _client(world: World, kind: type[Application]) -> Callable[[Process], Callable[[], object]]:
    return lambda process: kind(world, process, SOME, LOGS[:1], 10**6).run


def _borrower(desks: Desks, modes: tuple[Mode, ...]) -> Callable[[Process], Callable[[], object]]:
    return lambda process: Borrower(desks, process, (LENT,), modes, 12).run
