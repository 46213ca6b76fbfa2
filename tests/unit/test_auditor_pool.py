"""Processes that read parts: answers in order, whatever their size, and an end at any time."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import threading

import pytest

from auditor.columns import parts
from auditor.columns.parts import in_order
from timeagent.errors import Damaged, Environment

LARGE = 3_000_000
"""More than a connection holds: who sends it waits until it is read."""


def large(number: int) -> bytes:
    return bytes([number % 251]) * (LARGE if number % 2 else 10)


@pytest.mark.parametrize("jobs", [1, 2, 5, 40])
def test_answers_come_in_order_from_any_number_of_processes(jobs: int) -> None:
    assert list(in_order(large, range(23), jobs)) == [large(number) for number in range(23)]
    assert multiprocessing.active_children() == []


def test_nothing_to_read_needs_no_process() -> None:
    assert list(in_order(large, [], 3)) == []


# They are in the middle of a large answer then, which nobody takes any more.
@pytest.mark.parametrize("taken", [0, 1, 2])
def test_who_stops_asking_is_not_held_up(taken: int) -> None:
    answers = in_order(large, range(1, 99, 2), 4)
    for _ in range(taken):
        next(answers)
    answers.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


def test_interrupt_ends_the_processes() -> None:
    answers = in_order(large, range(1, 99, 2), 3)
    assert next(answers) == large(1)
    with pytest.raises(KeyboardInterrupt):
        answers.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


def test_no_more_is_read_ahead_than_may_wait_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "AHEAD", 1)
    begun = multiprocessing.get_context("fork").Value("i", 0)

    def count(_: int) -> bytes:
        with begun.get_lock():
            begun.value += 1
        return b"x"

    answers = in_order(count, range(50), 2)
    for taken in range(50):
        assert begun.value <= taken + 2
        next(answers)


def test_problem_is_raised_where_it_was_asked_for() -> None:
    def fail(number: int) -> bytes:
        if number == 5:
            raise Damaged("planted", "unit 5 is damaged", hint="copy it again")
        return b"%d" % number

    with pytest.raises(Damaged, match="unit 5") as raised:
        list(in_order(fail, range(40), 2))
    assert (raised.value.code, raised.value.hint) == ("planted", "copy it again")


def test_bug_comes_with_its_traceback() -> None:
    def fail(number: int) -> bytes:
        return b"x" * (1 // (number - 5))

    with pytest.raises(ZeroDivisionError) as raised:
        list(in_order(fail, range(40), 2))
    (note,) = raised.value.__notes__
    assert "1 // (number - 5)" in note
    assert multiprocessing.active_children() == []


# Between two questions nobody waits for it.
def test_process_that_ended_before_it_was_asked_is_told_by_the_answer() -> None:
    reader = parts._Reader(large, range(9))
    reader._process.kill()
    reader._process.join()
    reader.ask(0)
    with pytest.raises(Environment) as raised:
        reader.answer()
    assert raised.value.code == "reader-ended"
    reader.end()


def test_process_that_is_killed_is_told() -> None:
    def die(number: int) -> bytes:
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return b""

    with pytest.raises(Environment) as raised:
        list(in_order(die, range(9), 2))
    assert raised.value.code == "reader-ended"
    assert "-9" in raised.value.message


# Memory runs out, say: whoever is killed has no time to end them, and they would wait for ever.
@pytest.mark.parametrize("units", [range(9), range(1, 99, 2)], ids=["waiting", "answering"])
def test_processes_end_with_whoever_was_killed(units: range, capfd: pytest.CaptureFixture[str]) -> None:
    alive, theirs = os.pipe()
    if (parent := os.fork()) == 0:
        answers = in_order(large, units, 3)
        next(answers)
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(theirs)
    os.waitpid(parent, 0)
    assert select.select([alive], [], [], 20)[0], "a process is still there"
    os.close(alive)
    assert capfd.readouterr().err == ""


planted: list[int] = []
"""Signals to whoever forks, while that is being done."""


def _send_planted() -> None:
    while planted:
        signal.pthread_kill(threading.main_thread().ident or 0, planted.pop())  # a program with one thread has no other


os.register_at_fork(after_in_parent=_send_planted)


def test_interrupt_of_a_fork_is_not_lost() -> None:
    planted.append(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        list(in_order(large, range(9), 2))
    assert multiprocessing.active_children() == []
