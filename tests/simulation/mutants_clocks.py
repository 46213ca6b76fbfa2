"""Wrong versions of steps in making time from a machine's clock. Each names the checker that kills it."""

from __future__ import annotations

from tests.simulation.mutant import Mutant, one
from timeagent import sampled

CLOCKS: tuple[Mutant, ...] = (
    Mutant(
        "a sample of the clock counts from the reading after it",
        one(sampled, "SampledClock._judge", "self._asked.ahead()", "reading.ahead()"),
        "truthful",
        "machines",
    ),
    Mutant(
        "a sample of the clock does not age",
        one(
            sampled,
            "SampledClock._interval",
            "aged = sample.offset.widened(drifted).shifted(reading.real_ns)",
            "aged = sample.offset.shifted(reading.real_ns)",
        ),
        "truthful",
        "machines",
    ),
    Mutant(
        "what a clock was moved by since its sample is not allowed for",
        one(
            sampled,
            "SampledClock._interval",
            "low, high = self._moved_since_sample(reading)",
            "low, high = (0, 0)",
        ),
        "truthful",
        "machines",
    ),
)
