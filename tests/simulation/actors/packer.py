"""What a packer does to a sealed rack: bag directories go, data files first, prelock and lock last.

The pack itself is not written by this version; what the directories held is kept for the checkers, as a pack would keep
it. Readers that meet a deleted file report damage: no promise is broken by that here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.actors.processes import Kit
from timeagent.errors import LeaseholdError

if TYPE_CHECKING:
    from appliance.formats.paths import Rack
    from tests.simulation.actors.processes import LogKit
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World


class Packer:
    """Deletes what seals cover."""

    waits_for_the_seal = True

    def __init__(self, world: World, process: Process, name: str, turns: int) -> None:
        self._world = world
        self._process = process
        self._name = name
        self._turns = turns

    def run(self) -> None:
        kit = Kit(self._world, self._process)
        log = kit.log(self._name)
        first = log.grid.rack(log.grid.first_ns)
        for _ in range(self._turns):
            kit.pause(self._world.pace_ns)
            try:
                for rack in (first, log.grid.next_rack(first)):
                    self._pack(kit, log, rack)
            except LeaseholdError as problem:
                self._world.scheduler.note("cannot pack:", str(problem))

    def _pack(self, kit: Kit, log: LogKit, rack: Rack) -> None:
        if self.waits_for_the_seal and log.authority.sealer.sealed(rack) is None:
            return
        server = self._world.server
        for name in kit.storage.list_afresh(rack.path) or ():
            bag = log.grid.parse_bag(rack, name)
            if bag is None:
                continue
            names = kit.storage.list_afresh(bag.path) or []
            if "lock" not in names:
                continue
            for each in sorted(names, key=lambda each: (each in ("prelock", "lock"), each)):
                path = f"{bag.path}/{each}"
                file = server.find(path)
                if file is not None and each not in ("prelock", "lock"):
                    self._world.graves[path] = file
                kit.storage.unlink(path)
            self._world.scheduler.step("rmdir", bag.path)
            if server.directories.get(bag.path) == {}:
                del server.directories[bag.path]
                del server.directories[rack.path][bag.name]
