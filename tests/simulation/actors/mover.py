"""Who publishes a map with another number of shards while everything works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from appliance.formats.framing import Kind
from tests.simulation.actors.processes import Kit
from tests.simulation.cluster import NODES
from timeagent.errors import TenureError
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World


class Mover:
    """Publishes one map after the other, each with another number of shards."""

    def __init__(self, world: World, process: Process, counts: tuple[int, ...]) -> None:
        self._world = world
        self._process = process
        self._counts = counts

    def run(self) -> None:
        world = self._world
        kit = Kit(world, self._process)
        for count in self._counts:
            kit.pause(SECOND)
            owners, number = tuple(NODES[shard % len(NODES)] for shard in range(count)), world.map.number + 1
            record = msgspec.structs.replace(world.map, number=number, owners=owners, chains=(number,) * count)
            while True:
                try:
                    kit.records.publish(Kind.MAP, record, world.founded.root)
                except TenureError as problem:
                    kit.world.scheduler.refused("moves nothing yet:", problem)
                    kit.pause(100 * MS)
                else:
                    break
            world.map = record
            world.history.learn(record)
            world.map_noticed_ns = world.scheduler.now + int(kit.chance.random() * SECOND)
            world.scheduler.note("publishes", f"map {record.number} with {count} shards")
