"""Asks the questions of a source off the screen's thread, and hands states over, four times a second.

One thread per question, because each may hang for as long as a mount or a shard does; one more that puts together what
is known and never waits. They are daemon threads: a program that is left does not wait for a mount that is gone.
"""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from timeagent.clock import MachineClock
    from timeagent.units import Span

    from .state import ClusterState, Question, StateSource

FRAME_NS: Final[Span] = 250 * MS
SHARE: Final = 4
"""A question that takes long is asked less often: it is busy at most one part in so many, and one."""


class Feed:
    """The threads behind a screen."""

    def __init__(self, source: StateSource, clock: MachineClock, frame_ns: Span = FRAME_NS) -> None:
        """Start nothing yet."""
        self._source = source
        self._clock = clock
        self._frame_ns = frame_ns
        self._stop = Event()
        self._wakes: list[Event] = []
        self._frame = Event()

    def start(self, take: Callable[[ClusterState], None], failed: Callable[[BaseException], None]) -> None:
        """Call ``take`` with each state, from another thread; ``failed`` with what can only be a bug, and end."""
        Thread(target=self._guarded, args=(lambda: self._tell(take, failed), failed), daemon=True, name="top").start()

    def stop(self) -> None:
        """Ask nothing more. Waits for nobody."""
        self._stop.set()
        self.ask_now()

    def ask_now(self) -> None:
        """Ask everything again at once that is not being asked."""
        for wake in (*self._wakes, self._frame):
            wake.set()

    def _guarded(self, body: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        try:
            body()
        except BaseException as problem:  # noqa: BLE001 - handed to the screen, which ends with it
            self._stop.set()
            failed(problem)

    def _tell(self, take: Callable[[ClusterState], None], failed: Callable[[BaseException], None]) -> None:
        while not self._stop.is_set():
            for question in self._source.questions()[len(self._wakes) :]:
                wake = Event()
                self._wakes.append(wake)
                body = self._asking(question, wake)
                Thread(target=self._guarded, args=(body, failed), daemon=True, name=f"top {question.name}").start()
            take(self._source.state_at())
            self._frame.wait(self._frame_ns / SECOND)
            self._frame.clear()

    def _asking(self, question: Question, wake: Event) -> Callable[[], None]:
        def body() -> None:
            while not self._stop.is_set():
                began = self._clock.boot_ns()
                question.put()
                self._frame.set()
                took = self._clock.boot_ns() - began
                wake.wait(max(question.period_ns, SHARE * took) / SECOND)
                wake.clear()

        return body


def ask_once(source: StateSource, patience_ns: Span) -> ClusterState:
    """Put every question once, waiting for each at most the patience, and return what is known then."""
    done = 0
    while len(questions := source.questions()) > done:
        threads = [Thread(target=each.put, daemon=True, name=f"top {each.name}") for each in questions[done:]]
        done = len(questions)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patience_ns / SECOND)
    return source.state_at()
