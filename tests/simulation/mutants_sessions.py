"""Wrong versions of steps in session leases. Each names the checker that kills it."""

from __future__ import annotations

from appliance.lease import sessionstate
from appliance.session import standings
from tests.simulation.mutant import Mutant, one

SESSIONS: tuple[Mutant, ...] = (
    Mutant(
        "a renewal of a session lease forgets what was ended alone",
        one(sessionstate, "witness_of", "ended=session.ended", "ended=()"),
        "sessions",
        "together",
    ),
    Mutant(
        "a holder goes on under a lease that was ended alone",
        one(standings, "Standing.take", "lease.lose('revoked', Reason.BROKEN)", "pass"),
        "published",
        "together",
    ),
)
