"""Wrong versions of steps in shared leases and in changes of mode. Each names the checker that kills it."""

from __future__ import annotations

from appliance.lease import decisions
from appliance.session import held
from tests.simulation.mutant import Mutant, one

MODES: tuple[Mutant, ...] = (
    Mutant(
        "IX is granted beside S",
        one(
            decisions,
            "conflicts",
            "return other not in _BESIDE[one]",
            "from appliance.formats.lease import _BESIDE\n"
            "return other not in _BESIDE[one] and (one, other) != ('S', 'IX')",
        ),
        "overlap",
        "shares",
    ),
    Mutant(
        "IX is granted beside SIX",
        one(
            decisions,
            "conflicts",
            "return other not in _BESIDE[one]",
            "from appliance.formats.lease import _BESIDE\n"
            "return other not in _BESIDE[one] and (one, other) != ('SIX', 'IX')",
        ),
        "exclusion",
        "shares",
    ),
    Mutant(
        "settle_to is forgotten by the second shared grant",
        one(
            decisions,
            "_grant",
            "memory_under(memory, lease)",
            "msgspec.structs.replace(memory_under(memory, lease), "
            "settle_to_ns=0 if request.mode in ('S', 'IS', 'IX') else memory.settle_to_ns)",
        ),
        "witnesses",
        "shares",
    ),
    Mutant(
        "the floor of a lease that ends beside others is forgotten",
        one(
            decisions,
            "end_lease",
            "floor_ns=max(before.floor_ns, floor)",
            "floor_ns=max(before.floor_ns, floor if len(state.leases) == 1 else 0)",
        ),
        "endings",
        "shares",
    ),
    Mutant(
        "the floor is the watermark of the lease that ended last",
        one(
            decisions,
            "end_lease",
            "floor_ns=max(before.floor_ns, floor)",
            "floor_ns=floor or before.floor_ns",
        ),
        "witnesses",
        "shares",
    ),
    Mutant(
        "a stronger mode is granted whoever else has the domain",
        one(
            decisions,
            "_upgrade",
            "in_the_way = [each for each in state.leases if each is not lease and conflicts(each.mode, mode)]",
            "in_the_way = []",
        ),
        "overlap",
        "shares",
    ),
    Mutant(
        "a stronger mode ends the leases in its way before they have expired",
        one(
            decisions,
            "_upgrade",
            "if denied is not None:",
            "if denied is not None and command.mode is None:",
        ),
        "overlap",
        "shares",
    ),
    Mutant(
        "a holder who gets a stronger mode keeps its fence",
        one(held, "Lease.take", "self.fence = self.stated_fence = witness.fence", "self.stated_fence = witness.fence"),
        "overlap",
        "shares",
    ),
)
