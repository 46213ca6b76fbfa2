"""A reader without leases: settled messages, again and again, and the latest in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.actors.processes import Kit
from tests.simulation.history import HorizonSeen, LatestRead, SettledRead, key_of
from timeagent.errors import TenureError, TryAgain

if TYPE_CHECKING:
    from tests.simulation.actors.processes import LogKit
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World

SETTLES = 0.6
"""How often a reader has closed what it is about to read, rather than see how far others have come."""


class Reading:
    """One process that reads one log."""

    def __init__(self, world: World, process: Process, name: str, turns: int) -> None:
        self._world = world
        self._process = process
        self._name = name
        self._turns = turns

    def run(self) -> None:
        kit = Kit(self._world, self._process)
        log = kit.log(self._name)
        cursor = 0
        for _ in range(self._turns):
            kit.pause(self._world.pace_ns)
            try:
                if kit.chance.random() < 0.6:
                    cursor = self._settled(kit, log, cursor)
                else:
                    self._latest(kit, log)
            except TenureError as problem:
                self._world.scheduler.refused("cannot read:", problem)

    def _settled(self, kit: Kit, log: LogKit, cursor: int) -> int:
        """Read on from where the last reading ended, or all from the beginning; mostly what it has settled itself."""
        if kit.chance.random() < SETTLES:
            self._settle(kit, log)
        after = cursor if kit.chance.random() < 0.3 else 0
        reached = log.horizon.refresh()
        until = reached - 1
        keys = tuple(key_of(each) for each in log.reader.settled(after, until))
        now = self._world.scheduler.now
        who = kit.process.name
        self._world.history.settled.append(SettledRead(who, now, log.name, after, until, keys))
        self._world.history.horizons.append(HorizonSeen(who, now, log.name, reached))
        self._world.scheduler.note("has read", f"{len(keys)} settled messages up to {until}")
        return max(cursor, until)

    def _settle(self, kit: Kit, log: LogKit) -> None:
        """Have closed what was written until now, or until what may be due: by its own clock, which may be ahead."""
        policy = kit.world.policy
        to = kit.time.now().midpoint - kit.chance.choice((0, policy.grace_ns))
        deadline = kit.time.boot_ns() + 2 * (policy.grace_ns + policy.span_ns)
        try:
            log.horizon.settle(to, None, deadline)
        except TryAgain as problem:
            self._world.scheduler.refused("has not settled:", problem)

    def _latest(self, kit: Kit, log: LogKit) -> None:
        began = self._world.scheduler.now
        keys = tuple(key_of(each) for each in log.reader.latest())
        self._world.history.latest.append(
            LatestRead(kit.process.name, began, self._world.scheduler.now, log.name, 0, keys)
        )
        self._world.scheduler.note("has read", f"{len(keys)} messages, the latest")
