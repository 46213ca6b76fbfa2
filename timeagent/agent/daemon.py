"""The agent as a process: one thread publishes, one for each source asks, one for each door answers.

The publishing thread waits for nobody: a source that hangs only falls silent, a disk that hangs only delays evidence.
It is late when the machine gives it no processor; readers refuse what is stale anyway, and the unit gives it a
real-time priority (docs/operators.md). Ends when told to, or when a thread meets what it does not expect: then it says
so, and whoever supervises it starts the next run.
"""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Callable, Sequence
from threading import Condition, Thread
from typing import Any, Final

from ..clock import MachineClock
from ..notify import Notifier
from ..sources.port import DatagramDoor
from ..units import SECOND
from .agent import Agent
from .bounded_clock import PERIOD_NS
from .discipline import OWN_GROUP, Listed
from .evidence import EvidenceSink

_log = logging.getLogger(__name__)
_EVIDENCE_WAITING_MAX: Final = 64
_JOIN_S: Final = 2.0


class QueuedEvidence:
    """Evidence on its way to a disk: handing it over never waits. What does not fit is dropped, and counted."""

    def __init__(self, sink: EvidenceSink) -> None:
        """Take the real sink, which may block."""
        self._sink = sink
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(_EVIDENCE_WAITING_MAX)
        self.dropped = 0

    def keep(self, record: dict[str, Any]) -> None:
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def drain(self, *, wait: bool = False) -> None:
        """Write what waits; with ``wait`` for the first as long as it takes, or until ``wake``. Blocks."""
        try:
            record = self._waiting.get(block=wait)
            while True:
                if record is not None:
                    self._sink.keep(record)
                record = self._waiting.get_nowait()
        except queue.Empty:
            return

    def wake(self) -> None:
        """End the wait of ``drain``. Where the queue is full it does not wait."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)


class Daemon:
    """Runs one agent."""

    def __init__(
        self,
        agent: Agent,
        clock: MachineClock,
        listed: Sequence[Listed],
        doors: Sequence[DatagramDoor],
        evidence: QueuedEvidence,
        notifier: Notifier,
    ) -> None:
        self._agent = agent
        self._clock = clock
        self._listed = listed
        self._doors = doors
        self._evidence = evidence
        self._notifier = notifier
        self._pace = Condition()
        self._moves = 0
        self._ended = False
        self._failed: BaseException | None = None
        agent.on_moved = self._ask_again

    def run(self, stop: Callable[[], bool]) -> None:
        """Publish until told to stop. Blocks. Raises what a thread did not expect."""
        threads = [self._thread(f"source {each.name}", self._ask, each) for each in self._listed]
        threads += [self._thread("door", door.serve, lambda: self._ended) for door in self._doors]
        threads.append(self._thread("evidence", self._write))
        self._agent.turn()
        for each in self._listed:
            if each.group == OWN_GROUP:  # first: what is asked of peers covers what they say
                self._agent.poll(each)
        for thread in threads:
            thread.start()
        self._notifier.ready("publishing")
        try:
            self._publish(stop)
        finally:
            self._ended = True
            with self._pace:
                self._pace.notify_all()
            for door in self._doors:
                door.wake()
            self._evidence.wake()
            self._notifier.stopping()
            for thread in threads:
                thread.join(_JOIN_S)  # one that waits for a mount may stay: it is a daemon thread
            self._evidence.drain()
        if self._failed is not None:
            raise self._failed

    def _publish(self, stop: Callable[[], bool]) -> None:
        due = self._clock.boot_ns()
        told = due
        while not stop() and self._failed is None:
            due += PERIOD_NS
            now = self._clock.boot_ns()
            if due > now:
                self._clock.sleep(due - now)
            else:
                due = now  # late: no burst to catch up
            self._agent.turn()
            if self._notifier.watchdog_ns and now - told >= self._notifier.watchdog_ns // 3:
                told = now
                self._notifier.alive()

    def _thread(self, name: str, work: Callable[..., None], *given: Any) -> Thread:  # noqa: ANN401 - of the work
        def guarded() -> None:
            try:
                work(*given)
            except BaseException as problem:  # noqa: BLE001 - the publishing thread raises it
                _log.exception("thread-failed thread=%s", name)
                self._failed = problem

        return Thread(target=guarded, name=name, daemon=True)

    def _ask(self, listed: Listed) -> None:
        """Ask a source at its pace, and when the clocks have moved."""
        while not self._ended:
            moves = self._moves
            due = self._clock.boot_ns() + listed.period_ns
            self._agent.poll(listed)
            left = max(0, due - self._clock.boot_ns()) / SECOND
            with self._pace:
                self._pace.wait_for(lambda: self._ended or self._moves != moves, timeout=left)  # noqa: B023 - now

    def _ask_again(self) -> None:
        with self._pace:
            self._moves += 1
            self._pace.notify_all()

    def _write(self) -> None:
        while not self._ended:
            self._evidence.drain(wait=True)
