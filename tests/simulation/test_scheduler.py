"""Actors live in threads that are used again: whoever ended in one has no part in who lives there next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from greenlet import getcurrent

from tests.simulation.scheduler import NEVER, Machine, Process, Scheduler
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from timeagent.units import Instant


def a_run() -> tuple[Scheduler, Process, Process]:
    scheduler = Scheduler(1, start_ns=0, end_ns=60 * SECOND, steps_max=1_000)
    machine = Machine("n1")
    return scheduler, Process(machine, "one"), Process(machine, "other")


def test_thread_of_an_actor_that_has_ended_is_used_again() -> None:
    scheduler, process, _ = a_run()
    threads: list[object] = []

    def lives() -> None:
        threads.append(getcurrent())
        scheduler.sleep(MS)

    for number in range(5):
        scheduler.spawn("an actor", process, lives, after=number * SECOND)
    scheduler.run()
    assert len(threads) == 5
    assert len(set(threads)) == 1


def test_who_ended_while_it_waited_is_woken_in_vain_and_nobody_in_its_thread_goes_on() -> None:
    scheduler, dies, lives = a_run()
    threads: list[object] = []
    slept: list[Instant] = []

    def waits() -> None:
        threads.append(getcurrent())
        scheduler.wait(NEVER)

    def sleeps() -> None:
        threads.append(getcurrent())
        began = scheduler.now
        scheduler.sleep(10 * SECOND)
        slept.append(scheduler.now - began)

    def wakes() -> None:
        scheduler.sleep(SECOND)
        scheduler.crash(dies)
        scheduler.wake(waiter)
        scheduler.sleep(SECOND)
        scheduler.spawn("sleeps", lives, sleeps)
        scheduler.sleep(SECOND)
        assert waiter.waiting
        scheduler.wake(waiter)

    waiter = scheduler.spawn("waits", dies, waits)
    scheduler.spawn("wakes", lives, wakes)
    scheduler.run()
    assert not scheduler.bugs
    assert threads[0] is threads[1]
    assert slept[0] >= 10 * SECOND


def test_actor_that_never_began_when_all_ends_takes_no_thread() -> None:
    scheduler, process, _ = a_run()
    late = scheduler.spawn("late", process, lambda: None, after=90 * SECOND)
    scheduler.run()
    assert late.thread is None
