"""A machine's clocks and time sources that do only what they are told."""

from collections.abc import Callable

from timeagent.errors import BadTime
from timeagent.sources.port import Sample
from timeagent.units import MS, SECOND, TimeInterval

START_NS = 1_795_212_607_000_000_000
"""2026-11-20T22:10:07Z."""


class HandMachine:
    """A MachineClock: ``step`` sets CLOCK_REALTIME, ``pass_time`` lets time go by, ``at_read`` runs at each reading."""

    def __init__(self, real_ns: int = START_NS, boot_ns: int = 100 * SECOND) -> None:
        self.real = real_ns
        self.boot = boot_ns
        self.monotonic = boot_ns
        self.raw = boot_ns
        self.at_read: Callable[[], None] = lambda: None

    def realtime_ns(self) -> int:
        self.at_read()
        return self.real

    def boot_ns(self) -> int:
        self.at_read()
        return self.boot

    def monotonic_ns(self) -> int:
        return self.monotonic

    def raw_ns(self) -> int:
        return self.raw

    def sleep(self, span: int) -> None:
        self.pass_time(max(0, span))

    def pass_time(self, span: int) -> None:
        assert span >= 0
        self.real += span
        self.boot += span
        self.monotonic += span
        self.raw += span

    def suspend(self, span: int) -> None:
        """The machine sleeps: only two of its clocks notice."""
        self.real += span
        self.boot += span

    def slew(self, span: int) -> None:
        """Somebody moves the clock without setting it: all but the raw clock follow."""
        self.real += span
        self.boot += span
        self.monotonic += span

    def step(self, span: int) -> None:
        self.real += span


class StatedSource:
    """A measuring source that states one offset until it is told another, or why it states none."""

    def __init__(self, machine: HandMachine, radius_ns: int = 5 * MS, name: str = "stated") -> None:
        self.name = name
        self.offset = TimeInterval(-radius_ns, radius_ns)
        self.machine = machine
        self.refusal: BadTime | None = None
        self.asked = 0
        self.at_sample: Callable[[], None] = lambda: None

    def sample(self) -> Sample:
        self.asked += 1
        boot = self.machine.boot
        self.at_sample()
        if self.refusal:
            raise self.refusal
        return Sample(self.offset, boot)
