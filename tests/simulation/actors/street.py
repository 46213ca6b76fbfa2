"""Between nodes that run shards: their doors, and the production routes and map watch over the simulated network.

Real: which node is asked for a shard, who is asked next when that one does not answer, what a probe makes of an answer,
and how a new map is taken up. Simulated: the lines, which lose, delay and repeat, and the doors. A call comes to a
node's door, and there to the shard, if that runs there; else it is refused as ``not-here`` by whoever is alive there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import apsw

from appliance.daemon.failover import CHECK_NS
from appliance.node.record_watch import MapWatch
from appliance.node.routes import OwnShard, ShardRoutes
from tests.simulation.history import Calm, Fault
from tests.simulation.network import NO_NETWORK_MISHAPS, Endpoint, SimulatedTransport, refuse
from tests.simulation.scheduler import NEVER, Machine, Process
from timeagent.errors import TenureError
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from appliance.lease.transport import Transport
    from appliance.node.shards import ShardHost
    from tests.simulation.actors.processes import Kit
    from tests.simulation.keyvalues import KeptStore
    from tests.simulation.network import Call
    from tests.simulation.scheduler import Actor
    from tests.simulation.world import World
    from timeagent.keys import KeyInUse, Purpose, Signer
    from timeagent.units import Instant, Span

type Files = dict[tuple[Machine, int], tuple[apsw.Connection, str]]
"""The files of shards on the tmpfs of machines, each with what tells it from a copy."""

LOOK_AGAIN_NS: Span = 100 * MS
MISSED_S = 4


@dataclass(eq=False, slots=True)
class Door:
    """Where one run of a node's daemon is asked: one place for each shard, whether or not it runs there."""

    node: str
    host: ShardHost
    asked_for: Callable[[int], None]
    places: dict[int, Endpoint] = field(default_factory=dict)
    place_of: Callable[[int], Endpoint] | None = None
    """Makes the place of a shard that nobody has asked for yet; None while the door is not open."""

    def place(self, shard: int) -> Endpoint | None:
        if shard not in self.places and self.place_of is not None:
            self.places[shard] = self.place_of(shard)
        return self.places.get(shard)


class Street:
    """The nodes that run shards, and what is wrong with them."""

    def __init__(self, world: World, nodes: tuple[str, ...]) -> None:
        self.world = world
        self.nodes = nodes
        self.doors: dict[str, Door] = {}
        """Of those that are up."""
        self.sockets: dict[tuple[str, int], Endpoint] = {}
        """Where applications answer for a shard that they run, on their own machine alone."""
        self.locks: dict[tuple[Machine, int], Process] = {}
        """Who has the lock on a machine's tmpfs by which it runs a shard."""
        self.files: Files = {}
        self.kept: KeptStore | None = None
        """What keeps the turns of shards; None: nothing does."""
        self.boots: dict[Machine, str] = {}
        """Of machines that have begun anew."""
        self.keys_in_use: list[tuple[str, Purpose, KeyInUse]] = []
        """What processes sign with that take a next key up without being started again."""
        self.clones: list[Door] = []
        """The doors of cloned machines: who looks for their node may come there."""
        self.told: dict[Process, Callable[[], object]] = {}
        """The daemons that are to stop for a restart, and what is done when one has."""
        self._down: dict[str, Fault] = {}
        self._daemons: dict[str, Process] = {}
        self._begin: Callable[[Process], Callable[[], object]] = lambda _: lambda: None
        self._gone: set[str] = set()
        world.history.answering = nodes
        world.history.reliable = world.conditions.network == NO_NETWORK_MISHAPS
        world.history.learn(world.map)

    # -- nodes come and go ---------------------------------------------------------------------------------------------

    def populate(self, begin: Callable[[Process], Callable[[], object]]) -> None:
        """Begin a daemon on every node."""
        self._begin = begin
        for node in self.nodes:
            self._fails(node, "down", NEVER)
            self._start(node)

    def _start(self, node: str) -> None:
        process = self._daemons[node] = self.world.process(node, f"node {node}")
        self.world.scheduler.spawn(process.name, process, self._begin(process))

    def _fails(self, node: str, what: str, until: Instant) -> Fault:
        fault = Fault(node, what, self.world.scheduler.now, until)
        self.world.history.faults.append(fault)
        if what == "down":
            self._down[node] = fault
        return fault

    def opens(self, door: Door, process: Process) -> None:
        """Note that a node answers from now on, or the clone of one."""
        if process is not self._daemons[door.node]:
            self.clones.append(door)
            process.on_death.append(lambda: self.clones.remove(door))
            return
        self.doors[door.node] = door
        self._down.pop(door.node).until_ns = self.world.scheduler.now

    def restart(self, node: str, span: Span, between: Callable[[], object] = lambda: None) -> None:
        """Tell a daemon to stop for a restart; begin it again so long after it has. ``between``: done before that."""
        process = self._daemons[node]
        if process.dead or process in self.told:
            return
        stopping = self._fails(node, "stopping", NEVER)

        def stopped() -> None:
            between()
            self.kill(node, span)

        def over() -> None:
            stopping.until_ns = self.world.scheduler.now

        process.on_death.append(over)
        self.told[process] = stopped

    def stopped(self, process: Process) -> None:
        """Take note that a daemon has stopped, and end its process."""
        self.world.scheduler.call_at(self.world.scheduler.now, self.told[process])

    def clone(self, node: str) -> None:
        """Let another machine go on that has all that one of a node has on its tmpfs, its clocks and its keys."""
        own = self._daemons[node].machine
        twin = Machine(node)
        self.world.history.clones.setdefault(node, self.world.scheduler.now)
        for (machine, shard), (connection, name) in list(self.files.items()):
            if machine is own:
                copy = apsw.Connection(":memory:")
                copy.deserialize("main", connection.serialize("main"))
                self.files[twin, shard] = copy, name
        process = Process(twin, f"clone of {node}")
        process.clock = self.world.times[node]
        twin.processes.append(process)
        self.world.scheduler.spawn(process.name, process, self._begin(process))

    def kill(self, node: str, span: Span | None) -> None:
        """Let a daemon die, and begin again after a while; None: never."""
        scheduler = self.world.scheduler
        process = self._daemons[node]
        if process.dead:
            return
        if node not in self._down:
            self._fails(node, "down", NEVER)
        self.doors.pop(node, None)
        scheduler.crash(process)
        if span is None:
            self._gone.add(node)
        else:
            scheduler.call_at(scheduler.now + span, lambda: self._start(node))

    def pause(self, node: str, span: Span) -> None:
        """Let a machine stand still."""
        until = self.world.scheduler.now + span
        self._fails(node, "paused", until)
        machine = self.world.machines[node]
        machine.paused_until = max(machine.paused_until, until)

    def cut(self, node: str, span: Span, direction: str) -> None:
        """Cut a node off from all others: what it says, what it hears, or both."""
        until = self.world.scheduler.now + span
        self._fails(node, "cut", until)
        cut = self.world.network.cut
        for other in self.world.machines:
            if other == node:
                continue
            ways = {"says": [(node, other)], "hears": [(other, node)]}.get(direction, [(node, other), (other, node)])
            for way in ways:
                cut[way] = max(cut.get(way, 0), until)

    def unmount(self, node: str, span: Span) -> None:
        """Cut a node off from the file server."""
        until = self.world.scheduler.now + span
        self._fails(node, "mount", until)
        mount = self.world.mounts[node]
        mount.cut_until = max(mount.cut_until, until)

    def take_up(self, node: str, purpose: Purpose, key: Signer) -> None:
        """Let all processes of a node sign with a new key."""
        for whose, what, in_use in self.keys_in_use:
            if (whose, what) == (node, purpose):
                in_use.use(key, None)

    # -- when all that is over -----------------------------------------------------------------------------------------

    def finish(self, faults_ns: Span, settles_ns: Span) -> None:
        """Let nothing fail so long after the start, and judge what runs where so long after that."""
        scheduler = self.world.scheduler
        scheduler.call_at(scheduler.start_ns + faults_ns, self.calm)
        scheduler.call_at(scheduler.start_ns + faults_ns + settles_ns, self.judge)

    def calm(self) -> None:
        """Let nothing fail any more."""
        self.world.network.mishaps = NO_NETWORK_MISHAPS
        for node in self.nodes:
            self.world.mounts[node].heal()

    def judge(self) -> None:
        """Note what runs where."""
        world, now = self.world, self.world.scheduler.now
        runs: dict[int, list[str]] = {shard: [] for shard in world.map.shards}
        lately = now - CHECK_NS - SECOND // 2  # a stand-in looks so often whether it may give its shard back
        holds = world.history.holds
        out = (each for each in holds if lately < (each.lease.expiry_ns if each.until_ns is None else each.until_ns))
        held = {world.map.shards_of(each.domain)[0] for each in out}
        for node, door in sorted(self.doors.items()):
            for shard, hosted in door.host._hosted.items():
                if hosted.ended() is None and shard in runs:
                    runs[shard].append(node)
                    held |= {shard} if hosted.store.leases else set()
        asked = [(now - when, shard) for when, _, shard in world.history.visits]
        missed = frozenset(
            shard for shard in runs if {since // SECOND for since, each in asked if each == shard} >= {0, MISSED_S}
        )
        owners = {shard: world.map.owner_of(shard) or "" for shard in world.map.shards}
        world.history.calm = Calm(now, owners, frozenset(self.doors), runs, frozenset(held), missed)


class Maps(MapWatch):
    """The production watch, looked after by an actor instead of a thread."""

    def __init__(self, kit: Kit, every_ns: Span | None = None) -> None:
        """``every_ns``: how often it looks unasked; None: never. Touches the mount."""
        while True:
            try:
                first = kit.records.newest_map()
            except TenureError as problem:
                kit.world.scheduler.refused("finds no map:", problem)
                kit.pause(100 * MS)
            else:
                break
        super().__init__(kit.records, first)
        self._world = kit.world
        self._scheduler = kit.world.scheduler
        self._clock = kit.time
        self._wanted = False
        self._every_ns = every_ns
        self._looking: Actor = self._scheduler.spawn(f"{kit.process.name} map", kit.process, self._look_after)

    def look(self) -> None:
        self._wanted = True
        self._scheduler.wake(self._looking)

    def _look_after(self) -> None:
        scheduler = self._scheduler
        while True:
            if not self._wanted:
                scheduler.wait(NEVER if self._every_ns is None else scheduler.now + self._every_ns, "a look at the map")
            self._wanted = False
            self.refresh()
            self._world.published(self.newest)
            self._clock.sleep(LOOK_AGAIN_NS)


class Line(SimulatedTransport):
    """A line to one shard at one node."""

    def __init__(self, street: Street, process: Process, shard: int, node: str) -> None:
        super().__init__(street.world.network, process, shard)
        self._street = street
        self._node = node

    def _address(self, chance: random.Random) -> Endpoint | None:
        door = self._street.doors.get(self._node)
        clones = [each for each in self._street.clones if each.node == self._node]
        if clones and (door is None or chance.random() < 0.5):
            door = chance.choice(clones)
        if door is not None:
            return door.place(self._shard)
        socket = self._street.sockets.get((self._node, self._shard))
        return socket if socket is not None and socket.machine is self._machine else None

    def close(self) -> None:
        """Nothing is kept open."""


class Routes(ShardRoutes):
    """The production routes of one process, over simulated lines."""

    def __init__(self, street: Street, kit: Kit, maps: Maps, host: ShardHost) -> None:
        self._street = street
        self._process = kit.process
        trust: Any = None
        settings: Any = SimpleNamespace(node=kit.context.node, peers={})
        nothing: Any = None
        super().__init__(host, maps, kit.storage, settings, kit.time, kit.policy, nothing, trust)

    def line(self, shard: int, node: str) -> Transport:
        found = self._lines.setdefault((shard, node, False), Line(self._street, self._process, shard, node))
        owned = node == self._settings.node == self.maps.newest.owner_of(shard)
        return OwnShard(self, shard, self._time, cast("Any", found)) if owned else found

    def _line(self, shard: int, node: str, *, local: bool) -> Any:  # noqa: ANN401 - not a socket
        assert not local
        return Line(self._street, self._process, shard, node)

    def _reachable(self) -> list[str]:
        return list(self._street.nodes)


def stand_at(street: Street, door: Door, process: Process) -> None:
    """Be who opens a node's door, for ever."""
    world = street.world
    scheduler = world.scheduler
    me = scheduler.current

    def place_of(shard: int) -> Endpoint:
        return Endpoint(process.machine, server=me, hung_up=lambda who: hung_up(shard, who))

    def hung_up(shard: int, who: Process) -> None:
        hosted = door.host.hosted(shard)
        if hosted is not None:
            cast("Any", hosted.server).callers.left(who)

    def closed() -> None:
        for place in door.places.values():
            place.open = False

    door.place_of = place_of
    process.on_death.append(closed)
    street.opens(door, process)
    while True:
        if not any(place.inbox for place in door.places.values()):
            scheduler.wait(NEVER, "visitors")
        scheduler.step("opens the door")
        for shard, place in sorted(door.places.items()):
            calls, place.inbox[:] = place.inbox[:], []
            for call in calls:
                _let_in(world, door, shard, place, call)


def _let_in(world: World, door: Door, shard: int, place: Endpoint, call: Call) -> None:
    hosted = door.host.hosted(shard)
    if hosted is None:
        door.asked_for(shard)
        world.history.visits.append((world.scheduler.now, door.node, shard))
        refuse(world.network, place, call, "not-here")
    else:
        cast("Any", hosted.server).take(call)
