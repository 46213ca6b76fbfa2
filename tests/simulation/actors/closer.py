"""Who closes: single bags, racks, or everything up to an instant; and who keeps the pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.bag.closing import Contents, NotDue
from appliance.daemon.pace import Pace
from tests.simulation.actors.processes import Kit
from tests.simulation.history import AT_THE_PACE, Answer, HorizonSeen
from timeagent.errors import TenureError
from timeagent.units import MS

if TYPE_CHECKING:
    from tests.simulation.actors.processes import LogKit
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World
    from timeagent.units import Instant

PACED = 0.5
"""How often a metronome is the daemon's."""


def names_of(contents: Contents) -> tuple[str, ...] | None:
    return None if contents.lock is None else tuple(entry.name for entry in contents.lock.entries)


class Closing:
    """Several ways to close, tried in turn."""

    def __init__(self, world: World, process: Process, name: str, turns: int) -> None:
        self._world = world
        self._process = process
        self._name = name
        self._turns = turns

    def closer(self) -> None:
        """Close bags around now."""
        kit = Kit(self._world, self._process)
        log = kit.log(self._name)
        for _ in range(self._turns):
            kit.pause(self._world.pace_ns)
            self._tolerant(lambda: self._close(kit, log))

    def sealer(self) -> None:
        """Seal racks around now."""
        kit = Kit(self._world, self._process)
        log = kit.log(self._name)
        for _ in range(self._turns):
            kit.pause(3 * self._world.pace_ns)
            self._tolerant(lambda: self._seal(kit, log))

    def settler(self) -> None:
        """Settle to about now, with a deadline."""
        kit = Kit(self._world, self._process)
        log = kit.log(self._name)
        for _ in range(self._turns):
            kit.pause(2 * self._world.pace_ns)
            self._tolerant(lambda: self._settle(kit, log))

    def metronome(self) -> None:
        """Keep the pace: by the node's, of all logs, or with turns at any time."""
        kit = Kit(self._world, self._process)
        if kit.chance.random() < PACED:
            self._paced(kit)
            return
        log = kit.log(self._name)
        for _ in range(2 * self._turns):
            kit.pause(self._world.pace_ns)
            self._tolerant(lambda: self._turn(kit, log))

    def _paced(self, kit: Kit) -> None:
        pace = Pace(kit.context, kit.process.machine.woken.taken, apart=lambda _, turn: turn())
        for _ in range(4 * self._turns):
            kit.pause(self._world.pace_ns // 2)
            pace.beat()
            for name, reached_ns in pace.horizons().items():
                self._see_horizon(kit, name, reached_ns, AT_THE_PACE)

    def _tolerant(self, work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except TenureError as problem:
            self._world.scheduler.refused("gets no answer:", problem)

    def _close(self, kit: Kit, log: LogKit) -> None:
        policy = self._world.policy
        back = kit.chance.choice((0, 0, 1, 1, 2, 3, 4, 6))
        instant = kit.time.now().midpoint - policy.grace_ns - back * policy.span_ns
        bag = log.grid.bag(max(log.grid.first_ns, instant))
        contents = log.authority.close(bag)
        if isinstance(contents, Contents):
            self._say(kit, bag.path, contents)

    def _say(self, kit: Kit, path: str, contents: Contents) -> None:
        self._world.history.answers.append(
            Answer(kit.process.name, self._world.scheduler.now, path, names_of(contents))
        )
        self._world.scheduler.note("knows", f"{path} holds {names_of(contents)}")

    def _seal(self, kit: Kit, log: LogKit) -> None:
        rack = log.grid.rack(max(log.grid.first_ns, kit.time.now().midpoint - self._world.policy.seal_delay_ns))
        first = rack if rack.start_ns <= log.grid.first_ns else log.grid.rack(rack.start_ns - 1)
        for each in dict.fromkeys((first, rack)):
            seal = log.authority.sealer.seal(each)
            if isinstance(seal, NotDue):
                continue
            for bag in log.grid.bags(each):
                if seal.lock_of(bag.name) is not None or kit.chance.random() < 0.2:
                    self._say(kit, bag.path, log.authority.by_seal(bag))

    def _settle(self, kit: Kit, log: LogKit) -> None:
        policy = self._world.policy
        back = kit.chance.choice((0, 1, 3)) * policy.span_ns
        to = kit.time.now().midpoint - policy.grace_ns - back
        deadline = kit.time.boot_ns() + kit.chance.choice((300 * MS, 2 * policy.grace_ns, 5 * policy.grace_ns))
        try:
            log.horizon.settle(to, None, deadline)
        finally:
            self._see_horizon(kit, log.name, log.horizon.reached)
        self._world.scheduler.note("has settled", f"{log.name} to {log.horizon.reached}")

    def _turn(self, kit: Kit, log: LogKit) -> None:
        log.metronome.turn(kit.time.now())
        self._see_horizon(kit, log.name, log.metronome.reached)

    def _see_horizon(self, kit: Kit, log: str, reached_ns: Instant, how: str = "") -> None:
        who = f"{kit.process.name}{how}"
        self._world.history.horizons.append(HorizonSeen(who, self._world.scheduler.now, log, reached_ns))
