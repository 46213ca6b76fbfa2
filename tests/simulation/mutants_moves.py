"""Wrong versions of steps from one map to the next, in the scenario of maps. Each names the checker that kills it.

Two belong to the exhaustive casts alone: a terminal record that is believed at first sight does no harm before a chain
is pruned, which is 64 records long then; and nobody begins here under a map that has ended long ago.
"""

from __future__ import annotations

from appliance.lease import ceiling, succession
from tests.simulation.mutant import Mutant, one

MOVES: tuple[Mutant, ...] = (
    Mutant(
        "a map's chains begin when the first chain of the map before has ended",
        one(succession, "Succession.beginning", "if doubt is not None:", "if doubt is ended[0]:"),
        "witnesses",
        "moves",
    ),
    Mutant(
        "a new map's chains begin at the floor of the last run, not at its ceiling",
        one(
            succession,
            "_after",
            "return Beginning(record.ceiling_ns, record.ceiling_ns)",
            "return Beginning(record.floor_ns, record.settle_to_ns)",
        ),
        "witnesses",
        "moves",
    ),
    Mutant(
        "a new map's owner grants while the old one may",
        one(ceiling, "CeilingChain._empty", "begins = self._origin()", "begins = Beginning(0, 0)"),
        "witnesses",
        "moves",
    ),
    Mutant(
        "an owner under the map before keeps its state and grants on",
        one(
            ceiling,
            "CeilingChain._depose",
            "return self._deposed",
            "gone, self._deposed = (self._deposed, None)\nreturn gone",
        ),
        "witnesses",
        "moves",
    ),
)
