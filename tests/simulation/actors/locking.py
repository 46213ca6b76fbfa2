"""Holders of mutexes, of locks for readers and writers, and of semaphores of two sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.recipes.exclusion import Mutex, RWLock, Semaphore
from tests.simulation.actors.session import SessionKit
from tests.simulation.cluster import LOGS
from timeagent.errors import TenureError

if TYPE_CHECKING:
    from appliance.lease.wire import LeaseView
    from appliance.recipes.exclusion import Hold, Tool
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World


class Dozing(SessionKit):
    """Stands still, now and then, between a look at what is taken and what follows from it, and renews nothing."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world, process)
        keeper, self._dozes = self.session.keeper, False
        renew, look = self.session.renew_due, keeper.leases_below

        def looks(domain: str) -> list[LeaseView]:
            views = look(domain)
            if self.chance.random() < 0.1:
                self._dozes = True
                self.time.sleep(int((0.5 + self.chance.random()) * self.policy.lease_term_max_ns))
                self._dozes = False
            return views

        keeper.leases_below = looks  # type: ignore[method-assign]
        self.session.renew_due = lambda: None if self._dozes else renew()  # type: ignore[method-assign]


class Locking:
    """Takes one tool after the other, has it for a while, and gives most of them back."""

    def __init__(self, world: World, process: Process, rounds: int, *, sizes: tuple[int, ...]) -> None:
        self._world = world
        self._process = process
        self._rounds = rounds
        self._sizes = sizes

    def run(self) -> None:
        kit = Dozing(self._world, self._process)
        scheduler, chance = self._world.scheduler, kit.chance
        for _ in range(self._rounds):
            kit.pause(self._world.pace_ns)
            began = scheduler.now
            try:
                hold = self._some_tool(kit).acquire(timeout_s=chance.choice((0, 1, 4)))
            except TenureError as problem:
                scheduler.refused("gets no hold:", problem)
                continue
            kit._holds(hold.lease, began)
            scheduler.note("has", f"{hold.lease.domain} fence {hold.fence}")
            kit.time.sleep(int(chance.random() * self._world.linger_ns))
            if hold.lease.mode.may_write and chance.random() < 0.3:
                self._write(kit, hold)
            if chance.random() < 0.8:
                kit.over([hold.lease])
                hold.relinquish()
        kit.end()

    def _write(self, kit: SessionKit, hold: Hold) -> None:
        try:
            kit.publish(LOGS[0], [f"{self._process.name}.{self._world.number()}".encode()], [hold.lease])
        except TenureError as problem:
            self._world.scheduler.refused("writes nothing:", problem)

    def _some_tool(self, kit: SessionKit) -> Tool[Hold]:
        lock = RWLock(kit.session, "config")
        some = [Mutex(kit.session, "deploy"), lock.reading, lock.writing]
        several = [Semaphore(kit.session, "gpu", kit.chance.choice(self._sizes)) for _ in range(5)]
        return kit.chance.choice([*some, *several])
