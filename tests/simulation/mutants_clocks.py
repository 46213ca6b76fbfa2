"""Wrong versions of steps in making time from a machine's clock. Each names the checker that kills it."""

from __future__ import annotations

from tests.simulation.mutant import Mutant, one
from timeagent.agent import bounded_clock, discipline

JUDGED = (bounded_clock, "BoundedClock._judged")
UNSTEADY = (
    "moves != self._moves or abs(moved.stepped_ns) > PAUSE_NS or moved.suspended_ns > SUSPEND_NS or "
    "(said.assumed and after.paused)"
)

CLOCKS: tuple[Mutant, ...] = (
    Mutant(
        "a sample of the clock counts from the reading after it",
        (
            (*JUDGED, UNSTEADY, "False"),
            (*JUDGED, "(before.ahead(),", "(after.ahead(),"),
        ),
        "truthful",
        "machines",
    ),
    Mutant(
        "a sample of the clock does not age",
        one(discipline, "Bound.aged", "drift_ns(now.boot_ns - self.at.boot_ns, drift_ppm)", "0"),
        "truthful",
        "machines",
    ),
    Mutant(
        "what a clock was moved by while its source was asked is not allowed for",
        (
            (*JUDGED, UNSTEADY, "False"),
            (*JUDGED, "min(was.earliest, now.earliest), max(was.latest, now.latest)", "was.earliest, was.latest"),
        ),
        "truthful",
        "machines",
    ),
)
