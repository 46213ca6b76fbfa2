"""A lock that actors can wait for, in the place of a thread's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.scheduler import NEVER

if TYPE_CHECKING:
    from types import TracebackType

    from tests.simulation.scheduler import Actor, Scheduler


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
