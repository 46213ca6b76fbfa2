"""Several processes that read parts of one tree: results come back in the order in which they were asked for.

The processes are forked, so that they begin with everything that the parent knows, and need nothing sent but numbers.
Each has a connection of its own and no lock with the others: whatever one is doing, it can be ended at any time.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from timeagent.clock import SystemClock
from timeagent.console import Progress
from timeagent.errors import Environment
from timeagent.units import SECOND

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

JOBS_MAX: Final = 64
UNITS_WORTH_IT: Final = 8
"""With fewer parts than this, starting processes costs more than they save."""

AHEAD: Final = 4
"""So many units for each process may be read before the first of them has been taken: what waits is in memory."""


def default_jobs(units: int) -> int:
    """Return how many processes are worth it for so many parts."""
    return min(len(os.sched_getaffinity(0)), JOBS_MAX, units) if units >= UNITS_WORTH_IT else 1


class _Reader:
    """One process, and the parent's end of the way to it."""

    def __init__(self, work: Callable[[Any], bytes], units: Sequence[Any]) -> None:
        import multiprocessing  # noqa: PLC0415 - one process needs none of it

        context = multiprocessing.get_context("fork")
        self.ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, work, units), daemon=True)
        self._process.start()
        theirs.close()  # so that its end is seen when the process ends, however that comes about
        self.asked: deque[int] = deque()

    def ask(self, number: int) -> None:
        self.asked.append(number)
        with suppress(OSError):  # it has ended: whoever waits for the answer hears how
            self.ours.send(number)

    def answer(self) -> tuple[int, bytes]:
        """Return a unit's number and what came of it. Raises what the work raised; Environment: the process is gone."""
        try:
            problem = self.ours.recv()
            answer = b"" if problem is not None else self.ours.recv_bytes()
        except (EOFError, OSError):
            self._process.join()
            raise Environment(
                "reader-ended",
                f"a process that read a part of the tree ended with exit code {self._process.exitcode}",
                hint="see whether memory ran out, or read with one process: --jobs 1",
            ) from None
        if problem is not None:
            raise problem
        return self.asked.popleft(), answer

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self.ours.close()


def in_order[T](work: Callable[[T], bytes], units: Sequence[T], jobs: int) -> Iterator[bytes]:
    """Yield what ``work`` returns for each unit, in order, from so many processes.

    Call it from a program with one thread. When the caller stops asking, or is interrupted, the processes end.
    """
    from multiprocessing.connection import wait  # noqa: PLC0415 - as above

    readers: list[_Reader] = []
    answers: dict[int, bytes] = {}
    asked = told = 0
    try:
        readers.extend(_Reader(work, units) for _ in range(min(jobs, len(units))))
        while told < len(units):
            for reader in sorted(readers, key=lambda each: len(each.asked)):
                # One more than it is at, so that it need not wait until this process comes back to it.
                while len(reader.asked) < 2 and asked < min(len(units), told + AHEAD * len(readers)):  # noqa: PLR2004 - the one that it is at, and one more
                    reader.ask(asked)
                    asked += 1
            busy = {reader.ours: reader for reader in readers if reader.asked}
            for connection in wait(list(busy), 0 if told in answers else None):
                number, answer = busy[connection].answer()  # type: ignore[index]
                answers[number] = answer
            if told in answers:
                yield answers.pop(told)
                told += 1
    finally:
        for reader in readers:
            reader.end()


def _serve(connection: Connection, work: Callable[[Any], bytes], units: Sequence[Any]) -> None:
    """Do what is asked for until nobody asks. An interrupt is left to the parent, which ends its processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        try:
            number = connection.recv()
        except EOFError:
            return
        try:
            answer = work(units[number])
        except Exception as problem:  # noqa: BLE001 - raised where it was asked for
            problem.add_note(f"in a process that reads parts:\n{traceback.format_exc()}")  # it goes without it
            connection.send(problem)
        else:
            connection.send(None)
            connection.send_bytes(answer)


_WIDTH: Final = 20


class AuditProgress:
    """Shows the progress of one audit. Time left is reckoned from the parts that are done."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._begun_ns = self._clock.monotonic_ns()
        self._line = Progress("audit")

    def show(self, done: int, total: int, messages: int, part: str) -> None:
        spent_ns = max(1, self._clock.monotonic_ns() - self._begun_ns)
        self._line.show(done, progress_text(done, total, messages, spent_ns, part))

    def done(self) -> None:
        self._line.done()


def progress_text(done: int, total: int, messages: int, spent_ns: int, part: str) -> str:
    """Return what follows the number of parts that are done."""
    filled = _WIDTH * done // max(1, total)
    left = spent_ns * (total - done) // max(1, done) // SECOND
    minutes, seconds = divmod(left, 60)
    bar = "#" * filled + "." * (_WIDTH - filled)
    rate = messages * SECOND // spent_ns
    return f"of {total} parts [{bar}] {messages:,} messages, {rate:,}/s, {minutes}:{seconds:02d} left, {part}"
