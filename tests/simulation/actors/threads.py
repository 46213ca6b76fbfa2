"""Processes whose threads share one session: each takes leases, uses, changes and gives back those of the others."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from appliance.formats.lease import Mode
from appliance.recipes.exclusion import RWLock
from appliance.session.endings import LossReason, Recall
from tests.simulation.actors.session import SessionKit, Sharing
from timeagent.errors import TenureError
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from appliance.bag.writing import Outcome
    from appliance.session.held import Lease, Loss
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World

CLOSES = 0.01
"""How often a meddler closes the session, for all."""


class SharedKit(SessionKit):
    """One session for several threads: it ends with the last of them."""

    def __init__(self, world: World, process: Process, threads: int, *, obliging: bool) -> None:
        super().__init__(world, process)
        self.obliging = obliging
        self.common: list[Lease] = []
        """What any of them has taken and not given back."""
        self._threads = threads

    def is_noted(self, lease: Lease) -> bool:
        """Other threads may use it already, or have given it back."""
        mine = (each for each in self.world.history.holds if each.lease is lease)
        return lease.ended is not None or any(each.until_ns is None for each in mine)

    def repeat(self, log: str, payloads: Sequence[bytes], leases: Sequence[Lease]) -> Outcome:  # noqa: ARG002
        """Have decided what is in doubt: for which of the threads the answer is, none can tell."""
        return self.session.resolve(log, leases)

    def relinquish(self, leases: Sequence[Lease]) -> None:
        with self.giving_back(leases):
            super().relinquish(leases)

    @contextmanager
    def giving_back(self, leases: Sequence[Lease]) -> Iterator[None]:
        """Give leases back, in the block. Another thread may change one before it is over: that ends with it."""
        began = self.world.scheduler.now
        yield
        for hold in self.world.history.holds:
            if hold.until_ns is None and hold.lease.ended is not None and hold.lease in leases:
                hold.until_ns = max(hold.from_ns, began)

    def end(self) -> None:
        self._threads -= 1
        if not self._threads:
            super().end()


class Rival(Sharing):
    """A process of one thread, which wants the same domains."""

    modes: tuple[Mode, ...] = (Mode.X, Mode.X, Mode.S, Mode.IX, Mode.SIX)
    gives_back = 1.0  # a session renews what it has for as long as others of its threads go on


class OneThread(Rival):
    """One of the threads, which minds its own leases."""

    def __init__(self, kit: SharedKit, domains: Sequence[str], logs: Sequence[str], rounds: int) -> None:
        super().__init__(kit.world, kit.process, domains, logs, rounds)
        self._kit = kit

    def kit(self) -> SessionKit:
        return self._kit

    def options(self, kit: SessionKit) -> dict[str, Any]:
        options: dict[str, Any] = {
            "record_only": kit.chance.random() < 0.7,
            "hold_s_max": kit.chance.choice((None, None, None, 1)),
            "progress_within_s": kit.chance.choice((None, None, None, 0.3)),
        }
        if self._kit.obliging:
            options["recall"] = kit.chance.choice((Recall.FINISH, Recall.FLUSH, Recall.RELINQUISH))
            options["sticky_s"] = kit.chance.choice((None, 1, 60))
        return options

    def taken(self, kit: SessionKit, leases: Sequence[Lease]) -> None:
        self._kit.common += leases
        for lease in leases:
            lease.on_lost(lambda loss: self._lost(kit, loss))

    def _lost(self, kit: SessionKit, loss: Loss) -> None:
        if loss.reason is LossReason.RECALLED:
            kit.over([loss.lease])


class InTurns(OneThread):
    """A thread with steps of its own: one is refused, and the next is taken."""

    steps_a_round = 1

    def run(self) -> None:
        for number in range(self.steps_a_round * self._rounds):
            self._kit.pause(self._world.pace_ns)
            try:
                self._step(number)
            except TenureError as problem:
                self._world.scheduler.refused("tries in vain:", problem)
        self._kit.end()

    def _step(self, number: int) -> None:
        raise NotImplementedError


class Meddler(InTurns):
    """A thread that takes nothing, and uses, changes and gives back what others have taken."""

    steps_a_round = 4

    def _step(self, number: int) -> None:
        kit = self._kit
        common = kit.common = [each for each in kit.common if each.ended is None]
        if not common:
            return
        lease = kit.chance.choice(common)
        if kit.chance.random() < CLOSES:
            with kit.giving_back(common):
                kit.over(common)
                kit.session.close()
            return
        match kit.chance.choice(("use", "use", "change", "give back", "give back", "resolve")):
            case "use":
                self._use(kit, [lease], number)
            case "change" if (stronger := self.stronger.get(lease.mode)) is not None:
                kit.upgrade(lease, kit.chance.choice(stronger), SECOND)
            case "give back":
                kit.relinquish([lease])
            case _:
                kit.session.resolve(kit.chance.choice(self._logs), [lease])


class Locker(InTurns):
    """A thread that uses domains as locks for readers and writers, also those that another thread has taken."""

    def _step(self, number: int) -> None:
        kit, began = self._kit, self._world.scheduler.now
        lock = RWLock(kit.session, kit.chance.choice(self._domains), reentrant=kit.chance.random() < 0.8)
        tool = kit.chance.choice((lock.writing, lock.writing, lock.reading))
        hold = tool.acquire(timeout_s=kit.chance.choice((0, 1, 4)))
        kit._holds(hold.lease, began)
        try:
            self._use(kit, [hold.lease], number)
        finally:
            if hold.lease.uses == 1:
                kit.over([hold.lease])
            with kit.giving_back([hold.lease]):
                hold.relinquish()


class Threads:
    """One process with threads."""

    def __init__(
        self, world: World, process: Process, domains: Sequence[str], logs: Sequence[str], rounds: int, threads: int
    ) -> None:
        self._world = world
        self._process = process
        self._threads = threads
        self._domains, self._logs, self._rounds = domains, logs, rounds

    def run(self) -> None:
        world, process = self._world, self._process
        chance = world.scheduler.stream(f"{process.name} threads")
        kit = SharedKit(world, process, self._threads, obliging=chance.random() < 0.3)
        kit.session._together = chance.random() < 0.4
        kit.session._leasing.session_leases.drop_from = chance.choice((1, 2, 16))
        for number in range(1, self._threads):
            kind = chance.choice((OneThread, Meddler, Meddler, Locker))
            thread = kind(kit, self._domains, self._logs, self._rounds)
            world.scheduler.spawn(f"{process.name}/{number}", process, thread.run)
        OneThread(kit, self._domains, self._logs, self._rounds).run()
