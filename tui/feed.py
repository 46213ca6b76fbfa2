"""Asks the questions of a source off the screen's thread, hands states over four times a second, and loads evidence.

One thread per question, because each may hang for as long as a mount or a shard does; one more that puts together what
is known and never waits. They are daemon threads: a program that is left does not wait for a mount that is gone.
Screens and widgets know no more of the rest of the program than this; ``tui.sources`` has the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Event, Lock, Thread
from threading import enumerate as enumerate_threads
from typing import TYPE_CHECKING, Any, Final, Protocol

from timeagent.clock import MachineClock
from timeagent.errors import TenureError, TryAgain
from timeagent.units import MS, SECOND, Instant, Span

from .model.state import ClusterState, Freshness, Reach

if TYPE_CHECKING:
    from auditor.explain.archive import Archive

    from .model.state import DetailLine, Subject


class StateSource(Protocol):
    """Where a screen's state comes from: a live cluster, the mount alone, or a copy."""

    def questions(self) -> Sequence[AskedQuestion[Any]]:
        """Return what has to be asked now: some may be added, and others left out, from one time to the next."""

    def state_at(self, instant: Instant | None = None) -> ClusterState:
        """Return what is known of an instant (None: now, or the end of a record) from the answers so far. Any thread.

        Never waits for a mount. Equal questions may be answered with the same value: then nothing is new.
        """

    def details(self, subject: Subject, instant: Instant | None = None) -> Sequence[DetailLine]:
        """Return what is known of a subject at an instant. Blocks as long as the mount does; raises TenureError."""

    @property
    def record(self) -> Archive | None:
        """The copy that was read as a whole, with its audit and its timeline; None: there is none (yet)."""


NO_ADDRESS: Final = "no-address"
SILENT_NS: Final[Span] = SECOND
"""An answer that is due for longer than this is none."""


class AskedQuestion[T]:
    """A question with its newest answer. One thread at a time asks; any thread may look."""

    def __init__(self, name: str, period_ns: Span, clock: MachineClock, ask: Callable[[], T]) -> None:
        """Ask nothing yet. ``ask`` raises TenureError where there is no answer.

        ``period_ns``: how long to wait between an answer and asking again.
        """
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
        self._asking = Lock()

    def put(self) -> None:
        """Ask once, and keep the answer or why there is none. Blocks as long as it takes; raises only what is a bug."""
        with self._asking:  # who asked it once, and gave up waiting, may have left a thread that asks it still
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
        asked, answered, error = self._asked_ns, self._answered_ns, self.error
        now = self._clock.boot_ns()  # after those: an answer may come in between
        age = None if answered is None else now - answered
        if error is not None and error.code == NO_ADDRESS:
            return Freshness(Reach.NOT_ASKED, problem="this node's settings have no address of it", way_out=error.hint)
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


WORKERS_MAX: Final = 64
"""So many things are done at a time at most: more of them wait for a mount that hangs."""


class Feed:
    """The threads behind a screen. Nothing here blocks."""

    def __init__(self, source: StateSource, clock: MachineClock, frame_ns: Span = FRAME_NS) -> None:
        self.source = source
        self._clock = clock
        self._frame_ns = frame_ns
        self._stop = Event()
        self._wakes: dict[AskedQuestion[Any], Event] = {}
        self._frame = Event()
        self._instant: Instant | None = None

    def start(self, take: Callable[[ClusterState], object], failed: Callable[[BaseException], None]) -> None:
        """Call ``take`` with each state, from another thread; ``failed`` with what can only be a bug, and end."""
        self._thread("top", lambda: self._tell(take, failed), failed)

    def stop(self) -> None:
        """Ask nothing more. Waits for nobody."""
        self._stop.set()
        self.ask_now()

    def ask_now(self) -> None:
        """Ask everything again at once that is not being asked."""
        for wake in (*self._wakes.values(), self._frame):
            wake.set()

    def look_at(self, instant: Instant | None) -> None:
        """Hand over the states of another instant from now on; None: of now, or of a record's end."""
        self._instant = instant
        self._frame.set()

    def do[T](self, body: Callable[[], T], failed: Callable[[BaseException], None]) -> Future[T | TenureError]:
        """Start what may take long, or hang, in a thread of its own: one that hangs holds up nobody.

        Returns what it will come to, or why nothing; ``failed`` gets whatever else it raises, there.
        """
        found: Future[T | TenureError] = Future()
        if sum(thread.name == "top work" for thread in enumerate_threads()) >= WORKERS_MAX:
            what = f"{WORKERS_MAX} questions before this one hang"
            found.set_result(TryAgain("all-hang", what, hint="see whether the file server answers"))
            return found

        def run() -> None:
            try:
                found.set_result(body())
            except TenureError as problem:
                found.set_result(problem)

        self._thread("top work", run, failed)
        return found

    def _thread(self, name: str, body: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        def guarded() -> None:
            try:
                body()
            except BaseException as problem:  # noqa: BLE001 - handed to the screen, which ends with it
                self._stop.set()
                failed(problem)

        Thread(target=guarded, daemon=True, name=name).start()

    def _tell(self, take: Callable[[ClusterState], object], failed: Callable[[BaseException], None]) -> None:
        told: ClusterState | None = None
        while not self._stop.is_set():
            for question in self.source.questions():
                if question not in self._wakes:
                    wake = self._wakes[question] = Event()
                    self._thread(f"top {question.name}", self._asking(question, wake), failed)
            state = self.source.state_at(self._instant)
            if state is not told:  # of a record, nothing is new until another instant is looked at
                told = state
                take(state)
            self._frame.wait(self._frame_ns / SECOND)
            self._frame.clear()

    def _asking(self, question: AskedQuestion[Any], wake: Event) -> Callable[[], None]:
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
                if question not in self.source.questions():
                    return

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


class ArchiveLoader:
    """Loads the evidence that findings and replay show: of a copy that was read, or of a root, audited on demand.

    Has one archive at most. Everything but ``_step`` is called by the screen's own thread.
    """

    def __init__(
        self,
        feed: Feed,
        work: Callable[[Callable[[], Archive], Callable[[Archive | TenureError], None]], None],
        complain: Callable[[TenureError, str], None],
    ) -> None:
        self._feed = feed
        self._work = work
        self._complain = complain
        self._done = ""
        self.busy = False
        self.archive: Archive | None = None
        self.problem: TenureError | None = None

    def take_record(self) -> None:
        if self.archive is None and not self.busy and self.problem is None:
            self.archive = self._feed.source.record

    def audit_now(self, state: ClusterState) -> None:
        """Read and audit the whole root that a state is of, again if that was done before."""
        if self.busy:
            return

        def body() -> Archive:
            from auditor.evidence.opening import open_tree  # noqa: PLC0415
            from auditor.explain.archive import read_archive  # noqa: PLC0415

            return read_archive(open_tree(Path(state.path)), step=self._step)

        self.busy, self._done, self.problem = True, "opening the tree", None
        self._work(body, self._take)

    def words(self, state: ClusterState | None) -> str:
        if self.busy:
            return f"{self._done} …"
        if self.problem is not None:
            hint = f" {self.problem.hint}" if self.problem.hint else ""
            return f"no audit: {self.problem.message}.{hint}  a tries again"
        if state is not None and state.mount.problem:
            return f"not known yet: {state.mount.problem}"
        return "not audited yet: a audits the whole tree now, as tenure audit does"

    def _take(self, found: Archive | TenureError) -> None:
        self.busy = False
        if isinstance(found, TenureError):
            self.problem = found
            if self.archive is not None:  # it stays in sight, and hides why there is no newer one
                self._complain(found, "not audited again")
        else:
            self.archive = found

    def _step(self, part: str, done: int, what: str) -> None:
        del what
        words = {"audit": "auditing the tree: {:,} parts", "timeline": "putting it in order of time: {:,} files"}
        self._done = words[part].format(done)
