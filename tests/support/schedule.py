"""Interleave straight-line code, one storage verb at a time, in an order that one seed decides."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from greenlet import GreenletExit, getcurrent, greenlet

from tests.support.storage import WrappedStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from appliance.bag.ports import Storage

STEPS_MAX = 20_000
STALL_PROBABILITY = 0.03
STALL_STEPS = 40


class Schedule:
    """Actors, one random choice a step, and the trace of what was done."""

    def __init__(self, seed: int, *, crash_probability: float = 0.0) -> None:
        self._order = random.Random(seed)
        self._faults = random.Random(f"{seed}/faults")  # a stream of its own: adding a fault moves no choice
        self._crash_probability = crash_probability
        self._main = getcurrent()
        self._live: list[tuple[str, greenlet]] = []
        self.trace: list[str] = []

    def spawn(self, name: str, body: Callable[[], object]) -> None:
        self._live.append((name, greenlet(body)))

    def pause(self, what: str) -> None:
        """Let somebody else run, sometimes for long: a process may be paused anywhere.

        A crash happens here: before the verb that is named, after the one before.
        """
        if getcurrent() is self._main:
            return
        if self.chance(STALL_PROBABILITY):
            for _ in range(STALL_STEPS):
                self._main.switch("stalls")
        self._main.switch(what)

    def chance(self, probability: float) -> bool:
        return self._faults.random() < probability

    def run(self) -> None:
        """Step until no actor is left. What an actor raises comes out here."""
        for _ in range(STEPS_MAX):
            if not self._live:
                return
            number = self._order.randrange(len(self._live))
            name, actor = self._live[number]
            if actor and self._crash_probability and self.chance(self._crash_probability):
                self.trace.append(f"{name} dies")
                actor.throw(GreenletExit)
            else:
                self.trace.append(f"{name} {actor.switch()}")
            if actor.dead:
                del self._live[number]
        raise AssertionError(f"still running after {STEPS_MAX} steps")


class ScheduledStorage(WrappedStorage):
    """A storage whose every verb is a point where others may run.

    A look is not one instant: it opens the directory, and then asks for one name after the other; an absence may be
    what was cached when the directory was opened.
    """

    def __init__(self, inner: Storage, schedule: Schedule) -> None:
        super().__init__(inner)
        self._schedule = schedule

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        self._schedule.pause(f"{verb} {path}")
        return call()

    def look(self, directory: str, names: Collection[str]) -> frozenset[str] | None:
        self._schedule.pause(f"open {directory}")
        at_open = self.inner.look(directory, names)
        if at_open is None:
            return None
        found = set(at_open)
        for name in names:
            if name in at_open or self._schedule.chance(0.5):
                continue
            self._schedule.pause(f"look for {directory}/{name}")
            found.update(self.inner.look(directory, (name,)) or ())
        return frozenset(found)
