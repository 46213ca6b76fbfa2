"""Asks the questions of a source off the screen's thread, and hands states over, four times a second.

One thread per question, because each may hang for as long as a mount or a shard does; one more that puts together what
is known and never waits. They are daemon threads: a program that is left does not wait for a mount that is gone.
"""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from timeagent.errors import TenureError
from timeagent.units import MS, SECOND

from ..model.state import Freshness, Reach

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from timeagent.clock import MachineClock
    from timeagent.units import Instant, Span

    from ..model.doors import Question, StateSource
    from ..model.state import AuditedCopy, ClusterState
    from ..model.subjects import DetailLine, Subject


SILENT_NS: Final[Span] = SECOND
"""An answer that is due for longer than this is none."""


class AskedQuestion[T]:
    """A question with its newest answer. One thread asks; any thread may look."""

    def __init__(self, name: str, period_ns: Span, clock: MachineClock, ask: Callable[[], T]) -> None:
        """Ask nothing yet. ``ask`` raises TenureError where there is no answer."""
        self.name = name
        self.period_ns = period_ns
        self.answer: T | None = None
        self.error: TenureError | None = None
        """Why the question had no answer when it was last asked to the end."""
        self._clock = clock
        self._ask = ask
        self._asked_ns: Instant | None = None
        self._answered_ns: Instant | None = None
        self._since_ns = clock.boot_ns()

    def put(self) -> None:
        """Ask once. Blocks as long as the answer takes."""
        self._asked_ns = self._clock.boot_ns()
        try:
            answer = self._ask()
        except TenureError as problem:
            self.error = problem
        else:
            self.answer = answer
            self._answered_ns = self._since_ns = self._clock.boot_ns()
            self.error = None
        self._asked_ns = None

    def freshness(self) -> Freshness:
        """Say how fresh the newest answer is. Never blocks."""
        now = self._clock.boot_ns()
        asked, answered, error = self._asked_ns, self._answered_ns, self.error
        age = None if answered is None else now - answered
        if error is not None:
            return Freshness(Reach.SILENT, age, now - self._since_ns, error.message, error.hint)
        if asked is not None and now - asked > SILENT_NS:
            return Freshness(Reach.SILENT, age, now - asked)
        if age is None:
            return Freshness(Reach.WAITING)
        return Freshness(Reach.ANSWERS, age)


FRAME_NS: Final[Span] = 250 * MS
SHARE: Final = 20
"""A question that takes long is asked less often: it is busy at most one part in so many, and one.

So a shard with ten thousand leases is not kept busy by those who look at it, nor is this machine."""
REST_NS_MAX: Final[Span] = 10 * SECOND
"""But not less often than so: what hung for minutes, or had no answer, is looked at again soon after."""


class Feed:
    """The threads behind a screen."""

    def __init__(self, source: StateSource, clock: MachineClock, frame_ns: Span = FRAME_NS) -> None:
        self._source = source
        self._clock = clock
        self._frame_ns = frame_ns
        self._stop = Event()
        self._wakes: list[Event] = []
        self._frame = Event()
        self._instant: Instant | None = None

    @property
    def record(self) -> AuditedCopy | None:
        """The copy that was read as a whole, where the source is one and has been read."""
        return self._source.record

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

    def look_at(self, instant: Instant | None) -> None:
        """Hand over the states of another instant from now on; None: of now, or of a record's end."""
        self._instant = instant
        self._frame.set()

    def details(self, subject: Subject, instant: Instant | None) -> Sequence[DetailLine]:
        return self._source.details(subject, instant)

    def do[T](
        self, body: Callable[[], T], take: Callable[[T | TenureError], object], failed: Callable[[BaseException], None]
    ) -> None:
        """Start what may take long, or hang, in a thread of its own, and return: one that hangs holds up nobody.

        ``take`` gets what it came to, or why nothing; ``failed`` whatever else it raises. Both are called from there.
        """

        def run() -> None:
            try:
                found: T | TenureError = body()
            except TenureError as problem:
                found = problem
            take(found)

        Thread(target=self._guarded, args=(run, failed), daemon=True, name="top work").start()

    def _guarded(self, body: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        try:
            body()
        except BaseException as problem:  # noqa: BLE001 - handed to the screen, which ends with it
            self._stop.set()
            failed(problem)

    def _tell(self, take: Callable[[ClusterState], None], failed: Callable[[BaseException], None]) -> None:
        told: ClusterState | None = None
        while not self._stop.is_set():
            for question in self._source.questions()[len(self._wakes) :]:
                wake = Event()
                self._wakes.append(wake)
                body = self._asking(question, wake)
                Thread(target=self._guarded, args=(body, failed), daemon=True, name=f"top {question.name}").start()
            state = self._source.state_at(self._instant)
            if state is not told:  # of a record, nothing is new until another instant is looked at
                told = state
                take(state)
            self._frame.wait(self._frame_ns / SECOND)
            self._frame.clear()

    def _asking(self, question: Question, wake: Event) -> Callable[[], None]:
        def body() -> None:
            waited_for = True  # by a person: the first answer, and what was asked at once
            while not self._stop.is_set():
                began = self._clock.boot_ns()
                question.put()
                if waited_for:
                    self._frame.set()
                took = self._clock.boot_ns() - began
                waited_for = wake.wait(max(question.period_ns, min(SHARE * took, REST_NS_MAX)) / SECOND)
                wake.clear()

        return body


def ask_once(source: StateSource, patience_ns: Span) -> ClusterState:
    """Put every question once, all that are known at a time, and return what is known after at most the patience each.

    What hangs stays behind in its thread.
    """
    done = 0
    while len(questions := source.questions()) > done:
        threads = [Thread(target=each.put, daemon=True, name=f"top {each.name}") for each in questions[done:]]
        done = len(questions)
        for thread in threads:
            thread.start()
        last = Thread(
            target=lambda threads=threads: [thread.join() for thread in threads], daemon=True, name="top waits"
        )
        last.start()
        last.join(patience_ns / SECOND)
    return source.state_at()
