"""The source *assumed*: no measurement at all, a radius that the policy states.

For laptops and test machines whose clocks nobody disciplines, and for clusters on one machine, where all processes
share one clock. It is labelled in every signed time that it makes. A radius that is too small breaks no promise
about the record; it makes writes fail and the auditor speak up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeagent.interval import TimeInterval
from timeagent.signedtime import ClockStatus

from .port import Sample

if TYPE_CHECKING:
    from timeagent.clock import MachineClock
    from timeagent.units import Span


class AssumedSource:
    """``true = CLOCK_REALTIME`` plus or minus a stated radius."""

    name = "assumed"

    def __init__(self, machine: MachineClock, radius_ns: Span) -> None:
        """Take the radius from the policy; it must be positive."""
        assert radius_ns > 0
        self._machine = machine
        self._radius_ns = radius_ns

    def sample(self) -> Sample:
        """Return the stated radius. Never fails, never blocks."""
        offset = TimeInterval(-self._radius_ns, self._radius_ns)
        return Sample(self.name, offset, self._machine.boot_ns(), ClockStatus.FREE_RUNNING, assumed=True)
