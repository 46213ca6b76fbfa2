"""A machine's clocks, and a source that knows how wrong they are: what the production EmbeddedTime is run over.

CLOCK_REALTIME has an offset and a drift, and is set by whoever likes; CLOCK_BOOTTIME runs at the same pace and is never
set. Both stand still with the machine. The source knows the truth up to a radius, at whose edge its statements are; it
may refuse, or lie.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.simulation.history import Said
from tests.simulation.lock import SimulatedLock
from timeagent.agent.bounded_clock import EmbeddedTime
from timeagent.errors import BadTime
from timeagent.keys import KeyInUse
from timeagent.sources.port import Sample
from timeagent.units import TimeInterval

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.history import History
    from tests.simulation.scheduler import Scheduler
    from timeagent.keys import Signer
    from timeagent.signedtime import SignedTime
    from timeagent.units import Instant, Span


INTERRUPTED = 0.2
"""How often others run before a clock is read."""


class SimulatedMachine:
    """A MachineClock. A reading takes no time; now and then others run before it, or for long."""

    def __init__(self, scheduler: Scheduler, name: str, *, offset_ns: Span, drift_ppm: int) -> None:
        self.scheduler = scheduler
        self._random = scheduler.stream(f"clocks of {name}").random
        self._drift_ppm = drift_ppm
        self._start = scheduler.now
        self._set_ns = scheduler.now + offset_ns
        self._frozen_at: Instant | None = None
        self._lost_ns: Span = 0

    def _passed(self) -> Span:
        now = self.scheduler.now if self._frozen_at is None else self._frozen_at
        passed = now - self._start - self._lost_ns
        return passed + passed * self._drift_ppm // 1_000_000

    def believed_ns(self) -> Instant:
        return self._set_ns + self._passed()

    def set_forward(self, span: Span) -> None:
        self._set_ns += span

    def freeze(self) -> None:
        if self._frozen_at is None:
            self._frozen_at = self.scheduler.now

    def thaw(self) -> None:
        if self._frozen_at is not None:
            self._lost_ns += self.scheduler.now - self._frozen_at
            self._frozen_at = None

    def realtime_ns(self) -> Instant:
        self.scheduler.operations += 1
        if self._random() < INTERRUPTED:
            self.scheduler.step("CLOCK_REALTIME")
        return self._set_ns + self._passed()

    def boot_ns(self) -> int:
        return self._counted("CLOCK_BOOTTIME")

    def monotonic_ns(self) -> int:
        return self._counted("CLOCK_MONOTONIC")

    def raw_ns(self) -> int:
        return self._counted("CLOCK_MONOTONIC_RAW")

    def _counted(self, name: str) -> int:
        self.scheduler.operations += 1
        if self._random() < INTERRUPTED:
            self.scheduler.step(name)
        return self.boot_now_ns()

    def boot_now_ns(self) -> int:
        return 10**12 + self._passed()

    def sleep(self, span: Span) -> None:
        self.scheduler.operations += 1
        if span > 0:
            self.scheduler.sleep(span)


class MachineNode:
    """One machine's clocks with their source: a NodeTime for each of its processes, and what is done to them."""

    def __init__(
        self,
        history: History,
        name: str,
        machine: SimulatedMachine,
        signer: Signer,
        *,
        radius_ns: Span,
        radius_ns_max: Span,
        edge: float,
    ) -> None:
        self.name = name
        self.machine = machine
        self.radius_ns = radius_ns
        self.silent = False
        self.lie_ns: Span = 0
        self.truthful = True
        """Whether its source never lied, its machine never stood still, and no setting of its clock was hidden."""
        self.sets = 0
        """How often its clock was set."""
        self.asked = 0
        """How often its source was asked, by whatever process."""
        self._history = history
        self._key = KeyInUse(signer)
        self._radius_ns_max = radius_ns_max
        self._edge = edge
        self._processes = 0

    def believed_ns(self) -> Instant:
        return self.machine.believed_ns()

    def set_forward(self, span: Span) -> None:
        """Set CLOCK_REALTIME: who looks at it has to notice."""
        self.sets += 1
        self.machine.set_forward(span)

    def rekey(self, signer: Signer) -> None:
        """Let all processes sign with another key from now on."""
        self._key.use(signer, None)

    def lie(self, span: Span) -> None:
        """Let the source say from now on that true time is so much later than it is."""
        self.truthful = False
        self.lie_ns = span

    def freeze(self) -> None:
        """Let the machine's clocks stand still: nobody on it can notice."""
        self.truthful = False
        self.machine.freeze()

    def thaw(self, *, right: bool) -> None:
        del right  # what stood still goes on from where it stood
        self.machine.thaw()

    def of_process(self) -> ProcessTime:
        self._processes += 1
        inner = EmbeddedTime(
            self.machine,
            [MeasuringSource(self, self._edge)],
            self._key,
            radius_ns_max=self._radius_ns_max,
            clock_epoch=self._processes * 1_000,
        )
        inner._lock = SimulatedLock(self.machine.scheduler)  # type: ignore[assignment]
        return ProcessTime(self, inner, self._history)


class MeasuringSource:
    """Says how wrong the machine's clock is. Its radius is true, and no smaller than it must be."""

    name = "simulated"

    def __init__(self, node: MachineNode, edge: float) -> None:
        self._node = node
        self._error_ns = int(edge * node.radius_ns)

    def sample(self) -> Sample:
        machine = self._node.machine
        self._node.asked += 1
        machine.scheduler.operations += 1
        machine.scheduler.step("ask the source")
        if self._node.silent:
            raise BadTime("no-answer", "the source does not answer", hint="wait")
        offset = machine.scheduler.now - machine.believed_ns() + self._error_ns + self._node.lie_ns
        boot_ns = machine.boot_now_ns()
        machine.scheduler.step("the source answers")
        return Sample(TimeInterval.around(offset, self._node.radius_ns), boot_ns)


class ProcessTime:
    """The production EmbeddedTime of one process, with a record of what it said."""

    def __init__(self, node: MachineNode, inner: EmbeddedTime, history: History) -> None:
        self._node = node
        self._inner = inner
        self._history = history
        self.boot_ns = inner.boot_ns
        self.sleep = inner.sleep

    def now(self) -> TimeInterval:
        began = self._node.machine.scheduler.now
        with self._watched():
            interval = self._inner.now()
        return self._noted(began, interval)

    def token(self) -> SignedTime:
        with self._watched():
            return self._inner.token()

    def now_and_token(self) -> tuple[TimeInterval, SignedTime]:
        began = self._node.machine.scheduler.now
        with self._watched():
            interval, token = self._inner.now_and_token()
        return self._noted(began, interval), token

    def page(self) -> SignedTime:
        """Return a signed time; here there is no page, and each look at the clocks takes steps."""
        return self.token()

    def token_over(self, digest: bytes) -> SignedTime:
        began = self._node.machine.scheduler.now
        with self._watched():
            token = self._inner.token_over(digest)
        self._noted(began, token.interval)
        return token

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Note that a clock was set there and back while its source was asked: no reading before or after shows it."""
        node = self._node
        sets, asked = node.sets, node.asked
        try:
            yield
        finally:
            if node.asked != asked and node.sets - sets > 1:
                node.truthful = False

    def _noted(self, began: Instant, interval: TimeInterval) -> TimeInterval:
        if self._node.truthful:
            ended = self._node.machine.scheduler.now
            self._history.said.append(Said(self._node.name, began, ended, interval.earliest, interval.latest))
        return interval
