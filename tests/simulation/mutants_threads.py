"""Wrong versions of steps that only threads of one session notice. Each names the checker that kills it."""

from __future__ import annotations

from appliance.bag import writing
from appliance.session import session
from tests.simulation.mutant import Mutant, one

THREADS: tuple[Mutant, ...] = (
    Mutant(
        "two threads append to one file of a bag at once",
        one(writing, "LogFileWriter._begin", "own = files.free.pop()", "own = files.free[-1]"),
        "published",
        "threads",
    ),
    Mutant(
        "what became of an attempt is noted once more by the thread that found it out later",
        one(
            session,
            "Session._account",
            "isinstance(outcome, Unknown) or self._pending.get(publication.attempt_id) is not publication",
            "isinstance(outcome, Unknown)",
        ),
        "bug",
        "threads",
    ),
    Mutant(
        "a message is stamped without the lock",
        one(session, "Session._stamped", "with self.keeper.lock:", "if True:"),
        "complete",
        "threads",
    ),
    Mutant(
        "another thread may write under a lease that is being given back",
        one(session, "Session._give_back", "lease.ended = lease.ended or 'relinquished'", "pass"),
        "complete",
        "threads",
    ),
    Mutant(
        "a lease is given back while another thread writes under it",
        (
            (session, "Session._give_back", "self._resolve_before_end(mine, until_boot_ns)", "pass"),
            (
                session,
                "Session._give_back",
                "doubtful = {lease for publication in self._pending.values() for lease in publication.leases}",
                "doubtful = set()",
            ),
        ),
        "complete",
        "threads",
    ),
)
