"""Several requests of one process to the mount at once: an actor for each."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from appliance.bag.ports import Parallel
from tests.simulation.scheduler import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.simulation.scheduler import Process, Scheduler


class Actors(Parallel):
    """Like threads that end with the call."""

    def __init__(self, scheduler: Scheduler, process: Process, width: int) -> None:
        self._scheduler = scheduler
        self._process = process
        self.width = width

    def each[T, R](self, do: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if len(items) <= 1 or self.width == 1:
            return [do(item) for item in items]
        scheduler = self._scheduler
        caller = scheduler.current
        results: list[R | Exception | None] = [None] * len(items)
        left = len(items)

        def work(number: int) -> None:
            nonlocal left
            try:
                results[number] = do(items[number])
            except Exception as problem:  # noqa: BLE001 - the caller gets it
                results[number] = problem
            left -= 1
            scheduler.wake(caller)

        for number in range(len(items)):
            scheduler.spawn(f"{self._process.name}/{number}", self._process, partial(work, number))
        while left:
            scheduler.wait(NEVER, "its requests")
        for result in results:
            if isinstance(result, Exception):
                raise result
        return cast("list[R]", results)
