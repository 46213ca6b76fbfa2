"""Wrong versions of what is done with requests that arrive late, twice, or in another order than they were sent."""

from __future__ import annotations

from appliance.lease import decisions, domain, sessions
from tests.simulation.mutant import Mutant, one

RENEWALS: tuple[Mutant, ...] = (
    Mutant(
        "a renewal of a session lease that an older one overtakes is undone by it",
        one(
            sessions,
            "renewed",
            "decisions.later_expiry(expiry, request, bounds)",
            "bounds.expiry(request.term_ns, request.expiry_ns_max)",
        ),
        "sessions",
        "together",
    ),
    Mutant(
        "a renewal of a lease that an older one overtakes is undone by it",
        one(
            decisions,
            "_later_expiry",
            "later_expiry(lease.expiry_ns, command, bounds)",
            "bounds.expiry(command.term_ns, command.expiry_ns_max)",
        ),
        "endings",
        "shares",
    ),
    Mutant(
        "a late duplicate hits whoever has the domain by now",
        one(decisions, "named", "each.correlation_id == correlation_id", "each.correlation_id"),
        "asked",
        "leases",
    ),
    Mutant(
        "a request that was long on its way counts from when it arrives",
        one(domain, "Bounds.expiry", "self.now.midpoint + term, expiry_ns_max,", "self.now.midpoint + term,"),
        "asked",
        "leases",
    ),
    Mutant(
        "a renewal of a session lease that was long on its way counts from when it arrives",
        one(
            sessions,
            "renewed",
            "decisions.later_expiry(expiry, request, bounds)",
            "max(expiry, bounds.expiry(request.term_ns, 2**62))",
        ),
        "asked",
        "together",
    ),
)
