"""Who moves shards while everything works, as the command does: in three maps, on from where another was cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.admin.moving import Finish, begin
from appliance.lease.wire import Inspect, LeasePage
from tests.simulation.actors.processes import Kit
from tests.simulation.actors.street import Line
from timeagent.errors import ShardUnavailable, TenureError
from timeagent.units import MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.formats.shardmap import Layout, ShardMap
    from appliance.lease.wire import ShardNumbers
    from tests.simulation.actors.street import Street
    from tests.simulation.scheduler import Process
    from timeagent.units import Span

    type Plan = Callable[[ShardMap], Layout]


class Mover:
    """Carries out one plan after the other. Shares them with who runs after its death."""

    def __init__(self, street: Street, process: Process, plans: list[Plan], pace_ns: Span) -> None:
        self._street = street
        self._process = process
        self._plans = plans
        self._pace_ns = pace_ns

    def run(self) -> None:
        world = self._street.world
        kit = Kit(world, self._process)
        while self._plans:
            kit.pause(self._pace_ns)
            try:
                both = begin(kit.records, world.founded.root, self._plans[0])
                for number in range(2, both.number + 1):  # who ran before may have died before it said so
                    world.published(kit.records.map(number))
                finish = Finish(
                    kit.records,
                    kit.storage,
                    kit.time,
                    lambda shard: self._numbers(kit, shard),
                    lambda why: world.scheduler.note("waits:", why),
                )
                world.published(finish.run(world.founded.root, both))
                self._plans.pop(0)
                finish.wait_for_ends(both)
            except TenureError as problem:
                world.scheduler.refused("moves nothing yet:", problem)
                kit.pause(100 * MS)

    def _numbers(self, kit: Kit, shard: int) -> ShardNumbers:
        """Ask whoever runs a shard how it stands."""
        for node in self._street.nodes:
            line = Line(self._street, self._process, shard, node)
            try:
                (reply,) = line.call([Inspect(after_domain="", leases_max=1)], kit.policy.attempt_timeout_ns)
            except ShardUnavailable:
                continue
            if isinstance(reply, LeasePage):
                return reply.numbers
        raise ShardUnavailable("no-answer", f"no node answers for shard {shard}")
