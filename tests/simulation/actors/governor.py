"""Who changes the policy while everything works, and how each process comes to know of it: late, or hardly ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.admin.trust import next_policy
from appliance.formats.framing import Kind
from appliance.node.record_watch import PolicyWatch
from tests.simulation.actors.processes import Kit
from timeagent.errors import TenureError
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.simulation.scheduler import Process
    from tests.simulation.world import World


class Governor:
    """Publishes one policy after another."""

    def __init__(self, world: World, process: Process, changes: Sequence[Mapping[str, int]]) -> None:
        self._world = world
        self._process = process
        self._changes = changes

    def run(self) -> None:
        world = self._world
        kit = Kit(world, self._process)
        for change in self._changes:
            kit.pause(SECOND)
            while True:
                try:
                    record = next_policy(kit.records.newest_policy(), change)
                    kit.records.publish(Kind.POLICY, record, world.founded.root)
                except TenureError as problem:
                    world.scheduler.refused("publishes nothing yet:", problem)
                    kit.pause(100 * MS)
                else:
                    break
            world.scheduler.note("publishes", f"policy {record.number} with {dict(change)}")


def watched(kit: Kit) -> PolicyWatch:
    """Return what a process goes by; an actor of its own looks for what is newer, often or hardly ever."""
    while True:
        try:
            policy = PolicyWatch(kit.world.founded.registers(kit.storage))
            break
        except TenureError as problem:
            kit.world.scheduler.refused("finds no policy:", problem)
            kit.pause(50 * MS)
    pace = kit.chance.choice((100, 400, 3_000)) * MS

    def look() -> None:
        while True:
            kit.pause(pace)
            policy.refresh()

    kit.world.scheduler.spawn(f"{kit.process.name} policy", kit.process, look)
    return policy
