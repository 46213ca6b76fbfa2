"""One run: a cluster of simulated machines, the actors of a scenario, their faults, and what was said."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.bag.roots import PlacedStorage
from appliance.lease.domain import HINT_BYTES_MAX
from appliance.lease.shard import DOMAINS_MAX
from tests.simulation.afterwards import read_afterwards
from tests.simulation.client import MountMishaps
from tests.simulation.clocks import SimulatedTime
from tests.simulation.cluster import NODES, T0, founded
from tests.simulation.history import History
from tests.simulation.interruptions import interrupted
from tests.simulation.machine import MachineNode, SimulatedMachine
from tests.simulation.mount import SimulatedMount
from tests.simulation.network import NO_NETWORK_MISHAPS, Network, NetworkMishaps
from tests.simulation.objects import SimulatedObjects
from tests.simulation.scheduler import Machine, Mishaps, Process, Scheduler
from tests.simulation.server import Server
from tests.simulation.trace import told
from timeagent.errors import TenureError
from timeagent.keys import Purpose
from timeagent.units import HOUR, MINUTE, MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from appliance.bag.ports import Storage
    from appliance.formats.policy import PolicyNumbers
    from appliance.formats.shardmap import ShardMap
    from appliance.node.writer_client import WriterDoor
    from appliance.session.held import Routes
    from tests.simulation.actors.processes import Kit
    from timeagent.units import Instant, Span


NO_MISHAPS = Mishaps()
NO_MOUNT_MISHAPS = MountMishaps()


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a run is like; everything else follows from its seed."""

    short: bool = True
    patient: bool = False
    """Whether the first policy, and with it every log, lets bags stay open for long."""
    untuned: bool = False
    """Whether the policy is the one of a cluster that nobody has tuned."""
    nodes: tuple[str, ...] = NODES
    shards: int = 1
    real_keys: bool = False
    encoded: bool = False
    mishaps: Mishaps = NO_MISHAPS
    mount: MountMishaps = NO_MOUNT_MISHAPS
    network: NetworkMishaps = NO_NETWORK_MISHAPS
    lies: str = "none"
    """How wrong the clocks are: none, slight, seconds, hours, steps; closers: the scenario sets them."""
    partitions: bool = False
    outages: bool = False
    embedded: bool = False
    """Whether nodes run the production EmbeddedTime over simulated machine clocks."""
    delegations: bool = False
    objects: bool = False
    """Whether the root is in an object store."""
    placed: tuple[str, ...] = ()
    """The logs that are in another store: an object store if the root is none, else another file server."""
    astray: str = ""
    """The node that finds another, empty store under that name."""
    interrupted_once_in: int = 0
    """In how many lines of what threads share one of them is interrupted; 0: never."""
    interrupted_daemons: bool = False
    permissions: bool = False
    """Whether somebody takes write permissions away for a while."""
    lasts_ns: Span = 8 * SECOND
    starts_ns: Span | None = None
    """After the start of a rack; the middle of it if left out."""
    steps_max: int = 6_000


@contextmanager
def silence() -> Iterator[None]:
    """Let errors alone be logged; who makes many runs says it once, around them all: every logger hears of it."""
    before = logging.root.manager.disable
    if before >= logging.WARNING:
        yield
        return
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


class LoggedBugs(logging.Handler):
    """Takes for a bug what code under test raises, logs and survives: a thread that goes on hides what went wrong.

    But not a refusal that an actor's listener lets through, as an application's may: it was refused in the actor's own
    call. Nor what happens between a death and the next port: of that nobody hears.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def emit(self, record: logging.LogRecord) -> None:
        problem = record.exc_info[1] if record.exc_info else None
        of_listener = record.msg.partition(" ")[0].endswith("listener-failed") and isinstance(problem, TenureError)
        actor = self._scheduler.current
        dies = actor is not None and (self._scheduler.stopping or actor.process.dead)
        if problem is not None and not of_listener and not dies:
            who = "-" if actor is None else actor.name
            self._scheduler.bugs.append(f"{who} goes on after {self.format(record)}")

    @contextmanager
    def listening(self) -> Iterator[None]:
        logging.root.addHandler(self)
        try:
            yield
        finally:
            logging.root.removeHandler(self)


class Mounts(dict[str, "SimulatedMount | SimulatedObjects"]):
    """The mounts of a world's machines, by node: each is made when it is first used."""

    def __init__(self, world: World, *, elsewhere: bool = False) -> None:
        """``elsewhere``: of the store that is not the root."""
        super().__init__()
        self._world = world
        self._elsewhere = elsewhere

    def __missing__(self, node: str) -> SimulatedMount | SimulatedObjects:
        world, conditions = self._world, self._world.conditions
        kind = SimulatedObjects if conditions.objects is not self._elsewhere else SimulatedMount
        server, name = (world.elsewhere, f"{node} elsewhere") if self._elsewhere else (world.server, node)
        if self._elsewhere and node == conditions.astray:
            server = Server(world.scheduler)
        mount = self[node] = kind(server, name, conditions.mount)
        mount.machine = self._world.machines[node]
        return mount


class World:
    """Machines n1 to n6, or others, on one file server."""

    def __init__(self, seed: int, conditions: Conditions, *, traced: bool = False) -> None:
        self.seed = seed
        self.conditions = conditions
        self.founded = founded(
            short=conditions.short,
            shards=conditions.shards,
            real=conditions.real_keys,
            patient=conditions.patient,
            untuned=conditions.untuned,
            nodes=conditions.nodes,
            placed=conditions.placed,
        )
        self.policy = self.founded.policy
        starts = self.policy.rack_ns // 2 if conditions.starts_ns is None else conditions.starts_ns
        start: Instant = T0 + starts
        self.keys = {node: dict(keys) for node, keys in self.founded.keys.items()}
        """What each node signs with."""
        self.scheduler = Scheduler(
            seed, start_ns=start, end_ns=start + conditions.lasts_ns, steps_max=conditions.steps_max, traced=traced
        )
        self.scheduler.mishaps = conditions.mishaps
        self.history = History()
        self.server = Server(self.scheduler)
        self.server.copy_from(self.founded.server)
        self.server.delegates = conditions.delegations
        self.server.lease_ns = 2 * SECOND
        self.elsewhere = Server(self.scheduler)
        self.elsewhere.copy_from(self.founded.elsewhere)
        self.network = Network(self.scheduler, conditions.network, encoded=conditions.encoded)
        self.history.asked = self.network.asked
        self.machines = {name: Machine(name) for name in conditions.nodes}
        self.lying = False
        """Whether any clock's interval ever failed to hold true time."""
        chance = self.scheduler.stream("clocks")
        self.times = {
            name: self._time(name, chance.random() * 2 - 1, chance.randint(-150, 150)) for name in conditions.nodes
        }
        self.mounts, self.stores = Mounts(self), Mounts(self, elsewhere=True)
        self.server.clock_offset_ns = int((chance.random() * 2 - 1) * 30 * MS)
        self._numbers = 0
        self.linger_ns: Span = 0
        """How long holders take between two messages, at most."""
        self.rotting = False
        """Whether packs are altered on their way: whoever reads one may report damage."""
        self.map = self.founded.map
        """What clients go by: the newest map that was published."""
        self.pace_ns: Span = self.policy.span_ns
        self.door_of: Callable[[Kit], WriterDoor] | None = None
        """How a process reaches the writer of its node, where the scenario has such writers."""
        self.routes_of: Callable[[Kit], Routes] | None = None
        """How a process reaches the shards, where it has to find out which node runs them."""
        self.policy_of: Callable[[Kit], PolicyNumbers] | None = None
        """What a process goes by, where the policy changes."""
        self.records_change = False
        """Whether policies or trust records come while processes work, which look for them."""
        self.sessions: list[object] = []
        """The sessions of all processes: each is part of cycles."""
        self.hint_bytes_max = HINT_BYTES_MAX
        """How much a shard remembers of where messages are."""
        self.domains_max = DOMAINS_MAX
        """How many domains a shard remembers."""
        self._plan_lies()
        self._plan_outages()

    def number(self) -> int:
        """Return a number that this run has not used."""
        self._numbers += 1
        return self._numbers

    def published(self, newest: ShardMap) -> None:
        """Note a map that is there: whoever linked it may have been told that this failed, or have died."""
        if newest.number > self.map.number:
            self.map = newest
            self.history.learn(newest)
            self.scheduler.note("published:", f"map {newest.number}: {newest.shards}")

    def storage_of(self, node: str) -> Storage:
        """Return what a new process of a machine works on."""
        root = told(self.mounts[node])
        return PlacedStorage(root, lambda _: told(self.stores[node])) if self.conditions.placed else root

    @property
    def mount_faults(self) -> int:
        """How often a mount, or a store, has misbehaved."""
        return sum(mount.failures + mount.repeats for mount in (*self.mounts.values(), *self.stores.values()))

    def process(self, node: str, name: str) -> Process:
        """Begin a process on a machine, without actors yet."""
        process = Process(self.machines[node], name)
        process.clock = self.times[node]
        self.machines[node].processes.append(process)
        return process

    def spawn(
        self, node: str, name: str, begin: Callable[[Process], Callable[[], object]], *, restarts: int = 0
    ) -> None:
        """Run an actor in a process of its own; after a crash run it again, as a new process of the same machine."""
        process = self.process(node, name)

        def again() -> None:
            delay = int(self.scheduler.stream(f"restart {self.number()}").random() * 2 * SECOND)
            self.scheduler.call_at(
                self.scheduler.now + delay, lambda: self.spawn(node, name, begin, restarts=restarts - 1)
            )

        if restarts:
            process.on_death.append(again)
        self.scheduler.spawn(name, process, begin(process))

    def forget(self) -> None:
        """Let go of a run that has been judged: most of it is freed at once, and needs no collector to be found."""
        self.scheduler.forget()
        self.server.delegations.clear()
        for machine in self.machines.values():
            machine.forget()
        for session in self.sessions:
            vars(session).clear()
        self.__dict__.clear()

    # -- clocks --------------------------------------------------------------------------------------------------------

    def _time(self, name: str, bias: float, drift_ppm: int) -> SimulatedTime | MachineNode:
        radius = min(20 * MS, self.policy.radius_ns_max // 2)
        if self.conditions.embedded:
            machine = SimulatedMachine(self.scheduler, name, offset_ns=int(bias * SECOND), drift_ppm=drift_ppm)
            return MachineNode(
                self.history,
                name,
                machine,
                self.keys[name][Purpose.TIME],
                radius_ns=radius,
                radius_ns_max=self.policy.radius_ns_max,
                edge=-1 if bias < 0 else 1,
            )
        return SimulatedTime(
            self.scheduler,
            self.keys[name][Purpose.TIME],
            offset_ns=int(bias * radius * 0.8),
            drift_ppm=drift_ppm if self.conditions.lasts_ns < MINUTE else drift_ppm // 50,
            radius_ns=radius,
        )

    def _plan_lies(self) -> None:
        lies = self.conditions.lies
        if lies == "none":
            return
        self.lying = True
        if lies == "closers":
            return  # the scenario sets them
        if self.conditions.embedded:
            self._plan_machines(lies)
            return
        chance = self.scheduler.stream("lies")
        far: dict[str, Span] = {"slight": 200 * MS, "seconds": 4 * SECOND, "steps": 4 * SECOND, "hours": 6 * HOUR}
        for name in self.conditions.nodes:
            if chance.random() < (0.2 if lies == "slight" else 0.6):
                continue
            clock = self.times[name]
            amount = int((chance.random() * 2 - 1) * far[lies])
            if lies != "steps":
                clock.set_forward(amount)
                continue
            for _ in range(chance.choice((1, 1, 2, 3))):
                self.scheduler.call_at(self._some_time(chance.random()), self._stepper(name, amount, chance.random()))

    def _plan_machines(self, lies: str) -> None:
        """Set clocks, which who looks at them notices; or, if they lie, let sources lie and machines stand still."""
        chance = self.scheduler.stream("lies")
        self.lying = lies != "set"
        for clock in self.times.values():
            assert isinstance(clock, MachineNode)
            for _ in range(chance.choice((0, 2, 20))):
                amount = int((chance.random() * 2 - 1) ** 9 * 100 * SECOND)
                self.scheduler.call_at(self._some_time(chance.random()), self._setter(clock, amount))
            if self.lying and chance.random() < 0.5:
                amount = int((chance.random() * 2 - 1) * 3 * SECOND)
                self.scheduler.call_at(self._some_time(chance.random()), self._liar(clock, amount, chance.random()))

    def _setter(self, clock: MachineNode, amount: Span) -> Callable[[], None]:
        def step() -> None:
            self.scheduler.note("  CLOCK_REALTIME is set:", f"{clock.name} by {amount / SECOND:.3f} s")
            clock.set_forward(amount)

        return step

    def _liar(self, clock: MachineNode, amount: Span, kind: float) -> Callable[[], None]:
        def begin() -> None:
            if kind < 0.4:
                self.scheduler.note("  a time source lies:", f"{clock.name} by {amount / SECOND:.3f} s")
                clock.lie(amount)
            elif kind < 0.8:
                self.scheduler.note("  clocks stand still:", f"{clock.name} for {abs(amount) / SECOND:.3f} s")
                self._stop(clock.name, abs(amount), right=True)
            else:
                self.scheduler.note("  a time source is silent:", clock.name)
                clock.silent = True

        return begin

    def _stepper(self, name: str, amount: Span, kind: float) -> Callable[[], None]:
        clock = self.times[name]

        def step() -> None:
            self.scheduler.note("  a clock is set", f"by {amount / SECOND:.3f} s, {kind:.2f}")
            if kind < 0.5:
                clock.set_forward(amount)
            elif kind < 0.7:
                clock.silent = not clock.silent
            elif kind < 0.85:
                self._stop(name, abs(amount), right=kind < 0.75)
            else:
                clock.set_forward(-amount // 2)

        return step

    def _stop(self, name: str, span: Span, *, right: bool) -> None:
        """Let a node's clocks stand still; ``right``: whether they go on from what they would show."""
        clock, now = self.times[name], self.scheduler.now
        clock.freeze()
        self.history.stops.append((name, now, span))
        self.scheduler.call_at(now + span, lambda: clock.thaw(right=right))

    def _some_time(self, where: float) -> Instant:
        return self.scheduler.start_ns + int(where * self.conditions.lasts_ns)

    # -- outages -------------------------------------------------------------------------------------------------------

    def _plan_outages(self) -> None:
        if not (self.conditions.outages or self.conditions.permissions or self.conditions.partitions):
            return
        chance = self.scheduler.stream("outages")
        if self.conditions.outages:
            for _ in range(chance.choice((0, 1, 1, 2))):
                at, outage = self._some_time(chance.random()), chance.random()
                self.scheduler.call_at(at, self._outage(outage, chance.choice(self.conditions.nodes)))
        if self.conditions.permissions:
            for _ in range(chance.choice((1, 2))):
                self.scheduler.call_at(self._some_time(chance.random()), self._chmod(chance.random()))
        if self.conditions.partitions:
            for _ in range(chance.choice((1, 2, 3))):
                pair = chance.sample(self.conditions.nodes, 2)
                self.scheduler.call_at(self._some_time(chance.random()), self._cut(pair[0], pair[1], chance.random()))

    def _outage(self, share: float, node: str) -> Callable[[], None]:
        span = int(share**2 * 4 * SECOND)
        there = bool(self.conditions.placed) and share * 10 % 1 < 0.5
        server, mounts = (self.elsewhere, self.stores) if there else (self.server, self.mounts)

        def begin() -> None:
            if share < 0.4:
                self.scheduler.note("  the file server is away for", f"{span / SECOND:.3f} s")
                server.away_until = self.scheduler.now + span
            else:
                self.scheduler.note("  is cut off from the file server:", f"{node} for {span / SECOND:.3f} s")
                mounts[node].cut_until = self.scheduler.now + span

        return begin

    def _chmod(self, share: float) -> Callable[[], None]:
        """Take the write permission of a directory of a log, or of a file in it, away for a while."""

        def begin() -> None:
            paths = sorted(path for path in self.server.directories if path.startswith("logs/"))
            path = paths[int(share * len(paths))]
            names = self.server.directories[path]
            files = sorted(name for name, file in names.items() if file is not None)
            if files and share * 1_000 % 2 > 1:
                path = f"{path}/{files[-1]}"
            self.scheduler.note("  may not be written to for a while:", path)
            self.server.chmod(path, writable=False)
            until = self.scheduler.now + int((share * 100 % 1) * 2 * SECOND)
            self.scheduler.call_at(until, lambda: self.server.chmod(path, writable=True))

        return begin

    def _cut(self, source: str, target: str, share: float) -> Callable[[], None]:
        def begin() -> None:
            until = self.scheduler.now + int(share * 5 * SECOND)
            self.network.cut[source, target] = until
            if share < 0.5:
                self.network.cut[target, source] = until
            self.scheduler.note("  the network is cut:", f"{source} -> {target} until {until}")

        return begin

    # -- the run -------------------------------------------------------------------------------------------------------

    def _interrupted(self) -> AbstractContextManager[None]:
        once_in, daemons = self.conditions.interrupted_once_in, self.conditions.interrupted_daemons
        return interrupted(self.scheduler, once_in, daemons=daemons) if once_in else nullcontext()

    def run(self) -> History:
        with silence(), LoggedBugs(self.scheduler).listening(), self._interrupted():
            self.scheduler.run()
        self.server.join(self.elsewhere)
        scheduler = self.scheduler
        self.history.ended_ns = scheduler.now if scheduler.steps >= scheduler.steps_max else scheduler.end_ns
        with silence():
            read_afterwards(self)
        return self.history
