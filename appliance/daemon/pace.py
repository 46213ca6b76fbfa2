"""Which log's metronome has its turn when: where something can be due, or somebody of this machine has woken it.

The logs at the root have their turns one after another, in the thread that beats. Those in another store have theirs in
a thread of that store: one that does not answer holds up its own logs, and no others.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Final

from timeagent.errors import Environment, TenureError
from timeagent.units import MINUTE, MS, SECOND, Instant, Span, TimeInterval, rfc3339

from ..bag.logs import names_there, open_log
from ..bag.metronome import Metronome, Packing
from ..bag.ports import BagContext, wake_nobody
from ..formats.birth import store_of
from ..formats.paths import Grid
from ..node.runtime import begin

_log = logging.getLogger(__name__)

STAGGER_NS: Final[Span] = 500 * MS
"""So long a node waits at most with a bag that is due, each another while: usually one of them does the work."""

SEAL_STAGGER_NS: Final[Span] = 2 * MINUTE
"""So long with a rack, each log another while too: the racks of all logs end together."""

NEW_LOGS_NS: Final[Span] = SECOND
"""How often new logs are looked for, where listings cost nothing; one that is woken is found at once."""

WOKEN_NS: Final[Span] = SECOND
"""A woken log is looked at after so long, or half its grace: before that no bag is due that was begun just now, and
whoever wakes it again meanwhile costs nothing."""

RETRY_NS: Final[Span] = SECOND
"""A turn that failed is tried again after so long."""

SET_BACK_NS: Final[Span] = MINUTE
"""A clock that is so much behind its last beat was set: it may have been ahead, and logs wait for instants of then."""

TURNS_PER_BEAT: Final = 64
_TAKEN: Final = -1


@dataclass(slots=True)
class _Paced:
    grid: Grid
    metronome: Metronome
    packing: Packing
    due_ns: Instant = 0
    close_ns: Instant = 0
    """When the metronome is due: a turn before that is for packing alone."""
    follow_to_ns: Instant = 0
    """Bags that begin before this may be of processes of this machine."""
    woken: bool = False
    """Whether it was woken during its turn, in the thread of its store."""
    outdated: bool = False
    """Whether the clock was set back during that turn."""

    @property
    def store(self) -> str:
        """Where it is, if not at the root."""
        return store_of(self.grid.birth)


type Apart = Callable[[str, Callable[[], object]], object]
"""Does something for the logs of a store, by its name, so that no other store waits for it. Raises Environment."""


class StoreThreads:
    """A thread for each store, which does one thing after another. They end with the process."""

    def __init__(self) -> None:
        self._waiting: dict[str, SimpleQueue[Callable[[], object]]] = {}

    def __call__(self, store: str, do: Callable[[], object]) -> None:
        """Let the store's thread do it, when all that was handed in before is done. ``do`` raises nothing.

        Raises Environment where this process may have no more threads.
        """
        waiting = self._waiting.get(store)
        if waiting is None:
            waiting = SimpleQueue()
            begin(Thread(target=self._run, args=(waiting,), name="tenure-pace", daemon=True))
            self._waiting[store] = waiting
        waiting.put(do)

    @staticmethod
    def _run(waiting: SimpleQueue[Callable[[], object]]) -> None:
        while True:
            waiting.get()()


class Pace:
    def __init__(
        self,
        context: BagContext,
        woken: Callable[[], Collection[str]],
        *,
        packs: bool = True,
        keep_ns: Span | None = None,
        apart: Apart | None = None,
    ) -> None:
        """Touch nothing yet. ``woken``: return the names of logs that were woken since it was called last.

        ``packs``: pack sealed racks; ``keep_ns``: and delete packs that are older, None: never. ``apart``: by what logs
        have their turns that are not at the root; by default, threads.
        """
        self._context = replace(context, wake=wake_nobody)  # one's own looks wake nobody
        self._woken = woken
        self._packs = packs
        self._keep_ns = keep_ns
        self._logs: dict[str, _Paced] = {}
        self._queue: list[tuple[Instant, str]] = []
        """When each log is due, the soonest first; what is not its ``due_ns`` any more is passed over."""
        self._looked_ns: int | None = None
        self._latest_ns: Instant = 0
        """The latest that it could be at the last beat."""
        self._unread: set[str] = set()
        """Logs that could not be opened: whoever has woken one meanwhile is not told again."""
        self._apart = apart or StoreThreads()
        self._done: SimpleQueue[tuple[str, Instant | Exception]] = SimpleQueue()
        """The logs that had their turn there, each with when it is due again, or what broke."""

    def horizons(self) -> dict[str, Instant]:
        """Return up to where each log was closed when it last had its turn. Touches nothing."""
        return {name: log.metronome.reached for name, log in self._logs.items()}

    def beat(self) -> None:
        """Give a turn to the logs that are due. What fails is logged, and tried again. Touches the mount."""
        try:
            self._look_for_logs()
            now = self._context.time.now()
        except TenureError as problem:
            _log.warning("beat-failed code=%s reason=%s", problem.code, problem.message)
            return
        self._take_back(now)
        if now.latest < self._latest_ns - SET_BACK_NS:
            self._begin_anew(now)
        self._latest_ns = now.latest
        for name in (*self._woken(), *self._unread.intersection(self._logs)):
            self._wake(name, now)
        for name in self._due(now):
            store = self._logs[name].store
            if store:
                self._hand_over(store, name, now)
            else:
                self._set_due(name, self._turn(name, now))

    def _due(self, now: TimeInterval) -> list[str]:
        """Take from the queue what is due, the longest due first."""
        found: list[str] = []
        while self._queue and len(found) < TURNS_PER_BEAT and now.surely_past(self._queue[0][0]):
            due_ns, name = heapq.heappop(self._queue)
            if self._logs[name].due_ns == due_ns:
                self._logs[name].due_ns = _TAKEN
                found.append(name)
        return found

    def _hand_over(self, store: str, name: str, now: TimeInterval) -> None:
        try:
            self._apart(store, partial(self._turn_apart, name, now))
        except Environment as problem:
            _log.warning("metronome-failed log=%s code=%s reason=%s", name, problem.code, problem.message)
            self._set_due(name, now.latest + RETRY_NS)

    def _turn_apart(self, name: str, now: TimeInterval) -> None:
        try:
            self._done.put((name, self._turn(name, now)))
        except Exception as problem:  # noqa: BLE001 - raised in the thread that beats
            self._done.put((name, problem))

    def _take_back(self, now: TimeInterval) -> None:
        while not self._done.empty():
            name, next_ns = self._done.get()
            if isinstance(next_ns, Exception):
                raise next_ns
            log = self._logs[name]
            if log.outdated:
                self._renew(name, log, now)
            else:
                self._set_due(name, next_ns)
            if log.woken:
                log.woken = False
                self._wake(name, now)

    def _begin_anew(self, now: TimeInterval) -> None:
        """Have every log looked at as when this began: else each waits until the clock is where it was."""
        _log.warning("clock-set-back from=%s to=%s", rfc3339(self._latest_ns), rfc3339(now.latest))
        for name, log in list(self._logs.items()):
            if log.due_ns == _TAKEN:
                log.outdated = True
            else:
                self._renew(name, log, now)

    def _renew(self, name: str, log: _Paced, now: TimeInterval) -> None:
        renewed = self._logs[name] = self._paced(log.grid)
        renewed.follow_to_ns = min(log.follow_to_ns, self._in_use_to(log.grid, now))
        self._set_due(name, 0)

    def _turn(self, name: str, now: TimeInterval) -> Instant:
        """Give a log its turn; return when it is due again. Touches the mount, or its store."""
        log = self._logs[name]
        try:
            if now.surely_past(log.close_ns):
                log.close_ns = log.metronome.turn(now, log.follow_to_ns).next_ns
            next_ns = log.close_ns
            if self._packs:
                report = log.packing.turn(now)
                next_ns = min(next_ns, report.next_ns)
                for problem in report.damaged:
                    _log.warning("rack-not-packed log=%s code=%s reason=%s", name, problem.code, problem.message)
        except TenureError as problem:
            next_ns = log.close_ns = now.latest + RETRY_NS
            _log.warning("metronome-failed log=%s code=%s reason=%s", name, problem.code, problem.message)
        return next_ns

    def _set_due(self, name: str, due_ns: Instant) -> None:
        self._logs[name].due_ns = due_ns
        heapq.heappush(self._queue, (due_ns, name))

    def _wake(self, name: str, now: TimeInterval) -> None:
        if name not in self._logs:
            self._open(name)
        log = self._logs.get(name)
        if log is None:
            return
        self._unread.discard(name)
        if log.due_ns == _TAKEN:
            log.woken = True
            return
        birth = log.grid.birth
        soon_ns = now.latest + min(WOKEN_NS, birth.grace_ns // 2)
        log.follow_to_ns = self._in_use_to(log.grid, now)
        log.close_ns = min(log.close_ns, soon_ns)
        if soon_ns < log.due_ns:
            self._set_due(name, soon_ns)

    def _look_for_logs(self) -> None:
        boot, pause = self._context.time.boot_ns(), max(NEW_LOGS_NS, self._context.storage.listing_pause_ns)
        if self._looked_ns is not None and boot - self._looked_ns < pause:
            return
        self._looked_ns = boot
        for name in names_there(self._context.storage, self._logs):
            self._open(name)

    def _open(self, name: str) -> None:
        """Take a log up; it is due at once. A name without a birth record is no log, or none yet."""
        context = self._context
        try:
            birth = open_log(context, name)
        except TenureError as problem:  # the other logs go on
            _log.warning("log-not-opened log=%s code=%s reason=%s", name, problem.code, problem.message)
            self._unread.add(name)
            return
        if birth is not None:
            self._logs[name] = self._paced(Grid(birth))
            self._set_due(name, 0)

    def _paced(self, grid: Grid) -> _Paced:
        metronome = Metronome(self._context, grid, stagger_ns=STAGGER_NS, seal_stagger_ns=SEAL_STAGGER_NS)
        return _Paced(grid, metronome, Packing(self._context, grid, metronome.sealer, self._keep_ns))

    @staticmethod
    def _in_use_to(grid: Grid, now: TimeInterval) -> Instant:
        return now.latest + grid.birth.span_ns + grid.birth.grace_ns  # the writer's clock may be ahead
