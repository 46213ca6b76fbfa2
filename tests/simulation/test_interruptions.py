"""Threads that share what they use are interrupted before any line of it, and nobody else is."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from tests.simulation import interruptions
from tests.simulation.interruptions import TOOL, interrupted
from tests.simulation.lock import SimulatedLock
from tests.simulation.scheduler import Machine, Process, Scheduler
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

COUNTS, ACTORS, SEEDS = 40, 3, 20


class Counter:
    """A counter whose steps are not one, with a lock or without."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.lock = SimulatedLock(scheduler)
        self.count = 0

    def count_on(self) -> None:
        now = self.count
        self.count = now + 1

    def count_on_locked(self) -> None:
        with self.lock:
            now = self.count
            self.count = now + 1


def counted(seed: int, step: str, threads: str) -> int:
    """Let some actors of one process count, and return how far they have come together."""
    scheduler = Scheduler(seed, start_ns=0, end_ns=600 * SECOND, steps_max=100_000)
    process = Process(Machine("n1"), "one")
    scheduler.interrupted = {process} if threads else set()
    with interrupted(scheduler, 20):
        counter = Counter(scheduler)

        def count() -> None:
            for _ in range(COUNTS):
                getattr(counter, step)()

        for _ in range(ACTORS):
            scheduler.spawn("counts", process, count)
        scheduler.run()
    assert not scheduler.bugs
    return counter.count


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this module be what threads share."""
    monkeypatch.setattr(interruptions, "SHARED", (__name__,))


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(
    ("step", "threads", "loses"),
    [("count_on", "interrupted", True), ("count_on", "", False), ("count_on_locked", "interrupted", False)],
)
def test_who_counts_without_a_lock_loses_counts_where_threads_are_interrupted(
    step: str, threads: str, *, loses: bool
) -> None:
    ends = {counted(seed, step, threads) for seed in range(SEEDS)}
    assert (min(ends) < ACTORS * COUNTS) is loses
    assert max(ends) <= ACTORS * COUNTS


@pytest.mark.usefixtures("shared")
def test_who_dies_where_it_is_interrupted_goes_no_further_than_to_its_next_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interruptions, "SHARED", (__name__,))
    scheduler = Scheduler(1, start_ns=0, end_ns=600 * SECOND, steps_max=100_000)
    process = Process(Machine("n1"), "one")
    reached: list[str] = []

    def lives() -> None:
        scheduler.call_at(scheduler.now, lambda: scheduler.crash(process))
        counter.count_on()
        reached.append("its next port")
        scheduler.sleep(1)
        reached.append("what comes then")

    scheduler.interrupted.add(process)
    with interrupted(scheduler, 1):
        counter = Counter(scheduler)
        scheduler.spawn("lives", process, lives)
        scheduler.run()
    assert (scheduler.crashes, reached, scheduler.bugs) == (1, ["its next port"], [])


@pytest.mark.usefixtures("shared")
def test_thread_that_no_run_knows_is_not_interrupted_and_moves_no_interruption() -> None:
    def interruptions_of(meanwhile: Callable[[Callable[[], None]], None]) -> tuple[int, int, list[str]]:
        scheduler = Scheduler(1, start_ns=0, end_ns=600 * SECOND, steps_max=100_000)
        process = Process(Machine("n1"), "one")
        scheduler.interrupted.add(process)
        with interrupted(scheduler, 5):
            counter = Counter(scheduler)

            def count() -> None:
                for _ in range(COUNTS):
                    meanwhile(counter.count_on)

            scheduler.spawn("counts", process, count)
            scheduler.run()
        return scheduler.interruptions, scheduler.now, scheduler.bugs

    alone = interruptions_of(lambda _: None)
    assert alone[0] > 0
    with ThreadPoolExecutor(1) as threads:
        assert interruptions_of(lambda step: threads.submit(step).result()) == alone


def test_locks_and_lines_are_as_before_when_a_run_is_over() -> None:
    def locks() -> list[object]:
        return [vars(sys.modules[module])[name] for module, name in interruptions.LOCKS]

    before = locks()
    scheduler = Scheduler(1, start_ns=0, end_ns=1, steps_max=1)
    with suppress(ZeroDivisionError), interrupted(scheduler, 1):
        assert not set(before) & set(locks())
        raise ZeroDivisionError
    assert locks() == before
    assert sys.monitoring.get_tool(TOOL) is None


KINDS = (threading.Lock, threading.RLock, threading.Condition)


@pytest.mark.parametrize("name", interruptions.SHARED + interruptions.DAEMONS)
def test_lock_of_a_module_that_may_be_interrupted_is_one_that_actors_can_wait_for(name: str) -> None:
    makers = {(name, each) for each, value in vars(import_module(name)).items() if value in KINDS}
    # Of threads in whose place there are actors, or made by what is in the place of a real machine.
    unused = {
        ("appliance.session.renewal", "RLock"),
        ("appliance.lease.witness_ledger", "Condition"),
        ("appliance.node.hosted_shard", "Lock"),
        ("appliance.node.shards", "Lock"),
    }
    assert makers - unused <= set(interruptions.LOCKS)
