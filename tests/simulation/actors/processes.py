"""One process of a machine, with everything that works on bags wired as an application would."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.bag.closedbags import ListedFiles
from appliance.bag.closing import Authority
from appliance.bag.horizon import Horizon
from appliance.bag.logs import open_log
from appliance.bag.metronome import Metronome
from appliance.bag.ports import BagContext
from appliance.bag.reader import Reader
from appliance.bag.writing import writer_for
from appliance.node.writer_client import SharedWriter
from tests.simulation.cluster import grid_of
from tests.simulation.parallel import Actors

if TYPE_CHECKING:
    from appliance.bag.writing import Writer
    from appliance.formats.paths import Grid
    from appliance.formats.policy import PolicyNumbers
    from tests.simulation.clocks import SimulatedTime
    from tests.simulation.machine import ProcessTime
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World


class Kit:
    """The ports of one process; logs are opened when they are first used."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        node = process.machine.name
        self.time: SimulatedTime | ProcessTime = world.times[node].of_process()
        process.clock = world.times[node]
        self.storage = world.storage_of(node)
        self.records = world.founded.registers(self.storage)
        self.chance = world.scheduler.stream(f"{process.name} {world.number()}")
        self.policy: PolicyNumbers = world.policy if world.policy_of is None else world.policy_of(self)
        """What this process goes by: the founding policy, or the newest that it has taken up."""
        parallel = Actors(world.scheduler, process, self.chance.choice((1, 1, 3)))
        woken = process.machine.woken
        self.context = BagContext(self.storage, self.time, self.records, node, parallel, woken.wake)
        self.door = None if world.door_of is None else world.door_of(self)
        """The way to the node's writer, where there is one."""

    def log(self, name: str) -> LogKit:
        return LogKit(self, name)

    def shared(self, own: Writer, grid: Grid, horizon: Horizon) -> Writer:
        """Put the node's writer before a log's own one, where there is one."""
        if self.door is None:
            return own
        return SharedWriter(own, self.door, grid, horizon.authority, ListedFiles(self.storage))

    def pause(self, about_ns: int) -> None:
        """Wait a while: between a tenth of that and twice that."""
        self.time.sleep(int(about_ns * (0.1 + 1.9 * self.chance.random())))


class LogKit:
    """One log, as one process works on it."""

    def __init__(self, kit: Kit, name: str) -> None:
        birth = open_log(kit.context, name)
        assert birth is not None, "logs are made before the run"
        self.grid = grid_of(birth)
        self.name = name
        self.authority = Authority(kit.context, self.grid)
        self.horizon = Horizon(kit.context, self.grid, self.authority)
        self.writer = kit.shared(writer_for(kit.context, self.grid, self.authority), self.grid, self.horizon)
        self.reader = Reader(kit.context, self.grid, self.horizon)
        self.metronome = Metronome(kit.context, self.grid, self.horizon)
