"""A lock and a condition that actors can wait for, in the place of a thread's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.scheduler import NEVER
from timeagent.units import span_of

if TYPE_CHECKING:
    from types import TracebackType

    from tests.simulation.scheduler import Actor, Scheduler
    from timeagent.units import Seconds


class SimulatedLock:
    """A lock that one actor may take several times while the others wait."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: Actor | None = None
        self._depth = 0
        self._waiting: list[Actor] = []

    def __enter__(self) -> bool:
        me = self._scheduler.current
        while self._owner is not None and self._owner is not me:
            assert me is not None
            self._waiting.append(me)
            self._scheduler.wait(NEVER, "lock")
        self._owner = me
        self._depth += 1
        return True

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            waiting, self._waiting = self._waiting, []
            for actor in waiting:
                self._scheduler.wake(actor)


class SimulatedCondition(SimulatedLock):
    """One that who has it once can let go of until another says that something has changed, or a while is over."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._listening: list[Actor] = []

    def wait(self, timeout_s: Seconds) -> None:
        me = self._scheduler.current
        assert me is not None
        assert me is self._owner
        assert self._depth == 1
        self._listening.append(me)
        self.__exit__(None, None, None)
        self._scheduler.wait(self._scheduler.now + span_of(timeout_s, "timeout_s"), "condition")
        if me in self._listening:
            self._listening.remove(me)
        self.__enter__()

    def notify_all(self) -> None:
        listening, self._listening = self._listening, []
        for actor in listening:
            self._scheduler.wake(actor)
