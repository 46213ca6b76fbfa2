"""Wrong versions of steps in session leases. Each names the checker that kills it."""

from __future__ import annotations

from appliance.lease import sessions
from appliance.session import held, session_leases
from tests.simulation.mutant import Mutant, one

SESSIONS: tuple[Mutant, ...] = (
    Mutant(
        "a renewal of a session lease forgets what was ended alone",
        one(sessions, "witness_of", "ended=session.ended", "ended=()"),
        "sessions",
        "together",
    ),
    Mutant(
        "a holder goes on under a lease that was ended alone",
        one(session_leases, "SessionLease.take", "lease.lose('revoked', LossReason.REVOKED, told.get(name))", "pass"),
        "published",
        "together",
    ),
    Mutant(
        "a holder overhears the first of the leases that were ended alone",
        one(session_leases, "SessionLease.take", "for name in witness.ended", "for name in witness.ended[1:]"),
        "revoked",
        "together",
    ),
    Mutant(
        "a holder's lease outlives its session lease",
        one(
            held,
            "Lease.expiry_ns",
            "else together.expiry_ns",
            "else together.expiry_ns + together.term_ns",
        ),
        "published",
        "together",
    ),
    Mutant(
        "a lease keeps the expiry that it was granted with, while its session lives on",
        one(sessions, "as_of", "elif lease.expiry_ns != session.expiry_ns:", "elif not lease.expiry_ns:"),
        "sessions",
        "together",
    ),
    Mutant(
        "of holders beside each other the others keep the expiry of their grant when one has died",
        one(sessions, "as_of", "each.correlation_id == lease.correlation_id", "each is lease"),
        "sessions",
        "together",
        first=1_700,
    ),
    Mutant(
        "a session lease is broken when one end of the interval is past it",
        one(
            sessions,
            "expired",
            "not bounds.now.surely_past(session.expiry_ns)",
            "bounds.now.latest <= session.expiry_ns",
        ),
        "sessions",
        "together",
    ),
    Mutant(
        "a session lease that is over is renewed",
        one(
            sessions,
            "renewed",
            "if session.over is not None:",
            "session = msgspec.structs.replace(session, over=None)\nif session.over is not None:",
        ),
        "sessions",
        "together",
    ),
    Mutant(
        "a session lease that is dropped brings no floor",
        one(sessions, "SessionRecord.brings", "return (self.over.watermark_ns or 0, 0)", "return (0, 0)"),
        "exclusion",
        "together",
    ),
)
