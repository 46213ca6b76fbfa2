"""Who packs sealed racks, and who deletes old packs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.bag.packer import Packer, Retention
from tests.simulation.actors.processes import Kit
from timeagent.errors import TenureError
from timeagent.units import DAY

if TYPE_CHECKING:
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World


class Packing:
    """The production packer, and retention of a day, turn by turn."""

    def __init__(self, world: World, process: Process, name: str, turns: int, *, deletes: bool = False) -> None:
        self._world = world
        self._process = process
        self._name = name
        self._turns = turns
        self._deletes = deletes

    def run(self) -> None:
        world = self._world
        kit = Kit(world, self._process)
        log = kit.log(self._name)
        packer = Packer(kit.context, log.grid, log.authority.sealer)
        retention = Retention(kit.context, log.grid, DAY)
        first = log.grid.rack(log.grid.first_ns)
        for _ in range(self._turns):
            kit.pause(world.pace_ns)
            try:
                for rack in (first, log.grid.next_rack(first)):
                    report = packer.pack(rack)
                    world.scheduler.note("packs", f"{rack.path}: {report}")
                if self._deletes and kit.chance.random() < 0.5:
                    world.scheduler.note("deletes", f"{[each.path for each in retention.turn(32)]}")
            except TenureError as problem:
                world.scheduler.refused("cannot pack:", problem)
